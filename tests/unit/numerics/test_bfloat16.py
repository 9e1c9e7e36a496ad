"""bfloat16 by its bits."""

import numpy as np

from int8cal.numerics.bfloat16 import from_bits, to_bits


def test_every_value_comes_back():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bits(bits)
    numbers = ~np.isnan(values)
    assert values[0x3F80] == 1.0
    np.testing.assert_array_equal(to_bits(values)[numbers], bits[numbers])
    assert np.isnan(from_bits(to_bits(values[~numbers]))).all()
    assert to_bits(np.array(1.0, np.float32)).shape == ()


def test_values_in_between_are_rounded_half_to_even():
    rng = np.random.default_rng(0)
    halves = (np.arange(0x7F00, dtype=np.uint32) << 16) | 0x8000
    drawn = rng.integers(0, 0x7F00_0000, 100_000, dtype=np.uint32)
    given = np.concatenate([halves, drawn]).view(np.float32)
    lower = (given.view(np.uint32) >> 16).astype(np.uint16)
    low, high = (from_bits(bits).astype(np.float64) for bits in (lower, lower + np.uint16(1)))
    below, above = given - low, high - given
    up = (above < below) | ((above == below) & (lower % 2 == 1))
    np.testing.assert_array_equal(to_bits(given), lower + up)
    np.testing.assert_array_equal(to_bits(-given), (lower + up) | 0x8000)
