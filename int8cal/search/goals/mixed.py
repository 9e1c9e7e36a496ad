"""Which layers leave int8 so that gates hold: those that make most noise per microsecond first, the fewest of them.

Nothing here measures time: costs are estimates that are the same on every machine, so that decisions are too.

A layer in float has exact weights. Its input is exact as well only where that exists as float: not where another
layer's integer kernel writes codes. So a layer may be taken together with the one in front of it.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

from int8cal.errors import TableError
from int8cal.probe.rounded import NoiseSource
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.quantization.derived_tables import without_noise_of
from int8cal.search.search import left_in_float, plan_without, with_clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from int8cal.graph.prepare import Prepared
    from int8cal.search.goals.optional_layers import OptionalLayer
    from int8cal.search.residual import ResidualGroup
    from int8cal.search.search import Result

LEAST_GAIN = 1e-4  # of the noise; less is not worth a layer in float
MOST_EVALUATIONS = 8
REASON = "in float so that the gates hold"
_FIRST_PART = 16  # the search starts with this part of what the budget allows


@dataclass(frozen=True)
class PrecisionMix:
    """The first so many steps away from int8.

    Attributes:
        floats, residual: Full names of layers in float, and of those whose input has residual codes; none is in both.
        percent: Estimated time that is added, of the int8 model's.
        gain: Share of the noise that is taken away by estimate.
    """

    floats: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()
    percent: float = 0.0
    gain: float = 0.0


@dataclass(frozen=True)
class Mixes(Sequence[PrecisionMix]):
    """The mixes of a planner, from nothing taken on: what each takes is a beginning of the same lists.

    Attributes:
        residual, floats: Layers in the order in which their inputs get residual codes, and in which they become float.
        ends: Of each mix: how many of either it takes, its percent and its gain (see `PrecisionMix`).
    """

    residual: tuple[str, ...]
    floats: tuple[str, ...]
    ends: tuple[tuple[int, int, float, float], ...]

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, number: int) -> PrecisionMix: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[PrecisionMix, ...]: ...

    def __getitem__(self, number: int | slice) -> PrecisionMix | tuple[PrecisionMix, ...]:
        if isinstance(number, slice):
            return tuple(self[each] for each in range(*number.indices(len(self))))
        residual, floats, percent, gain = self.ends[number]
        taken = frozenset(self.floats[:floats])
        names = tuple(node for node in self.residual[:residual] if node not in taken)
        return PrecisionMix(self.floats[:floats], names, percent, gain)

    def possible(self, prepared: Prepared, whole: Result) -> Mixes:
        """Return those that leave a layer in int8: one that is the last may be faster in float beside floats, too.

        Args:
            prepared, whole: As for `build_mix`.
        """

        def leaves_none(number: int) -> bool:
            try:
                plan_without(prepared, whole, dict.fromkeys(self[number].floats, REASON))
            except TableError:
                return True
            return False

        if not leaves_none(len(self) - 1):
            return self
        return replace(self, ends=self.ends[: bisect.bisect_left(range(len(self)), True, key=leaves_none)])


@dataclass
class MixPlanner:
    """Steps away from int8, each the one that takes away most noise per microsecond.

    Args:
        layers: Those that may stay float.
        groups: Those whose inputs may have residual codes: they get these before any layer becomes float.
        noise: Shares of the noise: of inputs and weights of layers, and of tensors that other nodes read.
        whole_us: Estimated microseconds of the int8 model.
        keep: Number of these layers that stay int8 at least.
    """

    layers: Sequence[OptionalLayer]
    groups: Sequence[ResidualGroup]
    noise: Mapping[NoiseSource, float]
    whole_us: float
    keep: int

    def mixes(self, budget: float) -> Mixes:
        """Add up steps within a budget; one that does not fit is left out, and a cheaper one behind it may still fit.

        Args:
            budget: In percent of the int8 model's estimated time; inf for all steps.

        Returns:
            The mixes, from nothing taken on.
        """
        ends, residual, floats = [(0, 0, 0.0, 0.0)], list[str](), list[str]()
        inputs = {each.node: self.noise.get(NoiseSource("input", each.node), 0.0) for each in self.layers}
        for group in sorted(self.groups, key=lambda each: (-self._saved(each) / each.us, each.nodes)):
            (_, _, before, gained), saved = ends[-1], self._saved(group)
            percent = before + 100 * group.us / self.whole_us
            if saved >= LEAST_GAIN and percent <= budget:
                residual += group.nodes
                ends.append((len(residual), 0, percent, gained + saved))
                inputs |= {node: self.noise[NoiseSource("input", node, residual=True)] for node in group.nodes}
        steps = _Steps(self.layers, inputs, self.noise)
        while (best := steps.best()) is not None:
            step, gain = best
            _, _, before, gained = ends[-1]
            percent = before + 100 * math.fsum(one.us for one in step) / self.whole_us
            # time only grows, and so does the number of layers: what does not fit now never will
            if percent > budget or len(floats) + len(step) > len(self.layers) - self.keep:
                continue
            steps.take(step)
            floats += [one.node for one in step]
            ends.append((len(residual), len(floats), percent, min(gained + gain, 1.0)))
        return Mixes(tuple(residual), tuple(floats), tuple(ends))

    def _saved(self, group: ResidualGroup) -> float:
        return math.fsum(
            self.noise[NoiseSource("input", node)] - self.noise[NoiseSource("input", node, residual=True)]
            for node in group.nodes
        )


class _Steps:
    """A layer alone, or together with one that makes its input float, in the order of what they gain per microsecond.

    What a step gains depends on the steps before it that have a tensor in common with it, and on no others: only these
    are weighed again, so that a model of thousands of layers is no work for minutes.
    """

    def __init__(
        self, layers: Sequence[OptionalLayer], inputs: Mapping[str, float], noise: Mapping[NoiseSource, float]
    ) -> None:
        """Weigh every step.

        Args:
            layers: Those that may stay float.
            inputs: Share of the noise that each layer's input has now, by node.
            noise: See `MixPlanner`.
        """
        self._inputs, self._noise = inputs, noise
        self._taken, self._freed, self._exact = set[str](), set[str](), set[str]()
        self._waiting: dict[str, list[float]] = {}  # tensor -> noise of layers in float that read its codes
        makers: dict[str, list[OptionalLayer]] = {}
        for each in layers:
            for tensor in each.freed:
                makers.setdefault(tensor, []).append(each)
        self._steps: list[tuple[OptionalLayer, ...]] = []
        for each in layers:
            self._steps.append((each,))
            if not each.free:
                before = (one for one in makers.get(each.layer.input, []) if one.node != each.node)
                self._steps += [(one, each) for one in before]
        self._by_tensor: dict[str, list[int]] = {}
        for number, step in enumerate(self._steps):
            for tensor in _tensors(step):
                self._by_tensor.setdefault(tensor, []).append(number)
        self._weights: list[int] = [0] * len(self._steps)  # how often each was weighed: older entries count no more
        self._heap: list[tuple[float, int, int, float]] = []
        for number in range(len(self._steps)):
            self._weigh(number)

    def best(self) -> tuple[tuple[OptionalLayer, ...], float] | None:
        """Return the step that gains most per microsecond, the first of equal ones, and its gain; each once."""
        while self._heap:
            _, number, weighed, gain = heapq.heappop(self._heap)
            step = self._steps[number]
            if weighed == self._weights[number] and not any(one.node in self._taken for one in step):
                return step, gain
        return None

    def take(self, step: Sequence[OptionalLayer]) -> None:
        """Let the layers of a step be float."""
        self._taken |= {one.node for one in step}
        for one in step:
            self._freed |= one.freed
            self._exact |= one.exact
        for one in step:
            if not one.free and one.layer.input not in self._freed:
                self._waiting.setdefault(one.layer.input, []).append(self._inputs[one.node])
        for tensor in self._freed & self._waiting.keys():
            del self._waiting[tensor]
        for number in {number for tensor in _tensors(step) for number in self._by_tensor[tensor]}:
            self._weigh(number)

    def _weigh(self, number: int) -> None:
        step = self._steps[number]
        if any(one.node in self._taken for one in step):
            return
        gain, us = self._gain(step), math.fsum(one.us for one in step)
        self._weights[number] += 1
        if gain >= LEAST_GAIN:
            heapq.heappush(self._heap, (-gain / us, number, self._weights[number], gain))

    def _gain(self, step: Sequence[OptionalLayer]) -> float:
        """Return the share of the noise that goes when the layers of a step are float too."""
        freed = frozenset[str]().union(*(each.freed for each in step))
        exact = frozenset[str]().union(*(each.exact for each in step)) - self._exact
        parts = [self._noise.get(NoiseSource("weights", each.node), 0.0) for each in step]
        parts += [
            self._inputs[each.node]
            for each in step
            if each.free or each.layer.input in freed or each.layer.input in self._freed
        ]
        for tensor in freed & self._waiting.keys():
            parts += self._waiting[tensor]
        parts += [self._noise.get(NoiseSource("others", tensor), 0.0) for tensor in exact]
        return math.fsum(parts)


def _tensors(step: Sequence[OptionalLayer]) -> frozenset[str]:
    return frozenset(tensor for one in step for tensor in (one.layer.input, *one.freed, *one.exact))


def fewest(top: int, holds: Callable[[int], bool]) -> int | None:
    """Find the lowest mix at which the gates hold: larger and larger steps up, then halving.

    Args:
        top: The highest mix.
        holds: Judges a mix above 0; at 0 the gates do not hold. Nearly monotonic.

    Returns:
        The mix; None where the gates hold at none that was tried, the highest among them.
    """
    if top < 1:
        return None
    low, high, count = 0, max(1, math.ceil(top / _FIRST_PART)), 1
    while not holds(high):
        if high == top:
            return None
        low, high, count = high, min(2 * high, top), count + 1
    while high - low > 1 and count < MOST_EVALUATIONS:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        count += 1
    return high


def needed(mixes: Iterable[PrecisionMix], factor: float) -> PrecisionMix | None:
    """Return the lowest mix that by estimate leaves no more than a part of the noise; None where none does.

    Args:
        mixes: Of a planner without budget.
        factor: Noise that may be left, of that with every layer in int8.
    """
    return next((mix for mix in mixes if 1.0 - mix.gain <= factor), None)


def build_mix(prepared: Prepared, whole: Result, mix: PrecisionMix) -> Result:
    """Build the model of a mix.

    Args:
        prepared: The prepared model.
        whole: The table with every layer in int8.
        mix: What is not plain int8.

    Raises:
        TableError: The mix leaves no layer in int8.
    """
    doubled: dict[str, list[str]] = {}
    for name in mix.residual:
        path, layer = whole.plan.ranged_layers[name]
        doubled.setdefault(path, []).append(layer.node)
    tables, plans = whole.table.graphs, whole.plan.graphs
    table = whole.table.with_graphs(
        {path: with_residual_codes(tables[path], plans[path], nodes) for path, nodes in doubled.items()}
    )
    table = with_clipped(table, whole.tensors)
    if mix.floats:
        tables, left = table.graphs, dict.fromkeys(mix.floats, REASON)
        whole = replace(whole, table=table)
        return left_in_float(prepared, whole, left, lambda path, *cut: without_noise_of(tables[path], *cut))
    built = build_model(prepared.model, whole.plan, table, whole.known)
    return replace(whole, table=with_weights(table, whole.plan, built), model=built.model, outputs={})
