"""AveragePools and BatchNormalizations of codes run as depthwise convolutions, with the same values."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from int8cal.graph.edit import Builder, Names
from int8cal.graph.index import Index
from int8cal.numerics.affine import S8, U8, Affine
from int8cal.quantization.depthwise import average_as_convolution, write_depthwise
from int8cal.runtime.sessions import Session

newest = pytest.mark.newest


def kernels(model, tmp_path):
    """The ops of the graph once the runtime has optimized it."""
    path = tmp_path / "optimized.onnx"
    Session(model, threads=1, optimization="all", optimized_path=path)
    return [node.op_type for node in onnx.load(path).graph.node]


AVERAGE = "g (float[N,4,{}] x) => (float[A,B,C,D] y) {{ c = Conv(x, W) p = AveragePool <{}> (c) y = Conv(p, V) }}"
AVERAGES = {
    "two by two": ("kernel_shape = [2, 2], strides = [2, 2]", "convolution"),
    "pads that count": ("kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1", "convolution"),
    "pads that do not": ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", "float"),
    "same, and even": ('kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"', "convolution"),
    "same, and wide": ('kernel_shape = [3, 3], auto_pad = "SAME_UPPER"', "float"),
    "a window beyond the end": ("kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", "float"),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_codes_is_a_convolution_or_a_float_pool(bench, tmp_path, name):
    attributes, expected = AVERAGES[name]
    model = bench.text(AVERAGE.format("18,18", attributes), W=(8, 4, 3, 3), V=(4, 8, 3, 3))
    samples = bench.samples(model)
    quantized = bench.quantized(model, samples=samples)[-1].model
    (pool,) = [
        node for node in quantized.graph.node if {"p", "p_pooled"} & set(node.output) and node.op_type != "Reshape"
    ]
    assert pool.op_type == ("Conv" if expected == "convolution" else "AveragePool")
    ops = kernels(quantized, tmp_path)
    assert ops.count("QLinearConv") == (3 if expected == "convolution" else 2)
    assert "QLinearAveragePool" not in ops
    # the same codes as of the pool itself, but for a tie that is rounded the other way
    values = [bench.run(quantized, samples[0].feed, optimization)["y"] for optimization in ("none", "all")]
    np.testing.assert_allclose(*values, rtol=0, atol=0.02 * np.abs(values[0]).max())


def test_an_average_of_free_channels_is_a_float_pool(bench, tmp_path):
    text = "g (float[N,C,16,16] x) => (float[A,B,D,E] y) { p = AveragePool <kernel_shape = [2, 2]> (x) y = Conv(p, V) }"
    model = bench.text(text, V=(4, 8, 3, 3))
    index = Index(model)
    assert average_as_convolution(index, index.graph.node[0]) is None


def test_another_runtime_gets_the_average_as_it_was(bench):
    model = bench.text(AVERAGE.format("18,18", "kernel_shape = [2, 2]"), W=(8, 4, 3, 3), V=(4, 8, 3, 3))
    built = bench.quantized(model, target="openvino")[-1].model
    assert [node.op_type for node in built.graph.node].count("AveragePool") == 1


@st.composite
def average_pools(draw):
    """A model of one AveragePool, and what it reads."""
    rank = draw(st.integers(1, 2))
    numbers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))  # noqa: E731
    kernel = numbers(1, 3)
    attributes = {"kernel_shape": kernel, "strides": numbers(1, 3), "dilations": numbers(1, 2)}
    auto = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, taps - 1)) for taps in (*kernel, *kernel)]
        attributes |= {name: draw(st.integers(0, 1)) for name in ("count_include_pad", "ceil_mode")}
    else:
        attributes |= {"auto_pad": auto, "dilations": [1] * rank}
    dims = [1, draw(st.integers(1, 3)), *numbers(5, 9)]
    node = helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", dims), ("y", None))]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return model, np.random.default_rng(0).normal(size=dims).astype(np.float32)


@newest  # onnxruntime 1.22 divides by fewer taps at a border whose pads count, in opset 19
@given(average_pools())
def test_an_average_that_is_a_convolution_has_its_values(made):
    model, x = made
    index = Index(model)
    found = average_as_convolution(index, index.graph.node[0])
    padded = any(value.ints for value in model.graph.node[0].attribute if value.name == "pads" and any(value.ints))
    if found is None:
        names = {value.name for value in model.graph.node[0].attribute}
        assert padded or names & {"auto_pad", "ceil_mode"}
        return
    taps = found["kernel_shape"]
    weight = np.full((found["group"], 1, *taps), 1.0 / np.prod(taps), np.float32)
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    other.graph.node[0].CopyFrom(helper.make_node("Conv", ["x", "w"], ["y"], **found))
    first, second = (Session(each, threads=1).run({"x": x})["y"] for each in (model, other))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)


# pre-activation: something else reads the sum, too, so that it folds into neither convolution
NORM = (
    "g (float[N,4,12,12] x) => (float[A,C,D,E] y) { c = Conv(x, W) d = Conv <dilations = [2, 2], pads = [1, 1, 1, 1]> (x, U) s = Add(c, d) "
    "n = BatchNormalization(s, g, b, m, v) r = Relu(n) k = Conv(r, V) y = Add(k, s) }"
)
NORMED = {
    "W": (8, 4, 3, 3),
    "U": (8, 4, 3, 3),
    "V": (8, 8, 1, 1),
    "g": np.array([1.5, -0.4, 0.0, 3.0, 1e-7, 0.2, 1.0, -2.0]),
    "b": np.array([0.1, -0.2, 0.4, 0.0, 0.3, 0.5, -1.0, 2.0]),
    "m": np.linspace(-1, 1, 8),
    "v": np.linspace(0.2, 2, 8),
}


def normed(bench, **settings):
    model = bench.text(NORM, opset=21, **NORMED)
    samples = bench.samples(model)
    return samples, *bench.quantized(model, samples=samples, **settings)


def test_a_normalization_of_codes_is_a_convolution_of_the_same_values(bench, tmp_path):
    samples, prepared, *_, built = normed(bench)
    assert "BatchNormalization" not in [node.op_type for node in built.model.graph.node]
    assert kernels(built.model, tmp_path).count("QLinearConv") == 4
    # what it is in float, between the same codes
    other = onnx.ModelProto()
    other.CopyFrom(built.model)
    (norm,) = [node for node in prepared.model.graph.node if node.op_type == "BatchNormalization"]
    (conv,) = [node for node in other.graph.node if node.name == norm.name]
    conv.CopyFrom(helper.make_node("BatchNormalization", [conv.input[0], *norm.input[1:]], conv.output, conv.name))
    constants = {tensor.name: tensor for tensor in prepared.model.graph.initializer}
    other.graph.initializer.extend(constants[name] for name in norm.input[1:])
    codes = next(
        node.output[0] for node in other.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "r"
    )
    for model in (built.model, other):
        model.graph.output.append(helper.make_tensor_value_info(codes, onnx.TensorProto.UINT8, None))
    first, second = (bench.run(each, samples[0].feed)[codes].astype(int) for each in (built.model, other))
    assert len(np.unique(first)) > 50
    assert np.abs(first - second).max() <= 1
    assert (first != second).mean() < 0.01


@given(
    st.lists(
        st.tuples(
            st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e-30, -1e-12]),
            st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e5]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1e-6, 0.02, 30.0]),
)
def test_factors_and_shifts_are_what_the_normalization_has(channels, scale):
    factor, shift = np.array(channels, np.float32).T
    node = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], "norm", epsilon=0.0)
    count = len(factor)
    constants = {"g": factor, "b": shift, "m": np.zeros(count, np.float32), "v": np.ones(count, np.float32)}
    values = [helper.make_tensor_value_info(name, 1, ["N", count, 5]) for name in ("x", "y")]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built = Builder(Names(model.graph))
    write_depthwise(built, Index(model), node, node, Affine(scale, 128, U8))
    weight, bias, conv = built.nodes
    assert (conv.op_type, conv.name, list(conv.output)) == ("Conv", "norm", ["y"])
    made = {name: numpy_helper.to_array(tensor) for name, tensor in built.initializers.items()}
    codes, scales, shifts, shift_scales = (made[name] for each in (weight, bias) for name in each.input[:2])
    assert codes.shape == (count, 1, 1)
    assert np.abs(codes.astype(int)).max() <= S8.qmax
    np.testing.assert_array_equal(shift_scales, np.float32(scale) * scales)
    assert (shift_scales > 0).all()
    # within what the shift's own float32 holds, over all that the codes of 8 bits stand for
    np.testing.assert_allclose(
        codes.reshape(-1) * scales, factor, rtol=1e-6, atol=np.abs(shift).max() / scale * 1e-8 + 1e-19
    )
    np.testing.assert_allclose(shifts * shift_scales.astype(float), shift, rtol=1e-6, atol=shift_scales.max())


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N,4,9,9] x) => (float[A,C,D,E] y) { n = BatchNormalization(x, g, b, m, v) r = Relu(n) y = Conv(r, V) }",
        "g (float[N,4,9,9] x) => (float[A,C,D,E] y) { c = Conv(x, V) d = Elu(c) y = BatchNormalization(d, g, b, m, v) }",
        (
            "g (float[N,4,9,9] x) => (float[A,C,D,E] y) { c = Conv(x, U) e = Elu(c) d = Conv(x, U) "
            "j = Concat <axis = 1> (c, d) n = BatchNormalization(j, g, b, m, v) r = Relu(n) q = Conv(r, V) "
            "f = Conv(e, X) y = Add(q, f) }"
        ),
    ],
    ids=["of an input", "in front of floats", "behind a Concat"],
)
def test_normalizations_that_stay_float(bench, text):
    norm = {name: np.linspace(0.5, 1, 4) for name in "gbmv"}
    model = bench.text(text, **norm, V=(4, 4, 3, 3), U=(2, 4, 3, 3), X=(4, 2, 3, 3))
    built = bench.quantized(model)[-1].model
    assert [node.op_type for node in built.graph.node].count("BatchNormalization") == 1


@pytest.mark.parametrize("settings", [{"target": "openvino"}, {"activations": "u16"}], ids=str)
def test_another_kernel_gets_the_normalization_as_it_was(bench, settings):
    built = normed(bench, **settings)[-1].model
    assert [node.op_type for node in built.graph.node].count("BatchNormalization") == 1
