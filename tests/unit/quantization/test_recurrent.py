"""Recurrent nodes in int8 models: both forms against numpy cells, names, domains and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from op_types import ops
from recurrent_cells import Cell, dynamic_products, float_products, run_cell

from int8cal.errors import ModelError, NonFiniteError, TableError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.graph.load import require_float
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.layers import require_finite
from int8cal.quantization.recurrent import quantize_recurrent
from int8cal.quantization.table import CalibrationTable, TableSettings
from int8cal.search.steps.recurrent import ENOUGH_DB, LOSS_DB, choose_forms, propose

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TOLERANCE = 3e-6


def net(bench, op="LSTM", *, hidden=5, count=1, attributes="", inputs="", more="", head="float[6,1,3] x", **weights):
    rows = GATES[op] * hidden
    shapes = {"W": (count, rows, 3), "R": (count, rows, hidden), "B": (count, 2 * rows), **weights}
    node = f"y, h = {op} <hidden_size = {hidden}{attributes}> (x, W, R, B{inputs})"
    text = f"g ({head}) => (float[A,C,D,E] y, float[F,G,H] h) {{ {node} {more} }}"
    return bench.text(text, opset=14, **shapes)


def built(bench, model, form="kernel", weights="paired", **settings):
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection())
    forms = {layer.node: form for layer in plan.recurrent}
    table = CalibrationTable({}, {}, TableSettings({"weights": weights, "recurrent": forms, **settings}), {}, {})
    return prepared, plan, table, build_model(prepared.model, plan, table)


def arrays(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def cell(op, model, products, direction="forward"):
    return Cell(
        op, *products, numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "B")), direction
    )


@pytest.mark.parametrize("optimization", ["none", "all"])
@pytest.mark.parametrize(
    ("direction", "count", "hidden"), [("forward", 1, 5), ("reverse", 1, 1), ("bidirectional", 2, 7)]
)
def test_the_kernel_computes_the_cell_with_dynamic_products(bench, direction, count, hidden, optimization):
    model = net(bench, hidden=hidden, count=count, attributes=f', direction = "{direction}"')
    *_, result = built(bench, model)
    (each,) = result.recurrent.values()
    products = [dynamic_products(each.gates[name]) for name in ("W", "R")]
    x = bench.samples(model, 1)[0].feed["x"]
    expected = run_cell(cell("LSTM", model, products, direction), x)
    actual = bench.run(result.model, {"x": x}, optimization)
    assert np.abs(actual["y"] - expected[0]).max() < TOLERANCE
    assert np.abs(actual["h"] - expected[1]).max() < TOLERANCE


@pytest.mark.parametrize("optimization", ["none", "all"])
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("op", GATES)
def test_weights_alone_compute_the_float_cell_of_what_the_codes_stand_for(bench, op, direction, count, optimization):
    model = net(bench, op, count=count, attributes=f', direction = "{direction}"')
    *_, result = built(bench, model, "weights")
    (each,) = result.recurrent.values()
    products = [float_products(gates.codes * gates.scales[..., None]) for gates in (each.gates["W"], each.gates["R"])]
    x = bench.samples(model, 1)[0].feed["x"]
    expected = run_cell(cell(op, model, products, direction), x)
    actual = bench.run(result.model, {"x": x}, optimization)
    assert np.abs(actual["y"] - expected[0]).max() < TOLERANCE


@pytest.mark.parametrize("form", ["kernel", "weights"])
def test_float_weights_are_gone_and_the_model_is_valid(bench, form):
    *_, result = built(bench, net(bench), form)
    onnx.checker.check_model(result.model)
    found = arrays(result.model)
    assert {"W", "R"}.isdisjoint(found)
    assert found["W_quantized"].dtype == found["R_quantized"].dtype == np.int8


def test_the_domain_is_imported_only_where_it_is_used(bench):
    domains = {
        form: {item.domain for item in built(bench, net(bench), form)[3].model.opset_import}
        for form in ("kernel", "weights")
    }
    assert domains == {"kernel": {"", "com.microsoft"}, "weights": {""}}


@pytest.mark.parametrize(
    ("form", "weights", "expected"),
    [("kernel", "paired", "s7"), ("kernel", "s7", "s7"), ("kernel", "s8", "s8"), ("weights", "s7", "s8")],
)
def test_the_range_follows_the_form_and_the_settings(bench, form, weights, expected):
    *_, result = built(bench, net(bench), form, weights)
    (each,) = result.recurrent.values()
    assert each.range == expected
    assert (
        max(np.abs(gates.codes.astype(int)).max() for gates in each.gates.values()) == {"s7": 63, "s8": 127}[expected]
    )


def test_the_table_has_a_scale_per_direction_and_row_and_builds_the_same_bytes(bench):
    model = net(bench, count=2, attributes=', direction = "bidirectional"')
    prepared, plan, table, result = built(bench, model)
    complete = with_weights(table, plan, result)
    found = {name: (each.dtype, each.axis, each.range, len(each.scales)) for name, each in complete.weights.items()}
    assert found == dict.fromkeys(("W", "R"), ("int8", 1, "s7", 40))
    again = build_model(prepared.model, plan, complete)
    assert again.model.SerializeToString() == result.model.SerializeToString()


def test_an_edited_scale_is_used(bench):
    prepared, plan, table, result = built(bench, net(bench))
    complete = with_weights(table, plan, result)
    entry = complete.weights["R"]
    edited = replace(entry, scales=(2 * entry.scales[0], *entry.scales[1:]))
    changed = build_model(prepared.model, plan, replace(complete, weights={**complete.weights, "R": edited}))
    before, after = (arrays(each.model)["R_quantized"] for each in (result, changed))
    assert np.abs(after[0, :, 0]).max() in (31, 32)
    assert np.array_equal(before[0, :, 1:], after[0, :, 1:])


def test_an_edited_form_has_scales_of_its_own_range(bench):
    prepared, plan, table, plain = built(bench, net(bench), "weights")
    complete = with_weights(table, plan, plain)
    edited = replace(complete, settings=complete.settings.with_recurrent(dict.fromkeys(plain.recurrent, "kernel")))
    result = build_model(prepared.model, plan, edited)
    kernel = built(bench, net(bench), "kernel")[3]
    assert result.model.SerializeToString() == kernel.model.SerializeToString()
    # with the scales of s8 half of the weights would be clipped
    assert np.count_nonzero(np.abs(arrays(result.model)["R_quantized"]) == 63) < 60


def test_a_wrong_number_of_scales_is_refused(bench):
    prepared, plan, table, result = built(bench, net(bench))
    complete = with_weights(table, plan, result)
    short = replace(complete.weights["W"], scales=complete.weights["W"].scales[:3])
    with pytest.raises(TableError, match="'W' has 3 scales on axis 1, the model expects 20"):
        build_model(prepared.model, plan, replace(complete, weights={"W": short}))


def test_a_table_without_the_part_leaves_the_node_in_float(bench):
    prepared, plan, table, _ = built(bench, net(bench))
    older = replace(table, settings=TableSettings({"weights": "paired"}))
    result = build_model(prepared.model, plan, older)
    assert (ops(result.model), result.recurrent) == (["LSTM"], {})


@pytest.mark.parametrize(
    ("op", "forms", "target", "message"),
    [
        ("LSTM", {"nowhere": "kernel"}, "portable", "names the node 'nowhere', which the model does not have"),
        ("LSTM", {"LSTM_y": "quick"}, "portable", "is 'quick' for node 'LSTM_y'"),
        ("GRU", {"GRU_y": "kernel"}, "portable", "but the runtime has no integer kernel for GRU"),
        ("LSTM", {"LSTM_y": "kernel"}, "openvino", "but the target openvino has no kernel for it"),
    ],
)
def test_forms_that_cannot_be_are_refused(bench, op, forms, target, message):
    with pytest.raises(TableError, match=message):
        built(bench, net(bench, op), recurrent=forms, target=target)


@pytest.mark.parametrize("name", ["W", "R"])
def test_weights_that_are_not_finite_are_named(bench, name):
    model = net(bench)
    tensor = next(each for each in model.graph.initializer if each.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values[0, 0, 0] = np.inf
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    prepared = bench.prepared(model)
    with pytest.raises(NonFiniteError, match=f"weight '{name}' of node 'LSTM_y' holds NaN or infinity"):
        require_finite(prepared, make_plan(prepared.model, Selection()))


def test_optional_inputs_and_outputs_survive(bench):
    head = "float[6,1,3] x, int32[1] n, float[1,1,5] h0, float[1,1,5] c0"
    node = 'o, p, c = LSTM <hidden_size = 5, clip = 0.9, activations = ["HardSigmoid", "Softsign", "Relu"]>'
    text = f"g ({head}) => (float[F,G,H] c) {{ {node} (x, W, R, none, n, h0, c0, P) }}"
    model = bench.text(text, opset=14, W=(1, 20, 3), R=(1, 20, 5), P=(1, 15))
    lstm = model.graph.node[0]  # older parsers know no empty names
    lstm.input[3] = lstm.output[0] = lstm.output[1] = ""
    feed = bench.samples(model, 1)[0].feed | {"n": np.array([4], np.int32)}
    expected = bench.run(model, feed)["c"]
    for form in ("kernel", "weights"):
        actual = bench.run(built(bench, model, form)[3].model, feed)["c"]
        assert 0 < np.abs(actual - expected).max() < 0.05, form


def test_two_nodes_on_the_same_weights_share_the_integers(bench):
    model = net(bench, more="z = LSTM <hidden_size = 5> (x, W, R)", head="float[6,1,3] x")
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    for form, suffix in (("kernel", ["W_quantized"]), ("weights", ["W_quantized"])):
        _, plan, table, result = built(bench, model, form)
        assert [name for name in arrays(result.model) if name.startswith("W_quantized")] == suffix
        assert set(with_weights(table, plan, result).weights) == {"W@LSTM_y", "R@LSTM_y", "W@LSTM_z", "R@LSTM_z"}
        onnx.checker.check_model(result.model)
        bench.run(result.model, bench.samples(model, 1)[0].feed)


def test_a_square_weight_may_be_both(bench):
    model = net(bench, hidden=3, R=(1, 12, 3))
    model.graph.node[0].input[2] = "W"
    x = bench.samples(model, 1)[0].feed
    for form in ("kernel", "weights"):
        *_, result = built(bench, model, form)
        assert np.abs(bench.run(result.model, x)["y"] - bench.run(model, x)["y"]).max() < 0.05


def test_a_weight_that_a_float_node_reads_too_stays_beside_the_codes(bench):
    model = net(bench, more="v = Relu(W)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("v", 1, [1, 20, 3]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("R", 1, [1, 20, 5]))
    feed = bench.samples(model, 1)[0].feed
    before = bench.run(model, feed)
    after = bench.run(built(bench, model)[3].model, feed)
    assert np.array_equal(before["v"], after["v"])
    assert np.array_equal(before["R"], after["R"])


def test_names_that_the_model_has_are_not_taken_twice(bench):
    model = net(bench, more="W_scale = Relu(y) W_quantized = Relu(W_scale)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("W_quantized", 1, None))
    for form in ("kernel", "weights"):
        onnx.checker.check_model(built(bench, model, form)[3].model)


def test_the_audit_counts_the_kernel_and_names_the_float_cell(bench):
    fusion = audit_fusion(built(bench, net(bench))[3].model)
    assert (fusion.integer, fusion.float_) == (1, 0)
    fusion = audit_fusion(built(bench, net(bench), "weights")[3].model)
    (node,) = fusion.nodes
    assert (fusion.integer, node.node, node.reason) == (0, "LSTM_y", "only its weights are quantized")


def test_the_runtime_folds_weight_only_cells_so_that_nothing_is_converted_per_run(bench, tmp_path):
    from int8cal.runtime.sessions import Session

    path = tmp_path / "optimized.onnx"
    Session(built(bench, net(bench), "weights")[3].model, optimized_path=path)
    assert ops(onnx.load(str(path))) == ["LSTM"]


def test_an_int8_model_is_not_quantized_again(bench):
    with pytest.raises(ModelError, match=r"is already quantized .*DynamicQuantizeLSTM"):
        require_float(built(bench, net(bench))[3].model, "net.onnx")


def forms_for(bench, model, scorer, **settings):
    prepared, plan, table, _ = built(bench, model, "weights", **settings)
    chosen, notes = choose_forms(prepared.model, plan, table, scorer)
    return chosen.settings.recurrent, notes


def score_by(costs, plain=30.0):
    """A scorer that takes off decibels for the kernel of each named node."""
    return lambda model: SimpleNamespace(
        db=plain - sum(costs[n.name] for n in model.graph.node if n.op_type == "DynamicQuantizeLSTM")
    )


def three(bench):
    """Two LSTM and a GRU, each behind the one before."""
    nodes = "s = Squeeze(y, axis) z = LSTM <hidden_size = 5> (s, V, U) t = Squeeze(z, axis) k = GRU <hidden_size = 5> (t, G, S)"
    shapes = {"V": (1, 20, 5), "U": (1, 20, 5), "G": (1, 15, 5), "S": (1, 15, 5)}
    model = net(bench, more=nodes, axis=np.array([1]), **shapes)
    for name in ("z", "k"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    return model


def test_kernels_that_cost_little_are_used(bench):
    forms, notes = forms_for(bench, three(bench), score_by({"LSTM_y": LOSS_DB / 2, "LSTM_z": LOSS_DB / 2}))
    assert forms == {"LSTM_y": "kernel", "LSTM_z": "kernel", "GRU_k": "weights"}
    assert "LSTM LSTM_y is integer: DynamicQuantizeLSTM, weights s7" in notes[0]
    assert "29.50 dB at the outputs, 30.00 dB with" in notes[0]
    assert notes[2].startswith("GRU GRU_k is weight-only: weights s8")
    assert notes[2].endswith("the runtime has no integer kernel for GRU")


def test_a_kernel_that_costs_too_much_is_left_and_the_others_are_used(bench):
    forms, notes = forms_for(bench, three(bench), score_by({"LSTM_y": 2 * LOSS_DB, "LSTM_z": LOSS_DB / 2}))
    assert forms == {"LSTM_y": "weights", "LSTM_z": "kernel", "GRU_k": "weights"}
    assert "its kernel costs too much, 29.00 dB at the outputs instead of 30.00" in notes[0]
    assert "29.75 dB at the outputs" in notes[1]


def test_why_a_cell_computes_in_float_is_recorded(bench):
    prepared, plan, table, _ = built(bench, three(bench), "weights")
    chosen, _ = choose_forms(prepared.model, plan, table, score_by({"LSTM_y": 2 * LOSS_DB, "LSTM_z": LOSS_DB / 2}))
    why = "its kernel costs too much, 29.00 dB at the outputs instead of 30.00"
    assert chosen.settings.recorded["recurrent_float"] == {"LSTM_y": why}  # of a GRU the runtime's graph tells it
    again, _ = choose_forms(prepared.model, plan, chosen, score_by({"LSTM_y": 0.0, "LSTM_z": 0.0}))
    assert "recurrent_float" not in again.settings.recorded


def test_what_kernels_cost_adds_up(bench):
    forms, _ = forms_for(bench, three(bench), score_by({"LSTM_y": 0.7 * LOSS_DB, "LSTM_z": 0.7 * LOSS_DB}))
    assert forms == {"LSTM_y": "kernel", "LSTM_z": "weights", "GRU_k": "weights"}


def test_kernels_may_cost_more_where_the_outputs_stay_good_enough(bench):
    costs = {"LSTM_y": 4.0, "LSTM_z": 4.0}
    assert set(forms_for(bench, three(bench), score_by(costs, ENOUGH_DB + 8.0))[0].values()) == {"kernel", "weights"}
    forms, _ = forms_for(bench, three(bench), score_by(costs, ENOUGH_DB + 5.0))
    assert forms == {"LSTM_y": "kernel", "LSTM_z": "weights", "GRU_k": "weights"}


def score_by_weights(costs, exact=35.0):
    """A scorer that takes off decibels for each of named weights that is int8."""

    def score(model):
        codes = {tensor.name for tensor in model.graph.initializer if tensor.name.endswith("_quantized")}
        return SimpleNamespace(db=exact - sum(cost for name, cost in costs.items() if f"{name}_quantized" in codes))

    return score


def test_weights_that_cost_more_than_their_bytes_are_worth_stay_float(bench):
    costs = {"W": 10.0, "R": 0.2, "V": 0.1, "G": 9.0, "S": 9.0}
    forms, notes = forms_for(bench, three(bench), score_by_weights(costs), target="openvino")
    assert forms == {"LSTM_y": "recurrence", "LSTM_z": "weights"}
    assert "is weight-only: weights s8 per direction, gate and output, but for those of its input" in notes[0]
    assert "in int8 they cost too much, 6.70 dB at the outputs instead of 35.00" in notes[0]
    assert notes[2].startswith("GRU GRU_k is float: its weights stay as they are")


def test_weights_that_cost_less_than_their_bytes_are_worth_are_int8(bench):
    costs = {"W": 1.5, "R": 1.5, "V": 1.5}
    forms, _ = forms_for(bench, three(bench), score_by_weights(costs), target="openvino")
    assert set(forms.values()) == {"weights"}


def test_a_model_with_only_its_recurrence_in_int8_computes_with_the_float_weights(bench):
    prepared, plan, table, _ = built(bench, net(bench), "recurrence")
    integers = quantize_recurrent(prepared.model, plan, table)
    (each,) = integers.values()
    assert list(each.gates) == [each.layer.recurrence]
    _, _, _, result = built(bench, net(bench), "recurrence")
    node = next(node for node in result.model.graph.node if node.op_type == "LSTM")
    assert node.input[1] == each.layer.weight
    assert node.input[2] == f"{each.layer.recurrence}_dequantized"


def test_without_anything_to_score_by_no_kernel_is_trusted(bench):
    forms, notes = forms_for(bench, three(bench), None)
    assert set(forms.values()) == {"weights"}
    assert "there is no validation sample" in notes[0]


def test_without_a_signal_to_score_by_nothing_is_tried(bench):
    tried = []

    def scorer(model):
        tried.append(model)
        return SimpleNamespace(db=-np.inf)

    forms, notes = forms_for(bench, three(bench), scorer)
    assert set(forms.values()) == {"weights"}
    assert "no validation sample has a signal" in notes[0]
    assert len(tried) == 1


def test_other_targets_get_models_of_onnx_alone(bench):
    forms, notes = forms_for(bench, three(bench), score_by({}), target="openvino")
    assert set(forms.values()) == {"weights"}
    assert "the target openvino has no kernel for it" in notes[0]


def test_a_model_without_recurrent_nodes_gets_no_part(bench):
    model = bench.text("g (float[N,4] x) => (float[N,3] y) { y = MatMul(x, W) }", W=(4, 3))
    prepared = bench.prepared(model)
    state = SimpleNamespace(plan=make_plan(prepared.model, Selection()))
    assert list(propose(state, None)) == []
