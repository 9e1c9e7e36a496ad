"""The folded model against the FP32 model on preprocessed pixels: the oracle of --uint8-input."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.errors import TableError
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.job import QuantizationSettings
from int8cal.numerics.affine import U8, Affine
from int8cal.preprocess import Preprocess
from int8cal.quantization.corrections.uint8_fold import fold_pixels
from int8cal.quantization.corrections.uint8_input import plan_uint8_input

IMAGENET = Preprocess(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CONV = "g (float[N,3,7,6] x) => (float[A,B,C,D] y) {{ y = Conv <{}> (x, W{}) }}"


def settled(bench, model, preprocess, exclude=()):
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection((), exclude, pixels=True))
    return prepared, plan, plan_uint8_input(prepared, plan, preprocess, QuantizationSettings(uint8_input=True))


def folded(made, affine=None):
    prepared, plan, uint8 = made
    readers = uint8.readers(prepared.model, plan)
    return fold_pixels(prepared.model, plan, readers, affine or readers.affine, uint8.ones)


def image(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def both(bench, made, codes, affine=None):
    """Outputs of the FP32 model on preprocessed pixels, and of the folded one on (p - zero point) * scale."""
    prepared, plan, uint8 = made
    readers = uint8.readers(prepared.model, plan)
    affine = affine or readers.affine
    pixels = uint8.pixels
    shape = [1] * codes.ndim
    if pixels.axis is not None:
        shape[pixels.axis] = -1
    x = codes * pixels.gain.reshape(shape) + pixels.offset.reshape(shape)
    found = fold_pixels(prepared.model, plan, readers, affine, uint8.ones)
    onnx.checker.check_model(found.model, full_check=True)
    assert {each.tensor for each in found.plan.tensors} == {
        *(each.tensor for each in plan.tensors),
        *readers.tensors,
        *found.wide,
    }
    mapped = (codes.astype(np.float64) - affine.zero_point) * affine.scale
    first = bench.run(prepared.model, {pixels.input: x.astype(np.float32)})
    second = bench.run(found.model, {pixels.input: mapped.astype(np.float32)})
    name = prepared.signature.outputs[0].name
    return first[name], second[name]


def close(first, second):
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-5 * np.abs(first).max())


@pytest.mark.parametrize(
    "attributes",
    ["pads = [1, 1, 1, 1]", "pads = [0, 2, 1, 0], strides = [2, 1]", 'auto_pad = "SAME_LOWER"', "dilations = [2, 1]"],
)
@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_convolution_is_the_same_everywhere(bench, attributes, bias):
    weights = {"W": (5, 3, 3, 3)} | ({"b": (5,)} if bias else {})
    prepared, plan, uint8 = settled(bench, bench.text(CONV.format(attributes, bias), **weights), IMAGENET)
    assert uint8.ones is not None
    close(*both(bench, (prepared, plan, uint8), image((2, 3, 7, 6))))


def test_without_the_extra_channel_padding_stands_for_the_residual(bench):
    model = bench.text(CONV.format("pads = [1, 1, 1, 1]", ", b"), W=(5, 3, 3, 3), b=(5,))
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    plain = replace(uint8, ones=None)
    first, second = both(bench, (prepared, plan, plain), image((1, 3, 7, 6)))
    close(first[:, :, 1:-1, 1:-1], second[:, :, 1:-1, 1:-1])
    readers = uint8.readers(prepared.model, plan)
    # at the border: the image continued with r in place of 0
    rest = readers.layers[0].residual(readers.affine.zero_point)
    assert 0.1 < np.abs(rest).max() < 0.3
    x = image((1, 3, 7, 6)) * uint8.pixels.gain.reshape(-1, 1, 1) + uint8.pixels.offset.reshape(-1, 1, 1)
    framed = np.broadcast_to(rest.reshape(1, 3, 1, 1), (1, 3, 9, 8)).copy()
    framed[:, :, 1:-1, 1:-1] = x
    bare = bench.text("g (float[N,3,9,8] x) => (float[A,B,C,D] y) { y = Conv (x, W, b) }", W=(5, 3, 3, 3), b=(5,))
    close(bench.run(bare, {"x": framed.astype(np.float32)})["y"], second)


def test_a_mean_of_127_needs_no_help_at_the_border(bench):
    model = bench.text(CONV.format("pads = [1, 1, 1, 1]", ""), W=(5, 3, 3, 3))
    prepared, plan, uint8 = settled(bench, model, Preprocess(mean=(127.0,), std=(128.0,)))
    readers = uint8.readers(prepared.model, plan)
    assert readers.affine.zero_point == 127
    assert not readers.layers[0].residual(127).any()
    close(*both(bench, (prepared, plan, replace(uint8, ones=None)), image((1, 3, 7, 6))))


def test_pixels_as_they_are_leave_the_weights_as_they_are(bench):
    model = bench.text(
        "g (float[N,1,7,6] x) => (float[A,B,C,D] y) { y = Conv <pads = [1, 1, 1, 1]> (x, W) }", W=(2, 1, 3, 3)
    )
    prepared, plan, uint8 = settled(bench, model, None)
    assert uint8.readers(prepared.model, plan).affine == Affine(1.0, 0, U8)
    assert uint8.ones is None
    found = folded((prepared, plan, uint8))
    assert found.model == prepared.model
    assert (found.plan.tensors, found.plan.layers, found.wide) == (plan.tensors, plan.layers, {})


NUMBER = st.floats(0.05, 20.0).flatmap(lambda value: st.sampled_from([value, -value]))


@given(st.data(), st.sampled_from([1, 3]), st.floats(1e-3, 2.0), st.booleans())
def test_any_scale_mean_and_std_fold(bench, data, channels, scale, padded):
    mean = data.draw(st.lists(st.floats(0, 255), min_size=channels, max_size=channels))
    std = data.draw(st.lists(NUMBER, min_size=channels, max_size=channels))
    declared = Preprocess(scale=scale, mean=tuple(scale * value for value in mean), std=tuple(std))
    model = bench.text(
        f"g (float[N,{channels},5,5] x) => (float[A,B,C,D] y) {{ y = Conv <pads = [{', '.join('1' * 4)}]> (x, W, b) }}"
        if padded
        else f"g (float[N,{channels},5,5] x) => (float[A,B,C,D] y) {{ y = Conv (x, W, b) }}",
        W=(3, channels, 3, 3),
        b=(3,),
    )
    prepared, plan, uint8 = settled(bench, model, declared)
    first, second = both(bench, (prepared, plan, uint8), image((1, channels, 5, 5)))
    # the extra channel is left out where padding is off by no more than half a pixel
    half = 0.0 if uint8.ones is not None or not padded else 0.5 * np.abs(uint8.pixels.gain).max() * 9 * channels * 2
    largest = np.abs(uint8.pixels.gain * 255).max() + np.abs(first).max()
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5 * largest + half)
    if padded:
        close_enough = 1e-5 * largest
        np.testing.assert_allclose(second[:, :, 1:-1, 1:-1], first[:, :, 1:-1, 1:-1], atol=close_enough)


def test_grouped_convolutions_take_their_own_channels(bench):
    model = bench.text(
        "g (float[N,3,6,6] x) => (float[A,B,C,D] y) { y = Conv <group = 3> (x, W, b) }", W=(6, 1, 3, 3), b=(6,)
    )
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    assert uint8.ones is None
    close(*both(bench, (prepared, plan, uint8), image((1, 3, 6, 6))))


HEADS = {
    "channels last": ("float[N,7,6,3] x", "t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv <pads = [1, 1, 1, 1]> (t, W)", (5, 3, 3, 3)),
    "open size": ("float[N,H,K,3] x", "t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv <pads = [1, 1, 1, 1]> (t, W)", (5, 3, 3, 3)),
    "flat, channels first": ("float[N,3,2,4] x", "t = Flatten (x) y = Gemm (t, W)", (24, 5)),
    "flat, channels last": ("float[N,2,4,3] x", "t = Flatten (x) y = Gemm <transB = 1> (t, W)", (5, 24)),
    "some rows": ("float[N,3,7,6] x", "t = Slice (x, s, e, a) y = Conv <pads = [1, 1, 1, 1]> (t, W)", (5, 3, 3, 3)),
    "some channels": ("float[N,3,7,6] x", "t = Slice (x, s, e, c) y = Conv <pads = [1, 1, 1, 1]> (t, W)", (5, 2, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_channels_are_followed_through_what_only_rearranges(bench, head):
    values, nodes, weight = head
    rank = "A,B" if len(weight) == 2 else "A,B,C,D"
    model = bench.text(
        f"g ({values}) => (float[{rank}] y) {{ {nodes} }}",
        W=weight,
        s=np.int64([1]),
        e=np.int64([3]),
        a=np.int64([2]),
        c=np.int64([1]),
    )
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    sides = [side if isinstance(side, int) else 7 for side in prepared.signature.inputs[0].shape]
    close(*both(bench, (prepared, plan, uint8), image((1, *sides[1:]))))


NORMALIZATIONS = {
    "scale": ("n = Mul (k, x)", None),
    "mean and std": ("c = Sub (x, m) n = Div (c, d)", None),
    "scale, mean and std": ("a = Mul (x, k) c = Sub (a, m) n = Div (c, d)", None),
    "after the caller's own": ("c = Add (m, x) n = Mul (c, d)", IMAGENET),
    "negated": ("n = Sub (m, x)", None),
}


@pytest.mark.parametrize("head", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
@pytest.mark.parametrize("pads", [0, 1])
def test_a_normalization_inside_the_graph_disappears(bench, head, pads):
    nodes, preprocess = head
    model = bench.text(
        f"g (float[N,3,7,6] x) => (float[A,B,C,D] y) {{ {nodes} y = Conv <pads = [{pads}, {pads}, {pads}, {pads}]> (n, W) }}",
        W=(5, 3, 3, 3),
        k=np.float32(0.0078125),
        m=np.float32([0.4, 0.5, 0.6]).reshape(3, 1, 1),
        d=np.float32([0.25, 0.5, 0.75]).reshape(1, 3, 1, 1),
    )
    made = settled(bench, model, preprocess)
    assert {node.op_type for node in folded(made).model.graph.node} <= {"Identity", "Pad", "Conv"}
    first, second = both(bench, made, image((1, 3, 7, 6)))
    # float32 rounds p - mean differently from p / scale - mean: the gain is known to seven digits
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=2e-5 * np.abs(first).max())


def test_the_bias_of_a_product_may_be_in_the_add_behind_it(bench):
    model = bench.text("g (float[N,4,8] x) => (float[A,B,C] y) { p = MatMul (x, W) y = Add (p, b) }", W=(8, 5), b=(5,))
    made = settled(bench, model, Preprocess(scale=1 / 255, mean=(0.449,), std=(0.226,)))
    close(*both(bench, made, image((2, 4, 8))))


def test_each_reader_of_the_input_is_folded_and_they_share_the_extra_channel(bench):
    model = bench.text(
        """g (float[N,3,6,6] x) => (float[A,B,C,D] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W, b)
            c = Conv <pads = [1, 1, 1, 1], dilations = [1, 1]> (x, W, b)
            d = Conv (x, V)
            e = Mul (a, c)
            y = Mul (e, d)
        }""",
        W=(4, 3, 3, 3),
        b=(4,),
        V=(4, 3, 1, 1),
    )
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    assert len(uint8.readers(prepared.model, plan).layers) == 3
    found = folded((prepared, plan, uint8))
    assert list(found.wide.values()) == ["x"]
    assert [node.op_type for node in found.model.graph.node].count("Pad") == 1
    close(*both(bench, (prepared, plan, uint8), image((1, 3, 6, 6))))


def test_a_weight_that_another_layer_reads_too_is_left_to_it(bench):
    model = bench.text(
        """g (float[N,3,6,6] x) => (float[A,B,C,D] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W, b)
            y = Conv <pads = [1, 1, 1, 1]> (a, W, b)
        }""",
        W=(3, 3, 3, 3),
        b=(3,),
    )
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    close(*both(bench, (prepared, plan, uint8), image((1, 3, 6, 6))))


@pytest.mark.parametrize("affine", [Affine(0.5, 0, U8), Affine(0.001, 255, U8), Affine(3.0, 90, U8)])
def test_any_scale_and_zero_point_of_an_edited_table_fold(bench, affine):
    model = bench.text(CONV.format("pads = [1, 1, 1, 1]", ", b"), W=(5, 3, 3, 3), b=(5,))
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    close(*both(bench, (prepared, plan, uint8), image((1, 3, 7, 6)), affine))


def test_a_zero_point_that_is_the_extra_channel_s_code_is_refused(bench):
    model = bench.text(CONV.format("pads = [1, 1, 1, 1]", ""), W=(5, 3, 3, 3))
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    with pytest.raises(TableError, match="are both"):
        folded((prepared, plan, uint8), Affine(1.0, uint8.ones, U8))


def test_a_scale_that_takes_weights_out_of_float32_is_refused(bench):
    made = settled(bench, bench.text(CONV.format("pads = [1,1,1,1]", ""), W=(4, 3, 3, 3)), IMAGENET)
    with pytest.raises(TableError, match="'W' of node 'Conv_y' leaves float32"):
        both(bench, made, image((1, 3, 7, 6)), Affine(1e-44, 0, U8))


def test_the_extra_channel_s_weights_fit_beside_the_others(bench):
    model = bench.text(CONV.format("pads = [1, 1, 1, 1]", ""), W=(5, 3, 3, 3))
    prepared, plan, uint8 = settled(bench, model, IMAGENET)
    found = folded((prepared, plan, uint8))
    (layer,) = found.plan.layers
    tensor = next(tensor for tensor in found.model.graph.initializer if tensor.name == layer.weight)
    weight = np.abs(onnx.numpy_helper.to_array(tensor))
    own, extra = weight[:, :3].max(axis=(1, 2, 3)), weight[:, 3].max(axis=(1, 2))
    assert weight.shape == (5, 4, 3, 3)
    assert (extra <= own * 1.000001).all()
    # one code nearer, and some output channel's scale would have to grow
    distance = abs(uint8.ones - uint8.readers(prepared.model, plan).affine.zero_point)
    assert (extra * distance / (distance - 1) > own).any()
