"""What saturation takes from a layer against every pair summed, saturated and added by itself."""

from types import SimpleNamespace

import numpy as np
from convolutions import codes, convolutions
from hypothesis import given
from hypothesis import strategies as st
from im2col import landings, patches, transposed_sizes
from onnx import helper

from int8cal.audit.layer import BETWEEN, Linear, Operand
from int8cal.audit.simulate import excess, excess_twin, lost_in_block, lost_sums
from int8cal.audit.worst_case import headroom
from int8cal.graph.constants import Codes
from int8cal.numerics.gram import Window

SEEDS = st.integers(0, 2**32 - 1)
BYTES = st.sampled_from(["uint8", "int8"])


def lost_by_definition(x, rows, starts):
    """Saturated sums less exact ones of u8 or s8 (M, K) by s8 (N, K): (M, N), and how many pairs saturated: (N,)."""
    unsigned = x.astype(np.int64) + (128 if x.dtype == np.int8 else 0)
    w = rows.astype(np.int64)
    pairs = unsigned[:, None, starts] * w[None, :, starts] + unsigned[:, None, starts + 1] * w[None, :, starts + 1]
    held = np.clip(pairs, -32768, 32767)
    return (held - pairs).sum(axis=2), (held != pairs).sum(axis=(0, 2))


def layer_of(op, weight, zero_point=0, **attributes):
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    constants = SimpleNamespace(value=lambda name: np.array(zero_point) if name else None)
    weights = Codes("w", weight, None, np.zeros((), np.int64), None, True)
    return Linear("layer", op, BETWEEN[op], node, constants, False, weight=weights, data=Operand(zero_point="z"))


@st.composite
def pair_starts(draw, length):
    kept, at = [], 0
    while at + 1 < length:
        if draw(st.integers(0, 3)):
            kept.append(at)
            at += 1
        at += 1
    return np.array(kept, np.int64)


@given(st.data(), BYTES, st.integers(1, 40), st.integers(1, 9), SEEDS, st.booleans())
def test_pairs_saturate_as_defined(data, dtype, length, count, seed, extreme):
    rng = np.random.default_rng(seed)
    x, w = codes(rng, dtype, (count, length), extreme=extreme), codes(rng, "int8", (length, 5), extreme=extreme)
    starts = data.draw(pair_starts(length))
    expected, hits = lost_by_definition(x, w.T, starts)
    found = lost_sums(layer_of("MatMul", w), x, None, starts, "onnxruntime")
    np.testing.assert_array_equal(found.sums, expected.T)
    np.testing.assert_array_equal(found.saturated, hits)


@given(st.data(), st.integers(2, 30), st.integers(1, 1300), SEEDS)
def test_the_loop_adds_what_the_twin_adds(data, length, width, seed):
    rng = np.random.default_rng(seed)
    columns, rows = codes(rng, "uint8", (length, width), extreme=True), codes(rng, "int8", (3, length), extreme=True)
    starts = data.draw(pair_starts(length))
    row, at = np.repeat(np.arange(3), len(starts)), np.tile(starts, 3)
    weights = [rows[:, starts + step].reshape(-1).astype(np.int32) for step in (0, 1)]
    results = []
    for function in (excess, excess_twin):
        lost, saturated = np.full((3, width), 7, np.int32), np.full(3, 5, np.int64)
        function(columns, at, row, *weights, lost, saturated)
        results.append((lost, saturated))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@given(BYTES, st.integers(1, 20), SEEDS, st.booleans())
def test_no_data_needs_more_than_the_headroom_says(dtype, length, seed, extreme):
    rng = np.random.default_rng(seed)
    rows, x = codes(rng, "int8", (4, length), extreme=extreme), codes(rng, dtype, (30, length), extreme=True)
    bias = rng.integers(-1000, 1000, 4)
    limits = np.iinfo(dtype)
    zero_point = int(rng.integers(limits.min, limits.max + 1))

    def peak(x, bias=0):
        return np.abs((x.astype(np.int64) - zero_point) @ rows.astype(np.int64).T + bias).max(axis=0)

    left = headroom(rows, bias, codes=(limits.min, limits.max), zero_point=zero_point)
    worst = 2**31 - 1 - left
    assert (peak(x, bias) <= worst).all()
    # inputs that follow the signs of a row reach it
    ends = np.where(rows > 0, limits.max, limits.min).astype(dtype)
    other = np.where(rows > 0, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(peak(np.concatenate([ends, other])) + np.abs(bias), worst)


@given(st.data(), convolutions(), BYTES, st.sampled_from(["onnxruntime", "onednn"]))
def test_a_convolution_loses_what_its_patches_lose(data, layer, dtype, runtime):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x, extreme=True), codes(rng, "int8", layer.weight, extreme=True)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    rows = np.moveaxis(w, 1, -1).reshape(len(w), -1)
    starts = data.draw(pair_starts(rows.shape[1]))
    found = lost_sums(layer_of("Conv", w, 5, **layer.attributes()), x, None, starts, runtime)
    cut = patches(x, window, 5 if runtime == "onnxruntime" else 0, layer.group)
    parts = [lost_by_definition(p, r, starts) for p, r in zip(cut, np.split(rows, layer.group), strict=True)]
    np.testing.assert_array_equal(found.sums, np.concatenate([part[0].T for part in parts]))
    np.testing.assert_array_equal(found.saturated, np.concatenate([part[1] for part in parts]))


@given(convolutions(transposed=True), st.data(), BYTES)
def test_a_transposed_convolution_saturates_tap_by_tap(layer, data, dtype):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x, extreme=True), codes(rng, "int8", layer.weight, extreme=True)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    added = [data.draw(st.integers(0, stride - 1)) for stride in layer.strides]
    each, made = layer.x[1] // layer.group, layer.weight[1]
    in_tap = data.draw(pair_starts(each))
    taps = int(np.prod(window.kernel))
    starts = np.concatenate([tap * each + in_tap for tap in range(taps)])
    attributes = {**layer.attributes(), "output_padding": added}
    found = lost_sums(layer_of("ConvTranspose", w, 3, **attributes), x, None, starts, "onednn")
    outputs = transposed_sizes(layer.x[2:], window, added)
    sums = np.zeros((layer.group * made, len(x), *outputs), np.int64)
    saturated = np.zeros(len(sums), np.int64)
    by_tap = w.reshape(layer.group, each, made, taps)
    for at, tap, place in landings(layer.x[2:], window, outputs):  # one product of one position at a time
        values = x[(slice(None), slice(None), *at)].reshape(len(x), layer.group, each)
        for g in range(layer.group):
            of_group = slice(g * made, (g + 1) * made)
            lost, hits = lost_by_definition(values[:, g], by_tap[g, :, :, tap].T, in_tap)
            sums[(of_group, slice(None), *place)] += lost.T
            saturated[of_group] += hits
    np.testing.assert_array_equal(found.sums, sums.reshape(len(sums), -1))
    np.testing.assert_array_equal(found.saturated, saturated)


@given(BYTES, st.integers(1, 6), st.integers(2, 30), SEEDS, st.sampled_from([(), (3,), (2, 3)]), st.booleans())
def test_stacks_of_products_broadcast(dtype, count, length, seed, stack, constant):
    rng = np.random.default_rng(seed)
    a = codes(rng, dtype, (2, 3, count, length), extreme=True)
    b = codes(rng, "int8", (*stack, length, 4), extreme=True)
    starts = np.arange(0, length - 1, 2)
    found = lost_sums(layer_of("MatMul", b), a, None if constant else b, starts, "onnxruntime")
    wide = np.broadcast_to(b, (2, 3, length, 4)).reshape(6, length, 4)
    parts = [lost_by_definition(x, w.T, starts) for x, w in zip(a.reshape(6, count, length), wide, strict=True)]
    np.testing.assert_array_equal(found.sums, np.concatenate([part[0] for part in parts]).T)
    np.testing.assert_array_equal(found.saturated, sum(part[1] for part in parts))


def test_exactly_the_pairs_that_some_input_saturates_are_looked_at():
    values = np.arange(-128, 128)
    first, second = (each.reshape(-1) for each in np.meshgrid(values, values, indexing="ij"))
    rows = np.stack([first, second], axis=1).astype(np.int8)
    # the extremes of u0 * first + u1 * second are at the corners
    corners = np.array([[0, 0], [0, 255], [255, 0], [255, 255]], np.uint8)
    totals = rows.astype(np.int64) @ corners.T.astype(np.int64)
    expected = ((totals > 32767) | (totals < -32768)).sum(axis=1)
    found = lost_in_block(np.ascontiguousarray(corners.T)[None], rows[None], np.array([0]))
    np.testing.assert_array_equal(found.saturated, expected)
    # the rule of the positive and the negative parts
    positive, negative = rows.clip(0).sum(axis=1, dtype=int), rows.clip(None, 0).sum(axis=1, dtype=int)
    np.testing.assert_array_equal(expected > 0, (positive > 128) | (negative < -128))
