"""Which islands of layers stay float: a few in front of a logarithm, say, whose eight bits drown all that follows.

An island is between float ops, so that in float it needs no Q and DQ: what it takes is its products' time, and bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.costs import float_us, inference_us, layer_float_us
from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes, find_islands

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import onnx

    from int8cal.graph.islands import Island
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan

LEAST_NOISE = 0.5  # of the noise: what the chosen islands have to hold together
LEAST_PART = 0.05  # of the noise: what each of them has to hold, or else half of what those before it leave
LEAST_DB = 3.0  # by which the score has to rise
MOST_BYTES = 0.25  # of the layers' weights in float: more than this is not added, whatever the allowance
MORE_BYTES = 3  # per weight that is float32 and not int8

# What became of something that takes time: verdicts in the lines about it.
TRIED, BEYOND = "tried", "more than --latency-allowance leaves"


def choose_islands(
    model: onnx.ModelProto,
    plan: Plan,
    elements: Mapping[str, float],
    noise: Mapping[str, float],
    allowance: float,
    *,
    others_us: float = 0.0,
    spent_us: float = 0.0,
    fixed: Collection[str] = (),
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Choose the islands that hold most of the noise, as long as the allowance of time, and as much of bytes, lasts.

    Args:
        model: The prepared model.
        plan: Its plan.
        elements: Values per inference of every planned tensor.
        noise: Share of the noise at the outputs, by group of tensors that share a scale.
        allowance: Fraction of the int8 model's estimated time; likewise of the bytes of all layers' weights in float.
        others_us: Estimated microseconds of the nodes that are in float whatever is chosen.
        spent_us: Estimated microseconds of the allowance that something else has taken.
        fixed: Layers and tensors that must not leave int8.

    Returns:
        The layers that are left in float together, each with the reason, none where islands that fit hold too little
        of the noise; and a line for each island that was looked at.
    """
    index = Index(model)
    whole_us = inference_us(model, plan, elements) + others_us
    whole_bytes = 4 * _weights(index, plan.weighted)
    left_us, left_bytes = allowance * whole_us - spent_us, min(allowance, MOST_BYTES) * whole_bytes
    taken: list[_Offer] = []
    lines: list[str] = []
    seen, rest = 0.0, 1.0
    for each in _offers(index, plan, elements, noise, fixed):
        if each.gain < min(LEAST_PART, LEAST_NOISE * rest):
            break
        seen += each.gain
        fits = each.us <= left_us and each.bytes <= left_bytes
        if fits:
            taken.append(each)
            left_us, left_bytes, rest = left_us - each.us, left_bytes - each.bytes, rest - each.gain
        lines.append(
            f"{each.what} would take away {100 * each.gain:.0f} % of the noise, for an estimated "
            f"{100 * each.us / whole_us:.1f} % more time and {100 * each.bytes / whole_bytes:.1f} % more bytes: "
            f"{TRIED if fits else BEYOND}"
        )
    if math.fsum(each.gain for each in taken) < LEAST_NOISE:
        # in a deep network no few islands hold much: nothing is said of these
        return {}, tuple(line for line in lines if seen >= LEAST_NOISE and not line.endswith(TRIED))
    left = {
        layer.node: f"{each.what} takes away {100 * each.gain:.0f} % of the noise"
        for each in taken
        for layer in each.island.layers
    }
    return left, tuple(lines)


def groups_of_islands(
    model: onnx.ModelProto | Index, plan: Plan, elements: Mapping[str, float], fixed: Collection[str] = ()
) -> set[str]:
    """Return the groups of tensors of islands that `choose_islands` may choose, whatever noise they hold."""
    offers = _offers(Index.of(model), plan, elements, {}, fixed)
    return {group for each in offers for group in each.island.groups}


@dataclass(frozen=True)
class _Offer:
    """An island, the share of the noise that it holds, and what it takes in float."""

    island: Island
    gain: float
    us: float
    bytes: int

    @property
    def what(self) -> str:
        first, *more = (layer.node for layer in self.island.layers)
        return f"float for {first}{f' and {len(more)} more' if more else ''} between float nodes"


def _offers(
    index: Index, plan: Plan, elements: Mapping[str, float], noise: Mapping[str, float], fixed: Collection[str]
) -> list[_Offer]:
    """Return the islands that may stay float, by their bytes too, those that hold most of the noise first."""
    most = MOST_BYTES * 4 * _weights(index, plan.weighted)
    found = []
    for each in find_islands(index, plan):
        names = {layer.node for layer in each.layers}
        names |= {tensor.tensor for group in each.groups for tensor in plan.members(group)}
        # without a tensor of the plan its range is no question: the user's, or that of raw pixels
        if not names.isdisjoint(fixed) or any(plan.tensor(layer.input) is None for layer in each.layers):
            continue
        more = MORE_BYTES * _weights(index, each.layers)
        if more > most:
            continue
        gain = math.fsum(noise.get(group, 0.0) for group in each.groups)
        found.append(_Offer(each, gain, _float_us(index, plan, each, elements), more))
    return sorted(found, key=lambda each: -each.gain)


def _float_us(index: Index, plan: Plan, island: Island, elements: Mapping[str, float]) -> float:
    """Estimate the microseconds that an island takes longer in float than on integers."""
    staying = plan.integer_nodes - {layer.node for layer in island.layers} - set(island.others)
    us = math.fsum(float_us(index.nodes[name], elements) for name in island.others)
    for layer in island.layers:
        before, behind = ends_in_codes(index, plan, layer, staying)
        us += layer_float_us(layer, elements[layer.input], codes_before=before, codes_behind=behind)
    return us


def _weights(index: Index, layers: Iterable[Layer]) -> int:
    """Count the weights of layers; those that several read count once."""
    return sum(math.prod(index.initializers[name].dims) for name in dict.fromkeys(layer.weight for layer in layers))
