import numpy as np
import pytest

from int8cal.errors import ModelError
from int8cal.numerics.reference.dot import S32_MAX, block, dot, halved_dot, halved_weights, headroom


def pairs(length):
    return np.arange(0, length - 1, 2)


def test_the_measured_vector_saturates_and_is_exact_without_pairs():
    x, w = np.full((1, 16), 255, np.uint8), np.full((1, 16), 127, np.int8)
    found = dot(x, w, pairs(16))
    assert found.sums.tolist() == [[262136]]
    assert found.wide.tolist() == [[518160]]
    assert found.saturated.tolist() == [8]
    assert dot(x, w).sums.tolist() == [[518160]]


def test_the_saturated_value_is_that_of_s16_at_both_ends():
    x = np.full((1, 2), 255, np.uint8)
    for weight, expected in ((127, 32767), (-128, -32768), (64, 32640), (-64, -32640)):
        found = dot(x, np.full((1, 2), weight, np.int8), [0])
        assert found.sums.tolist() == [[expected]]
        assert found.saturated[0] == (abs(expected) > 32640)


def test_signed_inputs_saturate_as_the_shifted_unsigned_ones():
    # 127 + 128 = 255: the pair gives 32767 instead of 64770, and 128 * (127 + 127) is taken off it
    found = dot(np.full((1, 2), 127, np.int8), np.full((1, 2), 127, np.int8), [0])
    assert found.sums.tolist() == [[32767 - 128 * 254]]
    assert found.wide.tolist() == [[127 * 254]]
    # the shift reaches further than the product itself: 0 becomes 128
    assert dot(np.zeros((1, 2), np.int8), np.full((1, 2), 127, np.int8), [0]).sums.tolist() == [[32512 - 32512]]
    assert dot(np.full((1, 2), 2, np.int8), np.full((1, 2), 127, np.int8), [0]).saturated.tolist() == [1]


def test_a_weight_in_no_pair_stands_alone():
    x, w = np.full((1, 3), 255, np.uint8), np.full((1, 3), 127, np.int8)
    assert dot(x, w, [0]).sums.tolist() == [[32767 + 32385]]
    assert dot(x, w, [1]).sums.tolist() == [[32385 + 32767]]
    assert dot(x, w, []).sums.tolist() == [[3 * 32385]]


def test_saturation_is_counted_per_channel_over_all_patches():
    x = np.array([[255, 255, 0, 0], [255, 255, 255, 255], [0, 0, 0, 0]], np.uint8)
    w = np.array([[127, 127, 127, 127], [1, 1, 127, 127], [0, 0, 0, 0]], np.int8)
    assert dot(x, w, pairs(4)).saturated.tolist() == [3, 1, 0]


@pytest.mark.parametrize(("sign", "expected"), [(127, 66313 * 255 * 127 - 2**32), (-128, -66313 * 255 * 128 + 2**32)])
def test_sums_wrap_around_and_the_peak_does_not(sign, expected):
    x, w = np.full((1, 66313), 255, np.uint8), np.full((1, 66313), sign, np.int8)
    found = dot(x, w)
    assert found.sums.tolist() == [[expected]]
    assert found.peak.tolist() == [66313 * 255 * abs(sign)]
    assert headroom(w).tolist() == [S32_MAX - found.peak[0]]
    assert headroom(w)[0] < 0


def test_long_rows_of_unsigned_weights_are_exact():
    x, w = np.full((2, 5000), 255, np.uint8), np.full((3, 5000), 255, np.uint8)
    assert (dot(x, w).sums == 5000 * 255 * 255).all()


def test_headroom_counts_the_zero_point_the_signs_and_the_bias():
    rows = np.array([[10, -20], [0, 0]], np.int8)
    # codes 0..255 around 100 lie in -100..155: the most is 155 * 10 + 100 * 20, the least -100 * 10 - 155 * 20
    assert headroom(rows, [7, -9], zero_point=100).tolist() == [S32_MAX - 4100 - 7, S32_MAX - 9]
    assert headroom(rows, codes=(-128, 127)).tolist() == [S32_MAX - (127 * 10 + 128 * 20), S32_MAX]
    assert headroom(np.array([[200]], np.uint8), weight_zero_point=128).tolist() == [S32_MAX - 255 * 72]


def test_weights_are_halved_half_to_even():
    codes = np.array([-128, -127, -3, -1, 0, 1, 3, 5, 127], np.int8)
    assert halved_weights(codes).tolist() == [-64, -64, -2, 0, 0, 0, 2, 2, 64]


def test_halved_sums_lose_what_rounding_the_weights_loses():
    found = halved_dot(np.full((1, 2), 100, np.int8), np.array([[127, 5]], np.int8))
    assert found.sums.tolist() == [[2 * 100 * (64 + 2)]]
    assert found.wide.tolist() == [[100 * 132]]


def test_every_pair_of_halved_weights_fits_s16():
    codes = halved_weights(np.arange(-128, 128).astype(np.int8)).astype(int)
    most = 255 * 2 * max(codes.max(), -codes.min())
    assert most <= 32767


def test_blocks_do_not_show(monkeypatch):
    rng = np.random.default_rng(2)
    x, w = rng.integers(0, 256, (50, 30)).astype(np.uint8), rng.integers(-128, 128, (4, 30)).astype(np.int8)
    whole = dot(x, w, pairs(30))
    monkeypatch.setattr("int8cal.numerics.reference.dot.BUDGET", 7 * (5 * 30 + 20 * 4))
    assert block(30, 4) == 7
    parts = dot(x, w, pairs(30))
    for name in ("sums", "wide", "saturated", "peak"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=name)
    assert whole.saturated.sum() > 0


def test_no_patches_give_no_sums():
    found = dot(np.zeros((0, 4), np.uint8), np.ones((3, 4), np.int8), [0])
    assert found.sums.shape == (0, 3)
    assert found.saturated.tolist() == [0, 0, 0]
    assert found.peak.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("x", "w", "starts", "message"),
    [
        (np.zeros((1, 4), np.float32), np.zeros((1, 4), np.int8), None, "patches must be uint8 or int8, found float32"),
        (np.zeros((1, 4), np.uint8), np.zeros((1, 5), np.int8), None, "do not fit"),
        (np.zeros(4, np.uint8), np.zeros((1, 4), np.int8), None, "2 dimensions"),
        (np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.int8), [3], "outside a row of 4"),
        (np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.int8), [-1], "outside a row of 4"),
        (np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.int8), [1, 0], "share a position"),
        (np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.uint8), [0], "signed weights"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(x, w, starts, message):
    with pytest.raises(ModelError, match=message):
        dot(x, w, starts)
