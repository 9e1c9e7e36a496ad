"""int8cal's numerics as the micro-benchmarks see them: kernels on prepared arrays, histograms, threshold methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.ranges import METHODS as SEARCHES
from int8cal.calibration.ranges import choose
from int8cal.numerics import exactsum, kernels, loglinear

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from int8cal.numerics.loglinear import Histogram

    Float32 = npt.NDArray[np.float32]

METHODS = (*SEARCHES, "auto")
PERCENTILE = 99.99


def spectrum_of(values: Float32) -> Histogram:
    """Count values (N,) as calibration does."""
    bits = values.view(np.uint32)
    bins, counts = np.unique(bits[values != 0] >> np.uint32(loglinear.SHIFT), return_counts=True)
    zeros = int(np.count_nonzero(values == 0))
    return loglinear.histogram(
        bins.astype(np.int64), counts.astype(np.int64), zeros, (float(values.min()), float(values.max()))
    )


def threshold(method: str) -> Callable[[Histogram], object]:
    """Return the search of one method, for u8 activations."""
    return lambda histogram: choose(histogram, method, "u8", PERCENTILE)  # type: ignore[arg-type]


def kernel_calls(values: Float32) -> dict[str, Callable[[], object]]:
    """Return the statistics kernel, with more and more to count, as calls on prepared arrays.

    Args:
        values: (outer, channels, inner), contiguous; channels a multiple of 16.
    """
    outer, channels, inner = values.shape

    def call(block: int, *, by_channel: bool, coarse: bool) -> Callable[[], object]:
        shape = (outer, channels // block, inner, block) if by_channel else (1, 1, values.size, 1)
        count = channels if by_channel else 1
        arrays = (
            np.zeros(kernels.FINE_SIZE, np.uint32),
            np.zeros(kernels.packs(channels) * kernels.COARSE_ROWS * kernels.PACK if coarse else 0, np.uint32),
            np.full(count, kernels.NEVER_LOW, np.int32),
            np.full(count, kernels.NEVER_HIGH, np.int32),
            exactsum.zeros(count if by_channel else 0),
            exactsum.zeros(count if coarse else 0),
        )
        view = values.reshape(shape)
        return lambda: kernels.observe(view, *arrays)

    return {
        "observe: histogram, extremes": call(1, by_channel=False, coarse=False),
        "observe: and sums per channel": call(1, by_channel=True, coarse=False),
        "observe: and squares and histograms per channel": call(1, by_channel=True, coarse=True),
        "observe: the same, blocked layout": call(16, by_channel=True, coarse=True),
    }
