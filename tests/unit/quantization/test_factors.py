"""GELUs, PRelus and factors behind a DQ: what is left of them, what it computes, and what must stay."""

import numpy as np
import onnx
import pytest

from int8cal.graph.index import Index
from int8cal.quantization import emit
from int8cal.quantization.gelu import Gelus
from int8cal.quantization.prelu import last_of_prelu

HEAD = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
CONV = {"W": (6, 4, 3, 3), "B": (6,), "V": (4, 6, 1, 1), "root": np.float32(np.sqrt(2)), "one": np.float32(1)}
HALF, ERF = {"half": np.float32(0.5)}, "e = Erf (d) a = Add (e, one)"
SWISH = "s = Tanh (c) m = Mul (s, c)"
ONE_NODE = {
    # name -> (between two convolutions, constants)
    "as PyTorch writes it": (f"d = Div (c, root) {ERF} m = Mul (c, a) o = Mul (m, half)", HALF),
    "with factors": (
        f"d = Mul (inverse, c) {ERF} m = Mul (a, c) o = Div (m, two)",
        {"inverse": np.full(1, 0.70710678), "two": np.float32(2)},
    ),
    "half of it first": (f"h = Mul (half, c) d = Div (c, root) {ERF} o = Mul (h, a)", HALF),
    "half of the sum, as PyTorch's newer exporter writes it": (
        f"d = Div (c, root) {ERF} h = Mul (half, a) o = Mul (c, h)",
        HALF,
    ),
    "a rounded root": (f"d = Div (c, r) {ERF} m = Mul (c, a) o = Mul (m, half)", {**HALF, "r": np.float32(1.4142)}),
}
TANH = {
    "half": np.float32(0.5),
    "outer": np.float32(0.7978846),
    "cubic": np.float32(0.044715),
    "three": np.float32(3),
}
CURVE = "i = Mul (cubic, p) s = Add (k, i) d = Mul (outer, s) e = Tanh (d) a = Add (e, one)"
BY_TANH = {
    # name -> nodes behind k
    "as PyTorch's newer exporter writes it": f"p = Pow (k, three) {CURVE} h = Mul (half, a) o = Mul (k, h)",
    "of products, half of it first": f"q = Mul (k, k) p = Mul (k, q) {CURVE} h = Mul (half, k) o = Mul (h, a)",
    "the product first": f"p = Pow (k, three) {CURVE} m = Mul (k, a) o = Mul (m, half)",
}
OTHERS = {
    # name -> (between two convolutions, constants, nodes that are left of it)
    "a factor behind a product": (f"{SWISH} o = Mul (m, f)", {"f": np.float32(1.7)}, ["Tanh", "Mul"]),
    "a quotient behind a product": (f"{SWISH} o = Div (m, f)", {"f": np.full(1, 6.0)}, ["Tanh", "Mul"]),
    "a factor below zero": (f"{SWISH} o = Mul (m, f)", {"f": np.float32(-2)}, ["Tanh", "Mul", "Mul"]),
    "a factor per channel": (f"{SWISH} o = Mul (m, S)", {"S": (6, 1, 1)}, ["Tanh", "Mul", "Mul"]),
    "a factor that adds an axis": (
        f"{SWISH} k = Mul (m, f) o = Squeeze (k, zero)",
        {"f": np.full((1, 1, 1, 1, 1), 0.5), "zero": np.array([0])},
        ["Tanh", "Mul", "Mul", "Squeeze"],
    ),
    "one product for two factors": (
        f"{SWISH} p = Mul (m, f) q = Mul (m, g) o = Add (p, q)",
        {"f": np.float32(3), "g": np.float32(4)},
        ["Tanh", "Mul", "Mul", "Mul", "Add"],
    ),
    "a GELU of which a part is read": (
        f"d = Div (c, root) {ERF} m = Mul (c, a) h = Mul (m, half) o = Add (h, e)",
        HALF,
        ["Div", "Erf", "Add", "Mul", "Add"],
    ),
    "a GELU of another root": (
        f"d = Div (c, r) {ERF} m = Mul (c, a) o = Mul (m, half)",
        {**HALF, "r": np.float32(1.5)},
        ["Div", "Erf", "Add", "Mul"],
    ),
    "a GELU of two": (
        f"n = Tanh (c) d = Div (n, root) {ERF} m = Mul (c, a) o = Mul (m, half)",
        HALF,
        ["Tanh", "Div", "Erf", "Add", "Mul"],
    ),
}
QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "Conv", "Pad")


def built(bench, body, constants, opset=17, **settings):
    model = bench.text(f"{HEAD} {{ c = Conv (x, W, B) {body} y = Conv (o, V) }}", opset, **CONV, **constants)
    _, _, _, result = bench.quantized(model, **settings)
    onnx.checker.check_model(result.model, full_check=True)
    return model, result


def between(result):
    return [node.op_type for node in result.model.graph.node if node.op_type not in QUANTIZED]


def require_same_values(bench, monkeypatch, body, constants):
    """Compare with the model whose nodes all stay."""
    model, made = built(bench, body, constants)
    monkeypatch.setattr(emit, "find_gelus", lambda index, plan: Gelus({}, frozenset(), ""))
    monkeypatch.setattr(emit, "absorbed_factors", lambda index, plan, others: {})
    _, plain = built(bench, body, constants)
    for sample in bench.samples(model, 3, seed=9):
        expected, found = (bench.run(each.model, sample.feed)["y"] for each in (plain, made))
        # a float that rounds otherwise may take the next code of the second convolution's input
        assert (np.abs(expected - found) < 1e-4 * np.abs(expected).max()).mean() > 0.95
    return len(plain.model.graph.node) - len(made.model.graph.node)


@pytest.mark.parametrize("name", ONE_NODE)
def test_a_gelu_is_one_node(bench, name, monkeypatch):
    body, constants = ONE_NODE[name]
    _, result = built(bench, body, constants)
    assert between(result) == ["Gelu"]
    assert ("com.microsoft", 1) in {(item.domain, item.version) for item in result.model.opset_import}
    assert require_same_values(bench, monkeypatch, body, constants) == 5  # four nodes and a DQ


def test_opset_20_has_a_gelu_of_its_own(bench):
    _, result = built(bench, *ONE_NODE["as PyTorch writes it"], opset=20)
    assert between(result) == ["Gelu"]
    assert [item.domain for item in result.model.opset_import] == [""]


def test_a_gelu_of_floats_is_one_node_where_the_runtime_would_not_join_it(bench, monkeypatch):
    floats = "k = Softplus (c)"
    newer, older = (
        f"{floats} d = Div (k, root) {ERF} {end}"
        for end in ("h = Mul (half, a) o = Mul (k, h)", "m = Mul (k, a) o = Mul (m, half)")
    )
    _, made = built(bench, newer, HALF)
    assert between(made) == ["Softplus", "Gelu"]
    assert next(node.input for node in made.model.graph.node if node.op_type == "Gelu") == ["k"]
    assert between(built(bench, older, HALF)[1])[1:] == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert require_same_values(bench, monkeypatch, newer, HALF) == 4


@pytest.mark.parametrize("name", BY_TANH)
@pytest.mark.parametrize("before", ["k = Softplus (c)", "k = Identity (c)"])
def test_a_gelu_by_tanh_is_one_node_of_codes_and_of_floats(bench, name, before, monkeypatch):
    body = f"{before} {BY_TANH[name]}"
    assert between(built(bench, body, TANH)[1])[-1] == "FastGelu"
    newer = built(bench, body, TANH, opset=20)[1].model.graph.node
    gelu = next(node for node in newer if node.op_type == "Gelu")
    assert (gelu.domain, gelu.attribute[0].s) == ("", b"tanh")
    assert require_same_values(bench, monkeypatch, body, TANH) >= 7


@pytest.mark.parametrize("end", ["p = Pow (k, half)", "p = Mul (k, k)", "q = Mul (k, k) p = Mul (q, q)"])
def test_a_tanh_of_another_power_stays(bench, end):
    body = f"k = Softplus (c) {end} {CURVE} h = Mul (half, a) o = Mul (k, h)"
    assert "Tanh" in between(built(bench, body, TANH)[1])


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_computes_the_same(bench, name, monkeypatch):
    body, constants, left = OTHERS[name]
    assert between(built(bench, body, constants)[1]) == left
    gone = body.count("Mul") + body.count("Div") - left.count("Mul") - left.count("Div")
    assert require_same_values(bench, monkeypatch, body, constants) == gone


def test_another_runtime_gets_all_nodes(bench):
    _, result = built(bench, *ONE_NODE["as PyTorch writes it"], target="openvino")
    assert between(result) == ["Div", "Erf", "Add", "Mul", "Mul"]


PRELU = "o = PRelu (c, slopes)"
SLOPES = {
    # name -> (slopes, nodes)
    "below one": (np.linspace(-0.5, 1, 6).reshape(6, 1, 1), ["Mul", "Max"]),
    "above one": (np.linspace(1, 3, 6).reshape(1, 6, 1, 1), ["Mul", "Min"]),
    "of both kinds": (np.linspace(-4.5, 3.6, 6).reshape(6, 1, 1), ["Relu", "Sub", "Mul", "Add"]),
    "one for all": (np.float32(0.2), ["Mul", "Max"]),
    "one for each place": (np.linspace(-2, 2, 6 * 36).reshape(6, 6, 6), ["Relu", "Sub", "Mul", "Add"]),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_prelu_is_written_as_faster_nodes_of_the_same_bits(bench, name, monkeypatch):
    slopes, nodes = SLOPES[name]
    model, result = built(bench, PRELU, {"slopes": slopes})
    assert between(result) == nodes
    assert [node.op_type for node in result.model.graph.node if node.name == "PRelu_o"] == nodes[-1:]
    monkeypatch.setattr(emit, "last_of_prelu", lambda index, node: "")
    _, plain = built(bench, PRELU, {"slopes": slopes})
    assert between(plain) == ["PRelu"]
    for sample in bench.samples(model, 3, seed=9):
        np.testing.assert_array_equal(*(bench.run(each.model, sample.feed)["y"] for each in (plain, result)))


def test_other_prelus_stay(bench):
    assert between(built(bench, "s = GlobalAveragePool (c) o = PRelu (c, s)", {})[1])[-1] == "PRelu"
    slopes = np.full((6, 1, 1), 0.1)
    assert between(built(bench, PRELU, {"slopes": slopes}, target="openvino")[1]) == ["PRelu"]
    slopes[3] = np.inf
    model = bench.text(f"{HEAD} {{ {PRELU.replace('c', 'x')} y = Conv (o, V) }}", slopes=slopes, V=(4, 6, 1, 1))
    assert last_of_prelu(Index(model), model.graph.node[0]) == ""
