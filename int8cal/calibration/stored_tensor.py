"""One tensor of a statistics file: nothing is believed that a pass over data cannot have counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.calibration.statistics import ChannelStatistics, TensorStatistics
from int8cal.numerics.exactsum import LIMBS
from int8cal.numerics.kernels import COARSE_BINS, COARSE_SHIFT
from int8cal.numerics.loglinear import BINS, HALF, INFINITY_BIN

if TYPE_CHECKING:
    from collections.abc import Mapping

ARRAYS = ("bins", "counts")
CHANNEL_ARRAYS = ("low", "high", "total", "square", "bins", "counts")
_COARSE_INFINITY = 0x7F800000 >> COARSE_SHIFT
_LARGEST = 2.0**128  # float32 ends below
_MOST = 2.0**62  # values; beyond, int64 sums would wrap

Array = npt.NDArray[Any]


def tensor_from(name: str, entry: Mapping[str, Any], arrays: Mapping[str, Array]) -> TensorStatistics:
    """Read a tensor's statistics, and check them.

    Args:
        name: The tensor's.
        entry: Its part of the header: zeros, minimum, maximum, channel_count.
        arrays: All arrays of the file, "NAME:KEY".

    Raises:
        KeyError: A part is missing.
        TypeError, ValueError: A part has another type, shape or value than a pass over data leaves.
    """
    low, high, zeros = entry["minimum"], entry["maximum"], entry["zeros"]
    bins, counts = (arrays[f"{name}:{key}"] for key in ARRAYS)
    _require(_is_histogram(bins, counts, BINS, HALF, INFINITY_BIN), f"histogram of {name!r}")
    empty = low is None
    _require(_is_count(zeros) and empty == (high is None) == (not zeros and not counts.size), f"figures of {name!r}")
    if not empty:
        _require(
            all(type(each) in {int, float} and abs(each) <= _LARGEST for each in (low, high)), f"range of {name!r}"
        )
        _require(low <= 0.0 <= high if zeros else low <= high, f"range of {name!r}")
    tensor = TensorStatistics(
        bins, counts, zeros, math.inf if empty else float(low), -math.inf if empty else float(high)
    )
    if entry["channel_count"] is None:
        return tensor
    _require(_is_count(entry["channel_count"]), f"figures of {name!r}")
    parts = {key: arrays[f"{name}:channel_{key}"] for key in CHANNEL_ARRAYS}
    channels = ChannelStatistics(count=entry["channel_count"], **parts)
    for what, sound in (("range", _ranges), ("sums", _sums), ("histogram", _histogram)):
        _require(sound(channels, tensor), f"{what} of the channels of {name!r}")
    return TensorStatistics(bins, counts, zeros, tensor.minimum, tensor.maximum, channels)


def _require(sound: object, what: str) -> None:
    if not sound:
        raise ValueError(what)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_histogram(bins: Array, counts: Array, size: int, half: int, infinity: int) -> bool:
    """Tell whether two arrays are a sparse histogram: int64 (N,), bins ascending and finite, counts above 0."""
    return (
        bins.ndim == 1
        and bins.shape == counts.shape
        and {bins.dtype, counts.dtype} == {np.dtype(np.int64)}
        and bool((counts > 0).all() and (np.diff(bins) > 0).all())
        and bool((bins >= 0).all() and (bins < size).all() and (bins % half < infinity).all())
        and float(counts.sum(dtype=np.float64)) < _MOST
    )


def _ranges(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    low, high = channels.low, channels.high
    if low.ndim != 1 or low.shape != high.shape or not low.size or {low.dtype, high.dtype} != {np.dtype(np.float32)}:
        return False
    if not tensor.count:
        return bool((low == np.inf).all() and (high == -np.inf).all())
    sound = np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
    return bool(sound) and (float(low.min()), float(high.max())) == (tensor.minimum, tensor.maximum)


def _sums(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    """Tell whether sums are canonical limbs, squares not negative, and made of as many values as the tensor has."""
    shape = (len(channels.low), LIMBS)
    return (
        channels.total.shape == shape
        and channels.square.shape in {shape, (0, LIMBS)}
        and all(
            limbs.dtype == np.int64 and bool((limbs[:, :-1] >= 0).all() and (limbs[:, :-1] < 1 << 32).all())
            for limbs in (channels.total, channels.square)
        )
        and bool((channels.square[:, -1] >= 0).all())
        and channels.count * len(channels.low) == tensor.count
    )


def _histogram(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    """Tell whether the coarse histogram holds every value that is not zero, or none."""
    size = len(channels.low) * COARSE_BINS
    return _is_histogram(channels.bins, channels.counts, size, COARSE_BINS // 2, _COARSE_INFINITY) and int(
        channels.counts.sum()
    ) in {0, int(tensor.counts.sum())}
