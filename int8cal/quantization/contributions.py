"""How much of the noise at the outputs each rounding makes: one pass over a few samples, no int8 model per layer.

The errors of all inputs and weights of layers come out of one error model (see `error_model`), in chunks that fit into
memory. Each is then added alone behind its layer in the float model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.graph.costs import layer_outputs
from int8cal.graph.index import Index
from int8cal.graph.injection import make_injection
from int8cal.quantization.error_model import NoiseSource, Twin, make_error_model
from int8cal.quantization.noise import ReferenceOutputs, real_outputs, run_seconds, sample_count
from int8cal.runtime.batching import make_feed
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics.affine import Affine
    from int8cal.runtime.batching import SampleLike

Float64 = npt.NDArray[np.float64]

SAMPLES = 8
SECONDS = 20.0  # that the pass may take by estimate; it runs on one sample at least
CHUNK_BYTES = 128_000_000  # of errors and of weights of twins


@dataclass(frozen=True, eq=False)
class Measured:
    """Squares of the real outputs, summed over all samples that were used.

    Attributes:
        outputs: Their names.
        signal: Of the outputs without errors, (outputs,).
        noise: Of the errors that each cause makes by itself, (outputs,).
    """

    outputs: tuple[str, ...]
    signal: Float64
    noise: Mapping[NoiseSource, Float64]

    def shares(self, outputs: Collection[str] = ()) -> dict[NoiseSource, float]:
        """Return each cause's share of what all of them do to the outputs.

        Args:
            outputs: Those that count; none for all.

        Numerics: sum over outputs of noise / signal, which the output with the worst SQNR dominates: the one that
        decides the model's figure, until it is no longer the worst.
        """
        counts = self.signal > 0
        if outputs:
            counts &= np.array([name in outputs for name in self.outputs], np.bool_)
        ratios = {cause: float((noise[counts] / self.signal[counts]).sum()) for cause, noise in self.noise.items()}
        total = math.fsum(ratio for cause, ratio in ratios.items() if not cause.planes)
        return {cause: ratio / total if total > 0 else 0.0 for cause, ratio in ratios.items()}


@dataclass(frozen=True)
class Causes:
    """What is measured, each by itself: causes in layers, and rounded tensors that other nodes read."""

    twins: Mapping[NoiseSource, Twin] = field(default_factory=dict)
    rounded: Mapping[NoiseSource, Affine] = field(default_factory=dict)


def measure_causes(
    model: onnx.ModelProto,
    plan: Plan,
    signature: Signature,
    causes: Causes,
    samples: Sequence[SampleLike],
    elements: Mapping[str, float],
    *,
    threads: int = 0,
) -> Measured:
    """Measure the noise that each cause makes at the outputs by itself.

    Args:
        model: The prepared (and equalized) float model that the integers stand for.
        plan: Its plan.
        signature: Its inputs.
        causes: One inference each per sample.
        samples: The first of these are used, as many as SECONDS allow.
        elements: Values per inference of every planned tensor.
        threads: Of the runtime; 0 for all CPUs.

    Returns:
        Of all causes, on the same samples.
    """
    outputs, names = real_outputs(model), [*causes.twins, *causes.rounded]
    if not outputs:  # asked for no output, the runtime would compute all
        return Measured((), np.zeros(0), {cause: np.zeros(0) for cause in names})
    injection = make_injection(model, plan, outputs=True)
    session = Session(injection.model, threads=threads)
    most = min(SAMPLES, len(samples))
    count = sample_count(SECONDS, len(names) + 2, run_seconds(model, plan, elements), most)
    feeds = [make_feed(signature, [sample]) for sample in samples[:count]]
    exact = [ReferenceOutputs.of(session.run(feed, outputs), outputs) for feed in feeds]
    powers = {cause: np.zeros(len(outputs)) for cause in names}
    for chunk in _chunks(model, causes, elements):
        errors = make_error_model(
            model,
            {cause: causes.twins[cause] for cause in chunk if cause in causes.twins},
            {cause: causes.rounded[cause] for cause in chunk if cause in causes.rounded},
        )
        source = Session(errors.model, threads=threads)
        for feed, without in zip(feeds, exact, strict=True):
            found = source.run(feed)
            for cause in chunk:
                added = {injection.inputs[cause.place]: found[errors.outputs[cause]]}
                powers[cause] += without.noise(session.run({**feed, **added}, outputs), outputs)
    signal: Float64 = np.sum([each.power for each in exact], axis=0)
    return Measured(tuple(outputs), signal, powers)


def _chunks(model: onnx.ModelProto, causes: Causes, elements: Mapping[str, float]) -> Iterator[list[NoiseSource]]:
    """Cut the causes so that the errors and weights of each part fit into CHUNK_BYTES."""
    index = Index(model)
    chunk: list[NoiseSource] = []
    size = 0.0
    for cause in (*causes.twins, *causes.rounded):
        if cause in causes.twins:
            twin = causes.twins[cause]
            more = layer_outputs(index, twin.layer, elements[twin.layer.input])
            more += twin.integers.weight.size if cause.what == "weights" else elements[twin.layer.input]
        else:
            more = elements[cause.name]
        if chunk and size + 4 * more > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0.0
        chunk.append(cause)
        size += 4 * more
    if chunk:
        yield chunk
