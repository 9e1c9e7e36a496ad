"""A table without the layers that stay float."""

from dataclasses import replace

import numpy as np
import onnx

from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.equalization import Equalization, rescaling_plan
from int8cal.quantization.corrections.integers import Bias
from int8cal.quantization.corrections.residual_codes import FACTOR, ResidualCodes, with_residual_codes, with_room
from int8cal.quantization.derived_tables import (
    without_layers,
    without_noise_of,
)

NET = "g (float[N,4,8,8] x) => (float[N,4,8,8] y)"
BODY = (
    "c = Conv <pads = [1,1,1,1]> (x, W, B) r = Relu(c) d = Conv <pads = [1,1,1,1]> (r, V) "
    "s = Relu(d) y = Conv <pads = [1,1,1,1]> (s, U)"
)
WEIGHTS = {"W": (6, 4, 3, 3), "B": (6,), "V": (6, 6, 3, 3), "U": (4, 6, 3, 3), "D": (6, 1, 3, 3)}


def cut(bench, corrections, left, body=BODY):
    prepared = bench.prepared(bench.text(f"{NET} {{ {body} }}", **WEIGHTS))
    plan = make_plan(prepared.model, Selection())
    table = replace(bench.table(prepared, plan), corrections=corrections)
    unscaled = replace(table, tensors={name: replace(entry, method="kl") for name, entry in table.tensors.items()})
    smaller = make_plan(prepared.model, Selection(left=tuple(left.items())))
    return prepared, smaller, without_layers(prepared.model, table, unscaled, (plan, smaller), left)


def test_the_plan_says_why_and_the_layer_is_float(bench):
    left = {"Conv_d": "slower in int8: 12.3 µs against 8.1 µs"}
    prepared, plan, table = cut(bench, (), left)
    assert {item.node: item.reason for item in plan.unquantized} == left
    assert table.settings.selection.left == tuple(left.items())
    assert table.settings.left("left_for_latency") == left
    model = build_model(prepared.model, plan, table).model
    node = next(node for node in model.graph.node if node.name == "Conv_d")
    assert node.input[1] == "V"
    onnx.checker.check_model(model)


def test_the_table_holds_what_the_smaller_plan_needs_and_nothing_else(bench):
    _, plan, table = cut(bench, (), {"Conv_y": "slow"})
    assert set(table.tensors) == {each.tensor for each in plan.tensors}
    assert table.weights == {}


def test_the_same_table_builds_the_same_bytes_again(bench):
    prepared, plan, table = cut(bench, (Bias({"Conv_c": (0.1,) * 6}),), {"Conv_y": "slow"})
    built = build_model(prepared.model, plan, table)
    again = build_model(prepared.model, plan, with_weights(table, plan, built))
    assert again.model.SerializeToString() == built.model.SerializeToString()


def test_a_correction_of_a_float_layer_goes(bench):
    _, _, table = cut(bench, (Bias({"Conv_c": (0.1,) * 6}),), {"Conv_c": "slow"})
    assert table.corrections == ()


def test_a_correction_of_a_layer_that_falls_to_float_with_its_neighbours_goes(bench):
    """A convolution with groups is slower in int8 between floats, which the plan alone knows."""
    body = (
        "c = Conv <pads = [1,1,1,1]> (x, W) r = Relu(c) d = Conv <group = 6, pads = [1,1,1,1]> (r, D, B) s = Relu(d) "
        "v = Conv <pads = [1,1,1,1]> (s, V) t = Relu(v) y = Conv <pads = [1,1,1,1]> (t, U)"
    )
    left = {"Conv_c": "slow", "Conv_v": "slow"}
    prepared, plan, table = cut(bench, (Bias({"Conv_d": (0.1,) * 6}),), left, body)
    assert [layer.node for layer in plan.layers] == ["Conv_y"]
    assert table.corrections == ()
    build_model(prepared.model, plan, table)


def test_channels_are_not_rescaled_between_a_float_and_an_integer_layer(bench):
    corrections = (Equalization({"r": (1,) * 6, "s": (2,) * 6}),)
    prepared, plan, table = cut(bench, corrections, {"Conv_y": "slow"})
    assert table.corrections == (Equalization({"r": (1,) * 6}),)
    assert table.tensors["r"].method == "max"
    _, _, table = cut(bench, corrections, {"Conv_c": "slow"})
    assert table.corrections == (Equalization({"s": (2,) * 6}),)
    assert table.tensors["r"].method == "kl"
    assert np.isfinite([entry.scale for entry in table.tensors.values()]).all()
    assert prepared.model is not None
    assert plan.layers


def test_a_second_plane_keeps_its_room_where_channels_are_no_longer_rescaled(bench):
    body = "c = Gemm(x, W, B) r = Relu(c) d = Gemm(r, W, B) s = Relu(d) y = Gemm(s, W, B)"
    prepared = bench.prepared(bench.text(f"g (float[N,6] x) => (float[N,6] y) {{ {body} }}", W=(6, 6), B=(6,)))
    plan = make_plan(prepared.model, Selection())
    unscaled = bench.table(prepared, plan)
    table = replace(unscaled, corrections=(Equalization({"s": (2,) * 6}),))
    table = with_residual_codes(table, plan, ["Gemm_c", "Gemm_d", "Gemm_y"])
    left = {"Gemm_d": "slow"}
    smaller = make_plan(prepared.model, Selection(left=tuple(left.items())))
    cut = without_layers(prepared.model, table, unscaled, (plan, smaller), left)
    assert cut.corrections == (ResidualCodes({"Gemm_c": FACTOR, "Gemm_y": FACTOR}),)
    assert cut.tensors["s"].affine == with_room(unscaled.tensors["s"].affine)
    assert cut.tensors["x"] == table.tensors["x"]
    onnx.checker.check_model(build_model(prepared.model, smaller, cut).model, full_check=True)


def test_the_runtime_does_not_quantize_a_float_layer_by_itself(bench):
    # onnxruntime gives float weights behind a DQ of one scale int8 codes of its own
    prepared, plan, table = cut(bench, (), {"Conv_d": "slow"})
    model = build_model(prepared.model, plan, table).model
    (sample,) = bench.samples(prepared.model, 1)
    written, run = (bench.run(model, sample.feed, optimization)["y"] for optimization in ("none", "all"))
    assert np.abs(written - run).max() < 0.02 * np.abs(written).max()
    ops = {node.output[0]: node for node in model.graph.node}
    front = next(node for node in model.graph.node if node.name == "Conv_d")
    assert next(item.i for item in ops[front.input[0]].attribute if item.name == "axis") == 1


def test_channels_stay_rescaled_beside_layers_that_are_float_for_gates(bench):
    prepared = bench.prepared(bench.text(f"{NET} {{ {BODY} }}", **WEIGHTS))
    plan = make_plan(prepared.model, Selection())
    table = replace(bench.table(prepared, plan), corrections=(Equalization({"r": (1,) * 6, "s": (2,) * 6}),))
    left = {"Conv_d": "so that the gates hold"}
    smaller = make_plan(prepared.model, Selection(left=tuple(left.items())))
    cut_down = without_noise_of(table, (plan, smaller), left)
    assert cut_down.corrections == table.corrections
    assert cut_down.settings.left("left_for_gates") == left
    assert rescaling_plan(prepared.model, smaller, cut_down) == plan
    assert rescaling_plan(prepared.model, plan, table) is plan
    built = build_model(prepared.model, smaller, cut_down)
    (sample,) = bench.samples(prepared.model, 1)
    exact, rescaled = (bench.run(each, sample.feed)["y"] for each in (prepared.model, built.draft.model))
    np.testing.assert_allclose(rescaled, exact, rtol=1e-5, atol=1e-5)
