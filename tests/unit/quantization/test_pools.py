"""Pools are written so that the runtime has none of its slow kernels for them."""

import numpy as np
import onnx
import pytest

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
