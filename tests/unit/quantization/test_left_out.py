"""A table without the layers that stay float."""

from dataclasses import replace

import numpy as np
import onnx

from int8cal.graph.plan import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.left_out import LEFT_KEY, left_of, without_layers

NET = "g (float[N,4,8,8] x) => (float[N,4,8,8] y)"
BODY = (
    "c = Conv <pads = [1,1,1,1]> (x, W, B) r = Relu(c) d = Conv <pads = [1,1,1,1]> (r, V) "
    "s = Relu(d) y = Conv <pads = [1,1,1,1]> (s, U)"
)
WEIGHTS = {"W": (6, 4, 3, 3), "B": (6,), "V": (6, 6, 3, 3), "U": (4, 6, 3, 3)}


def cut(bench, corrections, left):
    prepared = bench.prepared(bench.text(f"{NET} {{ {BODY} }}", **WEIGHTS))
    plan = make_plan(prepared.model, Selection())
    table = replace(bench.table(prepared, plan), corrections=corrections)
    unscaled = replace(table, tensors={name: replace(entry, method="kl") for name, entry in table.tensors.items()})
    smaller = make_plan(prepared.model, Selection(left=tuple(left.items())))
    return prepared, smaller, without_layers(prepared.model, table, unscaled, (plan, smaller), left)


def test_the_plan_says_why_and_the_layer_is_float(bench):
    left = {"Conv_d": "slower in int8: 12.3 µs against 8.1 µs"}
    prepared, plan, table = cut(bench, {}, left)
    assert {item.node: item.reason for item in plan.left} == left
    assert left_of(table) == tuple(left.items())
    assert table.settings[LEFT_KEY] == left
    model = build_model(prepared.model, plan, table).model
    node = next(node for node in model.graph.node if node.name == "Conv_d")
    assert node.input[1] == "V"
    onnx.checker.check_model(model)


def test_the_table_holds_what_the_smaller_plan_needs_and_nothing_else(bench):
    _, plan, table = cut(bench, {}, {"Conv_y": "slow"})
    assert set(table.tensors) == {point.tensor for point in plan.points}
    assert table.weights == {}


def test_the_same_table_builds_the_same_bytes_again(bench):
    prepared, plan, table = cut(bench, {"bias": {"Conv_c": [0.1] * 6}}, {"Conv_y": "slow"})
    built = build_model(prepared.model, plan, table)
    again = build_model(prepared.model, plan, with_weights(table, plan, built))
    assert again.model.SerializeToString() == built.model.SerializeToString()


def test_a_correction_of_a_float_layer_goes(bench):
    _, _, table = cut(bench, {"bias": {"Conv_c": [0.1] * 6}}, {"Conv_c": "slow"})
    assert "bias" not in table.corrections


def test_channels_are_not_rescaled_between_a_float_and_an_integer_layer(bench):
    corrections = {"equalization": {"r": [1] * 6, "s": [2] * 6}}
    prepared, plan, table = cut(bench, corrections, {"Conv_y": "slow"})
    assert table.corrections == {"equalization": {"r": [1] * 6}}
    assert table.tensors["r"].method == "max"
    _, _, table = cut(bench, corrections, {"Conv_c": "slow"})
    assert table.corrections == {"equalization": {"s": [2] * 6}}
    assert table.tensors["r"].method == "kl"
    assert np.isfinite([entry.scale for entry in table.tensors.values()]).all()
    assert prepared.model is not None
    assert plan.layers
