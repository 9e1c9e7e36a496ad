"""The verdict of the audit against the instruction itself."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from quantized_models import UNSAFE, conv_codes, qdq

from int8cal.audit.worst_case import audit_saturation, worst_cases
from int8cal.numerics.pairs import link, pair_starts, unsafe_pairs, worst_linked, worst_sums
from int8cal.runtime.targets import TARGETS


def can_saturate(row, starts):
    """Whether some input of zeros and 255 drives a pair out of s16: the extremes of a linear function."""
    return any(
        not -32768 <= a * int(row[k]) + b * int(row[k + 1]) <= 32767
        for k in starts
        for a, b in product((0, 255), repeat=2)
    )


@given(
    codes=hnp.arrays(np.int8, st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2))),
    target=st.sampled_from(sorted(TARGETS)),
)
@example(codes=np.array([[[[2, 0], [127, 0]]]], np.int8), target="openvino")  # saturates where rows are columns
def test_the_verdict_is_that_of_every_input_of_zeros_and_255(codes, target):
    model = qdq("Conv", codes, [1, codes.shape[1], 4, 4], axis=0)
    (case,) = worst_cases(model, target, None)
    rows = np.moveaxis(codes, 1, -1).reshape(len(codes), -1)
    positions, channels = codes.shape[2] * codes.shape[3], codes.shape[1]
    starts = {k for order in TARGETS[target].orders for k in pair_starts(order, positions, channels).tolist()}
    expected = [can_saturate(row, starts) for row in rows]
    if "channels" in TARGETS[target].orders and channels == 1 and min(codes.shape[2:]) > 1:
        expected = [any(can_saturate(row[[i, j]], [0]) for i, j in combinations(range(len(row)), 2)) for row in rows]
    assert case.result.unsafe_channels == sum(expected)
    assert (case.result.verdict == "unsafe") == any(expected)
    if starts:
        assert case.unsafe[:, 0].tolist() == expected


@given(
    codes=hnp.arrays(np.int8, st.tuples(st.integers(1, 3), st.integers(1, 12))), channels=st.sampled_from([1, 2, 3, 4])
)
def test_the_fast_look_agrees_with_the_definition(codes, channels):
    codes = np.repeat(codes, channels, axis=1)
    links = link(("flat", "channels"), codes.shape[1] // channels, channels)
    worst, unsafe = worst_linked(codes, links)
    assert worst == worst_sums(codes)[..., links].max(initial=0)
    assert np.array_equal(unsafe, unsafe_pairs(codes, links)[..., links])


def test_the_figures_of_the_report_are_sums_over_integer_layers():
    found = audit_saturation(UNSAFE["DynamicQuantizeLSTM"](), "portable", None)
    assert found.channels == 32
    assert found.unsafe_channels == sum(layer.unsafe_channels for layer in found.layers) > 0
    assert [layer.node[-3:] for layer in found.layers] == ["(W)", "(R)"]


@pytest.mark.parametrize(("codes", "channels"), [([64, 64], 0), ([64, 65], 1), ([-64, -65], 1), ([127, -128], 0)])
def test_a_pair_is_safe_up_to_a_sum_of_128(codes, channels):
    weights = np.array(codes, np.int8).reshape(2, 1)
    found = audit_saturation(qdq("MatMul", weights, [1, 2]), "x86-avx2", None)
    assert found.unsafe_channels == channels


def test_a_grouped_transposed_convolution_is_float_everywhere():
    model = qdq("ConvTranspose", conv_codes((6, 2, 3, 3)), [1, 6, 5, 5], axis=1, group=3)
    assert [audit_saturation(model, target, None).layers for target in TARGETS] == [()] * len(TARGETS)


@pytest.mark.parametrize(("target", "unsafe"), [("portable", 2), ("x86-avx2", 1)])
def test_with_one_input_channel_any_two_weights_may_meet_under_onednn(target, unsafe):
    codes = np.zeros((3, 1, 3, 3), np.int8)
    codes[0].flat[[0, 1]] = 127  # neighbours
    codes[1].flat[[0, 7]] = 127
    found = audit_saturation(qdq("Conv", codes, [1, 1, 8, 8], axis=0), target, None)
    assert (found.unsafe_channels, found.unsafe_pairs) == (unsafe, unsafe)
