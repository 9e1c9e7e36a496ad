"""A foreign file as the table of a model."""

from dataclasses import replace

import pytest

from int8cal.errors import TableError
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.interop import Choices
from int8cal.interop.foreign import Foreign
from int8cal.interop.tables import table_of
from int8cal.numerics.affine import S8, U8, Affine
from int8cal.quantization.table import WeightEntry
from int8cal.quantization.table_file import parse_table
from int8cal.quantizing import quantize_prepared

NET = """net (float[N,4,8,8] x) => (float[N,2,1,1] y)
{ a = Conv <pads = [1,1,1,1]> (x, W1)
  b = Relu (a)
  p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (b)
  c = Conv (p, W2)
  d = Relu (c)
  e = GlobalAveragePool (d)
  y = Conv (e, W3) }"""
SHAPES = {"W1": (4, 4, 3, 3), "W2": (5, 4, 1, 1), "W3": (2, 5, 1, 1)}
HOW = ("tensorrt", "some.cache", Choices())


@pytest.fixture
def prepared(bench):
    return bench.prepared(bench.text(NET, **SHAPES))


def ranges(**scales):
    return Foreign({name: Affine(scale, 0, S8) for name, scale in scales.items()})


FULL = {"x": 1.0, "b": 0.5, "p": 0.5, "d": 0.25, "e": 0.125, "y": 2.0}


def lost(converted, word):
    return [loss for loss in converted.losses if word in loss]


def test_the_table_gives_a_model(prepared):
    converted = table_of(ranges(**FULL), *HOW, prepared)
    assert converted.table.model == {"sha256": prepared.sha256, "name": prepared.name}
    read = parse_table(converted.content.decode(), "t")
    assert read == converted.table
    built = quantize_prepared(prepared, read, "t")
    assert len(built.layers) == 3
    assert {name: entry.scale for name, entry in read.tensors.items()} == {
        name: scale for name, scale in FULL.items() if name in read.tensors
    }
    assert {entry.method for entry in read.tensors.values()} == {"tensorrt"}


def test_the_losses_are_the_tables_warnings(prepared):
    converted = table_of(ranges(**FULL), *HOW, prepared)
    assert converted.table.warnings == converted.losses
    assert lost(converted, "no scales of weights")
    assert lost(converted, "what was observed")


def test_tensors_that_the_model_does_not_quantize_are_counted_and_named(prepared):
    converted = table_of(ranges(**FULL, extra=1.0, other=1.0), *HOW, prepared)
    assert any("'extra', 'other'" in loss for loss in lost(converted, "not quantized in the model"))


def test_a_file_of_another_model_is_refused(prepared):
    with pytest.raises(TableError, match=r"no tensor that is quantized in the model: it names 'q', the model has 'x'"):
        table_of(ranges(q=1.0), *HOW, prepared)


def test_missing_ranges_are_refused_with_the_nearest_name(prepared):
    with pytest.raises(TableError) as caught:
        table_of(ranges(x=1.0, b=1.0, dd=1.0, e=1.0, y=1.0), *HOW, prepared)
    assert "has no range for 1 tensor of the model: 'd' (it has 'dd')" in str(caught.value)
    assert "--missing float" in str(caught.value)
    assert str(caught.value).startswith("table: some.cache: ")


def test_a_range_that_is_none_is_told_as_such(prepared):
    foreign = replace(ranges(x=1.0, b=1.0, e=1.0, y=1.0), unusable=("d",))
    with pytest.raises(TableError, match="of the model: 'd'; what it says of 'd' is NaN, infinite or negative"):
        table_of(foreign, *HOW, prepared)
    nothing = replace(ranges(), unusable=("d",))
    with pytest.raises(TableError, match="what it says of 'd' is NaN"):
        table_of(nothing, *HOW, prepared)
    with pytest.raises(TableError, match="it names 'q', the model has 'x'"):
        table_of(replace(ranges(), unusable=("q",)), *HOW, prepared)


def test_without_ranges_for_any_layer_the_reason_is_told(prepared):
    how = ("tensorrt", "some.cache", Choices(missing_float=True))
    with pytest.raises(TableError, match="without these no layer would be int8"):
        table_of(ranges(x=1.0), *how, prepared)


def test_layers_without_a_range_stay_float_where_asked(prepared):
    how = ("tensorrt", "some.cache", Choices(missing_float=True))
    converted = table_of(ranges(x=1.0, b=0.5), *how, prepared)
    left = converted.table.settings.left("left_without_range")
    assert set(left.values()) >= {"no range for 'd' in the tensorrt table"}
    built = quantize_prepared(prepared, parse_table(converted.content.decode(), "t"), "t")
    assert len(built.layers) == 1
    assert {item.reason[:12] for item in built.draft.plan.unquantized if item.op_type == "Conv"} == {"no range for"}
    assert lost(converted, "in float")


def test_nothing_left_to_quantize_is_an_error(prepared):
    with pytest.raises(TableError, match="no range for"):
        table_of(ranges(e=1.0), "tensorrt", "c", Choices(missing_float=True), prepared)


def test_one_range_of_a_group_is_enough(prepared):
    given = {name: scale for name, scale in FULL.items() if name != "p"}
    tensors = table_of(ranges(**given), *HOW, prepared).table.tensors
    assert (tensors["p"].scale, tensors["p"].source, tensors["b"].source) == (0.5, "shared", "calibrated")


def test_a_group_gets_its_widest_range_and_that_is_said(prepared):
    converted = table_of(ranges(**FULL | {"p": 4.0}), *HOW, prepared)
    assert converted.table.tensors["b"].scale == converted.table.tensors["p"].scale == 4.0
    assert lost(converted, "share one scale")
    quantize_prepared(prepared, converted.table, "t")


def test_unusable_numbers_are_missing_ranges(prepared):
    given = {name: Affine(scale, 0, S8) for name, scale in FULL.items() if name != "d"}
    with pytest.raises(TableError, match="'d'"):
        table_of(Foreign(given, unusable=("d",)), *HOW, prepared)
    told = table_of(Foreign({**given, "d": Affine(1.0, 0, S8)}, unusable=("q",)), *HOW, prepared)
    assert lost(told, "no usable range")


def test_weight_scales_are_for_the_codes_that_were_asked_for(prepared):
    weights = {"W1": WeightEntry("int8", 0, "s8", (0.5,) * 4), "gone": WeightEntry("int8", 0, "s8", (1.0,))}
    foreign = Foreign(ranges(**FULL).tensors, weights)
    assert table_of(foreign, *HOW, prepared).table.weights == {}
    assert lost(table_of(foreign, *HOW, prepared), "scales of 2 weights are left out")
    converted = table_of(foreign, "ncnn", "t", Choices(weights="s8"), prepared)
    entry = converted.table.weights["W1"]
    assert (entry.scales, entry.input, converted.table.settings.weights) == ((0.5,) * 4, "x", "s8")
    assert lost(converted, "'gone'")
    built = quantize_prepared(prepared, converted.table, "t")
    assert set(built.layers[entry.node].scales) == {0.5}


def test_without_a_model_the_names_stay_and_quantize_refuses(prepared):
    converted = table_of(ranges(**FULL), *HOW, None)
    assert list(converted.table.tensors) == list(FULL)
    assert lost(converted, "for no model")
    with pytest.raises(TableError, match="is for no model"):
        quantize_prepared(prepared, converted.table, "t")
    forced = quantize_prepared(prepared, converted.table, "t", force=True)
    assert len(forced.layers) == 3
    assert not [warning for warning in forced.warnings if "another model" in warning]


def test_activations_are_those_of_the_file(prepared):
    assert table_of(ranges(**FULL), *HOW, prepared).table.settings.recorded["activations"] == "s8"
    unsigned = Foreign({name: Affine(scale, 0, U8) for name, scale in FULL.items()})
    assert table_of(unsigned, *HOW, prepared).table.settings.recorded["activations"] == "u8"


def test_unsigned_and_signed_tensors_of_one_file_give_a_model(prepared):
    tensors = {name: Affine(scale, 0, U8 if name in "bd" else S8) for name, scale in FULL.items()}
    converted = table_of(Foreign(tensors), *HOW, prepared)
    quantize_prepared(prepared, converted.table, "t")


def test_a_target_without_zero_points_gets_symmetric_ranges_and_its_own_plan(prepared):
    unsigned = Foreign({name: Affine(scale, 0, U8) for name, scale in FULL.items()})
    converted = table_of(unsigned, "onnxruntime", "c", Choices(target="tensorrt"), prepared)
    assert {(entry.dtype, entry.zero_point) for entry in converted.table.tensors.values()} == {("int8", 0)}
    assert (converted.table.settings.target, converted.table.settings.recorded["activations"]) == ("tensorrt", "s8")
    assert lost(converted, "target tensorrt: 6 of 6 tensors become symmetric")
    built = quantize_prepared(prepared, parse_table(converted.content.decode(), "t"), "t")
    plan = make_plan(prepared.model, Selection(target="tensorrt"))
    assert {each.tensor for each in built.draft.plan.tensors} == {each.tensor for each in plan.tensors}
