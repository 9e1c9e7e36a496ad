"""Reshapes with computed shapes get constant ones where these give the same for every feed, and nowhere else."""

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, shape_inference
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, RuntimeException
from op_types import ops

from int8cal.graph.passes.shapes import constant_shapes
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import simplify

CONSTANTS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "seven": 7,
    "at0": [0], "at1": [1], "at2": [2], "end": [9], "minus": [-1], "two1": [2], "four1": [4], "zero1": [0], "seven1": [7],
}  # fmt: skip
SIZES = "s = Shape(x) n0 = Gather(s, zero) m0 = Gather(s, one) n = Unsqueeze(n0, at0) m = Unsqueeze(m0, at0) "


def made(text, opset=17):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> net {text}')
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name) for name, value in CONSTANTS.items() if name in read
    )
    return model


def shape_of(model, output="y"):
    """Return the constant shape of the Reshape that makes a tensor, None where it is computed."""
    reshape = next(node for node in model.graph.node if output in node.output)
    values = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in model.graph.initializer}
    return values.get(reshape.input[1])


def run(model, **feed):
    feed = {name: np.asarray(value, np.float32) for name, value in feed.items()}
    return InferenceSession(model.SerializeToString()).run(None, feed)


@pytest.mark.parametrize(
    ("x", "entries", "expected"),
    [
        ("N,M,8", "n, m, two1, four1", [0, 0, 2, 4]),
        ("N,M,8", "n, m, minus", [0, 0, -1]),
        ("N,4,8", "m, n, minus", None),  # what is left of 32 N may be found in two ways
        ("N,4,8", "two1, n, m", [2, -1, 4]),  # alone free, it can be nothing else
        ("N,M,8", "m, n, two1, four1", None),  # both are free, and neither where it was
    ],
)
def test_a_shape_is_told_where_the_input_says_what_is_free(x, entries, expected):
    # the Shape is not of what is reshaped: that case the runtime folds by itself
    rank = entries.count(",") + 1
    text = f"{SIZES} t = Concat <axis = 0> ({entries}) r = Neg(x) y = Reshape(r, t)"
    prepared = prepare(made(f"(float[{x}] x) => (float[{','.join('abcd'[:rank])}] y) {{ {text} }}"), simplify).model
    assert shape_of(prepared) == expected
    if expected is not None:
        assert ops(prepared) == ["Neg", "Reshape"], "what computed the shape is gone"


def test_sizes_are_followed_through_arithmetic_casts_and_slices():
    model = made(
        """(float[3,N,8] x) => (float[a,b,c] y, float[d,e] z) {
        q = Neg(x) s = Shape(x) n = Gather(s, one) w = Gather(s, two) h = Mul(n, two) d = Div(w, two) c = Cast <to = 7> (d)
        f = Slice(s, at0, at1) h1 = Unsqueeze(h, at0) c1 = Unsqueeze(c, at0) t = Concat <axis = 0> (f, h1, c1)
        y = Reshape(q, t)
        l = Slice(s, at1, end, at0, at1) v = Gather(l, at1) u = Squeeze(c1, at0) a = Add(u, v) b = Sub(a, v)
        e = Add(b, b) o = Concat <axis = 0> (minus, e) z = Reshape(q, o) }"""
    )
    prepared = prepare(model, simplify).model
    assert (shape_of(prepared, "y"), shape_of(prepared, "z")) == ([3, -1, 4], [-1, 8])
    assert ops(prepared) == ["Neg", "Reshape", "Reshape"]


def test_equal_shapes_are_one_constant():
    model = made(
        f"(float[N,M,8] x) => (float[a,b,c,d] y, float[e,f,g,h] z) {{ {SIZES} t = Concat <axis = 0> (n, m, two1, four1) "
        "r = Neg(x) y = Reshape(x, t) z = Reshape(r, t) }"
    )
    assert len(prepare(model, simplify).model.graph.initializer) == 1


def test_what_something_else_reads_or_the_model_gives_stays():
    model = made(
        f"(float[N,M,8] x) => (float[a,b,c,d] y, int64[4] t, int64 n0) {{ {SIZES} "
        "t = Concat <axis = 0> (n, m, two1, four1) y = Reshape(x, t) }"
    )
    prepared = prepare(model, simplify).model
    assert shape_of(prepared) == [0, 0, 2, 4]
    y, t, n = run(prepared, x=np.zeros((3, 5, 8)))
    assert (y.shape, t.tolist(), n) == ((3, 5, 2, 4), [3, 5, 2, 4], 3)


def test_the_size_of_another_feed_is_no_size_of_this_one():
    model = made("(float[N,4] x, float[N,4] z) => (float[a,b,c] y) { s = Shape(z) n = Gather(s, at0) "
                 "t = Concat <axis = 0> (n, two1, two1) y = Reshape(x, t) }")  # fmt: skip
    assert shape_of(prepare(model, simplify).model) == [-1, 2, 2]  # alone free, it can be nothing else
    model = made("(float[N,4] x, float[N,4] z) => (float[a,b,c] y) { s = Shape(z) n = Gather(s, at0) "
                 "t = Concat <axis = 0> (n, minus, two1) y = Reshape(x, t) }")  # fmt: skip
    assert shape_of(prepare(model, simplify).model) is None


def test_a_size_of_zero_that_is_meant_stays():
    model = made(
        "(float[N,4] x) => (float[a,b] y) { s = Shape(x) n = Gather(s, at0) t = Concat <axis = 0> (n, zero1) "
        "y = Reshape <allowzero = 1> (x, t) }"
    )
    prepared = prepare(model, simplify).model
    assert shape_of(prepared) is None
    assert run(prepared, x=np.zeros((0, 4)))[0].shape == (0, 0)


def test_a_computed_zero_and_a_copied_one_are_alike():
    model = made(
        f"(float[N,M,8] x) => (float[a,b,c,d] y) {{ {SIZES} t = Concat <axis = 0> (n, m, two1, four1) "
        "y = Reshape <allowzero = 1> (x, t) }"
    )
    prepared = prepare(model, simplify).model
    assert shape_of(prepared) == [0, 0, 2, 4]
    for size in ((0, 3), (2, 0), (0, 0), (1, 1)):
        assert run(prepared, x=np.zeros((*size, 8)))[0].shape == (*size, 2, 4)


def test_sizes_in_more_than_one_dimension_are_not_followed():
    model = made(
        "(float[3,N,8] x) => (float[a,b] y) { s = Shape(x) u = Unsqueeze(s, at0) v = Slice(u, at0, at1) "
        "w = Squeeze(v, at0) t = Slice(w, at1, end) y = Reshape(x, t) }"
    )
    assert shape_of(prepare(model, simplify).model) is None


@pytest.mark.parametrize("entries", ["n, two1", "n, m, zero1", "minus, minus, n", "two1, minus", "two1, seven1"])
def test_a_shape_that_cannot_fit_stays_computed(entries):
    """The runtime refuses a model for it, though the Reshape may be in a branch that never runs."""
    text = f"{SIZES} t = Concat <axis = 0> ({entries}) r = Neg(x) y = Reshape(r, t)"
    model = shape_inference.infer_shapes(made(f"(float[3,5] x) => (float y) {{ {text} }}"), data_prop=True)
    before = model.SerializeToString()
    assert not constant_shapes(model)
    assert model.SerializeToString() == before


@settings(max_examples=80, deadline=None)
@example(["n", "w", "w", "-1"], (True, False, False), 0, [(0, 0), (1, 1)])
@example(["n", "-1"], (True, False, False), 1, [(0, 0), (0, 0)])
@given(
    st.lists(st.sampled_from(["n", "m", "w", "n*m", "m*w", "w/2", "-1", "2", "4", "0", "z"]), min_size=1, max_size=5),
    st.tuples(*[st.booleans()] * 3),
    st.integers(0, 1),
    st.lists(st.tuples(*[st.integers(0, 4)] * 2), min_size=2, max_size=4),
)
def test_whatever_is_fed_the_output_is_as_before(entries, free, allowzero, feeds):
    nodes, parts = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Shape", ["other"], ["so"])], []
    for number, name in enumerate("nmw"):
        nodes.append(helper.make_node("Gather", ["s", f"at{number}"], [name]))
    nodes.append(helper.make_node("Gather", ["so", "at0"], ["z"]))
    for number, entry in enumerate(entries):
        first, _, second = entry.replace("/", "*").partition("*")
        operands = [each if each in "nmwz" else f"c{each}" for each in (first, second) if each]
        if second:
            nodes.append(helper.make_node("Div" if "/" in entry else "Mul", operands, [f"p{number}"]))
            operands = [f"p{number}"]
        parts += operands
    nodes.append(helper.make_node("Concat", parts, ["t"], axis=0))
    nodes += [
        helper.make_node("Neg", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "t"], ["y"], allowzero=allowzero),
    ]
    sizes = (3, 2, 4)
    values = {"at0": 0, "at1": 1, "at2": 2, "c-1": -1, "c2": 2, "c4": 4, "c0": 0}
    read = {name for node in nodes for name in node.input}
    dims = ["N" if each else size for each, size in zip(free, sizes, strict=True)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, dims), helper.make_tensor_value_info("other", 1, ["N"])],
        [helper.make_tensor_value_info("y", 1, [None] * len(entries))],
        [numpy_helper.from_array(np.array([value]), name) for name, value in values.items() if name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        before = InferenceSession(model.SerializeToString())
    except (Fail, InvalidGraph):  # a shape that no feed fits
        return
    try:
        after = InferenceSession(prepare(model, simplify).model.SerializeToString())
    except Fail:  # with the sizes that are known the runtime sees that no feed fits, but for one without a value
        after, feeds = None, [each for each in feeds if all(each)]
    for first, second in feeds:
        drawn = iter((first, second, first))
        shape = tuple(next(drawn) if each else size for each, size in zip(free, sizes, strict=True))
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for other in (first, 3):
            feed = {"x": x, "other": np.zeros(other, np.float32)}
            try:
                (expected,) = before.run(None, feed)
            except (Fail, InvalidArgument, RuntimeException):  # nothing to compare with: the shape does not fit
                continue
            assert after is not None
            (found,) = after.run(None, feed)
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
