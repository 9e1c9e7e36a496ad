"""Products in rows that share shapes give what products with a shape each give, to the bit, whatever is fed."""

from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnxruntime import InferenceSession

from int8cal.quantization.build import build_model

WIDTH, HEADS = 8, 2
BLOCKS = ["dense", "norm", "gelu", "residual", "beside", "heads", "position"]


class Written:
    """A model of blocks, each of which reads what the one before gives: tensors of (batch, length, WIDTH)."""

    def __init__(self, seed):
        self.nodes, self.constants, self.rng = [], {}, np.random.default_rng(seed)
        self.earlier = ["x"]

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def op(self, op_type, *inputs, **attributes):
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def block(self, kind, x):
        if kind == "dense":
            product = self.op("MatMul", x, self.constant(self.rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)))
            return self.op("Add", product, self.constant(self.rng.normal(size=WIDTH).astype(np.float32)))
        if kind == "norm":
            return self.op("LayerNormalization", x, self.constant(np.ones(WIDTH, np.float32)))
        if kind == "gelu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        if kind == "residual":
            return self.op("Add", x, self.earlier[int(self.rng.integers(len(self.earlier)))])
        if kind == "beside":  # another feed, which may have a batch or a length of one
            return self.op("Add", x, "y")
        if kind == "position":
            return self.op("Add", x, self.constant(self.rng.normal(size=(1, 1, WIDTH)).astype(np.float32)))
        shape = self.op("Shape", x)
        sizes = [self.op("Gather", shape, self.constant(np.array([axis])), axis=0) for axis in (0, 1)]
        split = self.op("Concat", *sizes, self.constant(np.array([HEADS, WIDTH // HEADS])), axis=0)
        joined = self.op("Concat", *sizes, self.constant(np.array([WIDTH])), axis=0)
        turned = self.op("Transpose", self.op("Reshape", x, split, allowzero=1), perm=[0, 2, 1, 3])
        back = self.op("Transpose", self.op("Relu", turned), perm=[0, 2, 1, 3])
        return self.op("Reshape", back, joined, allowzero=1)

    def model(self, kinds):
        x = "x"
        for kind in kinds:
            x = self.block(kind, x)
            self.earlier.append(x)
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(name, 1, [f"{name}0", f"{name}1", WIDTH]) for name in ("x", "y")],
            [helper.make_tensor_value_info(x, 1, [None, None, WIDTH])],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def both(bench, model):
    """Return the int8 model, and the same with a shape for every product that is restored."""
    prepared, plan, table, shared = bench.quantized(model)
    with mock.patch("int8cal.quantization.products.named_dims", return_value={}):
        return shared.model, build_model(prepared.model, plan, table).model


def counted(model, op_type):
    return sum(node.op_type == op_type for node in model.graph.node)


def run(model, feed):
    return InferenceSession(model.SerializeToString()).run(None, feed)[0]


SIZES = st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans(), st.booleans())


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(BLOCKS), min_size=2, max_size=10),
    st.integers(0, 5),
    st.lists(SIZES, min_size=1, max_size=3),
)
def test_shared_shapes_are_right_whatever_is_fed(bench, kinds, seed, sizes):
    model = Written(seed).model(["dense", *kinds, "dense"])
    shared, apart = both(bench, model)
    onnx.checker.check_model(shared, full_check=True)
    rng = np.random.default_rng(seed)
    for batch, length, one_batch, one_length in sizes:
        full = rng.normal(size=(batch, length, WIDTH)).astype(np.float32)
        repeated = full[: 1 if one_batch else None, : 1 if one_length else None]
        for x, y in ((full, repeated), (repeated, full)):
            feed = {"x": x, "y": y}
            found = run(shared, feed)
            assert found.shape == run(model, feed).shape
            np.testing.assert_array_equal(found, run(apart, feed))


def test_an_encoder_computes_its_leading_dimensions_once(bench):
    layer = ["dense", "heads", "dense", "residual", "norm", "dense", "gelu", "dense", "norm"]
    shared, apart = both(bench, Written(0).model(["dense", *layer, *layer]))
    assert counted(apart, "Slice") == counted(shared, "Gemm") == 9
    assert counted(shared, "Slice") == 1
    assert counted(shared, "Shape") == counted(apart, "Shape") - 8
    assert counted(shared, "Concat") == counted(apart, "Concat") - 8


def test_products_of_different_feeds_do_not_share(bench):
    shared, apart = both(bench, Written(0).model(["dense", "beside", "dense", "norm", "dense"]))
    assert (counted(shared, "Slice"), counted(apart, "Slice")) == (2, 3)


@pytest.mark.parametrize("opset", [13, 17])
def test_a_length_of_zero_comes_back_where_reshape_can_say_so(bench, opset):
    model = bench.text(
        "net (float[N,S,4] x) => (float[N,S,6] y) { p = MatMul(x, W) y = Add(p, B) }", opset, W=(4, 6), B=(6,)
    )
    built = bench.quantized(model)[-1].model
    assert run(built, {"x": np.zeros((0, 3, 4), np.float32)}).shape == (0, 3, 6)
    if opset > 13:
        assert run(built, {"x": np.zeros((2, 0, 4), np.float32)}).shape == (2, 0, 6)
