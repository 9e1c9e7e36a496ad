"""A voice detector with an LSTM: int8 weights cost nothing at its outputs and halve the int8 model."""

import json
import shutil
import subprocess
import sys

import onnx
import pytest

pytestmark = pytest.mark.zoo

NAME = "silero_vad_16k_flat"


def int8cal(*arguments):
    done = subprocess.run([sys.executable, "-m", "int8cal", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def runs(zoo, calibrated, tmp_path_factory):
    """Output directories: everything int8, and the LSTM left in float."""
    folder = tmp_path_factory.mktemp("silero")
    shutil.copytree(calibrated(NAME), folder / "all")
    data = zoo.write_calibration(NAME, folder / "data")
    judged = ("--eval-data", min(data.iterdir()), "--no-latency", "--quiet")
    int8cal("calibrate", zoo.model_path(NAME), "--data", data, "-o", folder / "float", *judged, "--exclude", "op:LSTM")
    return folder


def file(runs, which):
    return runs / which / f"{NAME}.int8.onnx"


def test_the_lstm_multiplies_integers_of_s7(runs):
    table = json.loads((runs / "all" / f"{NAME}.table.json").read_text())
    assert list(table["settings"]["recurrent"].values()) == ["kernel"]
    gates = [entry for entry in table["weights"].values() if len(entry["scales"]) == 4 * 128]
    assert [(entry["dtype"], entry["range"]) for entry in gates] == [("int8", "s7")] * 2
    assert "DynamicQuantizeLSTM" in {node.op_type for node in onnx.load(file(runs, "all")).graph.node}
    report = json.loads((runs / "all" / "report.json").read_text())
    assert not [node for node in report["fusion"]["nodes"] if "LSTM" in node["op_type"]]


def test_it_costs_less_than_a_quarter_of_a_decibel(zoo, runs):
    reference = zoo.run(zoo.model_path(NAME), NAME)
    integer, plain = (zoo.sqnr_db(reference, zoo.run(file(runs, which), NAME)) for which in ("all", "float"))
    assert integer >= plain - 0.25


def test_the_file_is_less_than_two_fifths(zoo, runs):
    whole = zoo.model_path(NAME).stat().st_size
    assert file(runs, "all").stat().st_size < whole * 0.4  # one layer has a second plane
    assert file(runs, "float").stat().st_size > whole / 2


def test_the_table_gives_the_same_bytes(zoo, runs):
    table, again = runs / "all" / f"{NAME}.table.json", runs / "again.onnx"
    int8cal("quantize", zoo.model_path(NAME), "--table", table, "-o", again)
    assert again.read_bytes() == file(runs, "all").read_bytes()
