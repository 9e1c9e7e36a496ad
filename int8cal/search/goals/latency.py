"""Which layers to leave in float because they are slower in int8: decided from measured times alone.

Kernel times only say where to look. What leaving a layer in float costs at its borders (Q, DQ, changes of layout) shows
when the whole model is measured, so that each proposal is held against the best model so far.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Protocol

    class Compare(Protocol):
        """Measures one model against another."""

        def __call__(self, before: frozenset[str], after: frozenset[str], gain: float) -> Sequence[float]:
            """Return per round the time of the first model / that of the second; empty where one cannot be built.

            It may stop as soon as `is_hopeless` for this gain.
            """


PROPOSALS = 8
ROUNDS = 3
_SINGLES = 4
_LEAST_GAIN = 1.01
_AGREEING = 0.75


@dataclass(frozen=True)
class LayerCost:
    """A layer's time per inference, with the Q, DQ and changes of layout at its borders.

    Attributes:
        fp32_us, int8_us: Microseconds in the FP32 model, and in the int8 model with every layer in int8.
    """

    node: str
    op_type: str
    fp32_us: float
    int8_us: float

    @property
    def loss(self) -> float:
        """Microseconds that int8 takes longer."""
        return self.int8_us - self.fp32_us


def is_faster(ratios: Sequence[float]) -> bool:
    """Tell whether a model is faster beyond noise.

    Args:
        ratios: Per round, time of the old model / time of the new one.

    Returns:
        True where the median gain is at least one percent and three rounds of four agree that there is one.
    """
    if not ratios:
        return False
    agreeing = sum(ratio > 1.0 for ratio in ratios)
    return statistics.median(ratios) >= _LEAST_GAIN and agreeing >= _AGREEING * len(ratios)


def is_hopeless(ratios: Sequence[float], rounds: int, gain: float) -> bool:
    """Tell whether no further rounds could make a model faster beyond noise, and by more than a gain.

    Args:
        ratios: Of the rounds so far, as in `is_faster`.
        rounds: How many there would be at most.
        gain: What the median has to exceed.
    """
    disagreeing = sum(ratio <= 1.0 for ratio in ratios)
    below = sum(ratio <= gain or ratio < _LEAST_GAIN for ratio in ratios)
    return disagreeing > (1 - _AGREEING) * rounds or below > rounds // 2


def proposals(
    costs: Sequence[LayerCost], links: Iterable[tuple[str, str]], left: Collection[str] = ()
) -> tuple[frozenset[str], ...]:
    """Propose sets of further layers to leave in float, the one that promises most first.

    Proposed are all layers slower in int8, each connected region of them, the head and the tail of the model that lose
    most, and the slowest single layers. Never proposed is what would leave no layer in int8.

    Args:
        costs: All layers in graph order.
        links: Pairs of layers of which one reads what the other writes.
        left: Layers that are in float already.
    """
    open_costs = [cost for cost in costs if cost.node not in left]
    losers = [cost for cost in open_costs if cost.loss > 0]
    nodes = [cost.node for cost in losers]
    found = [frozenset(nodes), *_regions(nodes, links)]
    found += [_head(open_costs), _head(open_costs[::-1])]
    found += [frozenset({cost.node}) for cost in sorted(losers, key=lambda cost: -cost.loss)[:_SINGLES]]
    loss = {cost.node: cost.loss for cost in costs}
    distinct = [each for each in dict.fromkeys(found) if each and len(each) < len(open_costs)]
    return tuple(sorted(distinct, key=lambda each: -sum(loss[node] for node in each))[:PROPOSALS])


def search(costs: Sequence[LayerCost], links: Iterable[tuple[str, str]], compare: Compare) -> frozenset[str]:
    """Find the layers without which the int8 model is fastest: greedily, in a few rounds.

    Args:
        costs: All layers in graph order.
        links: Pairs of layers of which one reads what the other writes.
        compare: Measures models, named by the layers that they leave in float.

    Returns:
        The layers to leave in float; empty where no proposal is faster beyond noise than the plain int8 model.
    """
    links = tuple(links)
    left: frozenset[str] = frozenset()
    for _ in range(ROUNDS):
        best, gain = left, 1.0
        for further in proposals(costs, links, left):
            ratios = compare(left, left | further, gain)
            if is_faster(ratios) and statistics.median(ratios) > gain:
                best, gain = left | further, statistics.median(ratios)
        if best == left:
            break
        left = best
    # chosen as the best of many: measured again, so that luck does not decide; a second time where the machine was busy
    confirmed = left and any(is_faster(compare(frozenset(), left, 1.0)) for _ in range(2))
    return left if confirmed else frozenset()


def reason(cost: LayerCost) -> str:
    """Say why a layer was left in float."""
    times = f"{cost.int8_us:.1f} µs against {cost.fp32_us:.1f} µs"
    return f"slower in int8: {times}" if cost.loss > 0 else f"between layers slower in int8, itself {times}"


def _head(costs: Sequence[LayerCost]) -> frozenset[str]:
    """Return the first layers whose times together lose most; empty where none do."""
    best, total, most = 0, 0.0, 0.0
    for count, cost in enumerate(costs, 1):
        total += cost.loss
        if total > most:
            best, most = count, total
    return frozenset(cost.node for cost in costs[:best])


def _regions(nodes: Sequence[str], links: Iterable[tuple[str, str]]) -> list[frozenset[str]]:
    region = {node: node for node in nodes}

    def root(node: str) -> str:
        while region[node] != node:
            node = region[node]
        return node

    for first, second in links:
        if first in region and second in region:
            region[root(second)] = root(first)
    groups: dict[str, set[str]] = {}
    for node in nodes:
        groups.setdefault(root(node), set()).add(node)
    return [frozenset(group) for group in groups.values()]
