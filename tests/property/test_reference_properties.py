"""The integer layers against onnxruntime's own integer kernels, without a tolerance, and against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import X86, codes, conv_integer_weights, convolutions, run, scale_of, weights_of

from int8cal.numerics.affine import Affine, QType
from int8cal.numerics.reference.convolution import convolve, weight_rows
from int8cal.numerics.reference.dot import dot, halved_dot, halved_weights, headroom
from int8cal.numerics.reference.elementwise import add, add_exact, multiply, multiply_exact
from int8cal.numerics.reference.matmul import gemm, matmul
from int8cal.numerics.reference.pooling import average_pool, average_pool_s32, global_average_pool, max_pool
from int8cal.numerics.reference.requantize import multipliers, requantize
from int8cal.numerics.reference.saturation import excess, excess_twin, risky_pairs
from int8cal.numerics.reference.transposed import convolve_transposed, transposed_rows
from int8cal.numerics.reference.windows import Window, patches

SEEDS = st.integers(0, 2**32 - 1)
# the types that onnxruntime's kernels take: activations, weights
PAIRED_TYPES = st.sampled_from([("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
BYTES = st.sampled_from(["uint8", "int8"])
x86_only = pytest.mark.skipif(not X86, reason="onnxruntime's float32 arithmetic for x86; other CPUs have their own")


def affine_of(rng, dtype):
    limits = np.iinfo(dtype)
    zero_point = int(rng.integers(limits.min, limits.max + 1))
    return Affine(float(scale_of(rng)), zero_point, QType(dtype, limits.min, limits.max))


def code(value, dtype):
    return np.array(value, dtype)


def saturated_by_definition(patches_u8, rows, starts):
    """Every pair summed, saturated and added by itself; positions in no pair alone."""
    x, w = patches_u8.astype(np.int64), rows.astype(np.int64)
    alone = np.setdiff1d(np.arange(x.shape[1]), np.concatenate([starts, starts + 1]))
    pairs = x[:, None, starts] * w[None, :, starts] + x[:, None, starts + 1] * w[None, :, starts + 1]
    held = np.clip(pairs, -32768, 32767)
    return held.sum(axis=2) + x[:, alone] @ w[:, alone].T, (held != pairs).sum(axis=(0, 2))


@st.composite
def pair_starts(draw, length):
    kept, at = [], 0
    while at + 1 < length:
        if draw(st.integers(0, 3)):
            kept.append(at)
            at += 1
        at += 1
    return np.array(draw(st.permutations(kept)), np.int64)


@given(st.data(), BYTES, st.integers(1, 40), st.integers(1, 9), SEEDS, st.booleans())
def test_pairs_saturate_as_defined(data, dtype, length, count, seed, extreme):
    rng = np.random.default_rng(seed)
    x, w = codes(rng, dtype, (count, length), extreme=extreme), codes(rng, "int8", (5, length), extreme=extreme)
    starts = data.draw(pair_starts(length))
    unsigned = (x.astype(np.int64) + (128 if dtype == "int8" else 0)).astype(np.uint8)
    expected, hits = saturated_by_definition(unsigned, w, starts)
    shift = 128 * w.astype(np.int64).sum(axis=1) if dtype == "int8" else 0
    found = dot(x, w, starts)
    np.testing.assert_array_equal(found.sums, expected - shift)
    np.testing.assert_array_equal(found.saturated, hits)
    exact = x.astype(np.int64) @ w.astype(np.int64).T
    np.testing.assert_array_equal(found.wide, exact)
    np.testing.assert_array_equal(found.peak, np.abs(exact).max(axis=0))
    np.testing.assert_array_equal(dot(x, w).sums, exact)


@given(st.data(), st.integers(2, 30), st.integers(1, 1300), SEEDS)
def test_the_loop_adds_what_the_twin_adds(data, length, width, seed):
    rng = np.random.default_rng(seed)
    columns = codes(rng, "uint8", (length, width), extreme=True)
    pairs = risky_pairs(codes(rng, "int8", (3, length), extreme=True), data.draw(pair_starts(length)))
    results = []
    for function in (excess, excess_twin):
        lost, saturated = np.full((3, width), 7, np.int32), np.full(3, 5, np.int64)
        function(columns, pairs.start, pairs.row, pairs.first, pairs.second, lost, saturated)
        results.append((lost, saturated))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.integers(1, 30), SEEDS, st.integers(-200, 200))
def test_halved_weights_never_saturate(length, seed, shift):
    rng = np.random.default_rng(seed)
    rows, x = codes(rng, "int8", (4, length), extreme=shift > 0), codes(rng, "int8", (6, length), extreme=shift > 50)
    halves = halved_weights(rows)
    assert risky_pairs(halves, np.arange(0, length - 1, 2)).row.size == 0
    found = halved_dot(x, rows)
    np.testing.assert_array_equal(found.sums, 2 * (x.astype(np.int64) @ halves.astype(np.int64).T))
    np.testing.assert_array_equal(found.wide, x.astype(np.int64) @ rows.astype(np.int64).T)


@given(BYTES, st.integers(1, 20), SEEDS, st.booleans())
def test_no_data_needs_more_than_the_headroom_says(dtype, length, seed, extreme):
    rng = np.random.default_rng(seed)
    rows, x = codes(rng, "int8", (4, length), extreme=extreme), codes(rng, dtype, (30, length), extreme=True)
    bias = rng.integers(-1000, 1000, 4)
    limits = np.iinfo(dtype)
    zero_point = int(rng.integers(limits.min, limits.max + 1))
    left = headroom(rows, bias, codes=(limits.min, limits.max), zero_point=zero_point)
    worst = 2**31 - 1 - left
    acc = matmul(x, rows.T, zero_point=zero_point, bias=bias)
    assert (acc.peak <= worst).all()
    # inputs that follow the signs of a row reach it
    ends = np.where(rows > 0, limits.max, limits.min).astype(dtype)
    other = np.where(rows > 0, limits.min, limits.max).astype(dtype)
    both = np.concatenate([ends, other])
    reached = matmul(both, rows.T, zero_point=zero_point).peak
    np.testing.assert_array_equal(reached + np.abs(bias), worst)


@given(convolutions(), BYTES, st.integers(-5, 5))
def test_patches_times_rows_is_the_convolution(layer, dtype, shift):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x), codes(rng, "int8", layer.weight)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    zero_point = 10 + shift
    cut = patches(x, window, zero_point, layer.group)
    rows = weight_rows(w).reshape(layer.group, -1, cut.shape[2])
    made = np.concatenate([dot(p, r).sums for p, r in zip(cut, rows, strict=True)], axis=1)
    weights = weight_rows(w).sum(axis=1, dtype=np.int64)
    found = convolve(x, w, window, group=layer.group, zero_point=zero_point)
    lines = np.moveaxis(found.sums, 1, -1).reshape(-1, layer.weight[0])
    np.testing.assert_array_equal(made - zero_point * weights, lines)


@given(convolutions(), BYTES, st.integers(0, 100), st.booleans())
def test_what_the_pads_hold_does_not_show_in_exact_sums(layer, dtype, padding, asymmetric):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x), codes(rng, "int8", layer.weight)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    zeros = rng.integers(-128, 128, layer.weight[0]) if asymmetric else 0
    settings = {"group": layer.group, "zero_point": 7, "weight_zero_point": zeros}
    one = convolve(x, w, window, **settings)
    other = convolve(x, w, window, padding=padding, **settings)
    np.testing.assert_array_equal(one.sums, other.sums)
    np.testing.assert_array_equal(one.peak, other.peak)


@given(st.data(), convolutions(), BYTES)
def test_a_saturating_convolution_is_dot_over_its_patches(data, layer, dtype):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x, extreme=True), codes(rng, "int8", layer.weight, extreme=True)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    rows = weight_rows(w)
    starts = data.draw(pair_starts(rows.shape[1]))
    found = convolve(x, w, window, group=layer.group, zero_point=5, pair_starts=starts)
    cut = patches(x, window, 5, layer.group)
    parts = [dot(p, r, starts) for p, r in zip(cut, np.split(rows, layer.group), strict=True)]
    np.testing.assert_array_equal(found.saturated, np.concatenate([part.saturated for part in parts]))
    raw = np.concatenate([part.sums for part in parts], axis=1) - 5 * rows.sum(axis=1, dtype=np.int64)
    np.testing.assert_array_equal(np.moveaxis(found.sums, 1, -1).reshape(raw.shape), raw)


@given(convolutions(), st.sampled_from(conv_integer_weights()), st.booleans())
def test_convolve_is_conv_integer(layer, weight_type, constant):
    rng = np.random.default_rng(layer.seed)
    x = codes(rng, "uint8", layer.x, extreme=layer.extreme)
    w = weights_of(rng, weight_type, layer.weight, extreme=layer.extreme)
    zero_point, weight_zero = codes(rng, "uint8", ()), codes(rng, weight_type, ())
    inputs = {"x": x, "w": w, "xz": zero_point, "wz": weight_zero}
    expected = run("ConvInteger", inputs, "int32", constant=("w", "wz", "xz") if constant else (), **layer.attributes())
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    found = convolve(x, w, window, group=layer.group, zero_point=int(zero_point), weight_zero_point=int(weight_zero))
    np.testing.assert_array_equal(found.sums, expected)


@given(convolutions(), PAIRED_TYPES, st.booleans(), st.booleans(), st.booleans())
def test_convolve_and_requantize_are_qlinear_conv(layer, types, per_channel, with_bias, constant):
    rng = np.random.default_rng(layer.seed)
    dtype, weight_type = types
    x = codes(rng, dtype, layer.x, extreme=layer.extreme)
    w = weights_of(rng, weight_type, layer.weight, extreme=layer.extreme)
    channels = layer.weight[0]
    weight_scales = np.array([scale_of(rng) for _ in range(channels if per_channel else 1)], np.float32)
    weight_zero = codes(rng, weight_type, ()) if rng.integers(2) else code(0, weight_type)
    of_x, of_y = affine_of(rng, dtype), affine_of(rng, dtype)
    # the sums must often end inside the range of the result
    output_scale = np.float32(of_y.scale * 2.0 ** rng.integers(0, 12))
    bias = rng.integers(-20000, 20000, channels).astype(np.int32) if with_bias else None
    inputs = {
        "x": x, "xs": np.float32(of_x.scale), "xz": code(of_x.zero_point, dtype),
        "w": w, "ws": weight_scales, "wz": np.broadcast_to(weight_zero, weight_scales.shape),
        "ys": output_scale, "yz": code(of_y.zero_point, dtype), "b": bias,
    }  # fmt: skip
    fixed = ("w", "ws", "wz", "xz", "xs", "b") if constant else ()
    expected = run("QLinearConv", inputs, dtype, constant=fixed, **layer.attributes())
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    acc = convolve(
        x, w, window, group=layer.group, zero_point=of_x.zero_point, weight_zero_point=int(weight_zero), bias=bias
    )
    found = requantize(acc.sums, multipliers(of_x.scale, weight_scales, output_scale), of_y.zero_point, dtype)
    np.testing.assert_array_equal(found, expected)


@given(convolutions(transposed=True), BYTES, st.data())
def test_convolve_transposed_is_conv_transpose_where_float32_is_exact(layer, dtype, data):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, dtype, layer.x), codes(rng, "int8", layer.weight, limits=(-100, 100))
    zero_point, weight_zeros = 3, rng.integers(-5, 6, layer.weight[1])
    bias = rng.integers(-20000, 20000, layer.weight[1] * layer.group)
    behind = [data.draw(st.integers(0, stride - 1)) for stride in layer.strides]
    real = {
        "x": (x.astype(np.int32) - zero_point).astype(np.float32),
        "w": w.astype(np.float32) - weight_zeros.reshape(1, -1, *[1] * (w.ndim - 2)).astype(np.float32),
        "b": bias.astype(np.float32),
    }
    expected = run("ConvTranspose", real, "float32", output_padding=behind, **layer.attributes())
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    found = convolve_transposed(
        x, w, window, group=layer.group, output_padding=behind, zero_point=zero_point,
        weight_zero_point=weight_zeros, bias=bias,
    )  # fmt: skip
    np.testing.assert_array_equal(found.sums, expected)


@given(convolutions(transposed=True), st.data())
def test_a_transposed_convolution_saturates_tap_by_tap(layer, data):
    rng = np.random.default_rng(layer.seed)
    x, w = codes(rng, "uint8", layer.x, extreme=True), codes(rng, "int8", layer.weight, extreme=True)
    window = Window.of(layer.weight[2:], layer.strides, layer.dilations, layer.pads)
    each = layer.x[1] // layer.group
    rows = transposed_rows(w, layer.group)
    in_tap = data.draw(pair_starts(each))
    starts = np.concatenate([tap * each + in_tap for tap in range(rows.shape[1] // each)])
    found = convolve_transposed(x, w, window, group=layer.group, pair_starts=starts)
    exact = convolve_transposed(x, w, window, group=layer.group)
    np.testing.assert_array_equal(found.wide, exact.sums)
    # one tap and one position at a time
    wide, cut = np.zeros(found.sums.shape, np.int64), np.zeros(found.saturated.shape, np.int64)
    for at in np.ndindex(*layer.x[2:]):
        for index, tap in enumerate(window.taps()):
            place = [
                i * s + t * d - p
                for i, s, t, d, p in zip(at, layer.strides, tap, layer.dilations, layer.pads, strict=False)
            ]
            if any(i < 0 or i >= size for i, size in zip(place, found.sums.shape[2:], strict=True)):
                continue
            values = x[(slice(None), slice(None), *at)].reshape(len(x), layer.group, each)
            for g in range(layer.group):
                made = slice(g * layer.weight[1], (g + 1) * layer.weight[1])
                part, hits = saturated_by_definition(
                    values[:, g], rows[made, index * each : (index + 1) * each], np.sort(in_tap)
                )
                wide[(slice(None), made, *place)] += part
                cut[made] += hits
    np.testing.assert_array_equal(found.sums, wide)
    np.testing.assert_array_equal(found.saturated, cut)


@given(PAIRED_TYPES, st.integers(1, 6), st.integers(1, 70), st.integers(1, 20), SEEDS, st.booleans(), st.booleans())
def test_matmul_is_matmul_integer(types, count, length, outputs, seed, extreme, constant):
    rng = np.random.default_rng(seed)
    dtype, weight_type = types
    leading = (2,) * int(rng.integers(0, 3))
    a = codes(rng, dtype, (*leading, count, length), extreme=extreme)
    shape = (*leading, length, outputs) if rng.integers(2) else (length, outputs)
    b = weights_of(rng, weight_type, shape, extreme=extreme)
    zero_point = codes(rng, dtype, ())
    zeros = codes(rng, weight_type, (outputs,) if len(shape) == 2 and rng.integers(2) else ())
    inputs = {"a": a, "b": b, "az": zero_point, "bz": zeros}
    expected = run("MatMulInteger", inputs, "int32", constant=("b", "bz") if constant else ())
    found = matmul(a, b, zero_point=int(zero_point), weight_zero_point=zeros.astype(np.int64))
    np.testing.assert_array_equal(found.sums, expected)


@given(PAIRED_TYPES, st.integers(1, 6), st.integers(1, 70), st.integers(1, 20), SEEDS, st.booleans(), st.booleans())
def test_matmul_and_requantize_are_qlinear_matmul(types, count, length, outputs, seed, per_channel, constant):
    rng = np.random.default_rng(seed)
    dtype, weight_type = types
    leading = (2,) * int(rng.integers(0, 2))
    a, b = codes(rng, dtype, (*leading, count, length)), weights_of(rng, weight_type, (length, outputs))
    scales = np.array([scale_of(rng) for _ in range(outputs)], np.float32) if per_channel else scale_of(rng)
    zeros = codes(rng, weight_type, np.shape(scales))
    of_a, of_y = affine_of(rng, dtype), affine_of(rng, dtype)
    output_scale = np.float32(of_y.scale * 2.0 ** rng.integers(0, 12))
    inputs = {
        "a": a, "as": np.float32(of_a.scale), "az": code(of_a.zero_point, dtype), "b": b, "bs": scales, "bz": zeros,
        "ys": output_scale, "yz": code(of_y.zero_point, dtype),
    }  # fmt: skip
    expected = run("QLinearMatMul", inputs, dtype, constant=("b", "bs", "bz") if constant else ())
    acc = matmul(a, b, zero_point=of_a.zero_point, weight_zero_point=zeros.astype(np.int64))
    found = requantize(acc.sums, multipliers(of_a.scale, scales, output_scale), of_y.zero_point, dtype, axis=-1)
    np.testing.assert_array_equal(found, expected)


@given(PAIRED_TYPES, st.integers(1, 6), st.integers(1, 70), st.integers(1, 20), SEEDS, st.booleans(), st.booleans())
def test_gemm_and_requantize_are_qgemm(types, count, length, outputs, seed, turned_a, turned_b):
    rng = np.random.default_rng(seed)
    dtype, weight_type = types
    a, b = codes(rng, dtype, (count, length)), weights_of(rng, weight_type, (length, outputs))
    a, b = a.T.copy() if turned_a else a, b.T.copy() if turned_b else b
    scales = np.array([scale_of(rng) for _ in range(outputs)], np.float32) if rng.integers(2) else scale_of(rng)
    zeros = codes(rng, weight_type, np.shape(scales))
    of_a, of_y = affine_of(rng, dtype), affine_of(rng, dtype)
    output_scale = np.float32(of_y.scale * 2.0 ** rng.integers(0, 12))
    alpha = float(scale_of(rng))
    bias = rng.integers(-20000, 20000, outputs).astype(np.int32) if rng.integers(2) else None
    inputs = {
        "a": a, "as": np.float32(of_a.scale), "az": code(of_a.zero_point, dtype), "b": b, "bs": scales, "bz": zeros,
        "c": bias, "ys": output_scale, "yz": code(of_y.zero_point, dtype),
    }  # fmt: skip
    expected = run(
        "QGemm", inputs, dtype, domain="com.microsoft", constant=("b", "bs", "bz") if rng.integers(2) else (),
        transA=int(turned_a), transB=int(turned_b), alpha=alpha,
    )  # fmt: skip
    acc = gemm(
        a, b, transpose_a=turned_a, transpose_b=turned_b, zero_point=of_a.zero_point,
        weight_zero_point=zeros.astype(np.int64), bias=bias,
    )  # fmt: skip
    multiplier = multipliers(of_a.scale, scales, output_scale, alpha=alpha)
    found = requantize(acc.sums, multiplier, of_y.zero_point, dtype, axis=-1)
    np.testing.assert_array_equal(found, expected)


SHAPES = st.sampled_from(
    [((257,), (257,)), ((1,), (40,)), ((40,), ()), ((3, 5, 7), (5, 1)), ((3, 1, 7), (5, 1)), ((2, 4, 1, 1), (2, 4, 3, 3)),
     ((2, 4, 3, 3), (1, 4, 1, 1)), ((1,), (1,)), ((3, 1), (1, 2)), ((2, 3, 4), (3, 4)), ((1, 1), (3, 1))]
)  # fmt: skip


@x86_only
@given(
    BYTES, SHAPES, SEEDS, st.sampled_from([("QLinearAdd", add, add_exact), ("QLinearMul", multiply, multiply_exact)])
)
def test_add_and_multiply_have_the_kernels_bits(dtype, shapes, seed, kind):
    rng = np.random.default_rng(seed)
    op, function, formula = kind
    a, b = (codes(rng, dtype, shape) for shape in shapes)
    of_a, of_b, of_y = (affine_of(rng, dtype) for _ in range(3))
    inputs = {
        "a": a, "as": np.float32(of_a.scale), "az": code(of_a.zero_point, dtype),
        "b": b, "bs": np.float32(of_b.scale), "bz": code(of_b.zero_point, dtype),
        "ys": np.float32(of_y.scale), "yz": code(of_y.zero_point, dtype),
    }  # fmt: skip
    expected = run(op, inputs, dtype, domain="com.microsoft")
    np.testing.assert_array_equal(function(a, b, of_a, of_b, of_y), expected)
    apart = formula(a, b, of_a, of_b, of_y).astype(int) - expected
    assert np.abs(apart).max() <= 1


# scales and zero points with a pair of codes so close to a half that a fused and an unfused multiply-add part: two for
# each of the three that the kernel of Add fuses
CLOSE = [
    [(0.23369556665420532, 150), (0.7846591472625732, 81), (1.007660150527954, 166)],
    [(0.4894092381000519, 101), (0.017985710874199867, 102), (0.7643641233444214, 33)],
    [(0.3445856273174286, 7), (0.33370494842529297, 127), (0.6584170460700989, 108)],
    [(0.0707230418920517, 250), (0.006224829237908125, 248), (0.07601276785135269, 152)],
    [(0.0710214301943779, 171), (0.08466441184282303, 9), (0.10144063830375671, 126)],
    [(0.1596628576517105, 252), (0.03696907311677933, 180), (0.2019982933998108, 144)],
]


@x86_only
@pytest.mark.parametrize("parameters", CLOSE)
@pytest.mark.parametrize(("op", "function"), [("QLinearAdd", add), ("QLinearMul", multiply)])
def test_every_pair_of_codes_has_the_kernels_bits(op, function, parameters):
    each = np.arange(256).astype(np.uint8)
    a, b = (np.ascontiguousarray(values) for values in np.broadcast_arrays(each[:, None], each))
    of_a, of_b, of_y = (Affine(*given, QType("uint8", 0, 255)) for given in parameters)
    inputs = {
        "a": a, "as": np.float32(of_a.scale), "az": code(of_a.zero_point, "uint8"),
        "b": b, "bs": np.float32(of_b.scale), "bz": code(of_b.zero_point, "uint8"),
        "ys": np.float32(of_y.scale), "yz": code(of_y.zero_point, "uint8"),
    }  # fmt: skip
    expected = run(op, inputs, "uint8", domain="com.microsoft")
    np.testing.assert_array_equal(function(a, b, of_a, of_b, of_y), expected)


@st.composite
def pools(draw):
    rank = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    pads = tuple(draw(st.integers(0, kernel[i % rank] - 1)) for i in range(2 * rank))
    sizes = tuple(kernel[i] + draw(st.integers(0, 4)) for i in range(rank))
    return (draw(st.integers(1, 2)), draw(st.integers(1, 5)), *sizes), Window.of(kernel, strides, None, pads)


@given(BYTES, pools(), SEEDS, st.booleans())
def test_average_pool_has_the_kernels_bits(dtype, pool, seed, count_include_pad):
    rng = np.random.default_rng(seed)
    shape, window = pool
    if window.kernel == shape[2:] and not any(window.pads) and not X86:
        return  # the kernel becomes the global one
    x = codes(rng, dtype, shape)
    of_x, of_y = affine_of(rng, dtype), affine_of(rng, dtype)
    inputs = {
        "x": x, "xs": np.float32(of_x.scale), "xz": code(of_x.zero_point, dtype),
        "ys": np.float32(of_y.scale), "yz": code(of_y.zero_point, dtype),
    }  # fmt: skip
    expected = run(
        "QLinearAveragePool", inputs, dtype, domain="com.microsoft", kernel_shape=window.kernel,
        strides=window.strides, pads=window.pads, count_include_pad=int(count_include_pad),
    )  # fmt: skip
    found = average_pool(x, window, of_x, of_y, count_include_pad=count_include_pad)
    np.testing.assert_array_equal(found, expected)
    same = average_pool_s32(x, window, zero_point=of_x.zero_point, count_include_pad=count_include_pad)
    float_kernel = average_pool(x, window, of_x, of_x, count_include_pad=count_include_pad)
    assert np.abs(same.astype(int) - float_kernel).max() <= 1


# seeds with sums so close to a half that dividing in another order, or summing in s32, gives another code
@x86_only
@pytest.mark.parametrize(
    ("kernel", "seed"),
    [((7, 7), 804666036), ((1, 30), 563770152), ((1, 30), 131347653), ((1, 30), 2051840094), ((7, 7), 1960607109)],
)
@pytest.mark.parametrize("whole", [True, False], ids=["window is the image", "two windows"])
def test_many_averages_have_the_kernels_bits(kernel, seed, whole):
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.uniform(-8, 0)
    byte = QType("uint8", 0, 255)
    of_x = Affine(float(np.float32(scale)), 0, byte)
    of_y = Affine(float(np.float32(of_x.scale / rng.uniform(1, 3))), 10, byte)
    of_x = Affine(of_x.scale, int(rng.integers(256)), byte)
    x = codes(rng, "uint8", (2, 3000, *kernel))
    if not whole:
        x = np.concatenate([x[:, 0::2], x[:, 1::2]], axis=3)
    inputs = {
        "x": x, "xs": np.float32(of_x.scale), "xz": code(of_x.zero_point, "uint8"),
        "ys": np.float32(of_y.scale), "yz": code(of_y.zero_point, "uint8"),
    }  # fmt: skip
    attributes = {"kernel_shape": kernel, "strides": kernel}
    expected = run("QLinearAveragePool", inputs, "uint8", domain="com.microsoft", **attributes)
    np.testing.assert_array_equal(average_pool(x, Window.of(kernel, kernel), of_x, of_y), expected)


@x86_only
@given(BYTES, pools(), SEEDS, st.booleans())
def test_global_average_pool_has_the_kernels_bits(dtype, pool, seed, channels_last):
    rng = np.random.default_rng(seed)
    x = codes(rng, dtype, pool[0])
    of_x, of_y = affine_of(rng, dtype), affine_of(rng, dtype)
    inputs = {
        "x": np.moveaxis(x, 1, -1) if channels_last else x,
        "xs": np.float32(of_x.scale), "xz": code(of_x.zero_point, dtype),
        "ys": np.float32(of_y.scale), "yz": code(of_y.zero_point, dtype),
    }  # fmt: skip
    expected = run("QLinearGlobalAveragePool", inputs, dtype, domain="com.microsoft", channels_last=int(channels_last))
    found = global_average_pool(x, of_x, of_y)
    np.testing.assert_array_equal(np.moveaxis(found, 1, -1) if channels_last else found, expected)


@given(BYTES, pools(), SEEDS, st.booleans(), st.data())
def test_max_pool_is_max_pool(dtype, pool, seed, ceil, data):
    shape, window = pool
    dilations = tuple(
        data.draw(st.integers(1, 2)) if size > 2 * k else 1 for size, k in zip(shape[2:], window.kernel, strict=True)
    )
    window = Window.of(window.kernel, window.strides, dilations, window.pads)
    x = codes(np.random.default_rng(seed), dtype, shape)
    expected = run(
        "MaxPool", {"x": x}, dtype, kernel_shape=window.kernel, strides=window.strides, pads=window.pads,
        dilations=dilations, ceil_mode=int(ceil),
    )  # fmt: skip
    np.testing.assert_array_equal(max_pool(x, window, ceil=ceil), expected)
