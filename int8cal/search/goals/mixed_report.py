"""How a budget was spent, in words and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from int8cal.evaluation.result import MixedLayer
from int8cal.quantization.error_model import NoiseSource

if TYPE_CHECKING:
    from int8cal.graph.plan import Plan
    from int8cal.search.goals.mixed import MixPlanner, PrecisionMix

_OF_LAYERS: tuple[Literal["input", "weights"], ...] = ("input", "weights")


def describe_layers(
    plan: Plan, planner: MixPlanner, taken: PrecisionMix, budget: float, *, holds: bool
) -> tuple[MixedLayer, ...]:
    """Say of every layer how much noise it makes, and what became of it; the loudest first.

    Args:
        plan: With every layer in int8.
        planner: What was found out about them.
        taken: What was kept.
        budget: In percent.
        holds: Whether the gates hold with that.
    """
    us = {each.node: each.us for each in planner.layers}
    residual_us = {node: group.us / len(group.nodes) for group in planner.groups for node in group.nodes}
    rows = []
    for layer in plan.layers:
        node = layer.node
        percent = 100 * us.get(node, 0.0) / planner.whole_us
        if node in taken.floats:
            decision = "float"
        elif node in taken.planes:
            percent, decision = 100 * residual_us[node] / planner.whole_us, "int8 with a second plane of its input"
        elif node not in us:
            decision = "int8, since something else needs it so"
        else:
            decision = _why_int8(percent, budget, taken, holds=holds)
        noise = [planner.noise.get(NoiseSource(what, node), 0.0) for what in _OF_LAYERS]
        rows.append(MixedLayer(node, layer.op_type, sum(noise), percent, decision, in_float=node in taken.floats))
    return tuple(sorted(rows, key=lambda row: -row.contribution))


def _why_int8(percent: float, budget: float, taken: PrecisionMix, *, holds: bool) -> str:
    if taken.percent + percent > budget:
        return "int8, beyond the budget"
    return "int8, the gates hold without" if holds else "int8, little noise for its time"


def outcome_of(taken: PrecisionMix, budget: float, needed: float | None, *, holds: bool) -> str:
    """Say in one sentence how the search ended.

    Args:
        taken: What was kept.
        budget: In percent.
        needed: Budget that the gates would need by estimate.
        holds: Whether the gates hold.
    """
    kept = _parts(taken)
    if holds and not kept:
        return "the gates hold with every layer in int8"
    time = f"an estimated {taken.percent:.1f} % more time"
    if holds:
        return f"the gates hold with {kept}, {time}"
    best = f"the best within it has {kept}, {time}" if kept else "nothing that fits into it is better than int8"
    if needed is None:
        more = "the estimate knows of no budget that would"
    else:
        more = f"about {needed:.0f} % would be needed by estimate"
    return f"a budget of {budget:g} % does not suffice for the gates: {best}; {more}"


def _parts(taken: PrecisionMix) -> str:
    parts = []
    if taken.floats:
        parts.append(f"{len(taken.floats)} layer{'s' if len(taken.floats) > 1 else ''} in float")
    if taken.planes:
        parts.append(f"{len(taken.planes)} second plane{'s' if len(taken.planes) > 1 else ''}")
    return " and ".join(parts)
