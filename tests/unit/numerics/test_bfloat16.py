"""bfloat16 by its bits."""

import ml_dtypes
import numpy as np

from int8cal.numerics.bfloat16 import from_bits, to_bits


def test_rounding_is_half_to_even_and_every_value_comes_back():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bits(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(to_bits(values)[numbers], bits[numbers])
    assert np.isnan(from_bits(to_bits(values[~numbers]))).all()
    rng = np.random.default_rng(0)
    between = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    between = np.append(between[np.isfinite(between)], from_bits(np.arange(100) * 2 + 1)[:, None] * 1).astype(
        np.float32
    )
    halves = ((np.arange(1 << 15, dtype=np.uint32) << 16) | 0x8000).view(np.float32)
    for given in (between, halves[np.isfinite(halves)]):
        expected = given.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(from_bits(to_bits(given)), expected)
    assert to_bits(np.array(1.0, np.float32)).shape == ()
