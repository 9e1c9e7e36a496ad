"""What table and corrections know of raw pixels: the entries of the tensors that hold them, and their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.calibration.statistics import ChannelStatistics, TensorStatistics
from int8cal.calibration.table import TensorEntry
from int8cal.errors import DataError
from int8cal.numerics import exactsum

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from int8cal.numerics.affine import Affine
    from int8cal.quantization.uint8_input import Uint8Input

Float64 = npt.NDArray[np.float64]


def pixel_entries(
    uint8: Uint8Input, affine: Affine, tensors: Mapping[str, TensorStatistics], wide: Iterable[str]
) -> dict[str, TensorEntry]:
    """Return the table entries of the input, of what is made of it, and of the tensors with one more channel.

    Args:
        uint8: How the model takes pixels.
        affine: Of the input's codes.
        tensors: Statistics of the FP32 model.
        wide: Names of the tensors with one more channel.

    Raises:
        DataError: Values were observed that no pixel stands for.
    """
    low, high = _observed(uint8, tensors)
    if low < -0.5 or high > 255.5:
        raise DataError(
            f"input {uint8.pixels.input!r} held values that stand for pixels {low:.4g} to {high:.4g}, not 0 to 255",
            do="declare how pixels became these values (scale, mean, std under data.preprocess), or leave out "
            "uint8_input",
        )
    observed = tuple(affine.scale * (float(np.rint(end)) - affine.zero_point) for end in (low, high))
    return {
        name: TensorEntry(
            dtype=affine.dtype.name,
            scale=affine.scale,
            zero_point=affine.zero_point,
            low=affine.low,
            high=affine.high,
            method="pixels",
            amax=max(abs(observed[0]), abs(observed[1])),
            observed=(observed[0], observed[1]),
            clipped=0.0,
            source="calibrated" if name == uint8.pixels.input else "shared",
        )
        for name in (*uint8.tensors, *wide)
    }


def pixel_statistics(
    uint8: Uint8Input, affine: Affine, tensors: Mapping[str, TensorStatistics], wide: Mapping[str, str]
) -> dict[str, TensorStatistics]:
    """Return the per-channel figures of what the layers read, for x' = (p - zero_point) * scale in place of x.

    Args:
        uint8: How the model takes pixels.
        affine: Of the input's codes.
        tensors: Statistics of the FP32 model.
        wide: Tensor with one more channel -> the tensor without.

    Returns:
        Tensor name -> figures; their histograms are empty, since those of several channels cannot be mapped together.
    """
    result = {}
    for item in uint8.layers:
        seen = tensors[item.layer.input].channels
        mapped = None if seen is None else _mapped(seen, affine.scale / item.gain, item.residual(affine.zero_point))
        result[item.layer.input] = _bare(tensors[item.layer.input], mapped)
        name = next((name for name, source in wide.items() if source == item.layer.input), None)
        if name is not None and mapped is not None and uint8.ones is not None:
            value = affine.scale * (uint8.ones - affine.zero_point)
            result[name] = _bare(tensors[item.layer.input], _with_constant(mapped, value))
    return result


def _observed(uint8: Uint8Input, tensors: Mapping[str, TensorStatistics]) -> tuple[float, float]:
    """Return the smallest and the largest pixel."""
    for item in uint8.layers:
        seen = tensors[item.layer.input].channels
        if seen is not None and seen.count:
            ends = (np.stack([seen.low, seen.high]) - item.offset) / item.gain
            return float(ends.min()), float(ends.max())
    return 0.0, 255.0  # nothing was counted by channel; every sample was checked when it was read


def _mapped(seen: ChannelStatistics, slope: Float64, rest: Float64) -> ChannelStatistics:
    """Map the figures of x to those of slope * (x - rest), all (C,)."""
    ends = np.stack([(seen.low - rest) * slope, (seen.high - rest) * slope])
    mean = (seen.mean - rest) * slope
    return _channels(ends.min(axis=0), ends.max(axis=0), seen.count, mean)


def _with_constant(seen: ChannelStatistics, value: float) -> ChannelStatistics:
    return _channels(
        np.append(seen.low, value),
        np.append(seen.high, value),
        seen.count,
        np.append(seen.mean, value),
    )


def _channels(
    low: npt.NDArray[np.floating], high: npt.NDArray[np.floating], count: int, mean: Float64
) -> ChannelStatistics:
    nothing = np.zeros(0, np.int64)
    return ChannelStatistics(
        low.astype(np.float32),
        high.astype(np.float32),
        count,
        _sums(mean * count),
        exactsum.zeros(0),
        nothing,
        nothing,
    )


def _sums(values: Float64) -> npt.NDArray[np.int64]:
    limbs = exactsum.zeros(len(values))
    exactsum.add(limbs, np.ascontiguousarray(values, np.float64))
    return exactsum.canonical(limbs)


def _bare(tensor: TensorStatistics, channels: ChannelStatistics | None) -> TensorStatistics:
    nothing = np.zeros(0, np.int64)
    return TensorStatistics(nothing, nothing, tensor.count, 0.0, 0.0, channels)
