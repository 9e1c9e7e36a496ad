import numpy as np

from int8cal.numerics.reference.saturation import risky_pairs


def test_exactly_the_pairs_that_some_input_saturates_are_risky():
    codes = np.arange(-128, 128)
    first, second = (each.reshape(-1) for each in np.meshgrid(codes, codes, indexing="ij"))
    rows = np.stack([first, second], axis=1).astype(np.int8)
    # the extremes of u0 * first + u1 * second are at the corners
    corners = np.array([[0, 0], [0, 255], [255, 0], [255, 255]])
    totals = rows.astype(np.int64) @ corners.T
    expected = ((totals > 32767) | (totals < -32768)).any(axis=1)
    found = risky_pairs(rows, [0])
    np.testing.assert_array_equal(found.row, np.nonzero(expected)[0])
    # the rule of the positive and the negative parts
    positive, negative = rows.clip(0).sum(axis=1, dtype=int), rows.clip(None, 0).sum(axis=1, dtype=int)
    np.testing.assert_array_equal(expected, (positive > 128) | (negative < -128))


def test_weights_of_seven_bits_are_never_risky():
    ends = np.array([[-64, -64], [63, 63], [-64, 63]], np.int8)
    assert risky_pairs(ends, [0]).row.size == 0


def test_risky_pairs_name_row_position_and_weights():
    rows = np.array([[1, 100, 100, 1], [0, 0, 0, 0], [90, 90, -100, -100]], np.int8)
    found = risky_pairs(rows, [2, 0])
    assert found.row.tolist() == [2, 2]
    assert found.start.tolist() == [0, 2]
    assert found.first.tolist() == [90, -100]
    assert risky_pairs(rows, [1]).start.tolist() == [1]
