import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from int8cal.graph.index import Index, connected, derived_constants, outer_references, walk
from int8cal.graph.passes.clips import value_ranges
from int8cal.protos import all_tensors, graphs_within

DEEP = 3000


def graph(nodes, constants=(), name="g"):
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [1])]
    made = [numpy_helper.from_array(array, each) for each, array in constants]
    return helper.make_graph(nodes, name, inputs, [value("y", TensorProto.FLOAT, [1])], made)


def index_of(text, **changes):
    return Index(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}', **changes))


def nested(levels):
    """A graph in a graph in a graph, near the depth that protobuf allows."""
    inner = graph([helper.make_node("Add", ["a0", "outside"], ["b"], name="last")], name="inner")
    del inner.input[:]
    for level in range(levels):
        here = helper.make_node(
            "Identity", ["x" if level == levels - 1 else "outside"], [f"a{level}"], name=f"id{level}"
        )
        node = helper.make_node("If", ["condition"], [f"r{level}"], name=f"if{level}")
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)
        inner = graph([here, node], name=f"level{level}")
        if level < levels - 1:
            del inner.input[:]
    return inner


def test_what_initializers_alone_decide_is_constant_behind_any_number_of_nodes(shallow_stack):
    nodes = [helper.make_node("Neg", [f"t{number}"], [f"t{number + 1}"]) for number in range(DEEP)]
    nodes.append(helper.make_node("Add", [f"t{DEEP}", "x"], ["y"]))
    model = helper.make_model(graph(nodes, [("t0", np.ones(1, np.float32))]))
    found = derived_constants(Index(model))
    assert found == {f"t{number}" for number in range(DEEP + 1)}
    model.graph.node.sort(key=lambda node: node.output[0])
    assert derived_constants(Index(model)) == found


def test_a_constant_needs_all_inputs_of_its_node():
    index = index_of(
        "g (float[1] x) => (float[1] y) <float[1] w = {1}> { a = Neg(w) b = Add(a, x) c = Add(a, a) y = Add(b, c) }"
    )
    assert derived_constants(index) == {"w", "a", "c"}


def test_a_node_without_inputs_makes_a_constant():
    index = index_of("g (float[1] x) => (float[1] y) { c = Constant<value_float = 1.0>() y = Add(x, c) }")
    assert derived_constants(index) == {"c"}


def test_a_node_whose_subgraph_reads_an_input_makes_no_constant():
    text = "g (float[1] x) => (float[1] y) <bool c = {1}> { y = If (c) <then_branch = t () => (float[1] z) { z = Neg(x) }> }"
    assert derived_constants(index_of(text)) == {"c"}


def test_graphs_in_graphs_are_walked_as_deep_as_they_can_be():
    deep = nested(28)
    names = [node.name for node in walk(deep)]
    assert names == [name for level in reversed(range(28)) for name in (f"id{level}", f"if{level}")] + ["last"]
    assert [each.name for each in graphs_within(deep)][-1] == "inner"
    assert list(all_tensors(deep)) == []
    assert outer_references(deep.node[1]) == {"condition", "outside", "y"}  # nobody inside makes y


def test_a_subgraph_reads_from_outside_what_it_defines_later():
    text = """g (float[1] x, bool c) => (float[1] y) { a = Neg(x)
        y = If (c) <then_branch = t () => (float[1] w) { q = Neg(a) a = Neg(q) w = Add(a, q) }> }"""
    node = index_of(text).graph.node[1]
    assert outer_references(node) == {"a"}


def test_the_range_of_a_relu_is_known_behind_any_number_of_moves(shallow_stack):
    nodes = [helper.make_node("Relu", ["x"], ["t0"])]
    nodes += [helper.make_node("Identity", [f"t{number}"], [f"t{number + 1}"]) for number in range(DEEP)]
    model = helper.make_model(graph(nodes))
    assert value_ranges(Index(model))[f"t{DEEP}"] == (0.0, float("inf"))


def test_names_that_pairs_connect_are_together_in_their_order():
    assert connected("abcde", [("d", "b"), ("e", "d"), ("x", "a"), ("c", "x")]) == [["a"], ["b", "d", "e"], ["c"]]


def test_a_long_chain_is_followed_once():
    names = [f"t{i}" for i in range(100_000)]
    assert connected(names, reversed(list(itertools.pairwise(names)))) == [names]
