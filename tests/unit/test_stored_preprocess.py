"""The preprocessing of calibration travels with the int8 model."""

import json

import onnx
import pytest

from int8cal.errors import ModelError
from int8cal.identity import PREPROCESS_KEY, RUN_KEY, stamp, stored_preprocess
from int8cal.preprocess import Preprocess
from int8cal.protos import metadata_of, set_metadata
from int8cal.quantization.table import CalibrationTable, TableSettings

SETTINGS = {"scale": 0.5, "mean": [1.0], "std": [2.0], "resize": 8, "crop": None, "color": None, "layout": None}
KNOWN = Preprocess(scale=0.5, mean=(1.0,), std=(2.0,), resize=8)


def stamped(preprocess):
    model = onnx.ModelProto()
    stamp(model, CalibrationTable({}, {}, TableSettings({"preprocess": preprocess}), {}, {}, run="r"))
    return model


def test_it_is_written_into_the_model_and_read_back():
    stored = stored_preprocess(stamped(SETTINGS), None)
    assert (stored.preprocess, stored.source) == (KNOWN, "the int8 model")


def test_a_model_without_any_has_no_such_key():
    assert metadata_of(stamped(None), PREPROCESS_KEY) is None
    assert stored_preprocess(stamped(None), None) is None


def test_the_table_of_the_same_run_beside_the_model_says_it(tmp_path):
    table, path = tmp_path / "net.table.json", tmp_path / "net.int8.onnx"
    model = stamped(None)
    assert metadata_of(model, RUN_KEY) == "r"
    table.write_text(json.dumps({"run": "r", "settings": {"preprocess": SETTINGS}}))
    stored = stored_preprocess(model, path)
    assert (stored.preprocess, stored.source) == (KNOWN, "net.table.json")
    table.write_text(json.dumps({"run": "another", "settings": {"preprocess": SETTINGS}}))
    assert stored_preprocess(model, path) is None


def test_a_malformed_one_is_a_model_error():
    model = onnx.ModelProto()
    set_metadata(model, PREPROCESS_KEY, '{"scale": "half"}')
    with pytest.raises(ModelError, match="is no preprocessing"):
        stored_preprocess(model, None)
