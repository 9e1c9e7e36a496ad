"""Products of codes by the runtime's integer kernel, held against sums of Python's own integers."""

import numpy as np
import pytest

from int8cal.runtime import code_products
from int8cal.runtime.code_products import code_gram


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zero_point", [0, 7])
def test_the_sums_are_exact(monkeypatch, dtype, zero_point):
    limits = np.iinfo(dtype)
    codes = np.random.default_rng(3).integers(limits.min, limits.max, (301, 45), dtype, endpoint=True)
    rows = codes.astype(np.int64) - zero_point
    np.testing.assert_array_equal(code_gram(codes, zero_point), rows.T @ rows)
    monkeypatch.setattr(code_products, "_STRIP", 16)
    monkeypatch.setattr(code_products, "_MOST_ROWS", 100)
    for threads in (1, 3):
        np.testing.assert_array_equal(code_gram(codes, zero_point, threads), rows.T @ rows)


def test_the_largest_codes_do_not_saturate():
    codes = np.full((40_000, 3), 255, np.uint8)
    np.testing.assert_array_equal(code_gram(codes, 0), np.full((3, 3), 40_000 * 255**2))
    codes[:, 1] = 0
    np.testing.assert_array_equal(code_gram(codes, 255)[1], [0, 40_000 * 255**2, 0])
