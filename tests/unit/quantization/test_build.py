from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from int8cal.errors import NonFiniteError, TableError
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization import layers as layers_module
from int8cal.quantization.build import build_model, renewed_scale_warnings, with_weights
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.integers import Bias
from int8cal.quantization.table import TableSettings, WeightEntry

HEAD = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
POOLED = "c = Conv(x, W, B) m = MaxPool <kernel_shape = [2, 2]> (c) y = Conv(m, V)"


@pytest.fixture
def pooled(bench):
    return bench.quantized(bench.text(f"{HEAD} {{ {POOLED} }}", W=(8, 4, 3, 3), B=(8,), V=(3, 8, 1, 1)))


def edited(table, **entries):
    changed = {
        name: replace(table.tensors[name], source="user", **({"scale": value} if isinstance(value, float) else value))
        for name, value in entries.items()
    }
    return replace(table, tensors={**table.tensors, **changed})


def scale_in(model, name):
    return next(float(numpy_helper.to_array(t)) for t in model.graph.initializer if t.name == name)


@pytest.mark.parametrize("member", ["c", "m"])
def test_an_edit_of_one_member_holds_for_all_that_share_its_scale(pooled, member):
    prepared, plan, table, _ = pooled
    table = edited(table, **{member: 0.5})
    affines = table.affines(plan)
    assert affines["c"] == affines["m"]
    built = build_model(prepared.model, plan, table).model
    assert scale_in(built, "c_scale") == scale_in(built, "m_scale") == 0.5


def test_edits_that_contradict_each_other_are_refused(pooled):
    prepared, plan, table, _ = pooled
    with pytest.raises(TableError, match="'c' and 'm' share one scale") as caught:
        build_model(prepared.model, plan, edited(table, c=0.5, m=0.25))
    assert caught.value.exit_code == 6
    build_model(prepared.model, plan, edited(table, c=0.5, m=0.5))


def test_unedited_entries_that_differ_within_a_group_are_refused(pooled):
    prepared, plan, table, _ = pooled
    entry = replace(table.tensors["m"], scale=table.tensors["m"].scale * 2)
    with pytest.raises(TableError, match="'c' and 'm' share one scale"):
        build_model(prepared.model, plan, replace(table, tensors={**table.tensors, "m": entry}))


def test_a_table_made_for_another_plan_names_the_missing_tensor(pooled):
    prepared, plan, table, _ = pooled
    renamed = {("mm" if name == "m" else name): entry for name, entry in table.tensors.items()}
    with pytest.raises(TableError, match=r"no entry for tensor 'm' \(it has 'mm'\)"):
        build_model(prepared.model, plan, replace(table, tensors=renamed))


def test_entries_of_tensors_that_are_not_planned_do_no_harm(pooled):
    prepared, _, table, _ = pooled
    plan = make_plan(prepared.model, Selection((), ("Conv_c",)))
    assert "c" not in {each.tensor for each in plan.tensors}
    build_model(prepared.model, plan, table)


def test_a_table_with_its_weights_builds_the_same_bytes(pooled):
    prepared, plan, table, built = pooled
    complete = with_weights(table, plan, built)
    again = build_model(prepared.model, plan, complete)
    assert again.model.SerializeToString(deterministic=True) == built.model.SerializeToString(deterministic=True)


def test_the_tables_weight_scales_win_over_computed_ones(pooled):
    prepared, plan, table, built = pooled
    complete = with_weights(table, plan, built)
    scales = tuple(2 * scale for scale in complete.weights["V"].scales)
    entry = replace(complete.weights["V"], scales=scales)
    again = build_model(prepared.model, plan, replace(complete, weights={**complete.weights, "V": entry}))
    np.testing.assert_array_equal(again.layers["Conv_y"].scales, scales)
    halved = again.layers["Conv_y"].weight - built.layers["Conv_y"].weight / 2
    assert np.abs(halved).max() <= 1.5  # both are rounded


@pytest.mark.parametrize("other", ["s7", "paired"])
def test_scales_of_another_range_are_computed_anew_and_say_so(pooled, other):
    prepared, plan, table, _ = pooled
    table = replace(table, settings=TableSettings({**table.settings.recorded, "weights": "s8"}))
    complete = with_weights(table, plan, build_model(prepared.model, plan, table))
    settings = TableSettings({**table.settings.recorded, "weights": other})
    edited = build_model(prepared.model, plan, replace(complete, settings=settings))
    fresh = build_model(prepared.model, plan, replace(table, settings=settings))
    assert edited.model.SerializeToString() == fresh.model.SerializeToString()
    warned = renewed_scale_warnings(edited)
    changed = [node for node, layer in fresh.layers.items() if layer.range != "s8"]
    assert len(warned) == len(changed) > 0
    assert all("are for s8, but its codes are" in text for text in warned)
    assert edited.warnings == fresh.warnings  # a search builds of tables that nobody edited


def test_scales_whose_product_does_not_fit_float32_are_refused(pooled):
    prepared, plan, table, built = pooled
    complete = with_weights(table, plan, built)
    entry = replace(complete.weights["V"], scales=(3e38,) * 3)
    broken = replace(edited(complete, c=1e3, m=1e3), weights={"V": entry})
    with pytest.raises(
        NonFiniteError,
        match=r"node 'Conv_y': the scales of weight 'V' .* its input 'm' .*, for values to .* do not fit float32",
    ):
        build_model(prepared.model, plan, broken)


@pytest.mark.parametrize(
    "entry",
    [
        WeightEntry("int8", 0, "s8", (0.1, 0.1)),
        WeightEntry("int8", 1, "s8", (0.1,) * 3),
        WeightEntry("int8", None, "s8", (0.1,)),
    ],
)
def test_weight_scales_of_another_shape_are_refused(pooled, entry):
    prepared, plan, table, _ = pooled
    with pytest.raises(TableError, match=r"weight 'V' has .* the model expects 3 on axis 0"):
        build_model(prepared.model, plan, replace(table, weights={"V": entry}))


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (Equalization({"m": (1, 2)}), "'m' has 2 exponents, the model expects 8"),
        (Equalization({"x": (0, 0, 0, 0)}), "'x' has 4 exponents, the model expects 0"),
        (Bias({"Conv_z": (0.0,)}), "names 'Conv_z', which is not a quantized node with a bias"),
        (Bias({"Conv_y": (0.0,) * 3}), "names 'Conv_y', which is not a quantized node with a bias"),
        (Bias({"Conv_c": (0.0,) * 3}), "'Conv_c' has 3 values, the model expects 8"),
    ],
)
def test_corrections_of_another_model_are_refused(pooled, correction, message):
    prepared, plan, table, _ = pooled
    with pytest.raises(TableError, match=message):
        build_model(prepared.model, plan, replace(table, corrections=(correction,)))


def test_a_bias_correction_moves_the_bias_by_its_delta(pooled):
    prepared, plan, table, built = pooled
    delta = np.linspace(-1, 1, 8)
    moved = build_model(prepared.model, plan, replace(table, corrections=(Bias({"Conv_c": tuple(delta)}),)))
    step = table.tensors["x"].scale * built.layers["Conv_c"].scales
    actual = (moved.layers["Conv_c"].bias.astype(float) - built.layers["Conv_c"].bias) * step
    assert np.all(np.abs(actual - delta) <= step)


def test_shared_weights_have_an_entry_per_layer(bench):
    model = bench.text(f"{HEAD} {{ c = Conv(x, W) y = Conv(c, W) }}", W=(4, 4, 3, 3))
    _, plan, table, built = bench.quantized(model)
    assert [plan.weight_key(layer.node, layer.weight) for layer in plan.layers] == ["W@Conv_c", "W@Conv_y"]
    assert set(with_weights(table, plan, built).weights) == {"W@Conv_c", "W@Conv_y"}


@pytest.mark.parametrize("op", ["Conv", "Gemm", "ConvTranspose"])
def test_a_bias_beyond_s32_raises_the_weight_scale_and_says_so(bench, op):
    # |b| / (s_x s_w) is about 1e6 / (0.02 * 1e-9 / 127) for output channel 1
    weight, bias = np.full((3, 4), 0.5, np.float32), np.array([0.1, 1e6, -0.1], np.float32)
    weight[1] = 1e-9
    if op == "Gemm":
        text, weights = "g (float[N,4] x) => (float[A,C] y) { y = Gemm <transB = 1> (x, W, B) }", {"W": weight}
    elif op == "Conv":
        text, weights = f"{HEAD} {{ y = Conv(x, W, B) }}", {"W": weight.reshape(3, 4, 1, 1)}
    else:
        text, weights = f"{HEAD} {{ y = ConvTranspose(x, W, B) }}", {"W": weight.T.reshape(4, 3, 1, 1)}
    model = bench.text(text, **weights, B=bias)
    _, plan, table, built = bench.quantized(model, target="openvino" if op == "ConvTranspose" else "portable")
    (layer,) = plan.layers
    assert built.warnings == (
        f"node '{op}_y': the weight scale of 1 output channel(s) was raised so that the s32 bias fits",
    )
    integers = built.layers[layer.node]
    assert integers.raised == 1
    step = table.tensors["x"].scale * integers.scales
    assert np.all(np.abs(integers.bias * step - bias) <= step / 2 + 1e-6 * np.abs(bias))
    feed = bench.samples(model, 1)[0].feed
    if op != "Conv":  # its one scale for all channels of the output is another matter
        expected = bench.run(model, feed)["y"]
        np.testing.assert_allclose(bench.run(built.model, feed)["y"], expected, rtol=0.02, atol=0.05)


def test_channels_without_weights_have_no_bits_to_lose_to_their_bias(bench):
    """Of a BatchNormalization whose factor is 0, or a layer that begins at zero, only the bias is left."""
    weight = np.full((3, 4, 1, 1), 0.5, np.float32)
    weight[1] = 0
    model = bench.text(f"{HEAD} {{ y = Conv(x, W, B) }}", W=weight, B=np.array([0.1, 1e6, -0.1], np.float32))
    _, _, table, built = bench.quantized(model)
    assert built.warnings == ()
    integers = built.layers["Conv_y"]
    assert integers.raised == 0
    assert integers.bias[1] * table.tensors["x"].scale * integers.scales[1] == pytest.approx(1e6)


def test_the_guard_looks_at_every_group_of_a_transposed_convolution(bench):
    weight = np.full((4, 2, 1, 1), 1e-9, np.float32)
    bias = np.array([0.0, 0.0, 0.0, 1e6], np.float32)
    model = bench.text(f"{HEAD} {{ y = ConvTranspose <group = 2> (x, W, B) }}", W=weight, B=bias)
    _, _, table, built = bench.quantized(model, target="tensorrt", activations="s8")
    integers = built.layers["ConvTranspose_y"]
    assert integers.raised == 1
    restored = integers.bias * table.tensors["x"].scale * np.tile(integers.scales, 2)
    np.testing.assert_allclose(restored, bias, rtol=1e-6)


@pytest.mark.parametrize("bounds", ["low, high", "low", ", high"])
def test_a_clip_whose_bounds_the_graph_is_given_stays_behind_a_layer(bench, bounds):
    given = "".join(f", float {name}" for name in ("low", "high") if name in bounds)
    model = bench.text(
        f"g (float[N,4] x{given}) => (float[N,6] y) {{ m = MatMul(x, W) c = Clip(m, {bounds}) y = MatMul(c, V) }}",
        W=(4, 8),
        V=(8, 6),
    )
    built = bench.quantized(model)[3].model
    feed = bench.samples(model)[0].feed  # it was calibrated on
    exact, found = (bench.run(each, feed, "all")["y"] for each in (model, built))
    np.testing.assert_allclose(found, exact, atol=0.1)


def counted_rounding(monkeypatch):
    """Count the weights that are rounded, by their shape."""
    rounded, real = [], layers_module.round_codes

    def counting(rows, *rest):
        rounded.append(rows.values.size)
        return real(rows, *rest)

    monkeypatch.setattr(layers_module, "round_codes", counting)
    return rounded


def same(one, other):
    return one.model.SerializeToString(deterministic=True) == other.model.SerializeToString(deterministic=True)


def test_codes_of_a_known_model_are_taken_where_they_would_be_the_same(pooled, monkeypatch):
    prepared, plan, table, _ = pooled
    known = build_model(prepared.model, plan, table)
    rounded = counted_rounding(monkeypatch)
    # another range of an activation changes biases, and no code
    moved = edited(table, x=2.0)
    built = build_model(prepared.model, plan, moved, known)
    assert not rounded
    assert same(built, build_model(prepared.model, plan, moved))
    assert not same(built, known)


def test_codes_of_a_known_model_with_other_scales_or_weights_are_not_taken(pooled, monkeypatch):
    prepared, plan, table, _ = pooled
    known = build_model(prepared.model, plan, table)
    weights = with_weights(table, plan, known)
    key = next(name for name in weights.weights if weights.weights[name].node == plan.layers[0].node)
    wider = replace(weights.weights[key], scales=tuple(2 * scale for scale in weights.weights[key].scales))
    changed = replace(weights, weights={**weights.weights, key: wider})
    other = type(prepared.model)()
    other.CopyFrom(prepared.model)
    for tensor in other.graph.initializer:
        if tensor.name == plan.layers[0].weight:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name))
    expected = build_model(prepared.model, plan, changed), build_model(other, plan, table)
    rounded = counted_rounding(monkeypatch)
    found = build_model(prepared.model, plan, changed, known), build_model(other, plan, table, known)
    assert rounded == [8 * 4 * 9, 8 * 4 * 9]
    assert all(same(one, another) for one, another in zip(found, expected, strict=True))


def test_scales_are_searched_for_once_for_the_same_weights(pooled, monkeypatch):
    prepared, plan, table, _ = pooled
    bare = replace(table, weights={})
    first = build_model(prepared.model, plan, bare)
    searched = []
    choose = layers_module.choose_scales
    monkeypatch.setattr(layers_module, "choose_scales", lambda *given: searched.append(given) or choose(*given))
    again = build_model(prepared.model, plan, edited(bare, c=0.5, m=0.5), first)
    assert searched == []
    for node, layer in first.layers.items():
        np.testing.assert_array_equal(again.layers[node].scales, layer.scales)
    assert again.searched is first.searched
    narrow = TableSettings({**bare.settings.recorded, "weights": "s7"})
    build_model(prepared.model, plan, replace(bare, settings=narrow), first)
    assert len(searched) == 2  # another range of the codes asks for other scales
