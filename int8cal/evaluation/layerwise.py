"""Error of the int8 model layer by layer: every quantized tensor against the same tensor of the FP32 model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.positions import kept
from int8cal.errors import ModelError
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import LayerMetrics
from int8cal.evaluation.taps import find_layers, fp32_with_sizes, fp32_with_taps, int8_with_taps
from int8cal.graph.signature import signature_of
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.protos import metadata_of
from int8cal.quantization.build import EQUALIZATION_KEY
from int8cal.runtime.batching import make_feed, run_each
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx

    from int8cal.evaluation.taps import LayerTap
    from int8cal.runtime.batching import SampleLike

# Tapped tensors of both models that one inference may hold.
_CHUNK_BYTES = 64_000_000
_PREFIX = "int8cal.tap."


def measure_layers(
    fp32: onnx.ModelProto,
    int8: onnx.ModelProto,
    samples: Sequence[SampleLike],
    *,
    threads: int = 0,
    clipped: Mapping[str, float] | None = None,
) -> tuple[tuple[LayerMetrics, ...], dict[str, str]]:
    """Compare every quantized tensor with its FP32 value, over all samples.

    Args:
        fp32, int8: Both models, weights loaded.
        samples: The samples to run, held in memory: tens, not thousands.
        threads: Threads of the runtime; 0 for all CPUs.
        clipped: FP32 tensor name -> fraction of calibration values outside its range; None when not known.

    Returns:
        The layers in the order of the FP32 graph, and reasons for what is missing ("layers", "layers.missing",
        "layers.<tensor>.sqnr_db"). A tensor that int8cal equalized is scaled back before it is compared.

    Raises:
        ModelError: A model does not load, or its equalization record is malformed.
        StatisticsError: A kernel failed.
    """
    taps, missing = find_layers(fp32, int8)
    reasons: dict[str, str] = {}
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        reasons["layers.missing"] = f"{len(missing)} quantized tensors have no counterpart in the FP32 model: {names}"
    if not taps or not samples:
        reasons["layers"] = (
            "the int8 model quantizes no tensor of the FP32 model" if samples else "no samples were kept for it"
        )
        return (), reasons
    if clipped is None:
        reasons["layers"] = "the fraction of clipped values needs calibration statistics, and none were given"
    factors = _equalization(int8)
    layers: list[LayerMetrics] = []
    for chunk in _chunks(taps, _element_counts(fp32, taps, samples[0], threads)):
        for tap, (sums, problem) in zip(
            chunk, _compare(fp32, int8, chunk, samples, factors=factors, threads=threads), strict=True
        ):
            if problem:
                reasons[f"layers.{tap.tensor}.sqnr_db"] = problem
            if clipped is not None and tap.tensor not in clipped:
                reasons[f"layers.{tap.tensor}.clipped"] = "it has no calibration statistics"
            fraction = None if clipped is None else clipped.get(tap.tensor)
            layers.append(LayerMetrics(tap.tensor, tap.node, tap.op_type, None if problem else sums.sqnr_db, fraction))
    return tuple(layers), reasons


def _compare(
    fp32: onnx.ModelProto,
    int8: onnx.ModelProto,
    taps: Sequence[LayerTap],
    samples: Sequence[SampleLike],
    *,
    factors: Mapping[str, _Factors],
    threads: int,
) -> list[tuple[ErrorSums, str]]:
    """Error sums of each tap, and what made them impossible ("" when nothing did)."""
    names = [f"{_PREFIX}{index}" for index in range(len(taps))]
    sums, problems = [ErrorSums()] * len(taps), [""] * len(taps)
    whole, known = fp32_with_taps(fp32, taps, names)
    coded, dequantized = int8_with_taps(int8, taps, names)
    first, second = (Session(graph, threads=threads, entries=QUIET) for graph in (whole, coded))
    reference = run_each(first, signature_of(fp32), samples, known)
    wanted = [output for each in dequantized for output in each.outputs]
    quantized = run_each(second, signature_of(int8), feeds_for(int8, samples), wanted)
    for (sample, expected), (_, actual) in zip(reference, quantized, strict=True):
        for index, tap in enumerate(taps):
            x, y = expected[known[index]], dequantized[index].total(actual)
            if x.shape != y.shape:
                problems[index] = f"its shape is {x.shape} in the FP32 model and {y.shape} in the int8 model"
            elif not np.isfinite(x).all():
                problems[index] = "the FP32 tensor holds NaN or infinity"
            else:
                factor = factors.get(tap.quantize.input[0], factors.get(tap.tensor))
                y = y if factor is None else _unscaled(tap.tensor, y, factor)
                sums[index] += error_sums(*(kept(tap.tensor, value, sample) for value in (x, y)))
    for index, total in enumerate(sums):
        if not problems[index] and total.sqnr_db is None:
            problems[index] = "the FP32 tensor is zero everywhere"
    return list(zip(sums, problems, strict=True))


def _element_counts(fp32: onnx.ModelProto, taps: Sequence[LayerTap], sample: SampleLike, threads: int) -> list[int]:
    """Elements of each tapped tensor in one inference, asked from the runtime: shapes may depend on the data."""
    names = [f"{_PREFIX}{index}" for index in range(len(taps))]
    session = Session(fp32_with_sizes(fp32, taps, names), threads=threads, optimization="none")
    values = session.run(make_feed(signature_of(fp32), [sample]), names)
    return [int(values[name]) for name in names]


def _chunks(taps: Sequence[LayerTap], counts: Sequence[int]) -> list[list[LayerTap]]:
    """Cut the taps into runs whose tensors fit the memory limit together; a tensor beyond it stands alone."""
    chunks: list[list[LayerTap]] = []
    room = 0
    for tap, count in zip(taps, counts, strict=True):
        size = 2 * 4 * count
        if not chunks or size > room:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append(tap)
        room -= size
    return chunks


@dataclass(frozen=True)
class _Factors:
    """What each channel of a tensor was multiplied by, and the axis of the channels."""

    axis: int
    factors: npt.NDArray[np.float64]


def _equalization(int8: onnx.ModelProto) -> dict[str, _Factors]:
    """Factors 2**e per channel that the int8 model's tensors carry, from its metadata."""
    text = metadata_of(int8, EQUALIZATION_KEY)
    if text is None:
        return {}
    try:
        return {
            name: _Factors(int(entry["axis"]), np.exp2(np.asarray(entry["exponents"], np.float64)))
            for name, entry in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ModelError(
            f'its metadata "{EQUALIZATION_KEY}" is not a JSON object of tensor name to axis and exponents',
            do="quantize the model again",
        ) from error


def _unscaled(tensor: str, value: npt.NDArray[Any], scaled: _Factors) -> npt.NDArray[Any]:
    """Divide by the factor of each channel."""
    axis, factors = scaled.axis, scaled.factors
    if factors.ndim != 1 or not -value.ndim <= axis < value.ndim or value.shape[axis] != factors.size:
        raise ModelError(
            f'its metadata "{EQUALIZATION_KEY}" has {factors.shape} exponents on axis {axis} for tensor "{tensor}" '
            f"of shape {value.shape}",
            do="quantize the model again",
        )
    shape = [1] * value.ndim
    shape[axis] = -1
    result: npt.NDArray[Any] = value / factors.reshape(shape)
    return result
