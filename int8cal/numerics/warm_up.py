"""Loading compiled loops beside something else."""

from __future__ import annotations

import numpy as np

from int8cal.numerics import exactsum, kernels, loglinear
from int8cal.numerics.affine import U8
from int8cal.numerics.loglinear import SHIFT, histogram
from int8cal.numerics.thresholds.entropy import divergences
from int8cal.numerics.thresholds.mse import mse_range


def warm_up() -> None:
    """Load the loops of calibration: 0.1 to 0.2 s, or some seconds of compiling, once per installation."""
    nothing, sums = np.zeros(0, np.uint32), exactsum.zeros(0)
    table, low, high = np.zeros(kernels.FINE_SIZE, np.uint32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernels.observe(np.ones((1, 1, 1, 1), np.float32), table, nothing, low, high, sums, sums)
    kernels.gather(table.reshape(1, -1, 1), loglinear.BINS, (0, 1))
    half = np.array([0x3F000000 >> SHIFT], np.int64)  # the bin of 0.5
    mse_range(histogram(half, np.ones(1, np.int64), 0, (0.5, 0.5)), U8, symmetric=False)
    divergences(np.ones(300, np.int64), 128)
