"""OpenVINO as a second runtime."""

import re
import sys

import numpy as np
import onnx
import pytest

from int8cal.errors import DataError, ModelError, UsageError
from int8cal.extras import extra_hint
from int8cal.runtime.openvino import OpenVinoSession, require_openvino
from int8cal.runtime.sessions import Session


@pytest.fixture
def model(bench):
    return bench.text("net (float[N,4] x) => (float[N,3] y, float[N,4] z) { y = MatMul(x, W) z = Neg(x) }", W=(4, 3))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch, bench):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match=re.escape(extra_hint("openvino"))):
        require_openvino()
    with pytest.raises(UsageError):
        OpenVinoSession(onnx.ModelProto())


@pytest.fixture
def openvino():
    return pytest.importorskip("openvino")


@pytest.mark.usefixtures("openvino")
class TestSession:
    def test_a_float_model_gives_what_onnxruntime_gives(self, bench, model):
        for rows in (1, 3):  # the batch is free
            feed = {"x": bench.samples(model, rows)[0].feed["x"].repeat(rows, axis=0)}
            ours, others = Session(model).run(feed), OpenVinoSession(model, threads=1).run(feed)
            assert ours.keys() == others.keys()
            for name, value in ours.items():
                np.testing.assert_allclose(others[name], value, rtol=1e-5, atol=1e-6)

    def test_a_scalar_stays_one(self, bench):
        model = bench.text("net (float[N,4] x, float f) => (float[N,4] y) { y = Mul(x, f) }")
        result = OpenVinoSession(model).run({"x": np.ones((1, 4), np.float32), "f": np.array(3, np.float32)})
        np.testing.assert_array_equal(result["y"], np.full((1, 4), 3))

    def test_outputs_are_the_caller_s_own(self, model):
        session = OpenVinoSession(model)
        first = session.run({"x": np.ones((1, 4), np.float32)}, ["z"])["z"]
        session.run({"x": np.full((1, 4), 2, np.float32)})
        np.testing.assert_array_equal(first, -np.ones((1, 4)))

    def test_a_file_with_weights_beside_it_is_read(self, bench, model, tmp_path):
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
        assert (tmp_path / "m.data").is_file()
        feed = {"x": np.ones((1, 4), np.float32)}
        given, expected = (kind(tmp_path / "m.onnx").run(feed)["y"] for kind in (OpenVinoSession, Session))
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)

    def test_one_tensor_may_be_two_outputs_and_an_input_unread(self, bench):
        model = bench.text(
            "net (float[N,4] x, float[N,4] unread) => (float[N,4] a, float[N,4] b) { a = Neg(x) b = Neg(x) }"
        )
        feed = {"x": np.ones((1, 4), np.float32), "unread": np.zeros((1, 4), np.float32)}
        given = OpenVinoSession(model).run(feed)
        assert set(given) == {"a", "b"}
        np.testing.assert_array_equal(given["a"], given["b"])

    def test_an_array_in_another_order_of_memory_is_read_right(self, model):
        x = np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 4))
        np.testing.assert_array_equal(OpenVinoSession(model).run({"x": x})["z"], -x)

    def test_what_it_cannot_load_is_a_model_error_of_one_line(self, bench, tmp_path):
        foreign = bench.text("net (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
        foreign.graph.node[0].domain = "my.ops"
        foreign.graph.node[0].op_type = "Strange"
        with pytest.raises(ModelError, match=r"OpenVINO cannot load it: .*Strange") as caught:
            OpenVinoSession(foreign)
        assert "\n" not in str(caught.value)
        (tmp_path / "m.onnx").write_bytes(b"nonsense")
        with pytest.raises(ModelError) as caught:
            OpenVinoSession(tmp_path / "m.onnx")
        assert caught.value.where == str(tmp_path / "m.onnx")

    def test_a_feed_that_does_not_fit_is_a_statistics_error(self, model):
        with pytest.raises(DataError, match="inference failed in OpenVINO"):
            OpenVinoSession(model).run({"x": np.zeros((1, 5), np.float32)})

    def test_layers_are_told_apart_by_what_they_take(self, bench):
        graph = "net (float[1,8,8,8] x) => (float[1,8,8,8] y, float[1,8,8,8] z) {"
        convs = """
            q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) w = DequantizeLinear(W, t)
            c = Conv <pads = [1, 1, 1, 1]> (d, w) y = Relu(c) z = Conv <pads = [1, 1, 1, 1]> (x, V) }"""
        rng = np.random.default_rng(0)
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{graph}{convs}')
        constants = {
            "s": np.float32(0.05),
            "zero": np.uint8(128),
            "t": np.float32(0.01),
            "W": rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
            "V": rng.normal(size=(8, 8, 3, 3)).astype(np.float32),
        }
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
        )
        layers = [each for each in OpenVinoSession(model).executed() if each.op_type == "Convolution"]
        assert sorted(each.is_integer for each in layers) == [False, True]
