"""Masks of outputs: what fills them is told from values, and from what went wrong."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.numerics.fills import counting, fill_of, masked_alike, unmasked

SCORES = hnp.arrays(np.float32, 12, elements=st.floats(-50, 50, width=32))
FILLS = st.sampled_from([-math.inf, -1e4, -65504.0, -1e9, float(np.finfo(np.float32).min), 1e9])
MASKS = hnp.arrays(np.bool_, 12).filter(lambda mask: 0 < mask.sum() < 12)


@given(SCORES.filter(lambda scores: np.abs(scores).max() > 0), FILLS, MASKS)
def test_a_mask_is_found_where_it_is(scores, fill, mask):
    scores[~mask] += 1e-3
    masked = np.where(mask, np.float32(fill), scores)
    noisy = np.where(mask, np.float32(fill), scores + np.float32(0.01))
    np.testing.assert_array_equal(masked_alike(masked, noisy), mask)
    assert masked_alike(scores, scores) is None
    if mask.sum() > 1:
        np.testing.assert_array_equal(counting(masked), ~mask)


@given(SCORES, FILLS, MASKS)
def test_a_mask_that_differs_is_none(scores, fill, mask):
    moved = np.roll(mask, 1)
    moved[0] = not mask[0]
    masked, other = (np.where(each, np.float32(fill), scores) for each in (mask, moved))
    assert masked_alike(masked, other) is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_went_wrong_is_no_mask(wrong):
    values = np.array([1.0, wrong, 2.0], np.float32)
    assert masked_alike(values, values) is None
    np.testing.assert_array_equal(counting(values), [True, False, True])


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        ([1.0, -1e9, 3.0, -1e9], -1e9),
        ([1.0, -99.0, -99.0], None),  # near enough to be a value, as logarithms of probabilities are
        ([640.0, 480.0, 0.3, 0.9], None),  # pixels and probabilities
        ([5.0, 5.0], None),
        ([-1e9, -1e9], None),  # nothing beside it
        ([-2e9, -1e9, 1.0], None),  # two large values: a unit, no fill
        ([-math.inf, -1e9, 1.0], -1e9),
        ([11583.411, -3.3, 0.0], None),  # a result, if it stands there once
        ([-11583.411, -11583.411, 0.0], -11583.411),
        ([-9e15, 0.5], -9e15),
        ([-3.3895313892515355e38, 0.5], -3.3895313892515355e38),
        ([], None),
    ],
)
def test_a_fill_is_far_from_all_other_values(values, fill):
    found = fill_of(np.array(values, np.float32))
    assert found == (None if fill is None else np.float32(fill))


def test_what_is_not_masked_is_left_of_both():
    x, y = np.array([1.0, np.nan, -np.inf, 2.0]), np.array([1.5, np.nan, -np.inf, 2.5])
    np.testing.assert_array_equal(unmasked(x, y), [[1.0, 2.0], [1.5, 2.5]])
    assert unmasked(x, x[::-1])[0] is x
    whole = np.array([1 << 40, 3])  # integers have no mask
    assert unmasked(whole, whole)[0] is whole


def test_a_single_large_value_of_a_reference_counts():
    assert counting(np.array([1e6, 1.0, 2.0], np.float32)) is None
