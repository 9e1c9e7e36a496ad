import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper

from int8cal.errors import DataError, MemoryShortageError, ModelError, OutputError
from int8cal.runtime import scratch, sessions
from int8cal.runtime.sessions import NEVER_RUN, QUIET, Session, cpu_count


@pytest.fixture
def model(bench):
    return bench.text("net (float[N,4] x) => (float[N,3] y, float[N,4] z) { y = MatMul(x, W) z = Neg(x) }", W=(4, 3))


def test_run_gives_arrays_by_output_name(bench, model):
    feed = bench.samples(model, 1)[0].feed
    session = Session(model)
    assert (session.inputs, session.outputs) == (("x",), ("y", "z"))
    assert list(session.run(feed)) == ["y", "z"]
    np.testing.assert_array_equal(session.run(feed, ["z"])["z"], -feed["x"])


def test_memory_that_runs_out_is_not_the_models_fault(model, monkeypatch):
    def refused(*_arguments, **_settings):
        raise RuntimeError("pthread_create failed, error code: 12 error msg: Cannot allocate memory")

    monkeypatch.setattr(sessions.ort, "InferenceSession", refused)
    with pytest.raises(MemoryShortageError, match=r"pthread_create failed.*; give fewer --threads"):
        Session(model)


def test_a_model_that_does_not_load_is_a_model_error_with_its_name(bench):
    broken = bench.text("net (float[N,4] x) => (float[N,3] y) { y = MatMul(x, W) }")
    with pytest.raises(ModelError, match="onnxruntime cannot load it") as caught:
        Session(broken)
    assert caught.value.where == "net"
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_load_is_named_once(bench, tmp_path):
    path = tmp_path / "broken.onnx"
    onnx.save(bench.text("net (float[N,4] x) => (float[N,3] y) { y = MatMul(x, W) }"), path)
    with pytest.raises(ModelError, match="onnxruntime cannot load it") as caught:
        Session(path)
    assert str(caught.value).count("broken.onnx") == 1
    assert "Load model from" not in str(caught.value)


def test_a_model_too_new_for_the_runtime_is_told_without_a_place_in_its_source(bench):
    new = bench.text("net (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    new.ir_version = 99
    with pytest.raises(ModelError, match=r"FAIL : Unsupported model IR version: 99.*; .*install a newer onnxruntime$"):
        Session(new)


def test_where_the_runtime_has_no_kernel_the_advice_is_not_to_check_the_model():
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], name="warp")
    shapes = {"x": (TensorProto.FLOAT, [1, 1, 4, 4]), "grid": (TensorProto.DOUBLE, [1, 2, 2, 2])}
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])]
    graph = helper.make_graph([node], "warped", inputs, outputs)
    valid = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    checker.check_model(valid, full_check=True)
    with pytest.raises(ModelError, match=r"GridSample\(16\) node with name 'warp'") as caught:
        Session(valid)
    assert "kernel" in caught.value.do


def test_a_file_that_does_not_load_is_named(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError) as caught:
        Session(tmp_path / "m.onnx")
    assert caught.value.where == str(tmp_path / "m.onnx")


def test_a_full_disk_is_no_bug(model, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch, "MAPPED", 0)
    monkeypatch.setattr(scratch, "write_split", full)
    with pytest.raises(OutputError, match=r"temporary directory .*: cannot be written \(no space left on device\)"):
        Session(model)


def test_a_kernel_that_fails_is_an_error_of_the_data(model):
    with pytest.raises(DataError, match="inference failed"):
        Session(model).run({"x": np.zeros((1, 5), np.float32)})


def test_what_a_kernel_says_of_shapes_is_told_to_its_end(bench):
    """Names of nodes are long, and the shapes that do not fit come last."""
    model = bench.text("net (float[N,K] x) => (float[M,4] y) { y = Reshape(x, shape) }", shape=np.array([-1, 4]))
    model.graph.node[0].name = "/decoder/transformer/decoder/layers.0/self_attn/" * 2 + "Reshape_5"
    with pytest.raises(DataError, match=r"Input shape:\{1,5\}, requested shape:\{-1,4\}"):
        Session(model).run({"x": np.zeros((1, 5), np.float32)})


def test_an_optional_output_that_is_absent_is_left_out(bench):
    model = bench.text("net (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    assert set(Session(model).run({"x": np.zeros((2, 4), np.float32)})) == {"y"}


def test_the_optimized_graph_is_written_where_asked(model, tmp_path):
    Session(model, optimized_path=tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").stat().st_size > 0


def test_there_is_at_least_one_cpu():
    assert cpu_count() >= 1


@pytest.mark.parametrize(("entries", "planned"), [({}, True), (QUIET, False), (NEVER_RUN, False)], ids=str)
def test_sessions_that_run_between_other_work_plan_no_memory(entries, planned):
    assert sessions._options(1, "all", entries, None).enable_mem_pattern is planned
