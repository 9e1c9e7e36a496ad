"""Families of models, known by rules over the graph: what tends to go wrong in int8, what is done, what to look at.

A rule knows how nodes stand to each other (`recognize`), not names of models. What is done about a family is read from
the plan (`treatments`). The reason of each rule is measured in docs/families.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph import recognize, treatments
from int8cal.graph.scopes import scopes
from int8cal.phrases import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from int8cal.graph.recognize import FamilyPart
    from int8cal.graph.scopes import Scope
    from int8cal.graph.treatments import PlannedModel

_NAMED = 3  # nodes of a kind that are named


@dataclass(frozen=True)
class Rule:
    """One family.

    Attributes:
        name: For people.
        find: Yields the parts of it in one graph, see `recognize`.
        risk: What tends to go wrong in int8.
        treat: Says what a run does about it, see `treatments`.
        look: What to look at in the report, and what option changes the treatment.
        figure: What the largest of its parts' figures is; "" where they have none.
    """

    name: str
    find: Callable[[Scope], Iterator[FamilyPart]]
    risk: str
    treat: Callable[[Sequence[FamilyPart], PlannedModel], str]
    look: str
    figure: str = ""


RULES: tuple[Rule, ...] = (
    Rule(
        "detection head",
        recognize.detection_heads,
        "boxes count in pixels and scores lie between 0 and 1: with one scale for both, a score keeps a few codes or a "
        "single one, and nothing is found although SQNR and cosine look fine",
        treatments.detection_heads,
        "the figures of each group of an output rather than of all of it, and the gate outputs.dead",
    ),
    Rule(
        "decoder of queries",
        recognize.query_decoders,
        "hundreds of queries differ by little: an error in what they attend to moves a box, or lets another query win",
        treatments.query_decoders,
        "class and box outputs apart, and whether the best queries are the same ones",
    ),
    Rule(
        "attention masks",
        recognize.masks,
        "a range that holds the mask leaves all scores one code: attention becomes uniform",
        treatments.masks,
        "in models of other tools, the layers table at the masked scores",
        "lowest value {:.3g}",
    ),
    Rule(
        "normalization in front of products",
        recognize.norms,
        "a few channels are many times larger than the others and set the scale of all of them",
        treatments.norms,
        "the ranges of these tensors, and what the decisions say of equalization; --recipe balanced measures how far "
        "to equalize",
        "largest factor {:.3g} times the middle one",
    ),
    Rule(
        "depthwise convolutions",
        recognize.depthwise,
        "nothing mixes channels, so their sizes stay as far apart as they are, and one scale leaves the small ones few "
        "codes",
        treatments.depthwise,
        "these layers in the table of layers, and the spread of their weights' scales",
        "largest channel {:.3g} times the middle one",
    ),
    Rule(
        "squeeze and excite",
        recognize.excitations,
        "gates bring channels to different sizes, and one scale for all leaves the small ones few codes; the gates "
        "themselves round well",
        treatments.excitations,
        "the gates in the table of layers; --exclude names them where they are worst",
    ),
    Rule(
        "swish",
        recognize.swishes,
        "what lies between -0.28 and 0 shares its steps with a long positive side, in channels of different sizes; the "
        "gates themselves round well",
        treatments.swishes,
        "how many of them stand among the nodes in float, and the worst of the others in the table of layers",
    ),
    Rule(
        "vocoder",
        recognize.vocoders,
        "no decision lies behind the last layers: each of their rounding errors is a sample of the waveform, and heard "
        "where it pauses",
        treatments.vocoders,
        "SQNR of the waveform, and a metric of your own on the sound",
    ),
    Rule(
        "embedding tables",
        recognize.tables,
        "the file hardly shrinks where the table is most of it and stays float",
        treatments.tables,
        "size in the report",
    ),
    Rule(
        "embedding output",
        recognize.embeddings,
        "what tells rows of different samples apart is less than what all rows have in common: neighbours change "
        "places while the cosine to FP32 stays high",
        treatments.embeddings,
        "the share of samples whose nearest neighbour stays, not the cosine",
    ),
    Rule(
        "recurrent cells",
        recognize.recurrent,
        "an error of the state is read again at every step: long sequences may add up what short ones hide",
        treatments.recurrent,
        "the lines on these nodes among the decisions; evaluate on sequences as long as those in use",
    ),
    Rule(
        "skip connections",
        recognize.skips,
        "a Concat on integers has one scale for maps of different depth, and the smaller one loses codes",
        treatments.skips,
        "these Concats in the table of layers",
    ),
)


@dataclass(frozen=True)
class Family:
    """A rule, and where it holds in a model.

    Attributes:
        rule: Of RULES.
        parts: Where, in graph order.
        inside: How many of them lie in graphs inside of nodes or functions.
    """

    rule: Rule
    parts: tuple[FamilyPart, ...]
    inside: int = 0

    @property
    def where(self) -> str:
        """Say what was found where: counts, the names of some nodes, and what constants say."""
        kinds: dict[str, list[str]] = {}
        for part in self.parts:
            kinds.setdefault(part.what, []).append(part.node)
        told = [f"{_count(len(nodes))}{what} ({some(nodes, _NAMED)})" for what, nodes in kinds.items()]
        figures = [part.figure for part in self.parts if part.figure]
        if self.rule.figure and figures:
            told.append(self.rule.figure.format(max(figures, key=abs)))
        if self.inside:
            told.append(f"{self.inside} of them inside of other nodes")
        return "; ".join(told)


def _count(number: int) -> str:
    return f"{number} × " if number > 1 else ""  # noqa: RUF001 (a count)


def find_families(model: onnx.ModelProto) -> tuple[Family, ...]:
    """Find the families that a model belongs to, in the order of RULES.

    Args:
        model: Best a prepared one, whose nodes all have names and whose constants are folded.
    """
    found: dict[str, list[FamilyPart]] = {rule.name: [] for rule in RULES}
    inside = dict.fromkeys(found, 0)
    for scope in scopes(model):
        for rule in RULES:
            parts = list(rule.find(scope))
            found[rule.name] += parts
            inside[rule.name] += 0 if scope.main else len(parts)
    return tuple(Family(rule, tuple(found[rule.name]), inside[rule.name]) for rule in RULES if found[rule.name])
