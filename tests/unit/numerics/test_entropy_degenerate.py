import numpy as np
import pytest

from int8cal.calibration.ranges import choose
from int8cal.numerics.loglinear import SHIFT, histogram


def observed(values):
    values = np.asarray(values, np.float32)
    bins, counts = np.unique(values[values != 0].view(np.uint32) >> np.uint32(SHIFT), return_counts=True)
    zeros = int(np.count_nonzero(values == 0))
    return histogram(bins.astype(np.int64), counts, zeros, (float(values.min()), float(values.max())))


@pytest.mark.parametrize("method", ["kl", "auto", "mse"])
@pytest.mark.parametrize(("low", "high"), [(0.7, 1.0), (0.5, 1.0), (-1.0, -0.7), (100.0, 101.0)])
def test_a_tensor_far_from_zero_keeps_its_values(method, low, high):
    values = np.random.default_rng(0).uniform(low, high, 50_000)
    choice = choose(observed(values), method, "u8", 99.99)
    outside = (values < choice.affine.low - choice.affine.scale) | (values > choice.affine.high + choice.affine.scale)
    assert outside.mean() < 0.3
