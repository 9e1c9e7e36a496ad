"""Small numbers; the definition is in tests/property/test_simulate_properties.py."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import helper

from int8cal.audit import simulate
from int8cal.audit.layer import BETWEEN, Linear, Operand
from int8cal.audit.simulate import lost_in_block, lost_sums
from int8cal.audit.worst_case import S32_MAX, headroom
from int8cal.graph.constants import Codes


def layer_of(op, weight, zero_point=0, **attributes):
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    constants = SimpleNamespace(value=lambda name: np.array(zero_point) if name else None)
    weights = Codes("w", weight, None, np.zeros((), np.int64), None, True)
    return Linear("layer", op, BETWEEN[op], node, constants, False, weight=weights, data=Operand(zero_point="z"))


def lost(x, rows, starts):
    """What is lost of one group: (channels, inputs)."""
    unsigned = x if x.dtype == np.uint8 else (x.astype(int) + 128).astype(np.uint8)
    return lost_in_block(np.ascontiguousarray(unsigned.T)[None], rows[None], np.array(starts, np.int64))


def test_the_measured_vector_saturates():
    found = lost(np.full((1, 16), 255, np.uint8), np.full((1, 16), 127, np.int8), range(0, 15, 2))
    assert (518160 + found.sums).tolist() == [[262136]]
    assert found.saturated.tolist() == [8]


@pytest.mark.parametrize(("weight", "expected"), [(127, 32767), (-128, -32768), (64, 32640), (-64, -32640)])
def test_the_saturated_value_is_that_of_s16_at_both_ends(weight, expected):
    found = lost(np.full((1, 2), 255, np.uint8), np.full((1, 2), weight, np.int8), [0])
    assert (2 * 255 * weight + found.sums).tolist() == [[expected]]
    assert found.saturated[0] == (abs(expected) > 32640)


def test_signed_inputs_saturate_as_the_shifted_unsigned_ones():
    w = np.full((2, 1), 127, np.int8)
    for value, saturates in ((127, True), (0, False), (2, True)):  # the shift reaches further than the product itself
        found = lost_sums(layer_of("MatMul", w), np.full((1, 2), value, np.int8), None, np.array([0]), "onnxruntime")
        assert found.sums.tolist() == [[min(0, 32767 - 254 * (value + 128))]]
        assert found.saturated.tolist() == [saturates]


def test_a_weight_in_no_pair_stands_alone():
    x, w = np.full((1, 3), 255, np.uint8), np.full((1, 3), 127, np.int8)
    for starts, saturated in (([0], 1), ([1], 1), ([], 0)):
        assert lost(x, w, starts).saturated.tolist() == [saturated]


def test_saturation_is_counted_per_channel_over_all_inputs():
    x = np.array([[255, 255, 0, 0], [255, 255, 255, 255], [0, 0, 0, 0]], np.uint8)
    w = np.array([[127, 127, 127, 127], [1, 1, 127, 127], [0, 0, 0, 0]], np.int8)
    assert lost(x, w, [0, 2]).saturated.tolist() == [3, 1, 0]


def test_pairs_saturate_on_what_the_pads_hold():
    x, w = np.full((1, 2, 1), 1, np.uint8), np.full((1, 2, 2), 127, np.int8)
    layer = layer_of("Conv", w, 255, pads=[1, 0])
    starts = np.array([0, 2])
    assert lost_sums(layer, x, None, starts, "onnxruntime").saturated.tolist() == [1]
    assert lost_sums(layer, x, None, starts, "onednn").saturated.tolist() == [0]


def test_taps_that_land_outside_do_not_saturate():
    x, w = np.full((1, 2, 1), 255, np.uint8), np.full((2, 1, 3), 127, np.int8)
    found = lost_sums(layer_of("ConvTranspose", w, pads=[1, 1]), x, None, np.array([0, 2, 4]), "onednn")
    assert found.saturated.tolist() == [1]
    assert found.sums.tolist() == [[32767 - 2 * 255 * 127]]


def test_products_saturate_along_their_inner_axis():
    a, b = np.full((1, 16), 255, np.uint8), np.full((16, 2), 127, np.int8)
    turned = layer_of("Gemm", np.ascontiguousarray(b.T), transA=1, transB=1)
    for layer, x in ((layer_of("MatMul", b), a), (layer_of("Gemm", b), a), (turned, a.T)):
        found = lost_sums(layer, x, None, np.arange(0, 16, 2), "onnxruntime")
        assert found.sums.tolist() == [[262136 - 518160]] * 2
        assert found.saturated.tolist() == [8, 8]


def test_channels_last_is_read_as_it_lies():
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 256, (2, 6, 5, 4)).astype(np.uint8), rng.integers(-128, 128, (4, 6, 3, 2)).astype(np.int8)
    starts = np.arange(0, 35, 2)
    one = lost_sums(layer_of("Conv", w), x, None, starts, "onnxruntime")
    other = lost_sums(layer_of("Conv", w, channels_last=1), np.moveaxis(x, 1, -1), None, starts, "onnxruntime")
    np.testing.assert_array_equal(one.sums, other.sums)


def test_blocks_of_positions_do_not_show(monkeypatch):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, (2, 6, 7, 5)).astype(np.uint8)
    forward = rng.integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    back = rng.integers(-128, 128, (6, 4, 3, 2)).astype(np.int8)
    settings = {"strides": (2, 1), "pads": (1, 0, 2, 1), "group": 2}
    layers = [layer_of("Conv", forward, 3, **settings), layer_of("ConvTranspose", back, 3, **settings)]

    def both():
        return [lost_sums(layer, x, None, np.arange(0, 17, 3), "onednn") for layer in layers]

    whole = both()
    monkeypatch.setattr(simulate, "BUDGET", 200)
    for one, other in zip(whole, both(), strict=True):
        np.testing.assert_array_equal(one.sums, other.sums)
        np.testing.assert_array_equal(one.saturated, other.saturated)
        assert one.saturated.sum() > 0


def test_headroom_counts_the_zero_point_the_signs_and_the_bias():
    rows = np.array([[10, -20], [0, 0]], np.int8)
    # codes 0..255 around 100 lie in -100..155: the most is 155 * 10 + 100 * 20, the least -100 * 10 - 155 * 20
    assert headroom(rows, [7, -9], zero_point=100).tolist() == [S32_MAX - 4100 - 7, S32_MAX - 9]
    assert headroom(rows, codes=(-128, 127)).tolist() == [S32_MAX - (127 * 10 + 128 * 20), S32_MAX]
    assert headroom(np.array([[200]], np.uint8), weight_zero_point=128).tolist() == [S32_MAX - 255 * 72]
    assert headroom(np.full((1, 66313), 127, np.int8))[0] < 0
