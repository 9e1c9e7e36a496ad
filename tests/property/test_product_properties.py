"""Whatever equation, rank and size: a product in a form with an integer kernel gives what the runtime gave before."""

import numpy as np
import onnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from int8cal.graph.planner import make_plan
from int8cal.graph.prepare import prepare
from int8cal.graph.select import Selection
from int8cal.runtime.sessions import Session, simplify

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1, "f": 3}


def one_node(op_type, inputs, arrays, shape, rank, *, free=(), **attributes):
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"], name="product", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N" if axis in free else size for axis, size in enumerate(shape)])],
        [helper.make_tensor_value_info("y", 1, [f"y{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def both(model, shape, seed=0):
    """Return the outputs of a model and of what is made of it, and the plan."""
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    prepared = prepare(model, simplify).model
    onnx.checker.check_model(prepared, full_check=True)
    before, after = (Session(each, threads=1).run({"x": x})["y"] for each in (model, prepared))
    assert before.shape == after.shape
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    return make_plan(prepared, Selection())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_einsum_of_one_product_becomes_a_layer_that_gives_the_same(data):
    labels = data.draw(st.permutations("abcdef"))
    rows, summed, columns = (
        labels[: data.draw(st.integers(1, 2))],
        labels[2 : 2 + data.draw(st.integers(1, 2))],
        labels[4 : 4 + data.draw(st.integers(0, 2))],
    )
    term = "".join(data.draw(st.permutations([*rows, *summed])))
    weight = "".join(data.draw(st.permutations([*summed, *columns])))
    output = "".join(data.draw(st.permutations([*rows, *columns])))
    left = data.draw(st.booleans())
    equation = f"{weight},{term}->{output}" if left else f"{term}, {weight} -> {output}"
    values = np.random.default_rng(1).normal(size=[SIZES[each] for each in weight]).astype(np.float32)
    shape = tuple(SIZES[each] for each in term)
    model = one_node(
        "Einsum",
        ["w", "x"] if left else ["x", "w"],
        {"w": values},
        shape,
        len(output),
        free=[axis for axis, label in enumerate(term) if label == rows[0]],
        equation=equation,
    )
    assert [layer.node for layer in both(model, shape).layers] == ["product"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=2), st.integers(1, 90), st.integers(1, 90), st.integers(1, 5))
def test_a_left_operand_gives_the_same_turned_or_not(leading, rows, inner, columns):
    assume(rows * inner != 20 * (rows + inner))
    weight = np.random.default_rng(2).normal(size=(rows, inner)).astype(np.float32)
    shape = (*leading, inner, columns)
    plan = both(one_node("MatMul", ["w", "x"], {"w": weight}, shape, len(shape)), shape)
    assert len(plan.layers) == (rows * inner > 20 * (rows + inner))
    reasons = [each.reason for each in plan.unquantized if each.node == "product"]
    assert len(plan.layers) + len(reasons) == 1
    assert all("too small to gain from being turned round" in reason for reason in reasons)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 40))
def test_a_vector_of_weights_becomes_a_column(leading, inner):
    weight = np.random.default_rng(2).normal(size=inner).astype(np.float32)
    plan = both(one_node("MatMul", ["x", "w"], {"w": weight}, (*leading, inner), len(leading)), (*leading, inner))
    assert [layer.dims for layer in plan.layers] == [(inner, 1)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "row", "scalar", "column", "matrix"]),
    st.sampled_from([1.0, 0.5]),
)
def test_a_gemm_of_any_form_gives_the_same(rows, inner, columns, upside, across, bias, factor):
    assume(columns != 20)
    rng = np.random.default_rng(3)
    arrays = {"w": rng.normal(size=(columns, inner) if across else (inner, columns)).astype(np.float32)}
    shapes = {"row": (columns,), "scalar": (), "column": (rows, 1), "matrix": (rows, columns)}
    if bias:
        arrays["c"] = rng.normal(size=shapes[bias]).astype(np.float32)
    shape = (inner, rows) if upside else (rows, inner)
    attributes = {"transA": int(upside), "transB": int(across), "alpha": factor, "beta": factor * 3}
    plan = both(one_node("Gemm", ["x", *arrays], arrays, shape, 2, **attributes), shape)
    assert len(plan.layers) == (not upside or columns > 20)
