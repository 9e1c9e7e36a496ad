import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.numerics.affine import S7, S8
from int8cal.numerics.pairs import Rows, link, unsafe_pairs
from int8cal.numerics.rounding import choose_scales, round_codes

WEIGHTS = st.floats(-1e6, 1e6, width=32)


@st.composite
def weights(draw):
    positions, channels = draw(st.sampled_from([1, 2, 4, 9])), draw(st.integers(1, 7))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 2)), positions * channels)
    return Rows(draw(hnp.arrays(np.float32, shape, elements=WEIGHTS)), channels, (positions,))


ORDERS = st.sampled_from([(), ("flat",), ("channels",), ("flat", "channels")])


@given(weights(), ORDERS, st.sampled_from([S8, S7]))
def test_codes_are_safe_in_range_and_do_not_depend_on_the_run(rows, orders, dtype):
    links = link(orders, rows.positions, rows.channels)
    scales = choose_scales(rows, dtype, links)
    codes = round_codes(rows, scales, dtype, links)
    assert (scales > 0).all()
    assert np.isfinite(scales).all()
    assert dtype.qmin <= codes.min()
    assert codes.max() <= dtype.qmax
    assert not unsafe_pairs(codes, links).any()
    assert not codes[rows.values == 0].any()
    np.testing.assert_array_equal(round_codes(rows, scales, dtype, links), codes)


@given(weights(), ORDERS)
def test_signs_only_change_signs(rows, orders):
    # the codes of s8 are symmetric, so -w has the codes -q
    links = link(orders, rows.positions, rows.channels)
    scales = choose_scales(rows, S8, links)
    codes = round_codes(rows, scales, S8, links)
    turned = Rows(-rows.values, rows.channels, rows.kernel)
    np.testing.assert_array_equal(choose_scales(turned, S8, links), scales)
    np.testing.assert_array_equal(round_codes(turned, scales, S8, links), -codes)
