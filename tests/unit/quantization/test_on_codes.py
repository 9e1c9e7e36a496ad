"""Resizes that repeat pixels are written as copies of rows, Pads as Pads of codes, and give the same codes."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from op_types import ops

from int8cal.graph.edit import Builder, Names
from int8cal.graph.index import Index
from int8cal.quantization.on_codes import whole_factors, write_on_codes
from int8cal.runtime.sessions import Session

WAYS = [
    (mode, nearest)
    for mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "tf_half_pixel_for_nn")
    for nearest in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
]


def resize(dims, scales, way, *, by_sizes=False, free=False):
    """A model of one Resize of codes; `free` leaves height and width to the feed."""
    mode, nearest = way
    given_ = np.array([dims[0], dims[1], *(int(s * d) for s, d in zip(scales[2:], dims[2:], strict=True))])
    values = [
        helper.make_tensor("scales", onnx.TensorProto.FLOAT, [4], scales),
        helper.make_tensor("sizes", onnx.TensorProto.INT64, [4], given_),
    ]
    node = helper.make_node(
        "Resize",
        ["x", "", "", "sizes"] if by_sizes else ["x", "", "scales"],
        ["y"],
        mode="nearest",
        coordinate_transformation_mode=mode,
        nearest_mode=nearest,
    )
    shape = [*dims[:2], "H", "W"] if free else dims
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        values[1:] if by_sizes else values[:1],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def repeated(model, factors):
    index = Index(model)
    built = Builder(Names(model.graph))
    write_on_codes(built, index, index.graph.node[0], factors, ("x", "y"), "")
    other = onnx.ModelProto()
    other.CopyFrom(model)
    del other.graph.node[:], other.graph.initializer[:]
    other.graph.node.extend(built.nodes)
    other.graph.initializer.extend(built.initializers.values())
    return other


@given(
    st.tuples(*(st.integers(1, size) for size in (2, 3, 5, 5))),
    st.tuples(st.sampled_from([1.0, 2.0, 3.0, 4.0, 1.5]), st.sampled_from([1.0, 2.0, 3.0, 2.5])),
    st.sampled_from(WAYS),
    st.booleans(),
    st.booleans(),
)
def test_copies_of_rows_are_what_the_resize_gives(dims, scales, way, by_sizes, free):
    model = resize(list(dims), [1.0, 1.0, *scales], way, by_sizes=by_sizes, free=free)
    index = Index(model)
    factors = whole_factors(index, index.graph.node[0])
    if factors is None:
        whole = all(scale.is_integer() for scale in scales)
        exact = way in {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
        assert not (whole and exact) or (by_sizes and free)
        return
    x = np.random.default_rng(0).integers(0, 256, dims, np.uint8)
    first, second = (Session(each, threads=1).run({"x": x})["y"] for each in (model, repeated(model, factors)))
    assert np.array_equal(first, second)
    assert first.shape == second.shape


TEXT = 'g (float[N,4,8,8] x) => (float[A,B,C,D] y{}) {{ c = Conv(x, W) r = Resize <mode = "nearest"> (c, , s) {} y = Conv(r, V) }}'


def made(bench, more="", tail="", **settings):
    model = bench.text(TEXT.format(more, tail), W=(8, 4, 3, 3), V=(4, 8, 3, 3), s=np.array([1, 1, 2, 2], np.float32))
    samples = bench.samples(model)
    return samples[0].feed, bench.quantized(model, samples=samples, **settings)[-1].model


def test_an_enlarged_tensor_of_codes_has_no_resize(bench, monkeypatch):
    feed, built = made(bench)
    assert "Resize" not in ops(built)
    assert ops(built).count("Concat") == 2
    with monkeypatch.context() as patch:
        patch.setattr("int8cal.quantization.emit.on_codes", lambda *_: {})
        _, other = made(bench)
    assert "Resize" in ops(other)
    assert ops(built).count("QuantizeLinear") == ops(other).count("QuantizeLinear") - 1  # what is repeated needs none
    for optimization in ("none", "all"):
        assert np.array_equal(*(bench.run(each, feed, optimization)["y"] for each in (built, other)))


def test_a_float_op_reads_the_codes_that_were_repeated(bench):
    feed, built = made(bench, ", float[E,F,G,H] z", "z = Tanh(r)")
    assert "Resize" not in ops(built)
    z = bench.run(built, feed)["z"]
    assert np.array_equal(z[..., ::2, ::2], z[..., 1::2, 1::2])
    assert len(np.unique(z)) > 8


def test_one_that_is_an_output_stays(bench):
    _, built = made(bench, ", float[E,F,G,H] r")
    assert ops(built).count("Resize") == 1


def test_another_runtime_gets_the_resize_as_it_was(bench):
    _, built = made(bench, target="openvino")
    assert ops(built).count("Resize") == 1


def padded(bench, pads, *, more="", opset=17, behind="q = LeakyRelu<alpha = 0.1>(p) y = Conv(q, V)", **settings):
    text = f"g (float[N,4,8,8] x) => (float[A,B,C,D] y) {{ c = Conv(x, W) p = Pad{more.partition('|')[2]}(c, pads{more.partition('|')[0]}) {behind} }}"
    channels = 8 + int(pads[1] + pads[5]) if len(pads) == 8 else 8
    weights = {"W": (8, 4, 3, 3), "V": (4, channels, 1, 1), "pads": np.array(pads, np.int64)}
    constants = {"zero": np.zeros((), np.float32), "one": np.ones((), np.float32), "axes": np.array([2, 3], np.int64)}
    weights |= {name: value for name, value in constants.items() if name in more}
    model = bench.text(text, opset=opset, **weights)
    samples = bench.samples(model)
    return samples, *bench.quantized(model, samples=samples, **settings)


def pad_of(model):
    (node,) = [node for node in model.graph.node if node.op_type == "Pad"]
    return node


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize(
    ("pads", "more", "opset"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], "", 17),
        ([0, 0, 0, 0, 0, 4, 0, 0], ", zero", 17),
        ([0, 2, 1, 0, 0, 1, 0, 3], "", 17),
        ([0, 0, -1, 2, 0, 0, 0, -2], "", 17),
        ([1, 1, 0, 2], ", , axes", 18),
    ],
)
def test_a_pad_of_codes_is_the_pad_of_values(bench, monkeypatch, pads, more, opset, activations):
    samples, *_, plan, _, other = padded(bench, pads, more=more, opset=opset, activations=activations)
    assert "Pad_p" in plan.integer_nodes or pad_of(other.model).name in plan.integer_nodes
    before = next(node for node in other.model.graph.node if node.output[0] == pad_of(other.model).input[0])
    assert before.op_type == "QuantizeLinear"
    with monkeypatch.context() as patch:
        patch.setattr("int8cal.quantization.emit.on_codes", lambda *_: {})
        plain = padded(bench, pads, more=more, opset=opset, activations=activations)[-1]
    before = next(node for node in plain.model.graph.node if node.output[0] == pad_of(plain.model).input[0])
    assert before.op_type == "DequantizeLinear"
    for sample in samples:
        one, two = (Session(each.model, threads=1).run(sample.feed)["y"] for each in (other, plain))
        assert np.abs(one).max() > 0
        assert np.array_equal(one, two)


@pytest.mark.parametrize("more", [", one", '|<mode = "edge">', '|<mode = "reflect">'])
def test_a_pad_with_other_values_stays_float(bench, more):
    _, _, plan, _, _ = padded(bench, [0, 0, 1, 1, 0, 0, 1, 1], more=more)
    assert not any("Pad" in name for name in plan.integer_nodes)


def test_a_pad_that_floats_read_has_real_values(bench):
    samples, prepared, _, _, built = padded(
        bench, [0, 0, 1, 1, 0, 0, 1, 1], behind="v = Conv(p, V) t = Elu(p) u = ReduceMean<axes = [1]>(t) y = Add(v, u)"
    )
    float_, int8 = (Session(each, threads=1).run(samples[0].feed)["y"] for each in (prepared.model, built.model))
    assert np.abs(float_ - int8).max() < 0.05 * np.abs(float_).max()
