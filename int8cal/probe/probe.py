"""What the float model's tensors hold on samples, and what errors in some of them do where the model is scored.

No new model is made per error: there is an optional input at every place where an error can enter, and nothing in front
of it is run again. Errors of different tensors have little to do with each other, so their powers add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.calibration.engines.parts import Numbered
from int8cal.errors import DataError
from int8cal.graph.index import Index, attribute
from int8cal.numerics.affine import affine_of_values, fake_quantized
from int8cal.probe.noise import ReferenceOutputs, relative, weights_of
from int8cal.probe.score_points import output_points, score_points, tensors_of
from int8cal.probe.stages import Stages
from int8cal.protos import PackedModel, copied
from int8cal.runtime.batching import batch_size, make_feed, naming_samples
from int8cal.runtime.sessions import Session
from int8cal.threads import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from int8cal.calibration.engines.ray import Cluster
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array, Float32, Float64
    from int8cal.numerics.affine import Affine
    from int8cal.probe.injection import ErrorSite
    from int8cal.probe.stages import RunValues
    from int8cal.runtime.batching import Arrays, SampleLike

    # what is rounded together: sites, and the affine of the codes that are read there; None for the range of the values
    # at hand, as DynamicQuantizeLinear takes it
    RoundedSites = Mapping[ErrorSite, Affine | None]


ELSEWHERE_S = 5.0  # estimated, of roundings at a time: fewer take a cluster no less, whose workers start first
_KEPT_BYTES = 128_000_000  # of runs without errors that are kept for the next roundings of the same samples


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the float model without errors.

    Attributes:
        feed: Of the model.
        values: Tensors that the probe shows, graph inputs among them.
        reference: What the points of the probe hold.
    """

    feed: Arrays
    values: RunValues
    reference: ReferenceOutputs


@dataclass
class Probe:
    """Runs the float model with and without errors.

    Args:
        model: The prepared (and equalized) model.
        plan: Its plan.
        signature: Its inputs.
        threads: Of the runtime; 0 for all CPUs.
        behind_layers: Errors can enter behind layers as well, before their activations.
        shown: Tensors whose values are of interest; None for all planned ones.
        at_outputs: Errors are measured at the model's real outputs, else where it is scored (see `score_points`).
        cluster: Runs roundings that take ELSEWHERE_S and more; None for this process alone. No bit depends on it.
        run_s: Estimated seconds of a run with errors, for that.
    """

    model: onnx.ModelProto
    plan: Plan
    signature: Signature
    threads: int = 0
    behind_layers: bool = False
    shown: Iterable[str] | None = None
    at_outputs: bool = False
    cluster: Cluster | None = None
    run_s: float = 0.0
    _kept: dict[int, tuple[SampleLike, Run]] = field(default_factory=dict, init=False, repr=False)  # by id

    def __post_init__(self) -> None:
        self.points = output_points(self.model) if self.at_outputs else score_points(self.model)
        self._outputs = tensors_of(self.points)
        planned = (each.tensor for each in self.plan.tensors)
        self._shown = list(dict.fromkeys(planned if self.shown is None else self.shown))

    @property
    def sites(self) -> frozenset[ErrorSite]:
        """Where errors can be added."""
        return self._stages.sites

    def run(self, group: Sequence[SampleLike], sample: object = None) -> Run:
        """Run the model without errors.

        Args:
            group: One sample, or as many as the model's batch takes.
            sample: Knows what is padding and does not count; None for nothing.
        """
        feed = make_feed(self.signature, group)
        with naming_samples(group):
            values, ends = self._stages.clean_run(feed)
        return Run(feed, values, ReferenceOutputs.of(self.points, feed | ends, sample))

    def runs(self, samples: Sequence[SampleLike]) -> list[Run]:
        """Run samples in groups of the model's batch."""
        size = batch_size(self.signature)
        return [
            self.run(samples[start : start + size], samples[start] if size == 1 else None)
            for start in range(0, len(samples), size)
        ]

    def noise(self, run: Run, errors: Mapping[ErrorSite, Array]) -> Float64:
        """Return the squared errors at the points, (points,), when errors of a site's shape are added to a run.

        Where sizes follow from values, as those of speech from the durations that a model predicts, an error may change
        the shape of a tensor that the next is added to, or of an output: it counts as one as large as the values.
        """
        return self._measured(run, errors, errors.__getitem__)

    def noises(self, runs: Iterable[tuple[Run, Mapping[ErrorSite, Array]]]) -> Iterator[Float64]:
        """Return what `noise` does for each run with its errors, in order; some go on at the same time."""
        return in_order(lambda each: self.noise(*each), runs, self._stages.at_once)

    def relative_noise(self, runs: Sequence[Run], errors: Sequence[Mapping[ErrorSite, Array]]) -> float:
        """Return squared error over squared value of runs with errors added to each; see `noise.relative`."""
        noise = sum(self.noises(zip(runs, errors, strict=True)))
        signal = np.sum([run.reference.power for run in runs], axis=0) / weights_of(self.points)
        return float(relative(np.asarray(noise), signal))

    def rounding_noise(
        self, samples: Sequence[SampleLike], roundings: Sequence[RoundedSites]
    ) -> tuple[Float64, Float64]:
        """Run every rounding on every sample.

        Args:
            samples: One inference each.
            roundings: What is rounded, each by itself.

        Returns:
            Squared errors at the points, float64 (roundings, samples, points), and squared values without, (samples,
            points). Only what is finite without errors counts. A sample whose error is not finite counts as one as
            large as its values.
        """
        errors = np.zeros((len(roundings), len(samples), len(self.points)))
        signal = np.zeros((len(samples), len(self.points)))
        if not self.points:
            return errors, signal
        if self.cluster is None or len(samples) * len(roundings) * self.run_s < ELSEWHERE_S:
            found = self.each_rounding(samples, roundings, range(len(samples) * len(roundings)))
        else:
            packed = PackedModel.of(self.model)
            work = RoundingWork(packed, self.plan, self.signature, self.behind_layers, tuple(samples), tuple(roundings))
            names = [", ".join({site.tensor: site for site in rounding}) for rounding in roundings]
            found = self.cluster.each(work, Numbered("noise of tensors", names * len(samples)))
        for number, (noise, exact) in enumerate(found):
            row, index = divmod(number, len(roundings))
            errors[index, row], signal[row] = noise, exact
        return errors, signal

    def each_rounding(
        self, samples: Sequence[SampleLike], roundings: Sequence[RoundedSites], numbers: range
    ) -> Iterator[tuple[Float64, Float64]]:
        """Run some roundings, numbered sample by sample; see `rounding_noise`.

        Yields:
            Squared errors, and squared values without: (points,) both.
        """
        signals: dict[int, Float64] = {}  # of each sample that was run

        def with_roundings() -> Iterator[tuple[Run, RoundedSites]]:
            for row, own in groupby(numbers, lambda number: number // len(roundings)):
                run = self._run_of(samples[row])
                signals[row] = run.reference.signal
                yield from ((run, roundings[number % len(roundings)]) for number in own)

        def noise_of(each: tuple[Run, RoundedSites]) -> Float64:
            run, rounding = each

            def error_of(site: ErrorSite) -> Array:
                value: Float32 = run.values[site.tensor]
                return fake_quantized(value, rounding[site] or affine_of_values(value)) - value

            return self._measured(run, rounding, error_of)

        found = in_order(noise_of, with_roundings(), self._stages.at_once)
        for number, noise in zip(numbers, found, strict=True):
            yield noise, signals[number // len(roundings)]

    def close(self) -> None:
        """Give the memory of sessions and runs back; the next run opens them again."""
        self._stages.give_up()
        self._kept.clear()

    def _measured(self, run: Run, sites: Collection[ErrorSite], error_of: Callable[[ErrorSite], Array]) -> Float64:
        try:
            found = self._stages.noisy_run(run.values, sites, error_of)
        except DataError:
            # what fails without errors as well is no matter of theirs
            self._stages.noisy_run(run.values, sites, lambda site: np.zeros_like(error_of(site)))
            return run.reference.power.copy()
        return run.reference.noise(found)

    def _run_of(self, sample: SampleLike) -> Run:
        """Run one sample without errors, or recall its run."""
        if id(sample) not in self._kept:
            run = self.run([sample], sample)
            if sum(kept.values.nbytes for _, kept in self._kept.values()) + run.values.nbytes > _KEPT_BYTES:
                return run
            self._kept[id(sample)] = sample, run  # the sample, so that no other gets its id
        return self._kept[id(sample)][1]

    @cached_property
    def _stages(self) -> Stages:
        return Stages(
            self.model,
            self.plan,
            ends=self._outputs,
            shown=self._shown,
            behind_layers=self.behind_layers,
            threads=self.threads,
        )


@dataclass(frozen=True, eq=False)
class RoundingWork:
    """Runs roundings in another process; see `calibration.engines.parts.Work`.

    Attributes:
        model, plan, signature, behind_layers: As for `Probe`.
        samples, roundings: As for `Probe.rounding_noise`.
    """

    model: PackedModel
    plan: Plan
    signature: Signature
    behind_layers: bool
    samples: tuple[SampleLike, ...]
    roundings: tuple[RoundedSites, ...]

    def open(self, threads: int) -> Callable[[range], list[tuple[Float64, Float64]]]:
        """Open the model."""
        probe = Probe(self.model.model(), self.plan, self.signature, threads, self.behind_layers)
        return lambda numbers: [*probe.each_rounding(self.samples, self.roundings, numbers)]


class LayerProducts:
    """Computes layers by themselves, without their bias.

    Args:
        model: The prepared model.
        threads: Of the runtime; 0 for all CPUs.
    """

    def __init__(self, model: onnx.ModelProto, *, threads: int = 0) -> None:
        self._index, self._opsets, self._threads = Index(model), model.opset_import, threads
        self._sessions: dict[str, Session] = {}

    def product(self, layer: Layer, values: Array, weight: Array) -> Array:
        """Compute a Conv, Gemm or MatMul layer on values and with a weight, float32 both."""
        if layer.node not in self._sessions:
            self._sessions[layer.node] = Session(self._model_of(layer), threads=self._threads)
        return self._sessions[layer.node].run({"x": values, "w": weight})["y"]

    def _model_of(self, layer: Layer) -> onnx.ModelProto:
        proto = copied(self._index.nodes[layer.node])
        if layer.op_type == "Gemm":
            transposed = attribute(proto, "transB", 0)
            proto = helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)
        else:
            del proto.input[:], proto.output[:]
            proto.input.extend(["x", "w"])
            proto.output.append("y")
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "w", "y")]
        graph = helper.make_graph([proto], "layer", values[:2], values[2:])
        return helper.make_model(graph, opset_imports=self._opsets, ir_version=8)
