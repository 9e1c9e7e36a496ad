"""Which islands of layers compute in float: a few in front of a logarithm, say, whose eight bits drown what follows.

An island is between float ops, so that in float it needs no Q and DQ: what it takes is its products' time, and bytes of
weights. Where the model is of no use otherwise, any time may be taken, and large weights of convolutions stay int8 in
the file, which the runtime turns into floats when it loads the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.costs import float_us, inference_us, layer_float_us
from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes, find_islands
from int8cal.graph.passes.computed import noted_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import onnx

    from int8cal.graph.islands import Island
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan

LEAST_NOISE = 0.5  # of the noise: what the chosen islands have to hold together, if they are larger in float
# Of the noise, what each of them has to hold, or else half of what those before it leave, where time is bounded.
LEAST_PART = 0.05
LEAST_DB, WORTH_BYTES = 3.0, 0.1  # by how much the score has to rise, and for each such part of the float model's bytes
MOST_BYTES = 0.3  # of the float model's: more than this is not added, whatever that gains
USELESS_DB = 10.0  # below that, noise is more than a tenth of the signal
MORE_BYTES = 3  # per weight that is float32 and not int8
LEAST_STORED = 1024  # weights of a convolution that stay int8: what turns fewer into floats is as large as these
COMPUTED_BYTES = -1  # per weight that nodes compute from little where it is float32

# What became of something that takes time: verdicts in the lines about it.
TRIED, BEYOND, TOO_LARGE = "tried", "more than --latency-allowance leaves", "too many bytes"


@dataclass(frozen=True)
class Chosen:
    """Layers that are left in float together.

    Attributes:
        left: Their names, each with the reason.
        stored: Of these, those whose weights stay int8.
        lines: One for each island that was looked at.
        bytes: Fraction of the float model's bytes that they take more than in int8.
        us: Estimated microseconds that they take more.
    """

    left: Mapping[str, str]
    lines: tuple[str, ...]
    stored: frozenset[str] = frozenset()
    bytes: float = 0.0
    us: float = 0.0

    @property
    def least_db(self) -> float:
        """By how much the score has to rise; 0 where the model does not grow."""
        return LEAST_DB * max(self.bytes / WORTH_BYTES, 1.0) if self.bytes > 0 else 0.0


def choose_islands(
    model: onnx.ModelProto | Index,
    plan: Plan,
    elements: Mapping[str, float],
    noise: Mapping[str, float],
    allowance: float,
    most_bytes: float,
    *,
    others_us: float = 0.0,
    spent_us: float = 0.0,
    codes: Sequence[tuple[frozenset[str], float]] = (),
    fixed: Collection[str] = (),
) -> Chosen:
    """Choose the islands that hold most of the noise, as long as the allowances of time and bytes last.

    Args:
        model: The prepared model.
        plan: Its plan.
        elements: Values per inference of every planned tensor.
        noise: Share of the noise at the outputs, by group of tensors that share a scale.
        allowance: Fraction of the int8 model's estimated time; infinite for a model that is of no use otherwise.
        most_bytes: Fraction of the float model's bytes, `MOST_BYTES` at the most.
        others_us: Estimated microseconds of the nodes that are in float whatever is chosen.
        spent_us: Estimated microseconds of the allowance that something else has taken.
        codes: Residual codes among that: layers, and the microseconds that theirs take. Where all of these stay float
            they have none.
        fixed: Layers and tensors that must not leave int8.

    Returns:
        What was chosen: nothing where islands that fit hold too little of the noise.
    """
    index = Index.of(model)
    whole_us = inference_us(index.model, plan, elements) + others_us
    whole = whole_bytes(index, plan)
    most_us, left_bytes = allowance * whole_us - spent_us, most_bytes * whole
    taken: list[_Offer] = []
    lines: list[str] = []

    def freed_us(nodes: frozenset[str]) -> float:
        return math.fsum(us for own, us in codes if own <= nodes)

    seen, rest = 0.0, 1.0
    offers = _offers(index, plan, elements, noise, fixed, stored=allowance == math.inf)
    # first what hands back more time than it takes: others need it
    for each in sorted(offers, key=lambda each: each.us >= freed_us(each.nodes)):
        # shares may add up to more than all, since they are measured one by one
        cheap = allowance < math.inf and each.gain >= LEAST_NOISE * rest > 0.0
        if each.gain < LEAST_PART and not cheap:
            continue
        if len(plan.layers) == sum(len(other.island.layers) for other in (*taken, each)):
            break  # an int8 model without int8 is none
        seen += each.gain
        together = (*taken, each)
        nodes = frozenset[str]().union(*(other.nodes for other in together))
        needed_us = math.fsum(other.us for other in together) - freed_us(nodes)
        verdict = BEYOND if needed_us > most_us else TOO_LARGE if each.bytes > left_bytes else TRIED
        if verdict == TRIED:
            taken.append(each)
            left_bytes, rest = left_bytes - each.bytes, rest - each.gain
        time, size = each.us / whole_us, each.bytes / whole
        lines.append(
            f"{each.what} would take away {100 * each.gain:.0f} % of the noise, for an estimated {100 * time:.1f} % "
            f"more time and {100 * size:.1f} % more bytes: {verdict}"
        )
    if math.fsum(each.gain for each in taken) < LEAST_NOISE:
        # in a deep network no few islands hold much; those that are no larger in float need not
        taken = [each for each in taken if each.bytes <= 0]
    if not taken:
        # nothing is said of these
        return Chosen({}, tuple(line for line in lines if seen >= LEAST_NOISE and not line.endswith(TRIED)))
    left = {
        layer.node: f"{each.what} takes away {100 * each.gain:.0f} % of the noise"
        for each in taken
        for layer in each.island.layers
    }
    stored = frozenset(node for each in taken for node in each.stored)
    more = sum(each.bytes for each in taken) / whole
    return Chosen(left, tuple(lines), stored, more, math.fsum(each.us for each in taken))


def groups_of_islands(
    model: onnx.ModelProto | Index,
    plan: Plan,
    elements: Mapping[str, float],
    fixed: Collection[str] = (),
    *,
    stored: bool = False,
) -> set[str]:
    """Return the groups of tensors of islands that `choose_islands` may choose, whatever noise they hold.

    Args:
        model, plan, elements, fixed: As there.
        stored: Whether large weights of convolutions stay int8.
    """
    offers = _offers(Index.of(model), plan, elements, {}, fixed, stored=stored)
    return {group for each in offers for group in each.island.groups}


@dataclass(frozen=True)
class _Offer:
    """An island, the share of the noise that it holds, what it takes in float, and whose weights stay int8."""

    island: Island
    gain: float
    us: float
    bytes: int
    stored: frozenset[str]

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(layer.node for layer in self.island.layers)

    @property
    def what(self) -> str:
        first, *more = (layer.node for layer in self.island.layers)
        return f"float for {first}{f' and {len(more)} more' if more else ''} between float nodes"


def _offers(
    index: Index,
    plan: Plan,
    elements: Mapping[str, float],
    noise: Mapping[str, float],
    fixed: Collection[str],
    *,
    stored: bool,
) -> list[_Offer]:
    """Return the islands that may stay float, by their bytes too, those that hold most of the noise first."""
    most, computed = MOST_BYTES * whole_bytes(index, plan), noted_names(index.model)
    found = []
    for each in find_islands(index, plan):
        names = {layer.node for layer in each.layers}
        names |= {tensor.tensor for group in each.groups for tensor in plan.members(group)}
        # without a tensor of the plan its range is no question: the user's, or that of raw pixels
        if not names.isdisjoint(fixed) or any(plan.tensor(layer.input) is None for layer in each.layers):
            continue
        kept = frozenset(layer.node for layer in each.layers if stored and _can_be_stored(layer, computed))
        sizes = _weights(index, (layer for layer in each.layers if layer.node not in kept))
        more = sum(size * (COMPUTED_BYTES if name in computed else MORE_BYTES) for name, size in sizes.items())
        if more > most:
            continue
        gain = math.fsum(noise.get(group, 0.0) for group in each.groups)
        found.append(_Offer(each, gain, _float_us(index, plan, each, elements), more, kept))
    return sorted(found, key=lambda each: -each.gain)


def _can_be_stored(layer: Layer, computed: Collection[str]) -> bool:
    # of a product, the runtime would make one with blocks of codes, which rounds what it reads
    return layer.op_type == "Conv" and math.prod(layer.dims) >= LEAST_STORED and layer.weight not in computed


def _float_us(index: Index, plan: Plan, island: Island, elements: Mapping[str, float]) -> float:
    """Estimate the microseconds that an island takes longer in float than on integers."""
    staying = plan.integer_nodes - {layer.node for layer in island.layers} - set(island.others)
    us = math.fsum(float_us(index.nodes[name], elements) for name in island.others)
    for layer in island.layers:
        before, behind = ends_in_codes(index, plan, layer, staying)
        us += layer_float_us(layer, elements[layer.input], codes_before=before, codes_behind=behind)
    return us


def whole_bytes(index: Index, plan: Plan) -> int:
    """Return the bytes of a float model: of the weights that the plan makes int8, and of its nodes."""
    nodes: int = sum(node.ByteSize() for node in index.graph.node)
    others = {each.weight for each in plan.embeddings} | {name for each in plan.recurrent for name in each.tensors}
    sizes: dict[str, int] = {name: math.prod(index.initializers[name].dims) for name in others}
    return nodes + 4 * sum((sizes | _weights(index, plan.weighted)).values())


def bytes_worth_db(saved: int, index: Index, plan: Plan) -> float:
    """Return what bytes are worth in decibels: as much as layers have to gain that stay float for them."""
    return byte_worth_db(index, plan) * saved


def byte_worth_db(index: Index, plan: Plan) -> float:
    """Return `bytes_worth_db` of one byte."""
    return LEAST_DB / whole_bytes(index, plan) / WORTH_BYTES


def _weights(index: Index, layers: Iterable[Layer]) -> dict[str, int]:
    """Count the values of each weight of layers."""
    return {layer.weight: math.prod(index.initializers[layer.weight].dims) for layer in layers}
