"""The Add in front of a norm is a Sum in the int8 model, which the runtime joins with nothing."""

import numpy as np
import onnx
import pytest

from int8cal.runtime.sessions import Session

NORM = "y = LayerNormalization <axis = -1> (s, g, b)"
# as exporters wrote it before there was an op
PARTS = (
    "m = ReduceMean <axes = [-1], keepdims = 1> (s) d = Sub(s, m) q = Mul(d, d) v = ReduceMean <axes = [-1], keepdims = 1> (q)"
    " w = Add(v, e) r = Sqrt(w) n = Div(d, r) t = Mul(n, g) y = Add(t, b)"
)


def made(bench, body, **settings):
    text = f"g (float[1,5,16] x) => (float[A,B,C] y) {{ h = MatMul(x, W) k = Tanh(h) o = MatMul(k, V) {body} }}"
    constants = {"W": (16, 16), "V": (16, 16), "g": np.ones(16, np.float32), "b": (16,), "e": np.float32(1e-5)}
    model = bench.text(text, opset=17, **constants)
    samples = bench.samples(model)
    return samples[0].feed, bench.quantized(model, samples=samples, **settings)[-1].model


def kernels(model, tmp_path):
    path = tmp_path / "optimized.onnx"
    Session(model, threads=1, optimization="all", optimized_path=path)
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("norm", [NORM, PARTS], ids=["one node", "many nodes"])
def test_the_runtime_joins_no_add_with_the_norm_behind_it(bench, tmp_path, norm):
    feed, built = made(bench, f"s = Add(o, x) {norm}")
    (node,) = [node for node in built.graph.node if "s" in node.output]
    assert node.op_type == "Sum"
    assert "SkipLayerNormalization" not in kernels(built, tmp_path)
    values = [bench.run(built, feed, optimization)["y"] for optimization in ("none", "all")]
    np.testing.assert_allclose(*values, rtol=0, atol=0.05)


@pytest.mark.newest  # should it not join them any more, this form is not needed
def test_it_would_join_an_add(bench, tmp_path):
    _, built = made(bench, f"s = Add(o, x) {NORM}", target="openvino")
    assert "SkipLayerNormalization" in kernels(built, tmp_path)


@pytest.mark.parametrize("body", ["s = Add(o, x) y = Tanh(s)", f"s = Add(o, b) {NORM}"], ids=["no norm", "a bias"])
def test_other_adds_stay(bench, body):
    _, built = made(bench, body)
    assert "Sum" not in [node.op_type for node in built.graph.node]
