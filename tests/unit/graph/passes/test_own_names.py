"""Names of inner graphs that hide one of a graph around them."""

import onnx
import onnx.parser

from int8cal.graph.passes.own_names import own_names

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (bool f, float[4] x) => (float[4] y) {
        t = Relu (x)
        y = If (f) <then_branch = a () => (float[4] u) {
                       t = Tanh (x)
                       u = If (f) <then_branch = b () => (float[4] v) { v = Neg (t) },
                                   else_branch = c () => (float[4] t) { t = Abs (x) }>
                   },
                   else_branch = d () => (float[4] u) { u = Neg (t) }>
    }"""


def inside(node, name):
    return next(item.g for item in node.attribute if item.name == name)


def test_each_graph_has_its_own_and_readers_follow():
    model = onnx.parser.parse_model(MODEL)
    own_names(model)
    relu, outer = model.graph.node
    then, other = (inside(outer, name) for name in ("then_branch", "else_branch"))
    tanh, inner = then.node
    first, second = (inside(inner, name) for name in ("then_branch", "else_branch"))
    assert (relu.output[0], tanh.output[0]) == ("t", "t_1")
    assert first.node[0].input[0] == "t_1"
    assert second.node[0].output[0] == second.output[0].name == "t_2"
    assert other.node[0].input[0] == "t"


def test_names_that_hide_none_stay():
    model = onnx.parser.parse_model(MODEL.replace("t = Tanh (x)", "w = Tanh (x)").replace("float[4] t) { t =", "float[4] q) { q ="))  # fmt: skip
    before = model.SerializeToString()
    own_names(model)
    assert model.SerializeToString() == before
