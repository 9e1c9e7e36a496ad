"""Products that take the form of a layer: what is written, and what must not be touched."""

import numpy as np
import pytest
from op_types import ops

from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection

HEADS = 'g (float[N,S,16] x) => (float[A,B,C,D] y) { y = Einsum <equation = "bsd,dhk->bhsk"> (x, W) }'


def prepared(bench, text, **weights):
    model = bench.prepared(bench.text(text, **weights)).model
    return model, make_plan(model, Selection())


def test_the_projection_of_attention_heads_is_one_layer_in_the_int8_model(bench):
    model, plan = prepared(bench, HEADS, W=(16, 2, 8))
    assert ops(model) == ["MatMul", "Reshape", "Transpose"]
    assert [(layer.op_type, layer.dims, layer.axis) for layer in plan.layers] == [("MatMul", (16, 16), 1)]
    source = bench.text(HEADS, W=(16, 2, 8))
    _, _, _, built = bench.quantized(source)
    feed = {"x": np.random.default_rng(5).normal(size=(1, 1, 16)).astype(np.float32)}
    exact, found = (bench.run(each, feed)["y"] for each in (source, built.model))
    assert found.shape == exact.shape == (1, 2, 1, 8)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("head", "equation", "shape"),
    [
        ("float[3,4] x", "ij,ij->ij", (3, 4)),  # several products
        ("float[3,4] x", "ij,jk->k", (4, 5)),  # i is summed in one operand alone
        ("float[3,3] x", "ii,ij->j", (3, 4)),  # a diagonal
        ("float[4] x", "i,ij->j", (4, 5)),  # no rows
        ("float[3,N] x", "ij,jk->ik", (4, 5)),  # what is summed may broadcast
        ("float[3,4] x", "ij,kl->ijkl", (4, 5)),  # nothing is summed
    ],
)
def test_an_einsum_that_is_something_else_stays_and_is_told(bench, head, equation, shape):
    dims = ",".join(equation.split(">")[1].upper())
    text = f'g ({head}) => (float[{dims}] y) {{ y = Einsum <equation = "{equation}"> (x, W) }}'
    model, plan = prepared(bench, text, W=shape)
    assert ops(model) == ["Einsum"]
    assert [each.reason for each in plan.unquantized] == ["its equation is not one product of two matrices"]


@pytest.mark.parametrize("equation", ["...d,de->...e", "...d,de", "de,...d->...e", "b...d,de->be..."])
def test_an_ellipsis_stands_for_the_axes_that_are_there(bench, equation):
    terms = equation.split("->")[0].split(",")
    order = "W, x" if terms[0] == "de" else "x, W"
    text = f'g (float[2,3,4,5] x) => (float[A,B,C,D] y) {{ y = Einsum <equation = "{equation}"> ({order}) }}'
    model, plan = prepared(bench, text, W=(5, 6))
    feed = {"x": np.random.default_rng(5).normal(size=(2, 3, 4, 5)).astype(np.float32)}
    exact = bench.run(bench.text(text, W=(5, 6)), feed)["y"]
    np.testing.assert_allclose(bench.run(model, feed)["y"], exact, rtol=1e-5, atol=1e-6)
    assert len(plan.layers) == 1


def test_what_is_turned_twice_is_not_turned(bench):
    text = """g (float[2,7,64] x) => (float[A,B,C] y) {
        t = Transpose <perm = [0, 2, 1]> (x) m = MatMul (W, t) y = Relu (m)
    }"""
    model, plan = prepared(bench, text, W=(64, 64))
    assert ops(model) == ["MatMul", "Relu", "Transpose"]
    assert plan.layers[0].input == "x"


def test_a_bias_that_is_computed_is_added_behind_the_gemm(bench):
    text = "g (float[5,6] x, float[5,4] c) => (float[5,4] y) { y = Gemm (x, W, c) }"
    model, plan = prepared(bench, text, W=(6, 4))
    assert ops(model) == ["Gemm", "Add"]
    assert [(layer.op_type, layer.bias) for layer in plan.layers] == [("Gemm", None)]
    scaled = text.replace("Gemm (", "Gemm <beta = 0.5> (")
    assert [each.reason for each in prepared(bench, scaled, W=(6, 4))[1].unquantized] == ["its bias is not constant"]


SLICED = "s = Slice (W, start, end) y = MatMul (x, s)"


@pytest.mark.parametrize(("shape", "head"), [((3, 16, 8), "float[N,4,16]"), ((3, 1, 16, 8), "float[N,2,4,16]")])
def test_a_slice_of_a_stack_has_a_scale_for_each_of_its_channels(bench, shape, head):
    rank = len(shape)
    values = np.random.default_rng(3).normal(size=shape) * np.array([1, 0.01, 100]).reshape(3, *[1] * (rank - 1))
    text = f"g ({head} x) => (float[{','.join('ABCD'[:rank])}] y) {{ {SLICED} }}"
    constants = {"W": values, "start": np.array([1]), "end": np.array([2])}
    model, plan = prepared(bench, text, **constants)
    assert [(layer.dims, layer.axis) for layer in plan.layers] == [((16, 8), 1)]
    feed = {"x": np.random.default_rng(5).normal(size=[2, *[2] * (rank - 3), 4, 16]).astype(np.float32)}
    exact = bench.run(bench.text(text, **constants), feed)["y"]
    np.testing.assert_allclose(bench.run(model, feed)["y"], exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("head", "dims", "shape"),
    [("float[N,4,16]", "A,B,C", (3, 16, 8)), ("float[4,16]", "A,B,C", (1, 16, 8))],  # several matrices; one more axis
)
def test_a_stack_that_adds_to_the_result_stays(bench, head, dims, shape):
    model, _ = prepared(bench, f"g ({head} x) => (float[{dims}] y) {{ y = MatMul (x, W) }}", W=shape)
    assert [tuple(each.dims) for each in model.graph.initializer] == [shape]
