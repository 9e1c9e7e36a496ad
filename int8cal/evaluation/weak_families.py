"""Where a family of models shows in the figures: its tensors are among the worst, or hold what needs two scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.families import find_families
from int8cal.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.evaluation.result import LayerMetrics
    from int8cal.graph.families import Family

WORST = 10  # layers that are looked at
# A layer below it is worth a word. The worst of any right int8 model of the zoo is at 18.3 dB (UltraFace), where the
# scores that come of it are at 42.9 dB; the report draws a layer as poor from 10 dB down.
WEAK_DB = 15.0


@dataclass(frozen=True)
class FamilyFinding:
    """A family of models that this one belongs to, where that shows in the figures.

    Attributes:
        family: Its name, as `inspect` has it.
        tensors: The quantized tensors in which it shows, worst first.
        what: What was found there, in a phrase.
        advice: What tends to go wrong there, and what to look at.
    """

    family: str
    tensors: tuple[str, ...]
    what: str
    advice: str


def weak_families(fp32: onnx.ModelProto, layers: Sequence[LayerMetrics]) -> tuple[FamilyFinding, ...]:
    """Find the families whose nodes are among the worst layers of an int8 model, or joined what must not share a scale.

    Args:
        fp32: The model before quantization, prepared or not.
        layers: Of the int8 model, any tool's.

    Returns:
        One finding a family at most, in the order of the rules; nothing where all layers are fine.
    """
    figures = {each.tensor: each.sqnr_db for each in layers}
    known = sorted((value, tensor) for tensor, value in figures.items() if value is not None)
    weak = {tensor: value for value, tensor in known[:WORST] if value < WEAK_DB}
    if not figures:
        return ()
    found = (_finding(family, weak, figures) for family in find_families(fp32))
    return tuple(each for each in found if each is not None)


def _finding(family: Family, weak: Mapping[str, float], figures: Mapping[str, float | None]) -> FamilyFinding | None:
    mixed = [name for part in family.parts if part.mixed for name in part.tensors if name in figures]
    own = {name for part in family.parts for name in part.tensors}
    tensors = mixed or [name for name in weak if name in own]
    if not tensors:
        return None
    if mixed:
        quantized = f"{counted(len(mixed), 'tensor is', 'tensors are')} quantized"
        what = f"{quantized} with one scale over values of very different size: {mixed[0]}"
    else:
        what = f"{len(tensors)} of the {WORST} worst layers, {tensors[0]} at {weak[tensors[0]]:.1f} dB"
    rule = family.rule
    return FamilyFinding(rule.name, tuple(tensors), what, f"{rule.risk[0].upper()}{rule.risk[1:]}. Look at {rule.look}")
