import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.numerics.affine import S7, S8
from int8cal.numerics.pairs import Rows, link, unsafe_pairs
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.numerics.second_order import error_power, mixed, round_second_order
from int8cal.quantization.corrections.integers import codes_from_text, codes_to_text

WEIGHTS = st.floats(-1e3, 1e3, width=32)
ORDERS = st.sampled_from([(), ("flat",), ("channels",), ("flat", "channels")])


@st.composite
def problems(draw):
    positions, channels = draw(st.sampled_from([1, 4, 9])), draw(st.integers(1, 5))
    size = positions * channels
    values = draw(hnp.arrays(np.float32, (draw(st.integers(1, 3)), 1, size), elements=WEIGHTS))
    inputs = draw(hnp.arrays(np.int16, (draw(st.integers(1, 12)), size), elements=st.integers(-255, 255)))
    return Rows(values, channels, (positions,)), inputs.astype(np.float64)


@given(problems(), ORDERS, st.sampled_from([S8, S7]))
def test_codes_are_allowed_and_never_worse_than_those_they_start_from(problem, orders, dtype):
    rows, inputs = problem
    links = link(orders, rows.positions, rows.channels)
    scales = choose_scales(rows, dtype, links)
    start = round_codes(rows, scales, dtype, links)
    moments = mixed((inputs.T @ inputs)[None], len(inputs), rows.channels)
    codes = round_second_order(rows, scales, dtype, links, moments, start)
    assert dtype.qmin <= codes.min()
    assert codes.max() <= dtype.qmax
    assert not unsafe_pairs(codes, links).any()
    assert not codes[rows.values == 0].any()
    for each in (slice(row, row + 1) for row in range(len(scales))):
        alone = Rows(rows.values[each], rows.channels, rows.kernel)
        before, after = (error_power(alone, scales[each], found[each], moments) for found in (start, codes))
        assert after <= before * (1 + 1e-9) + 1e-12
    text = codes_to_text(start, codes)
    np.testing.assert_array_equal(codes_from_text(text, start, links, dtype, "n"), codes)
