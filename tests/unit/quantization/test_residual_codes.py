"""A second plane of codes: what is written, what it computes, and what a table may say."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from int8cal.errors import TableError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.evaluation.layerwise import find_layers
from int8cal.graph.index import Index
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.numerics.affine import S7, S8, U8, Affine
from int8cal.numerics.pairs import Rows, link, unsafe_pairs
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.residual_codes import (
    FACTOR,
    HEADROOM,
    ResidualCodes,
    can_have_residual_codes,
    choose_plane_scales,
    first_plane,
    round_planes,
    with_residual_codes,
    with_room,
)
from int8cal.quantization.layers import layer_weights
from int8cal.quantization.table import TableSettings

IMAGE = "g (float[N,{},9,8] x) => (float[A,C,D,E] y)"
MODELS = {
    # name -> (head, body, weights)
    "conv": (IMAGE.format(4), "y = Conv <pads = [1, 0, 2, 1], strides = [2, 1]> (x, W, B)", {"W": (8, 4, 3, 3)}),
    "conv of odd channels": (IMAGE.format(3), "y = Conv <pads = [1, 1, 1, 1]> (x, W, B)", {"W": (8, 3, 3, 3)}),
    "conv of one channel": (IMAGE.format(1), "y = Conv (x, W, B)", {"W": (8, 1, 1, 1)}),
    "pointwise conv": (IMAGE.format(5), "y = Conv (x, W, B)", {"W": (8, 5, 1, 1)}),
    "gemm": ("g (float[N,5] x) => (float[A,C] y)", "y = Gemm(x, W, B)", {"W": (5, 8)}),
    "gemm of a transposed weight": (
        "g (float[N,5] x) => (float[A,C] y)",
        "y = Gemm <transB = 1> (x, W, B)",
        {"W": (8, 5)},
    ),
    "matmul": ("g (float[N,5] x) => (float[A,C] y)", "y = MatMul(x, W)", {"W": (5, 8)}),
    "matmul with bias": ("g (float[N,5] x) => (float[A,C] y)", "m = MatMul(x, W) y = Add(m, B)", {"W": (5, 8)}),
    "matmul of rows": ("g (float[N,3,5] x) => (float[A,C,D] y)", "y = MatMul(x, W)", {"W": (5, 8)}),
    "matmul of rows with bias": (
        "g (float[N,M,5] x) => (float[A,C,D] y)",
        "m = MatMul(x, W) y = Add(B, m)",
        {"W": (5, 8)},
    ),
}


def model_of(bench, name):
    head, body, weights = MODELS[name]
    return bench.text(f"{head} {{ {body} }}", **weights, **({"B": (8,)} if "B" in body else {}))


def doubled(bench, model, **settings):
    """Model -> (prepared, plan, table with planes for its only layer, built)."""
    prepared, plan, table, _ = bench.quantized(model, **settings)
    table = with_residual_codes(table, plan, [layer.node for layer in plan.layers])
    return prepared, plan, table, build_model(prepared.model, plan, table)


def feed_of(bench, model):
    return {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 6, seed=11)])}


def codes_of(bench, built, feed):
    """What the emitted model makes of its input: both planes, minus the zero point."""
    showing = onnx.ModelProto()
    showing.CopyFrom(built.model)
    showing.graph.output.append(helper.make_tensor_value_info("x_planes", onnx.TensorProto.UINT8, None))
    return bench.run(showing, feed)["x_planes"].astype(np.int64)


def twin_codes(x, affine, axis):
    """Both planes by the formulas, in float32 as the runtime computes."""
    scale, zero = np.float32(affine.scale), affine.zero_point

    def rounded(values, step):
        return np.clip(np.rint(values / step) + zero, 0, 255).astype(np.int64)

    first = rounded(x, scale)
    left = x - (first - zero).astype(np.float32) * scale
    planes = [first, rounded(left, scale / np.float32(FACTOR))]
    if x.ndim == 4 and x.shape[1] == 3:  # an image has a channel of zeros behind its own
        planes = [np.pad(each, [(0, 0), (0, 1), (0, 0), (0, 0)], constant_values=zero) for each in planes]
    return np.concatenate(planes, axis=axis)


def product(node, weight, codes):
    """The layer's integer sum, int64, over codes of both planes."""
    weight = weight.astype(np.int64)
    if node.op_type == "Conv":
        attributes = {item.name: list(item.ints) for item in node.attribute}
        top, left, bottom, right = attributes.get("pads", [0] * 4)
        down, across = attributes.get("strides", [1, 1])
        padded = np.pad(codes, [(0, 0), (0, 0), (top, bottom), (left, right)])
        windows = sliding_window_view(padded, weight.shape[2:], (2, 3))[:, :, ::down, ::across]
        return np.einsum("nchwij,ocij->nohw", windows, weight)
    transposed = any(item.name == "transB" and item.i for item in node.attribute)
    return codes @ (weight.T if transposed else weight)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimization", ["none", "all"])
def test_the_model_computes_the_formula(bench, name, optimization):
    model = model_of(bench, name)
    prepared, plan, table, built = doubled(bench, model, weights="s7")
    (layer,) = plan.layers
    affine, feed = table.tensors["x"].affine, feed_of(bench, model)
    axis = 1 if layer.op_type == "Conv" else -1
    codes = twin_codes(feed["x"], affine, axis)
    np.testing.assert_array_equal(codes_of(bench, built, feed), codes)
    integers = built.layers[layer.node]
    node = next(node for node in prepared.model.graph.node if node.name == layer.node)
    sums = product(node, integers.weight, codes - affine.zero_point)
    shape = (1, -1, 1, 1) if layer.op_type == "Conv" else (-1,)
    if integers.bias is not None:
        sums = sums + integers.bias.reshape(shape)
    real = sums * (affine.scale * integers.scales.reshape(shape))
    actual = bench.run(built.model, feed, optimization)["y"]
    if layer.op_type != "Conv":
        np.testing.assert_allclose(actual, real, rtol=2e-6, atol=1e-6)
        return
    target = table.tensors["y"].affine
    expected = np.clip(np.rint(real / target.scale) + target.zero_point, 0, 255)
    got = np.rint(actual / target.scale) + target.zero_point
    assert np.abs(got - expected).max() <= 1
    assert (got == expected).mean() > 0.99  # one step only where float32 requantization meets a tie


@pytest.mark.parametrize("name", ["gemm", "gemm of a transposed weight", "matmul", "matmul with bias"])
@pytest.mark.parametrize("weights", ["s8", "s7", "paired"])
def test_the_noise_of_the_input_falls_by_far(bench, name, weights):
    model = model_of(bench, name)
    _, plan, plain, single = bench.quantized(model, weights=weights)
    _, _, table, double = doubled(bench, model, weights=weights)
    (layer,) = plan.layers
    feed = feed_of(bench, model)
    # against the rounded weights, so that nothing but the input's noise is seen
    axis = -1

    def noise(built, entry, *, planes):
        codes = codes_of(bench, built, feed) if planes else twin_codes(feed["x"], entry.affine, axis)
        codes = (codes if planes else np.split(codes, 2, axis)[0]) - entry.affine.zero_point
        first, *second = np.split(codes, 2, axis) if planes else [codes]
        seen = (first + sum(second) / FACTOR) * entry.affine.scale
        return np.square(seen - feed["x"])[np.abs(feed["x"]) < plain.tensors["x"].high].mean()

    before = noise(single, plain.tensors["x"], planes=False)
    after = noise(double, table.tensors["x"], planes=True)
    assert 10 * np.log10(before / after) > 15
    exact = bench.run(model, feed)["y"]
    errors = [np.square(bench.run(each.model, feed)["y"] - exact).mean() for each in (single, double)]
    assert 10 * np.log10(errors[0] / errors[1]) > 10
    assert double.layers[layer.node].weight.size == 2 * single.layers[layer.node].weight.size


@pytest.mark.parametrize("name", MODELS)
def test_the_layer_stays_on_integers_and_the_difference_alone_is_float(bench, name):
    model = model_of(bench, name)
    _, _, _, built = doubled(bench, model)
    assert [node.op_type for node in audit_fusion(built.model).nodes] == ["Sub"]
    onnx.checker.check_model(built.model, full_check=True)


@pytest.mark.parametrize("first", ["m = MatMul (x, V)", "m = Gemm (x, V, B)", "p = MatMul (x, V) m = Add (p, B)"])
def test_a_product_in_front_of_residual_codes_stays_on_integers_too(bench, first):
    """Its result has a Q and the remainder's Sub behind it, which the runtime's fusion does not take together."""
    head, biased = "g (float[N,5] x) => (float[A,C] y)", {"B": (5,)} if "B" in first else {}
    model = bench.text(f"{head} {{ {first} y = MatMul (m, W) }}", V=(5, 5), W=(5, 8), **biased)
    prepared, plan, table, _ = bench.quantized(model)
    (layer,) = [each for each in plan.layers if each.input == "m"]
    built = build_model(prepared.model, plan, with_residual_codes(table, plan, [layer.node]))
    assert {node.op_type for node in audit_fusion(built.model).nodes} == {"Reshape", "Sub"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["portable", "x86-avx2"])
def test_no_pair_can_saturate(bench, name, target):
    model = model_of(bench, name)
    prepared, plan, table, _ = bench.quantized(model)
    table = replace(table, settings=TableSettings({"target": target, "weights": "paired"}))
    table = with_residual_codes(table, plan, [plan.layers[0].node])
    built = build_model(prepared.model, plan, table)
    (layer,) = plan.layers
    source = layer_weights(Index(prepared.model), layer, built.draft)
    codes = source.reduction.rows(built.layers[layer.node].weight).values
    assert not unsafe_pairs(codes, source.links).any()
    assert source.links.any() or source.span != "paired"


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.001])
def test_pairs_are_safe_with_scales_that_a_table_made_too_small(channels, scale):
    rng = np.random.default_rng(channels)
    first = rng.choice([-1.0, 1.0], size=(4, 1, 9, channels))
    values = np.concatenate([first, first / FACTOR], axis=-1).reshape(4, 1, -1)
    rows = Rows(values, 2 * channels, (3, 3))
    links = link(("flat", "channels"), 9, 2 * channels)
    codes = round_planes(rows, np.full(4, scale / 127), S8, links)
    assert not unsafe_pairs(codes, links).any()


@pytest.mark.parametrize("positions", [1, 7])
def test_remainders_of_one_channel_are_not_lost_to_its_large_codes(positions):
    """Both planes of the channel meet in one sum: 127 leaves room for 1, where the remainder needs 8."""
    values = np.random.default_rng(0).uniform(0.5, 1.0, size=(16, 1, positions, 1)) * [[-1.0]]
    rows = Rows(np.concatenate([values, values / FACTOR], axis=-1).reshape(16, 1, -1), 2, (positions,))
    links = link(("flat", "channels"), positions, 2)
    scales = choose_plane_scales(rows, S8, links)
    codes = round_planes(rows, scales, S8, links)
    first, second = np.moveaxis(codes.reshape(16, positions, 2).astype(np.float64), -1, 0)
    np.testing.assert_allclose(second, first / FACTOR, atol=2)
    np.testing.assert_allclose(first * scales[:, None], values[:, 0, :, 0], rtol=0.02)
    assert not unsafe_pairs(codes, links).any()


def test_the_first_plane_has_the_codes_of_a_layer_without_a_second_one(bench):
    model = model_of(bench, "conv")
    prepared, plan, table, single = bench.quantized(model, weights="s8")
    _, _, _, double = doubled(bench, model, weights="s8")
    source = layer_weights(Index(prepared.model), plan.layers[0], double.draft)
    np.testing.assert_array_equal(
        first_plane(double.layers["Conv_y"].weight, source.reduction), single.layers["Conv_y"].weight
    )
    np.testing.assert_array_equal(double.layers["Conv_y"].scales, single.layers["Conv_y"].scales)
    assert table.corrections == ()


@pytest.mark.parametrize("name", ["matmul of rows", "conv"])
def test_values_outside_the_range_clip(bench, name):
    model = model_of(bench, name)
    _, _, table, built = doubled(bench, model, weights="s7")
    feed = feed_of(bench, model)
    entry = table.tensors["x"]
    for sign, end in ((1e4, entry.high), (-1e4, entry.low)):
        codes = codes_of(bench, built, {"x": np.full_like(feed["x"], sign)}) - entry.zero_point
        first, second = np.split(codes, 2, 1 if name == "conv" else -1)
        seen = (first + second / FACTOR) * entry.scale
        np.testing.assert_allclose(seen, end * (1 + 1 / FACTOR), rtol=1e-6)


@pytest.mark.parametrize("zero_point", [0, 3, 8, 100, 250, 255])
def test_room_for_remainders_never_narrows_a_range(zero_point):
    affine = Affine(0.5, zero_point, U8)
    for headroom in (1.0, HEADROOM):
        wide = with_room(affine, headroom)
        assert min(wide.zero_point, 255 - wide.zero_point) >= FACTOR // 2
        assert wide.low <= headroom * affine.low + 1e-6
        assert wide.high >= headroom * affine.high - 1e-5 * wide.high
        assert wide.scale <= headroom * affine.scale * 1.04


def test_a_range_gets_headroom_unless_the_user_fixed_it(bench):
    model = model_of(bench, "gemm")
    _, _, plain, _ = bench.quantized(model)
    _, _, table, _ = doubled(bench, model)
    assert table.tensors["x"].high > 1.9 * plain.tensors["x"].high
    _, _, table, _ = doubled(bench, model, ranges={"x": (-2.0, 2.0)})
    entry = table.tensors["x"]
    assert entry.source == "user"
    np.testing.assert_allclose([entry.low, entry.high], [-2.0, 2.0], atol=entry.scale)


def shared(bench, body="a = Gemm(x, W, B) b = MatMul(x, V) y = Add(a, b)", dims="N,5", **weights):
    output = ",".join("ACDE"[: dims.count(",") + 1])
    return bench.text(f"g (float[{dims}] x) => (float[{output}] y) {{ {body} }}", **weights)


def test_an_input_that_two_layers_read_is_widened_and_written_once(bench):
    model = shared(bench, W=(5, 8), B=(8,), V=(5, 8))
    prepared, plan, plain, single = bench.quantized(model)
    table = with_residual_codes(plain, plan, ["Gemm_a", "MatMul_b"])
    alone = with_residual_codes(plain, plan, ["Gemm_a"])
    assert table.tensors["x"] == alone.tensors["x"]
    built = build_model(prepared.model, plan, table)
    assert [node.op_type for node in built.model.graph.node].count("Concat") == 1
    feed = feed_of(bench, model)
    exact = bench.run(model, feed)["y"]
    errors = [np.square(bench.run(each.model, feed, "all")["y"] - exact).mean() for each in (single, built)]
    assert errors[1] < errors[0] / 10


def test_a_layer_beside_it_may_read_the_first_plane_alone(bench):
    model = shared(bench, W=(5, 8), B=(8,), V=(5, 8))
    prepared, plan, plain, _ = bench.quantized(model)
    built = build_model(prepared.model, plan, with_residual_codes(plain, plan, ["Gemm_a"]))
    assert built.layers["MatMul_b"].weight.shape == (5, 8)
    assert built.layers["Gemm_a"].weight.shape == (10, 8)
    feed = feed_of(bench, model)
    np.testing.assert_allclose(bench.run(built.model, feed)["y"], bench.run(model, feed)["y"], atol=0.2)


def test_readers_with_their_channels_on_different_axes_get_planes_of_their_own(bench):
    body = "a = Conv <pads = [1, 1]> (x, W) b = MatMul(x, V) y = Add(a, b)"
    model = shared(bench, body, "N,4,6", W=(4, 4, 3), V=(6, 6))
    prepared, plan, plain, _ = bench.quantized(model, weights="s8")
    built = build_model(prepared.model, plan, with_residual_codes(plain, plan, ["Conv_a", "MatMul_b"]))
    feed = bench.samples(model)[0].feed
    np.testing.assert_allclose(
        bench.run(built.model, feed, "all")["y"], bench.run(model, feed)["y"], atol=2 * plain.tensors["a"].scale
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_table_with_its_weights_builds_the_same_bytes(bench, name):
    prepared, plan, table, built = doubled(bench, model_of(bench, name))
    again = build_model(prepared.model, plan, with_weights(table, plan, built))
    assert again.model.SerializeToString(deterministic=True) == built.model.SerializeToString(deterministic=True)


def test_names_that_the_model_has_already_stay_its_own(bench):
    body = "x_planes = Relu(x) x_remainder = Gemm(x_planes, W, B) a = Gemm(x, W, B) y = Add(a, x_remainder)"
    model = shared(bench, body, W=(5, 8), B=(8,))
    prepared, plan, table, _ = bench.quantized(model)
    table = with_residual_codes(table, plan, [layer.node for layer in plan.layers])
    built = build_model(prepared.model, plan, table)
    onnx.checker.check_model(built.model, full_check=True)
    feed = feed_of(bench, model)
    np.testing.assert_allclose(bench.run(built.model, feed, "all")["y"], bench.run(model, feed)["y"], atol=0.05)


def test_the_second_plane_is_no_layer_and_nothing_that_is_missing(bench):
    model = model_of(bench, "conv")
    _, _, _, built = doubled(bench, model)
    layers, missing = find_layers(model, built.model)
    assert [layer.tensor for layer in layers] == ["x", "y"]
    assert missing == ()


def test_planes_need_an_input_of_ones_own_in_float(bench):
    weights = {"W": (4, 4, 1, 1), "V": (4, 2, 1, 1), "T": (4, 4, 2, 2), "S": (3, 5, 8)}

    def possible(body, dims="N,4,8,8", output="float[A,C,D,E] y"):
        target = "openvino" if "Transpose" in body else "portable"
        plan = bench.plan(bench.text(f"g (float[{dims}] x) => ({output}) {{ {body} }}", **weights), target=target)
        return {layer.node: can_have_residual_codes(plan, layer) for layer in plan.layers}

    assert possible("a = Conv(x, W) y = Conv(a, W)") == {"Conv_a": True, "Conv_y": False}
    assert possible("a = Conv(x, W) b = Tanh(a) y = Conv(b, W)") == {"Conv_a": True, "Conv_y": True}
    assert possible("y = Conv <group = 2> (x, V)") == {"Conv_y": False}
    assert possible("y = ConvTranspose(x, T)") == {"ConvTranspose_y": False}
    assert possible("m = MaxPool <kernel_shape = [2, 2]> (x) a = Conv(x, W) y = Conv(m, W)") == {
        "Conv_a": False,
        "Conv_y": False,
    }
    assert possible("y = MatMul(x, S)", "N,3,2,5") == {"MatMul_y": False}


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ({"Conv_b": 16}, "names 'Conv_b', which is no layer with an input of its own in float"),
        ({"nobody": 16}, "names 'nobody'"),
        ({"Conv_a": 8}, "of 'Conv_a' is 8, this version knows 16"),
        ({"Conv_a": "16"}, "of 'Conv_a' is 16, this version"),
        ({"Conv_a": None}, "of 'Conv_a' is None"),
        ({"Conv_a": [16]}, "of 'Conv_a' is"),
    ],
)
def test_an_edited_table_that_cannot_be_meant_is_refused(bench, part, match):
    model = bench.text(
        f"{IMAGE.format(4)} {{ a = Conv(x, W) b = Conv(a, W) y = Relu(b) }}", W=np.eye(4).reshape(4, 4, 1, 1)
    )
    prepared, plan, table, _ = bench.quantized(model)
    with pytest.raises(TableError, match=match) as caught:
        build_model(prepared.model, plan, replace(table, corrections=(ResidualCodes(part),)))
    assert (caught.value.exit_code, bool(caught.value.do)) == (6, True)


def test_signed_codes_come_in_one_plane_only(bench):
    prepared, plan, table, _ = bench.quantized(model_of(bench, "conv"), activations="s8")
    with pytest.raises(TableError, match="'Conv_y', whose input has signed codes"):
        build_model(prepared.model, plan, with_residual_codes(table, plan, ["Conv_y"]))


def test_a_layer_that_was_excluded_since_is_refused(bench):
    prepared, plan, table, _ = bench.quantized(shared(bench, W=(5, 8), B=(8,), V=(5, 8)))
    table = with_residual_codes(table, plan, ["Gemm_a"])
    smaller = make_plan(prepared.model, Selection((), ("Gemm_a",)))
    with pytest.raises(TableError, match="'Gemm_a'"):
        build_model(prepared.model, smaller, table)


@pytest.mark.parametrize("dtype", [S8, S7])
def test_codes_of_the_second_plane_are_the_first_divided(dtype):
    values = np.linspace(-1, 1, 12).reshape(1, 1, 12)
    both = np.concatenate([values, values / FACTOR], axis=-1)
    scale = np.array([1 / dtype.qmax])
    codes = round_planes(Rows(both, 24), scale, dtype, link((), 1, 24)).reshape(-1)
    np.testing.assert_allclose(codes[:12], values.reshape(-1) * dtype.qmax, atol=0.51)
    np.testing.assert_allclose(codes[12:], values.reshape(-1) * dtype.qmax / FACTOR, atol=0.5)
