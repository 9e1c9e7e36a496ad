"""FakeQuantize parameters as JSON."""

import json

import pytest

from int8cal.errors import TableError
from int8cal.interop.openvino import foreign_model, read_openvino, to_openvino
from int8cal.numerics.affine import S8, U8, Affine
from int8cal.numerics.fakequantize import FakeQuantize
from int8cal.quantization.table import WeightEntry

FIVE = {"input_low": -1.0, "input_high": 3.0, "output_low": -1.0, "output_high": 3.0, "levels": 256}


def document(**tensors):
    return json.dumps({"tensors": tensors}).encode()


def test_each_tensor_has_its_four_ends_and_levels(make):
    tensors = json.loads(to_openvino(make.small()).content)["tensors"]
    assert tensors["x"] == {
        "input_low": -64.0,
        "input_high": 63.5,
        "output_low": -64.0,
        "output_high": 63.5,
        "levels": 256,
        "scale": 0.5,
        "zero_point": 128,
        "dtype": "uint8",
    }
    assert tensors["s8"]["levels"] == 256
    assert tensors["s8"]["input_low"] == pytest.approx(-128 / 127 * tensors["s8"]["input_high"], rel=1e-12)


def test_weights_have_ends_per_channel(make):
    weights = {"W": WeightEntry("int8", 1, "s8", (0.5, 0.25)), "V": WeightEntry("int8", None, "s7", (1.0,))}
    stored = json.loads(to_openvino(make.table({}, weights)).content)["weights"]
    assert stored["W"]["input_low"] == stored["W"]["output_low"] == [-63.5, -31.75]
    assert (stored["W"]["axis"], stored["W"]["levels"]) == (1, 255)
    assert (stored["V"]["input_low"], stored["V"]["input_high"], stored["V"]["levels"]) == ([-64.0], [63.0], 128)


def test_everything_but_the_observations_comes_back(make):
    weights = {"W": WeightEntry("int8", 1, "paired", (0.5, 0.25)), "V": WeightEntry("int8", None, "s7", (1.0,))}
    table = make.table({"x": Affine(0.5, 3, U8), "y": Affine(0.25, 0, S8)}, weights)
    read = read_openvino(to_openvino(table).content, "f")
    assert read.tensors == {"x": Affine(0.5, 3, U8), "y": Affine(0.25, 0, S8)}
    assert read.weights == weights
    assert read.settings == {"target": "portable", "weights": "paired"}
    assert read.losses == ()


def test_a_nudge_says_what_the_range_was_and_what_it_becomes():
    read = read_openvino(document(x=FIVE), "f")
    assert read.tensors["x"].zero_point == 64
    assert read.losses == (
        "1 range nudged to an integer zero point",
        "tensor 'x': [-1, 3] became [-1.00392, 2.99608], so that its zero point is the integer 64",
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"levels": 16}, "levels is 16"),
        ({"levels": 256.0}, "levels is 256.0"),
        ({"levels": None}, "levels is None"),
        ({"output_high": 4.0}, "output range"),
        ({"input_high": -2.0}, "not finite and ordered"),
        ({"input_low": None}, "input_low is None"),
        ({"input_low": True}, "input_low is True"),
        ({"input_high": 1e39}, "input_high is 1e+39"),
        ({"input_high": 10**400}, "input_high is 1000"),
    ],
)
def test_operations_that_are_no_q_and_dq_are_refused_by_name(change, what):
    with pytest.raises(TableError, match="tensor 'x'") as caught:
        read_openvino(document(x=FIVE | change), "f")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"tensors": {}\n', "f:2: is not JSON"),
        ("[]", 'f: has no "tensors"'),
        ('{"tensors": []}', 'f: has no "tensors"'),
        ('{"tensors": {"x": 3}}', "f: tensor 'x': is 3"),
        ('{"tensors": {}, "weights": 3}', 'f: "weights" is 3'),
        ('{"tensors": {}, "settings": 3}', 'f: "settings" is 3'),
        ('{"tensors": {}, "settings": {"target": "moon"}}', "f: settings.target is 'moon'"),
        ('{"tensors": {}, "settings": {"weights": ["s8"]}}', "f: settings.weights is ['s8']"),
        ('{"tensors": {}, "weights": {"W": {"levels": 255, "axis": "a"}}}', "f: weight 'W': axis is 'a'"),
        ('{"tensors": {}, "weights": {"W": {"levels": 9}}}', "f: weight 'W': levels is 9"),
        ('{"tensors": {}, "weights": {"W": {"levels": 255}}}', "f: weight 'W': its four ends"),
        ("[" * 100000, "f: cannot be parsed"),
    ],
)
def test_malformed_json_is_refused(text, what):
    with pytest.raises(TableError) as caught:
        read_openvino(text.encode(), "f")
    assert str(caught.value).startswith(f"table: {what}")


@pytest.mark.parametrize("ends", [([-2.0], [1.0]), ([1.0], [-1.0]), ([0.0], [0.0])])
def test_weights_that_are_not_symmetric_are_refused(ends):
    low, high = ends
    entry = {"levels": 255, "axis": 0, "input_low": low, "input_high": high, "output_low": low, "output_high": high}
    text = json.dumps({"tensors": {}, "weights": {"W": entry}})
    with pytest.raises(TableError, match="symmetric"):
        read_openvino(text.encode(), "f")


def test_operations_of_a_model_are_nudged_as_well():
    read = foreign_model({"x": FakeQuantize(-1.0, 3.0, -1.0, 3.0, 256)}, ("x",), "m.xml")
    assert read.tensors["x"].zero_point == 64
    assert [loss.split()[0] for loss in read.losses] == ["1", "tensor", "1"]
    with pytest.raises(TableError, match="no FakeQuantize"):
        foreign_model({}, (), "m.xml")
