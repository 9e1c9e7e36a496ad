"""`optimize: latency`: profile both models, look for layers that are slower in int8, and keep what really is faster."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from int8cal.errors import Int8calError
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import Optimization, OptimizedLayer
from int8cal.evaluation.turns import measure_turns
from int8cal.graph.signature import signature_of
from int8cal.runtime.batching import make_feed
from int8cal.runtime.profile import profile_kernels
from int8cal.runtime.sessions import Session
from int8cal.search.goals.latency import LayerCost, is_hopeless, reason, search
from int8cal.search.goals.layer_costs import layer_costs, layer_links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.runtime.batching import SampleLike

    Feed = dict[str, npt.NDArray[Any]]
    Build = Callable[[dict[str, str]], onnx.ModelProto]

_BUDGET_S = 1.6
_ROUNDS = 8


def optimize_latency(
    fp32: onnx.ModelProto, plan: Plan, build: Build, sample: SampleLike, *, threads: int = 0
) -> Optimization:
    """Find the layers without which the int8 model is fastest on this machine.

    Args:
        fp32: The prepared model.
        plan: The plan of the plain int8 model.
        build: Makes the int8 model that leaves layers in float: node name -> reason.
        sample: What to run.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        What was measured and decided. The plain int8 model is kept unless another one is faster beyond noise.

    Raises:
        ModelError: onnxruntime cannot load a model.
    """
    bench = _Bench(fp32, build, sample, threads)
    plain = build({})
    profiles = profile_kernels([fp32, plain], [bench.fp32_feed, bench.int8_feed(plain)], threads=threads)
    costs = layer_costs(plan, (profiles[0], fp32), (profiles[1], plain))
    bench.reasons = {cost.node: reason(cost) for cost in costs}
    left = search(costs, layer_links(fp32, plan), bench.compare)
    times = bench.times([None, frozenset(), left] if left else [None, frozenset()])
    return Optimization(
        fp32_us=times[0],
        plain_us=times[1],
        int8_us=times[-1],
        layers=tuple(_row(cost, left) for cost in costs),
        left={cost.node: reason(cost) for cost in costs if cost.node in left},
    )


def _row(cost: LayerCost, left: frozenset[str]) -> OptimizedLayer:
    if cost.node in left:
        decision = "float"
    else:
        decision = "int8" if cost.loss <= 0 else "int8, since float here did not make the model faster"
    return OptimizedLayer(cost.node, cost.op_type, cost.fp32_us, cost.int8_us, decision)


class _Bench:
    """Models by the layers that they leave in float, opened once each."""

    def __init__(self, fp32: onnx.ModelProto, build: Build, sample: SampleLike, threads: int) -> None:
        self.fp32, self.build, self.sample, self.threads = fp32, build, sample, threads
        self.fp32_feed = make_feed(signature_of(fp32), [sample])
        self.reasons: dict[str, str] = {}
        self.last: dict[frozenset[str] | None, Session] = {}
        self.feed = self.fp32_feed

    def int8_feed(self, int8: onnx.ModelProto) -> Feed:
        """Return the sample as an int8 model takes it."""
        return make_feed(signature_of(int8), list(feeds_for(int8, [self.sample])))

    def compare(self, before: frozenset[str], after: frozenset[str], gain: float) -> Sequence[float]:
        """Return per round the time of the first model / that of the second; empty where one cannot be built.

        Most proposals lose, and most of those soon: no further round is measured that could not change that.
        """

        def ratios(rounds: Sequence[tuple[float, ...]]) -> list[float]:
            return [first / second for first, second in rounds]

        try:
            sessions = [self._session(before), self._session(after)]
        except Int8calError:  # a layer that something else needs in int8: a pixel input, an equalized chain
            return ()
        rounds = measure_turns(
            sessions,
            [self.feed, self.feed],
            rounds=_ROUNDS,
            budget_s=_BUDGET_S,
            enough=lambda rounds: is_hopeless(ratios(rounds), _ROUNDS, gain),
        )
        self.last = {before: sessions[0]}  # one model is enough to hold
        return ratios(rounds)

    def times(self, models: Sequence[frozenset[str] | None]) -> list[float]:
        """Return microseconds of models; None is the FP32 model."""
        sessions = [self._session(left) for left in models]
        feeds = [self.fp32_feed if left is None else self.feed for left in models]
        rounds = measure_turns(sessions, feeds, budget_s=2 * _BUDGET_S)
        return [statistics.median(times) for times in zip(*rounds, strict=True)]

    def _session(self, left: frozenset[str] | None) -> Session:
        if left not in self.last:
            if left is None:
                model = self.fp32
            else:
                model = self.build({node: why for node, why in self.reasons.items() if node in left})
                self.feed = self.int8_feed(model)
            self.last[left] = Session(model, threads=self.threads)
        return self.last[left]
