"""`optimize: latency`: which layers stay in float because they are slower in int8, decided from measured times alone.

Kernel times only say where to look. What leaving a layer in float costs at its borders (Q, DQ, changes of layout) shows
when the whole model is measured, so that each proposal is held against the best model so far.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from int8cal.errors import Int8calError
from int8cal.evaluation.latency import LayerCost, layer_costs, layer_links, measure_interleaved
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import Optimization, OptimizedLayer
from int8cal.graph.bodies import with_full_names
from int8cal.graph.index import connected
from int8cal.graph.load import model_digest
from int8cal.graph.signature import signature_of
from int8cal.numerics.intervals import ratio_interval
from int8cal.quantization.derived_tables import without_layers
from int8cal.runtime.batching import make_feed
from int8cal.runtime.profile import profile_kernels
from int8cal.runtime.sessions import Session
from int8cal.search.search import left_in_float

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import onnx

    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.evaluation.latency import LayerCost
    from int8cal.graph.prepare import Prepared
    from int8cal.runtime.batching import Arrays, SampleLike
    from int8cal.search.search import Result

    # Measures one model against another, each named by the layers that it leaves in float, and a gain to exceed: gives
    # per round the time of the first / that of the second; empty where one cannot be built. It may stop as soon as
    # `is_hopeless` for this gain.
    Compare = Callable[[frozenset[str], frozenset[str], float], Sequence[float]]

_PROPOSALS, _SINGLES = 8, 4  # of regions in a round of the search, and of single layers among them
_BORDERS = 6  # costs of a border that stretches are proposed for, each half of the one before
_SEARCH_ROUNDS = 3
_LEAST_GAIN = 1.01
_AGREEING = 0.75
_BUDGET_S, _TIMED_ROUNDS = 1.6, 8  # of measuring one model against another
_WHOLE = "the whole model is slower in int8"
_ALL_FLOAT = "optimize found no int8 model faster than the FP32 model on this machine: every layer stays in float"


def leave_slow_layers(
    prepared: Prepared,
    results: tuple[Result, Result],
    sample: SampleLike,
    *,
    threads: int,
    checkpoint: Checkpoint | None,
) -> tuple[Result, Optimization]:
    """Find the layers without which the int8 model is fastest on this machine, and write down in the table which.

    Args:
        prepared: The prepared model.
        results: As calibrated, and without equalization.
        sample: What to run. Layers in bodies of If, Loop and Scan that it does not run stay as they are.
        threads: Threads of the runtime; 0 for all CPUs.
        checkpoint: Remembers what was measured, where the run is killed after that; None for nothing.

    Returns:
        The table and its model, and what was measured and decided. The plain int8 model is kept unless another one is
        surely faster; where float is surely faster than both, every layer stays in float, recurrent ones too.

    Raises:
        ModelError: onnxruntime cannot load a model.
    """
    whole, unscaled = results
    graphs, tables, plain = prepared.graphs, whole.table.graphs, unscaled.table.graphs

    def rebuilt(left: dict[str, str]) -> Result:
        if not left:
            return whole
        return left_in_float(
            prepared,
            whole,
            left,
            lambda path, *cut: without_layers(graphs[path], tables[path], plain[path], *cut),
            may_be_float=True,
        )

    key = f"latency/{model_digest(whole.model)}" if checkpoint else ""
    known = checkpoint.recall(key) if checkpoint else None
    if known is not None:
        found = TypeAdapter(Optimization).validate_json(known["measured"].tobytes())
    else:
        found = _measured(prepared, whole, rebuilt, sample, threads)
        if checkpoint:
            checkpoint.note(key, measured=np.frombuffer(json.dumps(asdict(found)).encode(), np.uint8))
    result = rebuilt(found.left)
    table = result.table
    if found.all_float:
        table = replace(table, warnings=(*table.warnings, _ALL_FLOAT))
    elif found.int8_us > _LEAST_GAIN * found.fp32_us:
        slow = f"{found.int8_us:.1f} µs against {found.fp32_us:.1f} µs"
        slow = f"optimize found the int8 model slower than the FP32 model on this machine: {slow}"
        table = replace(table, warnings=(*table.warnings, slow))
    before = whole.table.every_tensor
    changed = {name for name, entry in table.every_tensor.items() if entry != before[name]}
    tensors = {name: unscaled.tensors[name] if name in changed else each for name, each in result.tensors.items()}
    methods = {name: ranges for name, ranges in result.methods.items() if name not in changed}
    return replace(result, table=table, tensors=tensors, methods=methods), found


def _measured(
    prepared: Prepared,
    whole: Result,
    rebuilt: Callable[[dict[str, str]], Result],
    sample: SampleLike,
    threads: int,
) -> Optimization:
    """Look for the layers by measuring; `rebuilt` makes the result without layers, each with its reason."""
    fp32, plan, graphs = prepared.model, whole.plan, prepared.graphs
    models = [fp32, whole.model]
    named = [with_full_names(model) for model in models]
    profiles = profile_kernels(named, [_feed(model, sample) for model in models], threads=threads)
    costs = layer_costs(plan, (profiles[0], named[0].shell), (profiles[1], named[1].shell))
    reasons = {cost.node: reason(cost) for cost in costs}
    reasons |= {node: _WHOLE for node in plan.weighted_nodes if node not in reasons}

    def why(left: frozenset[str]) -> dict[str, str]:
        return {node: text for node, text in reasons.items() if node in left}

    bench = _Bench(fp32, lambda left: rebuilt(why(left)).model, sample, threads)
    inside = sum(cost.loss for cost in costs)
    whole_us = [sum(profile.kernels.values()) for profile in profiles]
    best = search_layers(costs, layer_links(graphs, plan), bench.compare, whole_us[1] - whole_us[0] - inside)
    # chosen as the best of many: measured again, so that luck does not decide; a second time where the machine was
    # busy, or float seems to be faster, but not surely
    for _ in range(2):
        fp32_us, plain_us, *more = bench.times([None, frozenset(), best] if best else [None, frozenset()])
        sure = not best or is_surely_faster(plain_us, more[0])
        kept_us = more[0] if best and sure else plain_us
        is_slower = is_surely_faster(kept_us, fp32_us)
        if sure and (is_slower or statistics.median(kept_us) <= statistics.median(fp32_us)):
            break
    left = why(best if sure else frozenset())
    if is_slower and bench.opens(frozenset(reasons)):
        times = f"{statistics.median(kept_us):.1f} µs against {statistics.median(fp32_us):.1f} µs"
        losers = why(frozenset(cost.node for cost in costs if cost.loss > 0))
        left, kept_us = dict.fromkeys(reasons, f"{_WHOLE}: {times}") | losers, fp32_us
    given_up = best and set(left) != best
    return Optimization(
        fp32_us=statistics.median(fp32_us),
        plain_int8_us=statistics.median(plain_us),
        int8_us=statistics.median(kept_us),
        left=left,
        rows=tuple(_row(cost, left) for cost in costs),
        given_up=tuple(sorted(best)) if given_up else (),
        given_up_us=statistics.median(more[0]) if given_up else None,
    )


def _row(cost: LayerCost, left: Collection[str]) -> OptimizedLayer:
    if cost.node in left:
        decision = "float"
    else:
        decision = "int8" if cost.loss <= 0 else "int8, since float here did not make the model faster"
    return OptimizedLayer(cost.node, cost.op_type, cost.fp32_us, cost.int8_us, decision)


@dataclass
class _Bench:
    """Models by the layers that they leave in float, opened once each; None is the FP32 model."""

    fp32: onnx.ModelProto
    build: Callable[[frozenset[str]], onnx.ModelProto]
    sample: SampleLike
    threads: int
    opened: dict[frozenset[str] | None, tuple[Session, Arrays]] = field(default_factory=dict)

    def compare(self, before: frozenset[str], after: frozenset[str], gain: float) -> Sequence[float]:
        """Return per round the time of the first model / that of the second; empty where one cannot be built.

        Most proposals lose, and most of those soon: no further round is measured that could not change that.
        """

        def ratios(rounds: Sequence[tuple[float, ...]]) -> list[float]:
            return [first / second for first, second in rounds]

        if not (self.opens(before) and self.opens(after)):
            return ()
        models = [self._open(before), self._open(after)]
        sessions, feeds = zip(*models, strict=True)
        rounds = measure_interleaved(
            sessions,
            feeds,
            rounds=_TIMED_ROUNDS,
            budget_s=_BUDGET_S,
            enough=lambda rounds: is_hopeless(ratios(rounds), _TIMED_ROUNDS, gain),
            threads=self.threads,
        )
        self.opened = {before: models[0]}  # one model is enough to hold
        return ratios(rounds)

    def opens(self, left: frozenset[str]) -> bool:
        """Say whether there is a model without these layers."""
        try:
            self._open(left)
        except Int8calError:  # a layer that something else needs in int8: a pixel input, an equalized chain
            return False
        return True

    def times(self, models: Sequence[frozenset[str] | None]) -> list[tuple[float, ...]]:
        """Return microseconds of each model, round by round."""
        sessions, feeds = zip(*(self._open(left) for left in models), strict=True)
        rounds = measure_interleaved(sessions, feeds, budget_s=2 * _BUDGET_S, threads=self.threads)
        return list(zip(*rounds, strict=True))

    def _open(self, left: frozenset[str] | None) -> tuple[Session, Arrays]:
        if left not in self.opened:
            model = self.fp32 if left is None else self.build(left)
            self.opened[left] = Session(model, threads=self.threads, timed=True), _feed(model, self.sample)
        return self.opened[left]


def _feed(model: onnx.ModelProto, sample: SampleLike) -> Arrays:
    """Return the sample as a model takes it."""
    return make_feed(signature_of(model), list(feeds_for(model, [sample])))


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


def is_surely_faster(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether a model is faster than another one, of which it was measured in the same rounds.

    Args:
        before, after: Microseconds of the old and of the new model, round by round.

    Returns:
        True where the 95 % interval of their ratio lies above 1; so does then the ratio of their medians.
    """
    interval = ratio_interval(before, after, statistics.median(before) / statistics.median(after))
    return interval is not None and interval[0] > 1.0


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
    costs: Sequence[LayerCost], links: Iterable[tuple[str, str]], left: Collection[str] = (), rest_us: float = 0.0
) -> tuple[frozenset[str], ...]:
    """Propose sets of further layers to leave in float, the one that promises most first.

    Proposed are all layers slower in int8, each connected region of them, the slowest single layers, and what is best
    if each change between float and int8 from one layer to the next costs something, for a few such costs: the higher,
    the longer the stretches. What the int8 model takes longer outside of its layers counts in half of those. Where all
    layers should be float, the one that gains most is left.

    Args:
        costs: All layers in graph order.
        links: Pairs of layers of which one reads what the other writes.
        left: Layers that are in float already.
        rest_us: Microseconds that the int8 model takes longer and that are of no layer.
    """
    open_costs = [cost for cost in costs if cost.node not in left]
    losers = [cost for cost in open_costs if cost.loss > 0]
    nodes = [cost.node for cost in losers]
    found = [frozenset(nodes), *map(frozenset, connected(nodes, links))]
    found += [frozenset({cost.node}) for cost in sorted(losers, key=lambda cost: -cost.loss)[:_SINGLES]]
    distinct = [each for each in dict.fromkeys(found) if each and len(each) < len(open_costs)]
    loss = {cost.node: cost.loss for cost in losers}
    parts = sorted(distinct, key=lambda each: -sum(loss[node] for node in each))[:_PROPOSALS]
    return tuple(dict.fromkeys((*parts[:1], *_in_stretches(costs, left, rest_us), *parts)))


def _in_stretches(costs: Sequence[LayerCost], left: Collection[str], rest_us: float) -> Iterator[frozenset[str]]:
    """Propose stretches of the layers that are not in float yet, see `proposals`; the longest ones first."""
    held = [cost.node in left for cost in costs]
    share = rest_us / (sum(cost.int8_us for cost, was in zip(costs, held, strict=True) if not was) or 1.0)
    for more in dict.fromkeys((0.0, max(share, 0.0))):
        losses = [cost.loss + more * cost.int8_us for cost in costs]
        most = max(map(abs, losses), default=0.0)
        for halved in range(_BORDERS):
            chosen = stretches(losses, held, most / 2**halved)
            further = [cost for cost, float_, was in zip(costs, chosen, held, strict=True) if float_ and not was]
            if len(further) == held.count(False) > 0:
                further.remove(min(further, key=lambda cost: cost.loss))
            if further:
                yield frozenset(cost.node for cost in further)


def stretches(losses: Sequence[float], fixed: Sequence[bool], border: float) -> list[bool]:
    """Choose the layers to leave in float so that the time won, less a cost for each change along the way, is largest.

    Args:
        losses: What each layer wins in float, in graph order.
        fixed: Which layers are in float already.
        border: What a change between one layer and the next costs.
    """
    best = (0.0, 0.0)  # of all layers so far where the last one is int8, and float
    came: list[tuple[bool, bool]] = []  # from which choice for the layer before
    for loss, is_float in zip(losses, fixed, strict=True):
        from_float = (best[1] - border > best[0], best[1] >= best[0] - border)
        int8, float_ = (max(best[side], best[1 - side] - border) for side in (0, 1))
        came.append(from_float)
        best = (-math.inf if is_float else int8, float_ + loss)
    chosen = []
    now = best[1] > best[0]
    for each in reversed(came):
        chosen.append(now)
        now = each[now]
    return chosen[::-1]


def search_layers(
    costs: Sequence[LayerCost], links: Iterable[tuple[str, str]], compare: Compare, rest_us: float = 0.0
) -> frozenset[str]:
    """Find the layers without which the int8 model is fastest: greedily, in a few rounds.

    Args:
        costs: All layers in graph order.
        links: Pairs of layers of which one reads what the other writes.
        compare: Measures models, named by the layers that they leave in float.
        rest_us: See `proposals`.

    Returns:
        The layers to leave in float, the best of many and so not yet to be trusted; empty where no proposal is faster
        beyond noise than the plain int8 model.
    """
    links = tuple(links)
    left: frozenset[str] = frozenset()
    for _ in range(_SEARCH_ROUNDS):
        best, gain = left, 1.0
        for further in proposals(costs, links, left, rest_us):
            ratios = compare(left, left | further, gain)
            if is_faster(ratios) and statistics.median(ratios) > gain:
                best, gain = left | further, statistics.median(ratios)
        if best == left:
            break
        left = best
    return left


def reason(cost: LayerCost) -> str:
    """Say why a layer was left in float."""
    times = f"{cost.int8_us:.1f} µs against {cost.fp32_us:.1f} µs"
    return f"slower in int8: {times}" if cost.loss > 0 else f"between layers slower in int8, itself {times}"
