"""Products of codes by the runtime's integer kernel, held against sums of Python's own integers."""

import numpy as np
import pytest

from int8cal.runtime import code_products
from int8cal.runtime.code_products import CodeSums


@pytest.fixture(params=[False, True], ids=["unsigned", "signed"])
def signed(request, monkeypatch):
    """Take either kernel; the one for signed codes only where this CPU sums exactly."""
    if request.param and not code_products._sums_signed_exactly():
        pytest.skip("this CPU does not sum unsigned times signed codes exactly")
    monkeypatch.setattr(code_products, "_sums_signed_exactly", lambda: request.param)


def moments(codes, zero_point, threads=1):
    sums = CodeSums(len(codes), codes.shape[2], zero_point, threads)
    sums.add(codes)
    return sums.result()


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zero_point", [0, 7])
def test_the_sums_are_exact(monkeypatch, dtype, zero_point):
    limits = np.iinfo(dtype)
    codes = np.random.default_rng(3).integers(limits.min, limits.max, (2, 301, 45), dtype, endpoint=True)
    rows = codes.astype(np.int64) - zero_point
    expected = np.einsum("grk,grl->gkl", rows, rows)
    np.testing.assert_array_equal(moments(codes, zero_point).gram, expected)
    monkeypatch.setattr(code_products, "_STRIP", 16)
    monkeypatch.setattr(code_products, "_MOST_ROWS", 100)
    for threads in (1, 3):
        found = moments(codes, zero_point, threads)
        np.testing.assert_array_equal(found.gram, expected)
        np.testing.assert_array_equal(found.total, rows.sum(axis=1))
        assert found.count == 301


@pytest.mark.usefixtures("signed")
def test_the_largest_codes_do_not_saturate():
    codes = np.full((1, 40_000, 3), 255, np.uint8)
    np.testing.assert_array_equal(moments(codes, 0).gram[0], np.full((3, 3), 40_000 * 255**2))
    codes[:, :, 1] = 0
    found = moments(codes, 255)
    np.testing.assert_array_equal(found.gram[0, 1], [0, 40_000 * 255**2, 0])
    np.testing.assert_array_equal(found.total[0], [0, -40_000 * 255, 0])


@pytest.mark.usefixtures("signed")
def test_neither_order_nor_cuts_change_the_sums(monkeypatch):
    codes = np.random.default_rng(4).integers(0, 256, (2, 900, 70), np.uint8)
    whole = moments(codes, 3)
    monkeypatch.setattr(code_products, "_WAITING", 10_000)
    sums = CodeSums(2, 70, 3)
    for part in np.array_split(codes[:, np.random.default_rng(5).permutation(900)], [1, 300, 333], axis=1):
        sums.add(part)
    np.testing.assert_array_equal(sums.result().gram, whole.gram)
    np.testing.assert_array_equal(sums.result().total, whole.total)
