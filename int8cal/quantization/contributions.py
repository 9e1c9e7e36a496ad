"""How much of the noise at the outputs each rounding makes: one pass over a few samples, no int8 model per layer.

The errors of all inputs and weights of layers come out of one error model (see `error_model`), in chunks that fit into
memory. Each is then added alone behind its layer in the float model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.graph.costs import inference_us, layer_outputs
from int8cal.graph.index import Index
from int8cal.graph.injection import make_injection
from int8cal.quantization.error_model import Cause, Twin, make_error_model
from int8cal.runtime.batching import make_feed
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics.affine import Affine
    from int8cal.runtime.batching import SampleLike

Float64 = npt.NDArray[np.float64]

SAMPLES = 8
SECONDS = 20.0  # that the pass may take by estimate; it runs on one sample at least
CHUNK_BYTES = 128_000_000  # of errors and of weights of twins
WITH_ERRORS = 3.0  # how much longer a float inference takes with places for errors


@dataclass(frozen=True)
class Causes:
    """What is measured, each by itself: causes in layers, and rounded tensors that other nodes read."""

    twins: Mapping[Cause, Twin] = field(default_factory=dict)
    rounded: Mapping[Cause, Affine] = field(default_factory=dict)


def measure_causes(
    model: onnx.ModelProto,
    plan: Plan,
    signature: Signature,
    causes: Causes,
    samples: Sequence[SampleLike],
    elements: Mapping[str, float],
    *,
    threads: int = 0,
) -> dict[Cause, Float64]:
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
        Squared errors of the float outputs over all samples that were used, (outputs,).
    """
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type == 1]  # FLOAT
    names = [*causes.twins, *causes.rounded]
    injection = make_injection(model, plan, outputs=True)
    session = Session(injection.model, threads=threads)
    count = _sample_count(model, plan, elements, len(names), len(samples))
    feeds = [make_feed(signature, [sample]) for sample in samples[:count]]
    exact = [session.run(feed, outputs) for feed in feeds]
    powers = {cause: np.zeros(len(outputs)) for cause in names}
    for chunk in _chunks(model, causes, elements):
        errors = make_error_model(
            model,
            {cause: causes.twins[cause] for cause in chunk if cause in causes.twins},
            {cause: causes.rounded[cause] for cause in chunk if cause in causes.rounded},
        )
        source = Session(errors.model, threads=threads)
        for feed, values in zip(feeds, exact, strict=True):
            found = source.run(feed)
            for cause in chunk:
                added = {injection.inputs[cause.place]: found[errors.outputs[cause]]}
                powers[cause] += _noise(session.run({**feed, **added}, outputs), values, outputs)
    return powers


def shares(powers: Mapping[Cause, Float64], total: Float64) -> dict[Cause, float]:
    """Return noises as shares of the whole, the mean over the outputs that have any.

    Args:
        powers: Squared errors, (outputs,).
        total: Those of everything that is rounded, (outputs,).
    """
    noisy = total > 0
    if not noisy.any():
        return dict.fromkeys(powers, 0.0)
    return {cause: float((power[noisy] / total[noisy]).mean()) for cause, power in powers.items()}


def _noise(noisy: Mapping[str, npt.NDArray[Any]], exact: Mapping[str, npt.NDArray[Any]], outputs: list[str]) -> Float64:
    """Return squared errors, (outputs,); one that is not finite counts as large as the output."""
    result = np.zeros(len(outputs))
    for column, name in enumerate(outputs):
        error = _power(noisy[name].astype(np.float64) - exact[name])
        result[column] = error if np.isfinite(error) else _power(exact[name])
    return result


def _power(values: npt.NDArray[Any]) -> float:
    return float(np.square(values.astype(np.float64)).sum())


def _sample_count(
    model: onnx.ModelProto, plan: Plan, elements: Mapping[str, float], causes: int, available: int
) -> int:
    run_s = WITH_ERRORS * 1e-6 * inference_us(model, plan, elements, integer=False)
    return max(min(int(SECONDS / max((causes + 2) * run_s, 1e-9)), SAMPLES, available), 1)


def _chunks(model: onnx.ModelProto, causes: Causes, elements: Mapping[str, float]) -> Iterator[list[Cause]]:
    """Cut the causes so that the errors and weights of each part fit into CHUNK_BYTES."""
    index = Index(model)
    chunk: list[Cause] = []
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
