"""What a run does with the nodes of a family, read from the plan: nothing is said here that the plan does not decide.

One function a family; each returns what int8cal will do, as a sentence without its full stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from int8cal.graph.chains import find_chains
from int8cal.graph.layers import NO_KERNEL
from int8cal.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from int8cal.graph.chains import Chain
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan
    from int8cal.graph.recognize import FamilyPart

_FLOAT_WHERE_IT_COSTS = "--latency-allowance lets it leave some of them in float where that is measured to help"


@dataclass(frozen=True)
class PlannedModel:
    """What is known before any data: the prepared model's index, and its plan."""

    index: Index
    plan: Plan

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """The tensors whose channels can be rescaled."""
        return find_chains(self.index, self.plan)

    def on_integers(self, parts: Sequence[FamilyPart]) -> int:
        """How many of the nodes the plan has on integers."""
        return sum(any(part.node in plan.integer_nodes for plan in self.plan.graphs.values()) for part in parts)

    def rescaled(self, tensors: Collection[str]) -> int:
        """How many of the tensors lie in a chain, so that their channels can be brought to one size."""
        inside = {name for chain in self.chains for name in chain.tensors}
        return sum(name in inside for name in tensors)


def _of(count: int, total: int) -> str:
    return f"all {total}" if count == total > 1 else "it" if count == total else f"{count} of {total}"


def _split(parts: Sequence[FamilyPart], planned: PlannedModel, integer: str, stays: str) -> str:
    """Say how many nodes run on integers and how many stay float, and what that means for each."""
    total, count = len(parts), planned.on_integers(parts)
    told = []
    if count:
        told.append(f"{_of(count, total)} {'runs' if count == 1 else 'run'} on integers, {integer}")
    if count < total:
        told.append(f"{_of(total - count, total)} {'stays' if total - count == 1 else 'stay'} in float, {stays}")
    return "; ".join(told)


def detection_heads(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of heads: Concats stay float where no layer reads them."""
    joined = [part for part in parts if part.what.startswith("Concat")]
    others = [part for part in parts if part not in joined]
    told = []
    if joined:
        shared, apart = "where the parts share one scale", "so that each part keeps its own values"
        told.append(f"of the Concats, {_split(joined, planned, shared, apart)}")
        told.append("where a recipe scores a model, the parts of a Concat at an output count apart")
    if others:
        told.append(f"of the rest, {_split(others, planned, 'with a scale of its own', 'unrounded')}")
    return ". ".join(each[0].upper() + each[1:] for each in told)


def query_decoders(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of queries: products with weights are layers, what joins queries and image is none."""
    told = _split(parts, planned, "between the layers", "as do products of two activations")
    return (
        f"{told}. Layers with constant weights become int8; the search looks in front of the Sigmoid of the boxes too"
    )


def masks(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of masks: an Add or Where in front of a Softmax stays float."""
    return _split(parts, planned, "with one range over scores and masks", "so that no range holds a mask")


def norms(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of norms: each itself is float; its output is quantized, and may be rescaled."""
    ends = [part.tensors[0] for part in parts]
    quantized = [name for name in ends if planned.plan.tensor(name) is not None]
    if not quantized:
        return "they stay float, and nothing that they write is quantized"
    rescaled = planned.rescaled(quantized)
    told = f"the norm stays float, and {len(quantized)} of {len(ends)} outputs get codes for the products behind"
    return (
        f"{told}. At {rescaled} of these large channels can be made smaller, and their weights larger: tried by every "
        "recipe, measured by balanced and accurate, kept where validation samples are surely better. Residual codes "
        "are another way, within --latency-allowance"
    )


def depthwise(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of depthwise layers: the activation behind may be rescaled where a chain crosses it."""
    layers = planned.on_integers(parts)
    rescaled = planned.rescaled([part.tensors[-1] for part in parts])
    become = "it becomes" if layers == len(parts) == 1 else f"{_of(layers, len(parts))} become"
    return (
        f"{become} int8, with a scale for each channel's weights and one for all activations. At {rescaled or 'none'} "
        "the channels behind can be brought to one size, kept where validation samples are surely better; a Clip or a "
        "swish behind rules it out. --recipe accurate rounds the weights by what the layers read"
    )


def excitations(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of gates: a Mul has an integer kernel where a layer reads it."""
    told = _split(parts, planned, "the gate with codes of its own", "since something they read or write has no codes")
    return f"{told}. {_FLOAT_WHERE_IT_COSTS}"


def swishes(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of swishes: gate and Mul have integer kernels (a HardSigmoid is written as an Add)."""
    told = _split(
        parts,
        planned,
        "where Sigmoid and Mul each round once more",
        "where nothing but what the next layer reads is rounded",
    )
    return f"{told}. {_FLOAT_WHERE_IT_COSTS}" if planned.on_integers(parts) else told


def vocoders(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of vocoders: transposed convolutions are layers on targets that have a kernel for them."""
    reasons = {each.node: each.reason for each in planned.plan.unquantized}
    without = sum(reasons.get(part.node) == NO_KERNEL for part in parts)
    stays = (
        f"{without} of them because the runtime of this target has no integer kernel" if without else "see below why"
    )
    told = _split(parts, planned, "their weights with a scale for each output channel", stays)
    return (
        f"{told}. Convolutions between them become int8; --exclude leaves the last ones in float, where noise is heard"
    )


def tables(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of tables: those that weigh enough are offered as int8, which the holdout decides."""
    nodes = planned.index.nodes
    offered = {each.weight for each in planned.plan.embeddings}
    sizes = {nodes[part.node].input[0]: part.figure for part in parts if part.node in nodes}
    told = []
    for known, what in ((True, "int8 where the outputs keep what they had"), (False, "float, exact")):
        found = [size for name, size in sizes.items() if (name in offered) == known]
        if found:
            count = counted(len(found), "table")
            told.append(
                f"{count} of {sum(found) / 1e6:.1f} MB {'become' if known else 'stay'}{'' if found[1:] else 's'} {what}"
            )
    return "; ".join(told)


def embeddings(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of embeddings: pooling and dividing by the norm behind the last layer are float."""
    return _split(parts, planned, "between the layers", "so that only what the last layers wrote carries an error")


def recurrent(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of cells: weights become int8 in one of two forms, which the step "recurrent" decides."""
    cells = {each.node: each for plan in planned.plan.graphs.values() for each in plan.recurrent}
    found = [cells[part.node] for part in parts if part.node in cells]
    able = sum(not each.no_kernel for each in found)
    whose = "its weights" if len(parts) == 1 else "their weights"
    told = f"{whose} become int8" if len(found) == len(parts) else f"{whose} stay float"
    if 0 < len(found) < len(parts):
        told = f"the weights of {len(found)} of {len(parts)} become int8"
    if able:
        told += (
            f"; {able} could multiply integers, which is kept where it costs less than 0.5 dB or leaves 40 dB; inputs "
            "and states take their range from the values at hand"
        )
    return told


def skips(parts: Sequence[FamilyPart], planned: PlannedModel) -> str:
    """Tell of skips: a Concat on integers has one scale for what it joins."""
    told = _split(parts, planned, "with one scale over all that they join", "where each part keeps its own values")
    return f"{told}. {_FLOAT_WHERE_IT_COSTS}" if planned.on_integers(parts) else told
