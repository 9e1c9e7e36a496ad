import numpy as np
from onnx import helper

from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.graph.taps import Tap, in_chunks, make_taps, tapped_model


def test_taps_are_the_planned_tensors_with_the_channels_of_their_readers(bench):
    model = bench.text(
        "g (float[N,4,8,8] x) => (float[A,C] y) { c = Conv(x, W) r = Relu(c) f = Flatten(r) y = Gemm(f, V) }",
        W=(8, 4, 3, 3),
        V=(288, 3),
    )
    plan = make_plan(bench.prepared(model).model, Selection())
    assert make_taps(plan) == (Tap("x", 1, 4), Tap("r"), Tap("f", -1, 288))


def test_a_tensor_whose_readers_have_its_channels_on_several_axes_is_tapped_without_them(bench):
    model = bench.text(
        "g (float[N,4,4] x) => (float[A,B,C] y, float[N,4,D] z) { y = Conv(x, W) z = MatMul(x, V) }",
        W=(5, 4, 1),
        V=(4, 3),
    )
    assert make_taps(make_plan(bench.prepared(model).model, Selection()))[0] == Tap("x")


def test_the_tapped_model_gives_the_tensors_and_leaves_the_model_alone(bench):
    model = bench.text("g (float[N,4] x) => (float[N,4] y) { a = Tanh(x) b = Neg(a) y = Abs(b) }")
    before = model.SerializeToString(deterministic=True)
    tapped = tapped_model(model, ("x", "a", "b"))
    assert model.SerializeToString(deterministic=True) == before
    feed = {"x": np.array([[1, -2, 0, 3]], np.float32)}
    values = bench.run(tapped, feed)
    assert list(values) == ["a", "b"]
    np.testing.assert_array_equal(values["a"], bench.run(tapped_model(model, ["a"]), feed)["a"])


def test_what_the_tensors_do_not_need_is_not_computed(bench):
    model = bench.text("g (float[N,4] x) => (float[N,4] y) { a = Tanh(x) b = Neg(x) c = Exp(b) y = Add(a, c) }")
    assert [node.op_type for node in tapped_model(model, ["c"]).shell.graph.node] == ["Neg", "Exp"]
    assert len(tapped_model(model, ["c"], keep_outputs=True).shell.graph.node) == 4


def test_what_a_body_reads_of_the_graph_around_it_is_computed(bench):
    model = bench.text(
        """g (float[4] x, bool c) => (float[4] y, float[4] z) {
            a = Tanh(x)
            y = If (c) <
                then_branch = t () => (float[4] p) { p = Neg(a) },
                else_branch = e () => (float[4] q) { q = Abs(x) }
            >
            z = Exp(x)
        }"""
    )
    assert [node.op_type for node in tapped_model(model, ["y"]).shell.graph.node] == ["Tanh", "If"]


def test_a_model_whose_only_taps_are_inputs_keeps_its_outputs(bench):
    model = bench.text("g (float[N,4] x) => (float[N,3] y) { y = MatMul(x, W) }", W=(4, 3))
    assert [value.name for value in tapped_model(model, ["x"]).shell.graph.output] == ["y"]


def test_tensors_that_nodes_compute_are_shown_beside_the_models_own_outputs(bench):
    model = bench.text("g (float[N,4] x) => (float[N,4] y) { a = Tanh(x) y = Abs(a) }")
    size = helper.make_node("Size", ["a"], ["count"])
    tapped = tapped_model(model, ("a", "count", "y"), [size], keep_outputs=True)
    values = bench.run(tapped, {"x": np.ones((1, 4), np.float32)})
    assert list(values) == ["y", "a", "count"]
    assert values["count"] == 4


def test_what_fits_together_is_in_one_chunk_and_what_is_too_large_alone():
    assert [*in_chunks([3, 4, 5, 20, 1, 1], float, 9)] == [[3, 4], [5], [20], [1, 1]]
    assert [*in_chunks([], float, 9)] == []
