"""Where models are scored: at outputs, in front of what hides errors, part by part behind a Concat."""

import numpy as np
import onnx
import pytest

from int8cal.graph.taps import tapped_model
from int8cal.probe.score_points import ScorePoint, loose_outputs, score_points, scored_int8, tensors_of
from int8cal.runtime.sessions import Session

HEAD = "h = Gemm(x, W, B) r = Relu(h) z = Gemm(r, V)"


def points(bench, outputs, nodes, **weights):
    weights = {"W": (8, 8), "B": (8,), "V": (8, 6), **weights}
    model = bench.prepared(bench.text(f"g (float[N,8] x) => ({outputs}) {{ {HEAD} {nodes} }}", **weights)).model
    return model, [(point.name, point.node, point.centred) for point in score_points(model)]


def test_a_plain_output_is_scored_itself(bench):
    assert points(bench, "float[N,6] y", "y = Tanh(z)")[1] == [("y", "", None)]


def test_probabilities_are_scored_with_their_logits_and_a_shift_of_these_does_not_count(bench):
    model, found = points(bench, "float[N,6] y", "y = Softmax <axis = 1> (z)")
    assert found == [("y", "", None), ("z", "Softmax_y", 1)]
    logits = score_points(model)[1]
    values = np.arange(12.0).reshape(2, 6)
    np.testing.assert_allclose(logits.seen(values), logits.seen(values + np.array([[3.0], [-7.0]])))


@pytest.mark.parametrize("last", ["Sigmoid(z)", "HardSigmoid(z)"])
def test_so_are_single_probabilities_behind_nodes_that_only_move_values(bench, last):
    nodes = f"p = {last} y = Slice(p, one, six, one)"
    _, found = points(bench, "float[N,5] y", nodes, one=np.array([1]), six=np.array([6]))
    assert [name for name, *_ in found] == ["y", "z"]


def test_an_argmax_is_scored_by_what_it_reads(bench):
    _, found = points(bench, "int64[N,1] y", "p = Softmax <axis = 1> (z) y = ArgMax <axis = 1> (p)")
    assert found == [("p", "ArgMax_y", None), ("z", "Softmax_p", 1)]


def test_parts_of_a_concat_are_scored_apart_and_their_logits_too(bench):
    nodes = "e = Exp(z) s = Sigmoid(z) y = Concat <axis = 1> (e, s)"
    model, found = points(bench, "float[N,12] y", nodes)
    assert [name for name, *_ in found] == ["y[0:6, 1]", "y[6:12, 1]", "z"]
    whole = np.arange(24.0).reshape(2, 12)
    part = next(point for point in score_points(model) if point.name == "y[6:12, 1]")
    np.testing.assert_array_equal(part.seen(whole), whole[:, 6:])


def test_an_output_that_passes_an_input_on_or_is_constant_has_no_point(bench):
    _, found = points(bench, "float[N,6] y, float[N,8] p, int64[2] s", "y = Tanh(z) p = Identity(x) s = Shape(z)")
    assert [name for name, *_ in found] == ["y"]


def test_behind_a_selection_of_boxes_its_candidates_are_scored(bench):
    nodes = """b = Reshape(z, box) q = Softmax <axis = 1> (z) c = Reshape(q, score)
    i = NonMaxSuppression(b, c, most, least, least) k = Slice(i, two, three, one) f = Reshape(k, flat)
    y = Gather <axis = 1> (b, f)"""
    weights = {"V": (8, 8), "box": np.array([1, 2, 4]), "score": np.array([1, 4, 2]), "most": np.array([1])}
    weights |= {"least": np.array([0.1], np.float32), "two": np.array([2]), "three": np.array([3])}
    weights |= {"one": np.array([1]), "flat": np.array([-1])}
    _, found = points(bench, "float[N,A,4] y", nodes, **weights)
    assert {name for name, *_ in found} == {"b", "c", "z"}


@pytest.mark.parametrize(
    ("output", "nodes", "loose"),
    [
        ("float[A] y", "c = Greater(z, tenth) y = Compress(z, c)", True),
        ("float[A] y", "n = ReduceSum <keepdims = 0> (z) i = Cast <to = 7> (n) k = Range(zero, i, one) y = Cast <to = 1> (k)", True),
        ("float[N,6] y", "i = ArgMax <axis = 1> (x) k = Cast <to = 1> (i) y = Add(z, k)", False),  # of an input alone
        ("float[A,6] y", "s = Shape(z) t = Slice(s, origin, unit) k = Concat <axis = 0> (t, six) y = Reshape(z, k)", False),
        ("float[N,6] y", "y = Softmax <axis = 1> (z)", False),
    ],
)  # fmt: skip
def test_outputs_whose_shape_computed_values_decide_are_loose(bench, output, nodes, loose):
    weights = {"W": (8, 8), "B": (8,), "V": (8, 6), "tenth": np.float32(0.1), "zero": np.array(0), "one": np.array(1)}
    weights |= {"origin": np.array([0]), "unit": np.array([1]), "six": np.array([6])}
    model = bench.text(f"g (float[N,8] x) => ({output}) {{ {HEAD} {nodes} }}", **weights)
    assert loose_outputs(model) == ({"y"} if loose else set())


def test_a_chain_of_any_length_is_walked(bench):
    count = 20_000
    nodes = [onnx.helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(count)]
    values = [onnx.helper.make_tensor_value_info(name, 1, [1, 4]) for name in ("t0", f"t{count}")]
    graph = onnx.helper.make_graph(nodes, "chain", values[:1], values[1:])
    assert [point.name for point in score_points(onnx.helper.make_model(graph))] == [f"t{count}"]


@pytest.mark.parametrize("nodes", ["y = Softmax <axis = 1> (z)", "c = Concat <axis = 1> (z, r) y = Sigmoid(c)"])
def test_both_models_show_the_same_tensors(bench, nodes):
    weights = {"W": (8, 8), "B": (8,), "V": (8, 6)}
    prepared, _, _, built = bench.quantized(
        bench.text(f"g (float[N,8] x) => (float[N,A] y) {{ {HEAD} {nodes} }}", **weights), method="max"
    )
    found = score_points(prepared.model)
    (sample,) = bench.samples(prepared.model, 1)
    exact = Session(tapped_model(prepared.model, tensors_of(found)), threads=1).run(sample.feed)
    graft, names = scored_int8(built.model, found)
    rounded = Session(graft, threads=1).run(sample.feed)
    plain = Session(built.model, threads=1).run(sample.feed)
    np.testing.assert_array_equal(rounded[names["y"]], plain["y"])
    for tensor, name in names.items():
        error = np.abs(exact[tensor] - rounded[name]).max()
        assert 0 < error < 0.1 * np.abs(exact[tensor]).max()


def test_a_sequence_is_not_scored_but_what_it_was_made_of(bench):
    _, found = points(bench, "int64 y", "s = SplitToSequence <axis = 1> (z) y = SequenceLength(s)")
    assert [name for name, *_ in found] == ["z"]


@pytest.mark.parametrize("logits", [[np.inf, -np.inf, 1.0], [3e38, 3e38, -1.0], [np.nan, 0.0, 1.0]])
def test_logits_that_are_not_finite_end_nothing_and_are_not_finite_as_differences(logits):
    seen = ScorePoint("z", centred=-1).seen(np.array([logits, [1.0, 2.0, 3.0]], np.float32))
    assert not np.isfinite(seen[0]).any()
    np.testing.assert_array_equal(seen[1], [-1, 0, 1])
