"""Each rule on the smallest graph that it is about, and silent on the one that only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.graph import treatments
from int8cal.graph.families import RULES, find_families
from int8cal.graph.index import Index
from int8cal.graph.scopes import scopes
from int8cal.graph.treatments import PlannedModel

IMAGE = "g (float[N,3,8,8] x) => (float[A,B,C] y)"
MAP = "g (float[N,3,8,8] x) => (float[A,B,C,D] y)"
ROWS = "g (float[N,5,8] x) => (float[A,B,C] y)"
SIGNAL = "g (float[N,8,16] x) => (float[A,B,C] y)"
WEIGHTS = {
    "A": (4, 3, 3, 3), "B": (6, 3, 3, 3), "D": (4, 1, 3, 3), "P": (4, 4, 1, 1), "U": (4, 4, 2, 2), "F": (3, 4, 3, 3),
    "W": (8, 8), "K": (8, 8), "V": (8, 8), "T": (8, 4, 4), "S": (4, 2, 4), "H": (8, 4), "ones": np.ones(8),
    "R": (12, 8), "E": (12, 3), "L": (1, 24, 8), "M": (1, 24, 6), "G": (2000, 8), "Q": (1, 1, 6, 8),
    "bins": np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1), "C8": (8, 3, 1, 1),
    "rows": np.array([0, -1, 4], np.int64), "halves": np.array([2, 2], np.int64), "flat": np.array([0, -1], np.int64),
    "low": np.float32(-3.4e38), "ten": np.float32(-10.0), "one": np.float32(1), "two": np.float32(2), "three": np.float32(3),
    "zero": np.float32(0), "six": np.float32(6), "half": np.float32(0.5), "eps": np.float32(1e-5),
    "scales": np.array([1, 1, 2, 2], np.float32), "last": np.array([-1], np.int64), "flip": np.array([0, 8, 8], np.int64),
    "edges": np.array([0, 8, 4, -1], np.int64),
}  # fmt: skip
CONV = "a = Conv <pads = [1,1,1,1]> (x, A)"
HEADS = "b = Conv <pads = [1,1,1,1]> (x, B) t = Conv <pads = [1,1,1,1]> (x, A)"
ROWED = "t = Conv <pads = [1,1,1,1]> (x, A) tt = Transpose <perm = [0,2,3,1]> (t) tr = Reshape (tt, rows)"
DEPTHWISE = "d = Conv <group = 4, pads = [1,1,1,1]> (a, D)"
ATTENTION = "q = MatMul (x, W) k = MatMul (x, K) kt = Transpose <perm = [0,2,1]> (k) s = MatMul (q, kt)"
VALUES = "v = MatMul (x, V) y = MatMul (p, v)"
NORM = "m = ReduceMean <axes = [-1], keepdims = 1> (x) c = Sub (x, m)"
SQUARES = "sq = Pow (c, two) va = ReduceMean <axes = [-1], keepdims = 1> (sq) ve = Add (va, eps) sd = Sqrt (ve)"

# family, what it is called there, graph
FOUND = [
    ("detection head", "boxes and scores", f"{IMAGE} {{ {HEADS} o = Sigmoid (b) z = Mul (t, six) w = Concat <axis = 1> (z, o) y = Reshape (w, flip) }}"),
    ("detection head", "several scales", f"{IMAGE} {{ {ROWED} u = Conv <strides = [2,2]> (x, A) ut = Transpose <perm = [0,2,3,1]> (u) ur = Reshape (ut, rows) y = Concat <axis = 1> (tr, ur) }}"),
    ("detection head", "selection of boxes", "g (float[1,20,4] b, float[1,2,20] s, int64 n) => (int64[A,3] y) { y = NonMaxSuppression (b, s, n) }"),
    ("detection head", "box edge", f"{MAP} {{ a = Conv (x, C8) s = Softmax <axis = 1> (a) y = Conv (s, bins) }}"),
    ("decoder of queries", "attention of queries", "g (float[N,5,8] x, float[N,6,8] z) => (float[A,B,C] y) { q = MatMul (z, W) k = MatMul (x, K) kt = Transpose <perm = [0,2,1]> (k) s = MatMul (q, kt) p = Softmax (s) v = MatMul (x, V) h = MatMul (p, v) b = MatMul (h, H) y = Sigmoid (b) }"),
    ("decoder of queries", "head of boxes", "g (float[N,5,8] x) => (float[A,B,C] y) { k = MatMul (x, K) kt = Transpose <perm = [0,2,1]> (k) s = MatMul (Z, kt) p = Softmax (s) v = MatMul (x, V) h = MatMul (p, v) b = MatMul (h, H) y = Sigmoid (b) }"),
    ("attention masks", "by Add", f"g (float[N,5,8] x, float[N,1,5] mask) => (float[A,B,C] y) {{ {ATTENTION} n = Sub (one, mask) l = Mul (n, low) t = Add (s, l) p = Softmax (t) {VALUES} }}"),
    ("attention masks", "by Where", f"g (float[N,5,8] x, bool[N,5,5] mask) => (float[A,B,C] y) {{ {ATTENTION} t = Where (mask, s, low) p = Softmax (t) {VALUES} }}"),
    ("normalization in front of products", "norm", f"{ROWS} {{ n = LayerNormalization (x, ones) y = MatMul (n, W) }}"),
    ("normalization in front of products", "norm", f"{ROWS} {{ {NORM} {SQUARES} d = Div (c, sd) e = Mul (d, ones) y = MatMul (e, W) }}"),
    ("normalization in front of products", "norm", f"{ROWS} {{ c = Identity (x) {SQUARES} r = Reciprocal (sd) d = Mul (x, r) e = Mul (ones, d) y = MatMul (e, W) }}"),
    ("depthwise convolutions", "depthwise convolution", f"{MAP} {{ {CONV} {DEPTHWISE} r = Relu (d) y = Conv (r, P) }}"),
    ("depthwise convolutions", "behind another", f"{MAP} {{ {CONV} {DEPTHWISE} r = Relu (d) y = Conv <group = 4> (r, D) }}"),
    ("squeeze and excite", "gate", f"{MAP} {{ {CONV} g = GlobalAveragePool (a) e = Conv (g, P) r = Relu (e) f = Conv (r, P) s = HardSigmoid (f) m = Mul (a, s) y = Conv (m, P) }}"),
    ("squeeze and excite", "gate", f"{MAP} {{ {CONV} i = Sigmoid (a) b = Mul (a, i) g = ReduceMean <axes = [2,3], keepdims = 1> (b) e = Conv (g, P) j = Sigmoid (e) h = Mul (e, j) f = Conv (h, P) s = Sigmoid (f) m = Mul (s, b) y = Conv (m, P) }}"),
    ("swish", "own gate", f"{MAP} {{ {CONV} s = Sigmoid (a) m = Mul (a, s) y = Conv (m, P) }}"),
    ("swish", "own gate", f"{MAP} {{ {CONV} b = Add (a, three) c = Clip (b, zero, six) d = Div (c, six) m = Mul (d, a) y = Conv (m, P) }}"),
    ("vocoder", "transposed convolution", f"{SIGNAL} {{ a = ConvTranspose <strides = [2]> (x, T) r = LeakyRelu (a) b = ConvTranspose <strides = [2]> (r, S) y = Tanh (b) }}"),
    ("embedding tables", "table", "g (int64[N,5] x) => (float[A,B,C] y) { e = Gather (G, x) y = MatMul (e, W) }"),
    ("embedding output", "length 1", f"{ROWS} {{ a = MatMul (x, W) n = ReduceL2 <axes = [-1], keepdims = 1> (a) y = Div (a, n) }}"),
    ("embedding output", "length 1", f"{ROWS} {{ a = MatMul (x, W) b = Mul (a, a) n = ReduceSum <keepdims = 1> (b, last) r = Sqrt (n) y = Div (a, r) }}"),
    ("recurrent cells", "GRU", "g (float[5,1,8] x) => (float[A,B,C,D] y) { y = GRU <hidden_size = 8> (x, L, L) }"),
    ("skip connections", "enlarged map", f"{MAP} {{ {CONV} p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a) b = Conv (p, P) u = Resize (b, , scales) c = Concat <axis = 1> (u, x) q = Slice (c, zero1, four1, one1) y = Conv (q, P) }}"),
    ("skip connections", "enlarged map", f"{MAP} {{ {CONV} p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a) u = ConvTranspose <strides = [2,2]> (p, U) r = Relu (u) c = Concat <axis = 1> (r, a) y = Conv (c, F2) }}"),
]  # fmt: skip
# family that it must not be taken for, what it is, graph
ABSENT = [
    ("detection head", "a policy beside a value", "g (float[N,8] x) => (float[A,B] y) { a = MatMul (x, W) b = MatMul (x, H) p = Softmax (a) y = Concat <axis = 1> (p, b) }"),
    ("detection head", "gated features that layers read", f"{MAP} {{ {HEADS} o = Sigmoid (t) w = Concat <axis = 1> (t, o) y = Conv (w, F2) }}"),
    ("detection head", "a Softmax over channels and a layer", f"{MAP} {{ a = Conv (x, C8) s = Softmax <axis = 1> (a) y = Conv (s, weigh) }}"),
    ("decoder of queries", "attention to fewer places, without boxes", f"{ROWS} {{ q = MatMul (x, W) r = MatMul (x, V) k = MatMul (r, K) kt = Transpose <perm = [0,2,1]> (k) s = MatMul (q, kt) p = Softmax (s) v = MatMul (r, V) h = MatMul (p, v) y = Sigmoid (h) }}"),
    ("decoder of queries", "attention of a source to itself", f"{ROWS} {{ {ATTENTION} p = Softmax (s) v = MatMul (x, V) h = MatMul (p, v) b = MatMul (h, H) y = Sigmoid (b) }}"),
    ("attention masks", "a bias of scores", f"g (float[N,5,8] x, float[N,1,5] bias) => (float[A,B,C] y) {{ {ATTENTION} l = Mul (bias, ten) t = Add (s, l) p = Softmax (t) {VALUES} }}"),
    ("attention masks", "distances that become similarities", f"{ROWS} {{ {ATTENTION} t = Mul (s, low) p = Softmax (t) {VALUES} }}"),
    ("attention masks", "a bound of scores", f"{ROWS} {{ {ATTENTION} t = Max (s, low) p = Softmax (t) {VALUES} }}"),
    ("normalization in front of products", "a norm in front of an output", f"{ROWS} {{ a = MatMul (x, W) y = LayerNormalization (a, ones) }}"),
    ("normalization in front of products", "a root that is no norm", f"{ROWS} {{ a = Mul (x, x) b = Sqrt (a) c = Div (x, b) y = MatMul (c, W) }}"),
    ("depthwise convolutions", "groups that mix channels", "g (float[N,4,8,8] x) => (float[A,B,C,D] y) { a = Conv <group = 2> (x, grouped) y = Relu (a) }"),
    ("squeeze and excite", "a swish", f"{MAP} {{ {CONV} s = Sigmoid (a) m = Mul (a, s) y = Conv (m, P) }}"),
    ("squeeze and excite", "a gate of another tensor's means", f"{MAP} {{ {CONV} b = Relu (a) c = Conv (b, P) g = GlobalAveragePool (c) e = Conv (g, P) s = Sigmoid (e) m = Mul (a, s) y = Conv (m, P) }}"),
    ("swish", "a gated linear unit", f"{MAP} {{ {CONV} b = Conv <pads = [1,1,1,1]> (x, A3) s = Sigmoid (b) m = Mul (a, s) y = Conv (m, P) }}"),
    ("vocoder", "a generator of images", "g (float[N,4,8,8] x) => (float[A,B,C,D] y) { a = ConvTranspose (x, U) r = Relu (a) b = ConvTranspose (r, U) y = Tanh (b) }"),
    ("vocoder", "a decoder of features", f"{SIGNAL} {{ a = ConvTranspose <strides = [2]> (x, T) y = ConvTranspose <strides = [2]> (a, S) }}"),
    ("embedding tables", "a table of a few rows", "g (int64[N,5] x, float[N,5,8] z) => (float[A,B,C] y) { e = Gather (few, x) f = Add (e, z) y = MatMul (f, wide) }"),
    ("embedding output", "norms of queries", f"{ROWS} {{ a = MatMul (x, W) n = ReduceL2 <axes = [-1], keepdims = 1> (a) b = Div (a, n) y = MatMul (b, K) }}"),
    ("recurrent cells", "a product", f"{ROWS} {{ y = MatMul (x, W) }}"),
    ("skip connections", "a dense block", f"{MAP} {{ {CONV} b = Relu (a) c = Concat <axis = 1> (a, b) y = Conv (c, F2) }}"),
]  # fmt: skip
MORE = {
    "Z": (1, 6, 8), "F2": (4, 8, 1, 1), "zero1": np.array([0], np.int64), "four1": np.array([4], np.int64),
    "one1": np.array([1], np.int64), "weigh": (1, 8, 1, 1), "grouped": (4, 2, 3, 3), "A3": (4, 3, 3, 3), "few": (4, 8),
    "wide": (8, 900),
}  # fmt: skip


def families(model):
    return {family.rule.name: family for family in find_families(model)}


def built(bench, text):
    names = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    model = bench.text(text, opset=17, **{name: value for name, value in (WEIGHTS | MORE).items() if name in names})
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(("family", "what", "text"), FOUND, ids=[f"{name}: {what}" for name, what, _ in FOUND])
def test_a_family_is_found_by_how_its_nodes_stand(bench, family, what, text):
    found = families(bench.prepared(built(bench, text)).model)
    assert family in found
    assert what in found[family].where


@pytest.mark.parametrize(("family", "what", "text"), ABSENT, ids=[f"{name}: {what}" for name, what, _ in ABSENT])
def test_what_only_looks_like_a_family_is_none(bench, family, what, text):
    assert family not in families(bench.prepared(built(bench, text)).model), what


def test_every_rule_has_a_graph_that_it_finds_and_one_that_it_does_not():
    names = {rule.name for rule in RULES}
    assert {name for name, _, _ in FOUND} == names == {name for name, _, _ in ABSENT}


@pytest.mark.parametrize(("family", "what", "text"), FOUND, ids=[f"{name}: {what}" for name, what, _ in FOUND])
def test_a_graph_that_was_not_prepared_and_has_no_shapes_is_recognized_too(bench, family, what, text):
    model = built(bench, text)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    assert what in families(model)[family].where


def inside(model):
    """Put a model's graph into both branches of an If."""
    body = onnx.GraphProto()
    body.CopyFrom(model.graph)
    del body.input[:]
    node = helper.make_node(
        "If", ["flag"], [value.name for value in model.graph.output], "If", then_branch=body, else_branch=body
    )
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [*model.graph.input, flag], list(model.graph.output))
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def test_a_family_inside_of_a_node_is_found_and_said_to_be_there(bench):
    text = next(text for name, _, text in FOUND if name == "depthwise convolutions")
    family = families(inside(built(bench, text)))["depthwise convolutions"]
    assert (len(family.parts), family.inside) == (2, 2)
    assert "inside of other nodes" in family.where


def test_attributes_that_the_call_of_a_function_gives_are_unknown_in_it(bench):
    text = """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = own.Deep <groups = 4> (x) }
        <domain: "own", opset_import: ["" : 17]>
        Deep <groups> (a) => (b) { w = Constant <value = float[4,1,1,1] {1, 2, 3, 4}> () c = Conv <group: int = @groups> (a, w) b = Sigmoid(c) m = Mul(b, c) }
    """
    model = onnx.parser.parse_model(text)
    assert "swish" in families(model)
    assert all(
        not each.ref_attr_name for scope in scopes(model) for node in scope.index.graph.node for each in node.attribute
    )
    assert model.functions[0].node[1].attribute[0].ref_attr_name == "groups"


def test_a_family_in_a_function_is_found(bench):
    model = built(bench, next(text for name, _, text in FOUND if name == "swish"))
    body = [node for node in model.graph.node if node.op_type in ("Sigmoid", "Mul")]
    function = helper.make_function("own", "Swish", ["a"], ["m"], body, list(model.opset_import))
    rest = [node for node in model.graph.node if node.op_type == "Conv"]
    call = helper.make_node("Swish", ["a"], ["m"], "call", domain="own")
    del model.graph.node[:]
    model.graph.node.extend([rest[0], call, rest[1]])
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    assert families(model)["swish"].inside == 1
    assert families(bench.prepared(model).model)["swish"].inside == 0  # preparing takes functions apart


def test_a_constant_node_is_as_good_as_an_initializer(bench):
    model = built(bench, next(text for name, what, text in FOUND if what == "by Where"))
    low = next(tensor for tensor in model.graph.initializer if tensor.name == "low")
    model.graph.initializer.remove(low)
    model.graph.node.insert(
        0, helper.make_node("Constant", [], ["low"], value=numpy_helper.from_array(np.float32(-np.inf)))
    )
    assert "lowest value -inf" in families(model)["attention masks"].where


# What the plan does with the first graph of each family, in words.
TREATED = {
    "detection head": "it stays in float, so that each part keeps its own values",
    "decoder of queries": "all 2 stay in float",
    "attention masks": "it stays in float, so that no range holds a mask",
    "normalization in front of products": "1 of 1 outputs get codes for the products behind. At 1 of these",
    "depthwise convolutions": "it becomes int8",
    "squeeze and excite": "in float",
    "swish": "it stays in float",  # it is behind a convolution of an image
    "vocoder": "all 2 stay in float, 2 of them because the runtime of this target has no integer kernel",
    "embedding tables": "1 table of 0.1 MB stays float, exact",
    "embedding output": "it stays in float",
    "recurrent cells": "its weights become int8",
    "skip connections": "it runs on integers, with one scale over all that they join",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_is_done_is_read_from_the_plan(bench, rule):
    model = bench.prepared(built(bench, next(text for name, _, text in FOUND if name == rule.name))).model
    told = rule.treat(families(model)[rule.name].parts, PlannedModel(Index(model), bench.plan(model)))
    assert TREATED[rule.name] in told


@pytest.mark.parametrize(
    ("name", "pattern", "word"),
    [("swish", "op:Mul", "stays in float"), ("depthwise convolutions", "op:Conv", "0 of 1 become int8")],
)
def test_what_the_user_leaves_in_float_is_said_to_be_float(bench, name, pattern, word):
    model = bench.prepared(built(bench, next(text for each, _, text in FOUND if each == name))).model
    parts = families(model)[name].parts
    assert word in families(model)[name].rule.treat(
        parts, PlannedModel(Index(model), bench.plan(model, exclude=[pattern]))
    )


@pytest.mark.parametrize(
    ("exclude", "told"), [((), "1 table of 0.1 MB becomes int8"), (("op:Gather",), "1 table of 0.1 MB stays float")]
)
def test_a_table_that_weighs_enough_is_said_to_become_int8(bench, exclude, told):
    text = "g (int64[N,5] x) => (float[A,B,C] y) { e = Gather (G, x) y = MatMul (e, W) }"
    model = bench.prepared(bench.text(text, G=(1500, 16), W=(16, 16))).model
    plan = bench.plan(model, exclude=exclude)
    assert told in treatments.tables(families(model)["embedding tables"].parts, PlannedModel(Index(model), plan))


def test_depth_of_a_graph_costs_no_more_than_its_nodes(bench):
    nodes = " ".join(f"a{i + 1} = Relu (a{i})" for i in range(3000))
    model = bench.text(f"{MAP} {{ a0 = Conv (x, A) {nodes} s = Sigmoid (a3000) y = Mul (s, a0) }}", A=(4, 3, 3, 3))
    assert find_families(model) == ()
