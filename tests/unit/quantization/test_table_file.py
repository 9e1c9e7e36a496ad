import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from int8cal.calibration.ranges import TensorEntry
from int8cal.errors import TableError
from int8cal.numerics.affine import U8, affine_from_range
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.integers import Bias
from int8cal.quantization.table import CalibrationTable, TableSettings, WeightEntry
from int8cal.quantization.table_file import load_table, parse_table, save_table, table_to_json

STORED = Path(__file__).parents[2] / "golden" / "table_v1.json"


def make_table(**changes):
    entry = TensorEntry("uint8", 0.5, 3, -1.5, 126.0, "mse", 100.0, (-1.0, 100.0), 0.125, "calibrated")
    shared = TensorEntry(
        "int8",
        float(np.float32(0.1)),
        0,
        *(k * float(np.float32(0.1)) for k in (-127, 127)),
        "kl",
        13.0,
        (-13.0, 2.0),
        0.0,
        "shared",
    )
    fields = {
        "model": {"sha256": "ab" * 32, "name": "model.onnx"},
        "data": {"fingerprint": "0" * 32, "samples": 7},
        "settings": TableSettings(
            {"method": "auto", "percentile": 99.99, "exclude": ["op:Softmax"], "preprocess": None}
        ),
        "tensors": {"x": entry, "conv/out:0": shared},
        "weights": {
            "W": WeightEntry("int8", 0, "s8", (float(np.float32(0.01)), 0.25)),
            "G@Gemm_1": WeightEntry("int8", None, "s7", (2.0**-20,)),
        },
        "corrections": (Bias({"Conv_0": (0.1, -1e-17)}), Equalization({"r": (1, -2)})),
        "warnings": ("tensor 'x': only zeros were observed",),
    }
    return CalibrationTable(**(fields | changes))


@pytest.fixture
def document():
    return json.loads(table_to_json(make_table()))


def parse(document):
    return parse_table(json.dumps(document), "m.table.json")


def refused(document, match):
    with pytest.raises(TableError, match=match) as caught:
        parse(document)
    assert caught.value.exit_code == 6
    assert str(caught.value).startswith("table: m.table.json")
    assert caught.value.do


def test_a_table_round_trips_exactly(tmp_path):
    table = make_table()
    save_table(table, tmp_path / "m.table.json")
    assert load_table(tmp_path / "m.table.json") == table
    assert table_to_json(load_table(tmp_path / "m.table.json")) == table_to_json(table)


def test_a_weight_names_its_layer_and_what_it_reads_where_that_is_known():
    entry = WeightEntry("int8", 0, "s8", (1.0,), "Conv_0", "x")
    table = make_table(weights={"W": entry, "R": WeightEntry("int8", 0, "s8", (1.0,))})
    stored = json.loads(table_to_json(table))["weights"]
    assert (stored["W"]["node"], stored["W"]["input"]) == ("Conv_0", "x")
    assert stored["R"].keys() == {"dtype", "axis", "range", "scales"}
    assert parse_table(table_to_json(table), "t").weights == table.weights


def test_every_float32_scale_round_trips():
    scales = np.random.default_rng(0).lognormal(-6, 5, size=500).astype(np.float32)
    table = make_table()
    entry = replace(table.weights["W"], scales=tuple(float(scale) for scale in scales))
    table = replace(table, weights={"W": entry})
    assert parse_table(table_to_json(table), "t").weights["W"].scales == entry.scales


def test_an_edited_range_wins_and_is_marked_user(document):
    document["tensors"]["x"] |= {"low": -2.0, "high": 1.0}
    entry = parse(document).tensors["x"]
    affine = affine_from_range(-2.0, 1.0, U8)
    assert (entry.scale, entry.zero_point) == (affine.scale, affine.zero_point)
    assert (entry.low, entry.high) == (affine.low, affine.high)
    assert (entry.source, entry.method) == ("user", "user")
    assert parse(document).tensors["conv/out:0"].source == "shared"


def test_an_edited_range_of_a_symmetric_tensor_stays_symmetric(document):
    document["tensors"]["conv/out:0"] |= {"low": -2.54, "high": 1.0}
    entry = parse(document).tensors["conv/out:0"]
    assert entry.zero_point == 0
    assert entry.scale == float(np.float32(2.54 / 127))
    assert entry.low == -entry.high


def test_an_edited_scale_wins_and_the_range_follows(document):
    document["tensors"]["x"] |= {"scale": 0.25, "zero_point": 4}
    entry = parse(document).tensors["x"]
    assert (entry.scale, entry.zero_point, entry.low, entry.high) == (0.25, 4, -1.0, 62.75)
    assert entry.source == "user"


def test_an_edited_scale_is_rounded_to_float32(document):
    document["tensors"]["x"]["scale"] = 0.1
    entry = parse(document).tensors["x"]
    assert entry.scale == float(np.float32(0.1))
    assert entry.high == entry.scale * 252


def test_an_edit_survives_saving_and_loading_again(document):
    document["tensors"]["x"] |= {"low": 0.0, "high": 10.0}
    edited = parse(document)
    assert parse_table(table_to_json(edited), "t") == edited


def test_two_edits_that_agree_are_taken(document):
    document["tensors"]["x"] |= {"scale": 0.25, "zero_point": 4, "low": -1.0, "high": 62.7}
    assert parse(document).tensors["x"].high == 62.75


def test_an_entry_without_its_calibrated_part_is_the_user_s(document):
    del document["tensors"]["x"]["calibrated"]
    assert parse(document).tensors["x"].source == "user"


def test_contradicting_edits_name_the_tensor(document):
    document["tensors"]["x"] |= {"scale": 0.25, "low": -5.0, "high": 5.0}
    refused(document, r"tensor 'x': scale and zero_point give \[-0.75, 63\], low and high say \[-5, 5\]")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"low": 3.0, "high": -3.0}, "tensor 'x': low 3.0 is above high -3.0"),
        ({"scale": 0.0}, "tensor 'x': scale is 0.0, expected a number above 0"),
        ({"scale": -0.5}, "tensor 'x': scale is -0.5"),
        ({"scale": True}, "tensor 'x': scale is True, expected a finite number"),
        ({"scale": "0.5"}, "tensor 'x': scale is 0.5, expected a finite number"),
        ({"scale": None}, "tensor 'x': scale is None"),
        ({"scale": 1e300}, "tensor 'x': scale 1e[+]300 is not a finite float32"),
        ({"scale": float("nan")}, "tensor 'x': scale is nan"),
        ({"high": float("inf")}, "tensor 'x': high is inf"),
        ({"high": 10**400}, "tensor 'x': high is 1000"),
        ({"zero_point": 256}, r"tensor 'x': zero_point is 256, expected an integer in \[0, 255\]"),
        ({"zero_point": 2.5}, "tensor 'x': zero_point is 2.5"),
        ({"zero_point": -1, "calibrated": {"zero_point": -1}}, "tensor 'x': zero_point is -1"),
        ({"dtype": "int16"}, "tensor 'x': dtype is 'int16', expected one of"),
        ({"dtype": ["uint8"]}, "tensor 'x': dtype is"),
        ({"dtype": "int8"}, r"tensor 'x': int8 codes of its scale and zero_point are \[-65, 62\], low and high say"),
        ({"dtype": "uint16"}, "tensor 'x': uint16 codes of its scale and zero_point are"),
        ({"dtype": "uint16", "high": 2.0}, "tensor 'x': dtype is 'uint16', and settings.activations is 'u8'"),
        ({"low": 0.0, "high": 0.0}, "tensor 'x': low and high are both 0, which is no range"),
        ({"amax": "big"}, "tensor 'x': amax is big"),
        ({"clipped": None}, "tensor 'x': clipped is None"),
        ({"observed": []}, "tensor 'x': observed is"),
        ({"observed": [0, "1"]}, "tensor 'x': observed is 1"),
    ],
)
def test_a_bad_value_names_the_tensor(document, change, match):
    document["tensors"]["x"] |= change
    refused(document, match)


def test_an_entry_whose_own_calibrated_part_is_bad_too_is_still_refused(document):
    document["tensors"]["x"] |= {"scale": -1.0}
    document["tensors"]["x"]["calibrated"]["scale"] = -1.0
    refused(document, "tensor 'x': scale is -1.0")


@pytest.mark.parametrize("key", ["scale", "zero_point", "low", "high", "dtype"])
def test_a_missing_key_of_a_tensor_is_named(document, key):
    del document["tensors"]["x"][key]
    refused(document, f"tensor 'x': {key} is None")


@pytest.mark.parametrize("key", ["model", "data", "settings", "tensors", "weights"])
def test_a_missing_part_is_named(document, key):
    del document[key]
    refused(document, f"has no '{key}' part")


def test_a_table_without_corrections_and_warnings_is_complete(document):
    del document["corrections"], document["warnings"]
    table = parse(document)
    assert (table.corrections, table.warnings) == ((), ())


@pytest.mark.parametrize("value", [[1], "x", 3, None])
def test_parts_of_the_wrong_kind_are_named(document, value):
    for key in ("model", "data", "settings", "tensors", "weights", "corrections", "bodies"):
        refused(document | {key: value}, f"{key} is .*, expected an object")
    refused(document | {"bodies": {"If_0/then_branch": {"tensors": {}, "weights": value}}}, "body .*weights is")
    refused(document | {"tensors": {"x": value}}, "tensor 'x': is")


@pytest.mark.parametrize(("number", "told"), [(float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf")])
def test_a_number_that_json_has_not_is_refused_wherever_it_stands(document, number, told):
    document["data"] |= {"odd": [{"deep": [1.5, number]}]}
    refused(document, f"holds {told}, which is no number")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scales": []}, "no list of scales"),
        ({"scales": 0.5}, "no list of scales"),
        ({"scales": [0.5, 0.0]}, "above 0"),
        ({"scales": [0.5, True]}, "a scale is True"),
        ({"scales": ["a"]}, "a scale is a"),
        ({"scales": [1e300]}, "not a finite float32"),
        ({"axis": "0"}, "axis"),
        ({"axis": True}, "axis"),
        ({"dtype": "uint8"}, "int8"),
    ],
)
def test_a_bad_weight_entry_is_named(document, change, match):
    document["weights"]["W"] |= change
    refused(document, f"weight 'W': .*{match}")


def test_a_weight_scale_too_small_for_a_normal_float32_is_lifted(document):
    document["weights"]["W"]["scales"] = [1e-44]
    assert parse(document).weights["W"].scales == (2.0**-126,)


def test_malformed_json_names_the_line():
    with pytest.raises(TableError, match=r"^table: m.table.json:3: is not JSON"):
        parse_table('{\n "format": "int8cal/table",\n "version": 1,,\n}', "m.table.json")


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "int8cal/report", "version": 1}'])
def test_other_json_is_not_a_table(text):
    with pytest.raises(TableError, match="not a calibration table"):
        parse_table(text, "m.table.json")


@pytest.mark.parametrize("version", [2, "1", None, 0])
def test_an_unknown_version_is_refused(document, version):
    refused(document | {"version": version}, "reads up to 1; update int8cal")


def test_a_key_that_is_there_twice_is_named(document):
    text = json.dumps(document)
    name = next(iter(document["tensors"]))
    entry = json.dumps(document["tensors"][name])
    with pytest.raises(TableError, match=f'm.table.json: key "{name}" is given twice; keep one of them'):
        parse_table(text.replace('"tensors": {', f'"tensors": {{"{name}": {entry}, ', 1), "m.table.json")
    with pytest.raises(TableError, match='key "scale" is given twice'):
        parse_table(text.replace('"scale": ', '"scale": 9.0, "scale": ', 1), "m.table.json")


def test_a_missing_or_binary_file_cannot_be_read(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path, what in (
        (tmp_path / "no.json", "not exist"),
        (tmp_path / "binary.json", "UTF-8"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(TableError, match=what):
            load_table(path)


def test_a_byte_order_mark_is_no_obstacle(tmp_path):
    path = tmp_path / "m.table.json"
    path.write_text(table_to_json(make_table()), encoding="utf-8-sig")
    assert load_table(path) == make_table()


def test_the_stored_artefact_stays_readable():
    # written by the first version; a later format may add to it but must keep reading it
    assert load_table(STORED) == make_table()


def test_the_format_is_the_golden_one(golden):
    golden("table.json", table_to_json(make_table()))


def test_a_misspelt_key_is_named_with_the_nearest(tmp_path):
    document = json.loads(table_to_json(make_table()))
    name = next(iter(document["tensors"]))
    document["tensors"][name]["hihg"] = 3.0
    with pytest.raises(TableError, match="hihg") as caught:
        parse_table(json.dumps(document), "t.json")
    assert "did you mean 'high'?" in str(caught.value)


def test_a_table_saves_and_loads_itself(tmp_path):
    table = make_table()
    table.save(tmp_path / "t.json")
    assert CalibrationTable.load(tmp_path / "t.json") == table
    assert len(repr(table)) < 200


@pytest.mark.parametrize("part", ["equalization", "bias", "remainder", "rounding"])
@pytest.mark.parametrize("value", [[], ["x"], "x", 3, None])
def test_a_correction_that_is_no_object_is_refused(document, part, value):
    document.setdefault("corrections", {})[part] = value
    refused(document, f"corrections.{part} is .*, expected an object")


def test_a_correction_of_another_version_is_kept(document):
    document["corrections"]["new"] = {"Conv": [1, {"a": None}]}
    table = parse(document)
    assert json.loads(table_to_json(table))["corrections"] == document["corrections"]


@pytest.mark.parametrize("value", [["Conv"], "Conv", {"Conv": 3}])
def test_nodes_left_for_accuracy_have_reasons(document, value):
    document["settings"]["left_for_accuracy"] = value
    refused(document, "settings.left_for_accuracy is .*, expected node names with reasons")


@pytest.mark.parametrize(
    ("key", "expected"),
    [("weights", "s8 or s7"), ("target", "portable or"), ("activations", "u8 or s8 or auto or u16")],
)
@pytest.mark.parametrize("value", ["moon", {"": {}}, ["u8"], 8, None])
def test_a_setting_of_few_words_is_one_of_them(document, key, expected, value):
    document["settings"][key] = value
    refused(document, rf"settings.{key} is .*, expected .*{expected}")
