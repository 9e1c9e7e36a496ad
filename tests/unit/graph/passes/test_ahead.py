"""A factor behind a gate goes into the layers ahead."""

import numpy as np
import pytest

from int8cal.graph.index import Index
from int8cal.graph.passes.steps import scaled

C = np.float32(0.99975586)  # six times a sixth of float16
WEIGHTS = {"W": (8, 4, 3, 3), "V": (4, 8, 1, 1), "U": (8, 8, 1, 1), "S": (8, 8, 1, 1), "c": C, "two": np.float32(2)}
SWISH = "t = Conv(x, W) g = HardSigmoid<alpha=0.1666667>(t) p = Mul(t, g) m = Mul(p, c)"
GOES = {
    "layer": f"{SWISH} y = Conv(m, V)",
    "two layers": f"{SWISH} a = Conv(m, V) b = Conv(m, Z) y = Add(a, b)",
    "gate": "t = Conv(x, W) k = Conv(x, Q) g = HardSigmoid<alpha=0.1666667>(t) m = Mul(g, c) n = Mul(m, k) y = Conv(n, V)",
    "squeeze": f"{SWISH} q = GlobalAveragePool(m) s = Conv(q, S) r = HardSigmoid(s) n = Mul(m, r) y = Conv(n, V)",
    "pool": f"{SWISH} q = MaxPool<kernel_shape=[2, 2]>(m) r = Relu(q) y = Conv(r, V)",
}
STAYS = {
    "a sum": f"{SWISH} a = Conv(m, U) b = Add(a, m) y = Conv(b, V)",
    "an output": f"{SWISH} y = Conv(m, V) z = Identity(m)",
    "both operands": f"{SWISH} n = Mul(m, m) y = Conv(n, V)",
    "both operands, one pooled": f"{SWISH} q = GlobalAveragePool(m) n = Mul(m, q) y = Conv(n, V)",
    "no gate": "t = Conv(x, W) p = Tanh(t) m = Mul(p, c) y = Conv(m, V)",
    "shared weights": f"{SWISH} d = Elu(t) a = Conv(m, V) b = Conv(d, V) y = Add(a, b)",
    "an activation": f"{SWISH} e = Elu(m) y = Conv(e, V)",
}


def prepared(bench, nodes):
    names = set(nodes.replace(",", " ").replace(")", " ").replace("(", " ").split())
    weights = {**WEIGHTS, "Z": (4, 8, 1, 1), "Q": (8, 4, 3, 3)}
    more = ", float[E,F,G,H] z" if "z =" in nodes else ""
    text = f"g (float[N,4,8,8] x) => (float[A,B,C,D] y{more}) {{ {nodes} }}"
    model = bench.text(text, **{name: value for name, value in weights.items() if name in names})
    return model, bench.prepared(model).model


def factors(model):
    index = Index(model)
    return [node.name for node in model.graph.node if scaled(index, node) is not None]


@pytest.mark.parametrize("nodes", GOES.values(), ids=GOES)
def test_it_goes_into_all_layers_that_read_it(bench, nodes):
    model, after = prepared(bench, nodes)
    assert not factors(after)
    for sample in bench.samples(model):
        first, second = (bench.run(each, sample.feed)["y"] for each in (model, after))
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)
        assert np.abs(first).max() > 0.1


@pytest.mark.parametrize("nodes", STAYS.values(), ids=STAYS)
def test_it_stays_where_anything_else_reads_it(bench, nodes):
    model, after = prepared(bench, nodes)
    assert len(factors(after)) == 1
    for sample in bench.samples(model):
        first, second = (bench.run(each, sample.feed)["y"] for each in (model, after))
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_tensors_with_other_values_have_other_names(bench):
    after = prepared(bench, GOES["squeeze"])[1]
    written = {name for node in after.graph.node for name in node.output}
    assert written.isdisjoint({"q", "n", "m"})
    assert {"q_folded", "n_folded", "p"} <= written
