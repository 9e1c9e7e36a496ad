"""What a Loop or Scan carries from round to round and never changes is read from the graph around it.

Bodies of Keras and Paddle see nothing of the graph around them, so that even the weights of their layers are carried.
Read from outside they are constants, and these layers have int8 weights like any others.
"""

from __future__ import annotations

import collections

import onnx

from int8cal.graph.edit import refill
from int8cal.graph.index import attribute, tensors_read, walk
from int8cal.graph.ops import is_standard
from int8cal.protos import graphs_within, subgraphs


def outside_invariants(model: onnx.ModelProto) -> None:
    """Let bodies read from outside what every round hands on as it got it; what the loops give, and its names, stay.

    Args:
        model: At opset 9 or later; changed in place.
    """
    graphs = [model.graph]
    for graph in graphs:  # which grows: a loop comes before those inside it
        nodes, changed = list[onnx.NodeProto](), False
        for node in graph.node:
            body = next(subgraphs(node), None) if node.op_type in ("Loop", "Scan") and is_standard(node) else None
            given = [] if body is None else _taken_out(node, body)
            nodes += given if given and not any(node.output) else [node, *given]
            changed = changed or bool(given)
        if changed:
            refill(graph.node, nodes)
        graphs += [inner for node in graph.node for inner in subgraphs(node)]


def _taken_out(node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Take what never changes out of what a Loop or Scan carries.

    Returns:
        An Identity for each output that goes: the node gave what it was given.
    """
    # inputs of the node and of the body, and outputs of the body, in front of what is carried
    given, formals, results = (2, 2, 1) if node.op_type == "Loop" else (0, 0, 0)
    carried = len(node.input) - (given if node.op_type == "Loop" else attribute(node, "num_scan_inputs", 0))
    if min(len(body.input) - formals, len(body.output) - results) < carried:
        return []  # which is no model, as whoever runs it will say
    copies = {each.output[0]: each.input[0] for each in body.node if each.op_type == "Identity" and is_standard(each)}
    own = _own_names(body)
    returned = collections.Counter(value.name for graph in graphs_within(body) for value in graph.output)
    all_formals = {value.name for value in body.input}
    outside: dict[str, str] = {}
    taken = list[int]()
    for number in range(carried):
        formal, source = body.input[formals + number].name, node.input[given + number]
        result = unchanged = body.output[results + number].name
        for _ in copies:  # at most so many, one behind the other
            unchanged = copies.get(unchanged, unchanged)
        # an outer name that means something else inside cannot be read there, and an outer tensor cannot be handed out
        seen = source and source not in own and (source == formal or source not in all_formals)
        seen = seen and body.input[formals + number].type.HasField("tensor_type")  # an Identity takes it at any opset
        elsewhere = formal in own or returned[formal] > (result == formal)
        if unchanged == formal and seen and not elsewhere:
            outside[formal] = source
            taken.append(number)
    named = [number for number in taken if number < len(node.output) and node.output[number]]
    given_out = [(node.output[number], node.input[given + number]) for number in named]
    for values, first in ((node.input, given), (node.output, 0), (body.input, formals), (body.output, results)):
        gone = {first + number for number in taken}
        refill(values, [value for place, value in enumerate(values) if place not in gone])
    for each in walk(body):
        refill(each.input, [outside.get(name, name) for name in each.input])
    refill(body.value_info, [value for value in body.value_info if value.name not in outside])
    _without_unread_copies(body, copies)
    return [onnx.NodeProto(op_type="Identity", input=[source], output=[name]) for name, source in given_out]


def _own_names(body: onnx.GraphProto) -> set[str]:
    """Return the names of what is made in a body, at any depth, and of what the graphs inside it are given."""
    names = set[str]()
    for graph in graphs_within(body):
        names.update(tensor.name for tensor in graph.initializer)
        names.update(name for node in graph.node for name in node.output)
        if graph is not body:
            names.update(value.name for value in graph.input)
    return names


def _without_unread_copies(body: onnx.GraphProto, copies: dict[str, str]) -> None:
    """Take off the Identities whose result nothing reads any more."""
    read = {value.name for value in body.output}
    kept = list[onnx.NodeProto]()
    for node in reversed(body.node):
        if node.op_type == "Identity" and node.output[0] in copies and node.output[0] not in read:
            continue
        kept.append(node)
        read.update(tensors_read(node))
    refill(body.node, reversed(kept))
