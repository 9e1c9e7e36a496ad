"""Pools are written so that the runtime has none of its slow kernels for them."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from int8cal.graph.index import Index
from int8cal.quantization.pools import average_as_convolution
from int8cal.runtime.sessions import Session

newest = pytest.mark.newest  # past which ops Q is moved is the runtime's matter

# a normalization between an activation and a pool, as networks for sound have it
TEXT = "g (float[N,4,{}] x) => (float[A,B,C,D] y) {{ c = Conv(x, W) {} p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t) y = Conv(p, V) }}"
NORM = "s = Elu(c) t = BatchNormalization(s, g, b, m, v)"
WEIGHTS = {"W": (8, 4, 3, 3), "V": (4, 8, 3, 3), "g": (8,), "b": (8,), "m": (8,), "v": np.ones(8, np.float32)}


def made(bench, middle=NORM, size="16,16", tail="", **settings):
    fixed, free = (
        bench.text(TEXT.format(each, middle).replace(" }", tail + " }"), **WEIGHTS) for each in ("16,16", size)
    )
    samples = bench.samples(fixed)
    return samples[0].feed, bench.quantized(free, samples=samples, **settings)[-1].model


def pool(model, tmp_path):
    """The op of the pool once the runtime has optimized the graph, and the element type of what it reads."""
    path = tmp_path / "optimized.onnx"
    Session(model, threads=1, optimization="all", optimized_path=path)
    graph = onnx.load(path).graph
    makers = {name: node for node in graph.node for name in node.output}
    (found,) = [node for node in graph.node if node.op_type.endswith("MaxPool")]
    maker = makers[found.input[0]]
    while maker.op_type in ("Transpose", "ReorderInput", "ReorderOutput", "Reshape"):
        maker = makers[maker.input[0]]
    return found.op_type, "codes" if maker.op_type in ("QuantizeLinear", "QLinearConv") else "float"


@newest
@pytest.mark.parametrize("size", ["16,16", "H,L"], ids=["known sizes", "sizes of the feed"])
def test_a_pool_of_floats_reads_floats(bench, tmp_path, size):
    feed, built = made(bench, size=size)
    assert pool(built, tmp_path) == ("MaxPool", "float")
    moved = [node for node in built.graph.node if node.op_type in ("Flatten", "Reshape", "Shape")]
    values = [bench.run(built, feed, optimization)["y"] for optimization in ("none", "all")]
    np.testing.assert_allclose(*values, rtol=0, atol=1e-5)
    assert [node.op_type for node in moved] == ["Flatten" if size == "16,16" else "Shape", "Reshape"]


@newest
@pytest.mark.parametrize(
    ("middle", "tail", "expected"),
    [
        ("t = Relu(c)", "", ("NhwcMaxPool", "codes")),
        ("s = Tanh(c) t = Mul(s, c)", "", ("NhwcMaxPool", "codes")),
        (NORM, " z = Tanh(p)", ("MaxPool", "float")),
    ],
    ids=["codes of a layer", "channels last, as a layer wrote them", "something else reads the pool"],
)
def test_other_pools_are_written_as_they_were(bench, tmp_path, middle, tail, expected):
    _, built = made(bench, middle, tail=tail)
    assert not any(node.op_type in ("Flatten", "Reshape", "Shape") for node in built.graph.node)
    assert pool(built, tmp_path) == expected


def test_another_runtime_gets_the_pool_as_it_was(bench):
    _, built = made(bench, target="openvino")
    assert not any(node.op_type in ("Flatten", "Reshape", "Shape") for node in built.graph.node)


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
