"""An RMS norm with a Reciprocal has a Div, which the runtime joins; other Reciprocals stay."""

import numpy as np
import pytest
from op_types import ops

CONSTANTS = {"two": np.float32(2), "axis": np.array([-1]), "e": np.float32(1e-6), "w": (16,)}
MEAN = "s = ReduceMean (p, axis) a = Add (s, e) r = Sqrt (a) i = Reciprocal (r)"
NORMS = {
    "as PyTorch's newer exporter writes it": f"p = Pow (x, two) {MEAN} n = Mul (x, i) y = Mul (w, n)",
    "the other way round": f"p = Pow (x, two) {MEAN} n = Mul (i, x) y = Mul (n, w)",
}
OTHERS = {
    "of another tensor": f"h = Relu (x) p = Pow (h, two) {MEAN} n = Mul (x, i) y = Mul (w, n)",
    "of another power": f"p = Pow (x, w2) {MEAN} n = Mul (x, i) y = Mul (w, n)",
    "read twice": f"p = Pow (x, two) {MEAN} n = Mul (x, i) m = Mul (w, n) y = Add (m, i)",
    "without a weight": f"p = Pow (x, two) {MEAN} n = Mul (x, i) y = Tanh (n)",
    "of a sum of two tensors": f"p = Pow (x, two) {MEAN.replace('(s, e)', '(s, x)')} n = Mul (x, i) y = Mul (w, n)",
}


def folded(bench, body):
    text = f"g (float[N,4,16] x) => (float[A,B,C] y) {{ {body} }}"
    return bench.folded(bench.text(text, 18, **CONSTANTS, w2=np.float32(4)), data_prop=True)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_divides(bench, name):
    before, after = folded(bench, NORMS[name])
    assert ops(after) == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert {node.name for node in after.graph.node} < {node.name for node in before.graph.node}
    feed = {"x": np.random.default_rng(0).normal(size=(2, 4, 16)).astype(np.float32)}
    expected, found = (bench.run(model, feed)["y"] for model in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_runtime_would_not_join_stays(bench, name):
    before, after = folded(bench, OTHERS[name])
    assert ops(after) == ops(before)
