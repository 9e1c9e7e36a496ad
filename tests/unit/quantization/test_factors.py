"""Factors behind a DQ are in its scale: what is left of a GELU, what it computes, and what must stay."""

import numpy as np
import onnx
import pytest

from int8cal.quantization import emit
from int8cal.quantization.factors import Factors

HEAD = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
CONV = {"W": (6, 4, 3, 3), "B": (6,), "V": (4, 6, 1, 1), "root": np.float32(np.sqrt(2)), "one": np.float32(1)}
ERF = "e = Erf (d) a = Add (e, one) m = Mul (c, a)"
CASES = {
    # name -> (between two convolutions, constants, nodes that are left of it)
    "a GELU": (f"d = Div (c, root) {ERF} o = Mul (m, half)", {"half": np.float32(0.5)}, ["Erf", "Add", "Mul"]),
    "a GELU that halves first": (
        "h = Mul (half, c) d = Div (c, root) e = Erf (d) a = Add (one, e) o = Mul (h, a)",
        {"half": np.full(1, 0.5)},
        ["Erf", "Add", "Mul"],
    ),
    "one half for two": (
        f"d = Div (c, root) {ERF} p = Mul (m, half) q = Mul (m, half) o = Add (p, q)",
        {"half": np.float32(0.5)},
        ["Erf", "Add", "Mul", "Mul", "Mul", "Add"],
    ),
    "a factor below zero": (
        f"d = Div (c, minus) {ERF} o = Mul (m, minus)",
        {"minus": np.float32(-2)},
        ["Div", "Erf", "Add", "Mul", "Mul"],
    ),
    "a factor per channel": (
        f"d = Mul (c, S) {ERF} o = Mul (m, S)",
        {"S": (6, 1, 1)},
        ["Mul", "Erf", "Add", "Mul", "Mul"],
    ),
    "a factor that adds an axis": (
        "d = Mul (c, K) e = Erf (d) o = Squeeze (e, zero)",
        {"K": np.full((1, 1, 1, 1, 1), 0.5), "zero": np.array([0])},
        ["Mul", "Erf", "Squeeze"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_computes_the_same(bench, name, monkeypatch):
    body, constants, left = CASES[name]
    model = bench.text(f"{HEAD} {{ c = Conv (x, W, B) {body} y = Conv (o, V) }}", **CONV, **constants)
    _, _, _, built = bench.quantized(model)
    onnx.checker.check_model(built.model, full_check=True)
    ops = [node.op_type for node in built.model.graph.node]
    assert [each for each in ops if each not in ("QuantizeLinear", "DequantizeLinear", "Conv", "Pad")] == left
    monkeypatch.setattr(emit, "absorbed_factors", lambda index, plan: Factors())
    _, _, _, plain = bench.quantized(model)
    assert (len(plain.model.graph.node) > len(ops)) == (
        name in ("a GELU", "a GELU that halves first", "one half for two")
    )
    for sample in bench.samples(model, 3, seed=9):
        expected, found = (bench.run(each.model, sample.feed)["y"] for each in (plain, built))
        # a float that rounds otherwise may take the next code of the second convolution's input
        assert (np.abs(expected - found) < 1e-6 * np.abs(expected).max()).mean() > 0.95


def test_another_runtime_gets_its_factors_as_nodes(bench):
    body, constants, _ = CASES["a GELU"]
    model = bench.text(f"{HEAD} {{ c = Conv (x, W, B) {body} y = Conv (o, V) }}", **CONV, **constants)
    _, _, _, built = bench.quantized(model, target="openvino")
    assert [node.op_type for node in built.model.graph.node].count("Div") == 1
