"""How much of the noise at the outputs each rounding makes: one pass over a few samples, no int8 model per layer.

The errors of all inputs and weights of layers come out of one error model, in chunks that fit into memory. Each is then
added alone behind its layer in the float model. Those in bodies of If, Loop and Scan are computed in their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.engines.parts import Numbered
from int8cal.graph.costs import layer_outputs
from int8cal.graph.index import Index
from int8cal.graph.taps import in_chunks, tapped_model
from int8cal.probe.inside import switched_model
from int8cal.probe.noise import run_seconds, sample_count
from int8cal.probe.probe import Probe
from int8cal.probe.rounded import ErrorNodes, RoundedLayer
from int8cal.probe.score_points import output_points, tensors_of
from int8cal.protos import PackedModel
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import onnx

    from int8cal.calibration.engines.ray import Cluster
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Float64
    from int8cal.numerics.affine import Affine
    from int8cal.probe.inside import InnerGraph
    from int8cal.probe.probe import Run
    from int8cal.probe.rounded import NoiseSource
    from int8cal.protos import ModelView
    from int8cal.runtime.batching import SampleLike


SAMPLES = 8
SECONDS = 20.0  # that the pass may take by estimate; it runs on one sample at least
CHUNK_BYTES = 128_000_000  # of errors and of weights of rounded layers


@dataclass(frozen=True, eq=False)
class Contributions:
    """Squares of the real outputs, summed over all samples that were used.

    Attributes:
        outputs: Their names.
        signal: Of the outputs without errors, (outputs,).
        noise: Of the errors that each source makes by itself, (outputs,).
    """

    outputs: tuple[str, ...]
    signal: Float64
    noise: Mapping[NoiseSource, Float64]

    def shares(self, outputs: Collection[str] = ()) -> dict[NoiseSource, float]:
        """Return each source's share of what all of them do to the outputs.

        Args:
            outputs: Those that count; none for all.

        Numerics: sum over outputs of noise / signal, which the output with the worst SQNR dominates: the one that
        decides the model's figure, until it is no longer the worst.
        """
        counts = self.signal > 0
        if outputs:
            counts &= np.array([name in outputs for name in self.outputs], np.bool_)
        ratios = {source: float((noise[counts] / self.signal[counts]).sum()) for source, noise in self.noise.items()}
        total = math.fsum(ratio for source, ratio in ratios.items() if not source.residual)
        return {source: ratio / total if total > 0 else 0.0 for source, ratio in ratios.items()}


def measure_contributions(
    model: onnx.ModelProto,
    plan: Plan,
    signature: Signature,
    sources: Mapping[NoiseSource, RoundedLayer | Affine],
    samples: Sequence[SampleLike],
    elements: Mapping[str, float],
    *,
    inside: Sequence[InnerGraph] = (),
    threads: int = 0,
    cluster: Cluster | None = None,
) -> Contributions:
    """Measure the noise that each source makes at the outputs by itself.

    Args:
        model: The prepared (and equalized) float model that the integers stand for.
        plan: Its plan.
        signature: Its inputs.
        sources: What is rounded, each by itself: a layer, or the codes of a tensor. One inference each per sample.
        samples: The first of these are used, as many as SECONDS allow.
        elements: Values per inference of every planned tensor.
        inside: All planned bodies of If, Loop and Scan, one behind the one that it is in, with their sources.
        threads: Of the runtime; 0 for all CPUs.
        cluster: Where the sources of the main graph are measured; None for here. No bit depends on it.

    Returns:
        Of all sources, those of bodies by their full names, on the same samples.
    """
    points = output_points(model)
    every = [*sources, *(each.full(source) for each in inside for source in each.sources)]
    powers = {source: np.zeros(len(points)) for source in every}
    if not points:
        return Contributions((), np.zeros(0), powers)
    run_s = run_seconds(model, plan, elements)
    run_s += sum(each.runs * run_seconds(each.model, each.plan, each.elements) for each in inside)
    count = sample_count(SECONDS, len(every) + 2, run_s, min(SAMPLES, len(samples)))
    chunks = [*in_chunks(sources, lambda each: _held_bytes(each, sources[each], elements), CHUNK_BYTES)]
    measuring = _Measuring(model, plan, signature, sources, samples[:count], chunks, threads)
    if cluster is None:
        found = measuring.measured(range(len(measuring.order)))
    else:
        work = SourcesWork(PackedModel.of(model), plan, signature, dict(sources), tuple(samples[:count]), tuple(chunks))
        names = [f"rounding of {source.what} of {source.name}" for _, _, source in measuring.order]
        found = cluster.each(work, Numbered("noise of layers", names))
    for (_, _, source), noise in zip(measuring.order, found, strict=True):
        powers[source] += noise
    powers |= _measure_inside(model, inside, measuring.runs, tensors_of(points), threads)
    signal: Float64 = np.sum([run.reference.power for run in measuring.runs], axis=0)
    measuring.probe.close()
    return Contributions(tuple(point.tensor for point in points), signal, powers)


@dataclass(frozen=True, eq=False)
class SourcesWork:
    """Measures sources in another process; see `calibration.engines.parts.Work`.

    Attributes:
        model, plan, signature, sources: As for `measure_contributions`.
        samples: Those that are used.
        chunks: The sources, as many at a time as one error model computes.
    """

    model: PackedModel
    plan: Plan
    signature: Signature
    sources: Mapping[NoiseSource, RoundedLayer | Affine]
    samples: tuple[SampleLike, ...]
    chunks: tuple[list[NoiseSource], ...]

    def open(self, threads: int) -> Callable[[range], list[Float64]]:
        """Open the model."""
        model = self.model.model()
        measuring = _Measuring(model, self.plan, self.signature, self.sources, self.samples, self.chunks, threads)
        return lambda numbers: [*measuring.measured(numbers)]


class _Measuring:
    """Inferences with the error of one source each, numbered: chunk by chunk, in these sample by sample.

    Args:
        model, plan, signature, sources, samples, chunks: As for `SourcesWork`.
        threads: Of the runtime.

    Attributes:
        probe: Of the model.
        order: Chunk, sample and source of each number.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Plan,
        signature: Signature,
        sources: Mapping[NoiseSource, RoundedLayer | Affine],
        samples: Sequence[SampleLike],
        chunks: Sequence[list[NoiseSource]],
        threads: int,
    ) -> None:
        self._model, self._sources, self._samples, self._threads = model, sources, samples, threads
        self._chunks = chunks
        self.probe = Probe(model, plan, signature, threads, behind_layers=True, shown=(), at_outputs=True)
        self.order = [
            (chunk, row, source) for chunk, own in enumerate(chunks) for row in range(len(samples)) for source in own
        ]
        self._opened: tuple[int, Session, dict[NoiseSource, str]] | None = None

    @cached_property
    def runs(self) -> list[Run]:
        """Each sample without errors."""
        return [self.probe.run([sample]) for sample in self._samples]

    def measured(self, numbers: range) -> Iterator[Float64]:
        """Return the squared errors at the outputs, (outputs,), of some of the inferences."""
        for (chunk, row), own in groupby((self.order[number] for number in numbers), lambda each: each[:2]):
            run = self.runs[row]
            session, names = self._errors_of(chunk)
            found = session.run(run.feed)
            yield from self.probe.noises((run, {source.site: found[names[source]]}) for _, _, source in own)

    def _errors_of(self, chunk: int) -> tuple[Session, dict[NoiseSource, str]]:
        """Open the error model of a chunk, once for numbers that follow each other."""
        if self._opened is None or self._opened[0] != chunk:
            self._opened = None  # its memory goes before the next one's is taken
            error_model, names = _error_model(
                self._model, {source: self._sources[source] for source in self._chunks[chunk]}
            )
            self._opened = chunk, Session(error_model, threads=self._threads), names
        return self._opened[1:]


def _measure_inside(
    model: onnx.ModelProto, inside: Sequence[InnerGraph], runs: Sequence[Run], outputs: Sequence[str], threads: int
) -> dict[NoiseSource, Float64]:
    """Measure the noise that each source in a body makes at the outputs, in chunks of sources that share a model."""
    found: dict[NoiseSource, Float64] = {}
    pairs = [(each, source) for each in inside for source in each.sources]

    def held(pair: tuple[InnerGraph, NoiseSource]) -> float:
        each, source = pair
        return _held_bytes(source, each.sources[source], each.elements)

    for chunk in in_chunks(pairs, held, CHUNK_BYTES):
        numbers = {each.full(source): number for number, (each, source) in enumerate(chunk)}
        switched, switch = switched_model(model, inside, numbers)
        session = Session(tapped_model(switched, outputs), threads=threads)
        for source, number in numbers.items():
            feeds = [run.feed | {switch: np.array(number)} for run in runs]
            noise = [run.reference.noise(session.run(feed, outputs)) for run, feed in zip(runs, feeds, strict=True)]
            found[source] = np.sum(noise, axis=0)
    return found


def _held_bytes(source: NoiseSource, rounded: RoundedLayer | Affine, elements: Mapping[str, float]) -> float:
    """Return the bytes of the errors of a source and of the weights of its rounded layer."""
    if not isinstance(rounded, RoundedLayer):
        return 4 * elements[source.name]
    values = elements[rounded.layer.input]
    more = rounded.integers.weight.size if source.what == "weights" else values
    return 4 * (layer_outputs(rounded.layer, values) + more)


def _error_model(
    model: onnx.ModelProto, sources: Mapping[NoiseSource, RoundedLayer | Affine]
) -> tuple[ModelView, dict[NoiseSource, str]]:
    """Add rounded layers and tensors to a model, and drop its outputs.

    Returns:
        The model, and the output that holds the error of each source; see `ErrorNodes`.
    """
    errors = ErrorNodes(Index(model))
    for source, rounded in sources.items():
        errors.add(source, rounded)
    result = tapped_model(model, errors.outputs.values(), errors.added)
    result.shell.graph.initializer.extend(errors.constants)
    return result, errors.outputs
