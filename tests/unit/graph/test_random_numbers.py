"""Random nodes that take their numbers from tables: the same ones in every run of a feed, and in two models."""

import numpy as np
import onnx
import pytest

from int8cal.graph.random_numbers import are_alike, place_of, random_ops
from int8cal.protos import view_of
from int8cal.runtime.segments import stages_of
from int8cal.runtime.sessions import Session

NORMAL = "o = RandomNormalLike (x)"
FUNCTION = (
    '<domain: "own", opset_import: ["" : 17]> Noisy (i) => (r) { n = RandomNormalLike (i) m = Exp (n) r = Add (m, i) }'
)
BODIES = {
    "If": """
        top = ReduceMax <keepdims = 0> (x) least = Constant <value_float = -9.0> () positive = Greater (top, least)
        o = If (positive) <then_branch = a () => (float[N, M] p) { p = RandomNormalLike (x) },
                           else_branch = b () => (float[N, M] q) { q = RandomUniformLike (x) }>""",
    "Loop": """
        times = Constant <value_int = 2> () on = Constant <value = bool {1}> ()
        last, o = Loop (times, on, x) <body = b (int64 i, bool c, float[N, M] v) =>
            (bool d, float[N, M] w, float[N, M] z) { d = Identity (c) z = RandomNormalLike (v) w = Identity (v) }>""",
    "Scan": """
        last, o = Scan (x, x) <num_scan_inputs = 1, body = b (float[N, M] v, float[M] s) =>
            (float[N, M] w, float[M] z) { w = Identity (v) z = RandomNormalLike (s) }>""",
}


def network(body, opset=17, functions=""):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "own" : 1]> net (float[N, M] x) => (o) {{ {body} }} {functions}'
    )


def rows(seed=0, shape=(2, 3000)):
    return {"x": np.random.default_rng(seed).uniform(0.4, 0.6, shape).astype(np.float32)}


@pytest.mark.parametrize("body", [NORMAL, "o = Bernoulli (x)", *BODIES.values()], ids=["plain", "Bernoulli", *BODIES])
def test_a_feed_gets_the_same_numbers_in_every_run_and_in_other_graphs(body):
    model = network(body)
    shifted = network("unused = Abs (x) zero = Sub (unused, unused) " + body.replace("(x)", "(y)", 1))
    shifted.graph.node.insert(2, onnx.helper.make_node("Add", ["x", "zero"], ["y"]))
    first = Session(model)
    values = first.run(rows())["o"]
    other = first.run(rows(1))["o"]
    assert first.repeats
    assert first.inputs == ("x",)
    assert not np.array_equal(values, other)
    np.testing.assert_array_equal(first.run(rows())["o"], values)
    np.testing.assert_array_equal(Session(shifted).run(rows())["o"], values)


def test_numbers_of_functions_are_those_of_the_nodes_that_the_runtime_makes_of_them():
    model = network("a = Abs (x) b = own.Noisy (a) o = own.Noisy (b)", functions=FUNCTION)
    written = network("""
        a = Abs (x) _inlfunc_Noisy_n = RandomNormalLike (a) m = Exp (_inlfunc_Noisy_n) b = Add (m, a)
        _inlfunc_Noisy_token_0_n = RandomNormalLike (b) k = Exp (_inlfunc_Noisy_token_0_n) o = Add (k, b)""")
    assert random_ops(model) == ("RandomNormalLike",)
    np.testing.assert_allclose(Session(model).run(rows())["o"], Session(written).run(rows())["o"], rtol=1e-6)
    assert are_alike(model, written)


def test_rounds_of_a_loop_and_nodes_have_numbers_of_their_own():
    first, second = Session(network(BODIES["Loop"])).run(rows())["o"]
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1
    found = Session(network("a = RandomNormalLike (x) b = RandomNormalLike (x) o = Concat <axis = 0> (a, b)")).run(
        rows()
    )
    first, second = np.split(found["o"], 2)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize(
    ("body", "dtype", "shape", "mean", "deviation", "low", "high"),
    [
        ("o = RandomNormalLike <mean = 1.0, scale = 2.0> (x)", np.float32, (2, 3000), 1.0, 2.0, -9.5, 11.5),
        ("o = RandomNormal <shape = [20, 300], dtype = 11> ()", np.float64, (20, 300), 0.0, 1.0, -5.5, 5.5),
        ("o = RandomUniformLike <low = -1.0, high = 3.0> (x)", np.float32, (2, 3000), 1.0, 4 / 12**0.5, -1, 3),
        ("o = RandomUniform <shape = [6000]> ()", np.float32, (6000,), 0.5, 12**-0.5, 0, 1),
        ("o = Multinomial <sample_size = 3000> (x)", np.int32, (2, 3000), 2.0, 1.0, 0, 3),
        ("o = Multinomial <sample_size = 3000, dtype = 7> (x)", np.int64, (2, 3000), 2.0, 1.0, 0, 3),
    ],
)
def test_numbers_are_distributed_as_those_of_the_node(body, opset, dtype, shape, mean, deviation, low, high):
    logarithms = np.log(np.tile(np.arange(1, 5, dtype=np.float32), (2, 1)))
    feed = {"x": logarithms} if "Multinomial" in body else rows()
    model = network(body, opset)
    for timed in (False, True):
        session = Session(model, timed=timed)
        values = session.run(feed)["o"]
        assert session.repeats is not timed
        assert (values.dtype, values.shape) == (dtype, shape)
        assert values.mean() == pytest.approx(mean, abs=0.15)
        assert values.std() == pytest.approx(deviation, abs=0.1)
        assert low <= values.min() < values.max() <= high


def test_bernoulli_is_what_the_runtime_makes_of_it():
    feed = {"x": np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 4000, axis=1)}
    model = network("o = Bernoulli (x)")
    values, drawn = (Session(model, timed=timed).run(feed)["o"] for timed in (False, True))
    assert values.dtype == drawn.dtype
    np.testing.assert_allclose(values.mean(1), drawn.mean(1), atol=0.05)
    assert 0 < values[1].mean() < 1


def test_types_that_only_the_input_says_are_kept():
    found = Session(network("d = Cast <to = 11> (x) o = RandomNormalLike (d)")).run(rows())
    assert found["o"].dtype == np.float64


def test_more_numbers_than_a_table_has():
    found = Session(network(NORMAL)).run(rows(shape=(1, 300_000)))
    assert found["o"].shape == (1, 300_000)
    assert found["o"].std() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("how", ["file", "timed"])
def test_files_and_what_is_timed_draw_anew(tmp_path, how):
    model = network(NORMAL)
    onnx.save(model, tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx") if how == "file" else Session(model, timed=True)
    assert not session.repeats
    assert not np.array_equal(session.run(rows())["o"], session.run(rows())["o"])


def test_the_graph_that_is_written_has_the_models_own_nodes(tmp_path):
    Session(network(NORMAL), optimized_path=tmp_path / "o.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node] == ["RandomNormalLike"]


def test_the_given_model_is_not_changed():
    model = network(BODIES["Loop"])
    before = model.SerializeToString(deterministic=True)
    view = view_of(model)
    for each in (model, view):
        Session(each).run(rows())
    assert model.SerializeToString(deterministic=True) == before
    assert view.shell.SerializeToString(deterministic=True) == before


def test_an_opset_without_the_ops_draws_numbers_of_its_own():
    model = network(NORMAL, 8)
    session = Session(model)
    assert not session.repeats
    assert not np.array_equal(session.run(rows())["o"], session.run(rows())["o"])
    assert not are_alike(model, model)


def test_defaults_are_no_part_of_the_feed():
    model = network("s = Add (x, error) o = RandomNormalLike (s)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), np.float32), "error"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("error", onnx.TensorProto.FLOAT, []))
    session = Session(model)
    with_error = session.run(rows() | {"error": np.array(5, np.float32)})["o"]
    np.testing.assert_array_equal(with_error, session.run(rows())["o"])


def test_an_image_is_told_alike_by_its_pixels_and_by_what_was_made_of_them():
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)
    spread = np.array([0.2, 0.3, 0.4], np.float32).reshape(1, 3, 1, 1)
    made = (pixels / np.float32(255) - spread) / spread
    assert place_of({"x": pixels}) == place_of({"x": made})
    last = [np.ascontiguousarray(np.moveaxis(each, 1, 3)) for each in (pixels, made)]
    assert place_of({"x": last[0]}) == place_of({"x": last[1]})
    assert place_of({"x": pixels}) != place_of({"x": pixels[:, :, ::-1]})
    words = np.array([["a", "b"]], object)
    assert place_of({"x": words}) == place_of({"x": words.copy()}) != place_of({"x": words[:, ::-1]})


def test_models_that_name_what_is_drawn_otherwise_are_not_alike():
    assert are_alike(network(NORMAL), network(NORMAL))
    assert not are_alike(network(NORMAL), network("r = RandomNormalLike (x) o = Identity (r)"))


def test_a_model_that_draws_is_one_stage():
    body = " ".join(f"a{i + 1} = MatMul (a{i}, w)" for i in range(16))
    weight = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    counts = []
    for first in ("Abs", "RandomNormalLike"):
        model = network(f"a0 = {first} (x) {body} o = Identity (a16)")
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        model.graph.initializer.append(weight)
        counts.append(len(stages_of(view_of(onnx.shape_inference.infer_shapes(model)))))
    assert counts[0] > counts[1] == 1
