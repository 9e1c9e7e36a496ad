"""`--gate` with `--budget`: layers leave int8 until the gate holds, and what was found stays when a run is killed."""

import json
import signal
import subprocess
import sys
import time

import pytest

from int8cal.report.files import load_report

pytestmark = pytest.mark.slow

FILES = ("model.int8.onnx", "model.table.json", "model.stats.npz", "report.json", "report.md", "report.html")


def arguments(sample, *more):
    # few images: each step of a search runs all of them
    data = ("--data", sample / "calib", "--samples", "20", "--eval-data", sample / "eval" / "[01]", "--no-latency")
    return [str(each) for each in ("calibrate", sample / "model.onnx", *data, *more)]


def searched(sample, gate, budget, *more):
    return arguments(sample, "--gate", gate, "--budget", budget, *more)


@pytest.fixture(scope="module")
def plain_db(shared, sample, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    assert shared(folder, *arguments(sample, "-o", "out", "-q")).code == 0
    return load_report(folder / "out" / "report.json").metrics.sqnr_db


def test_the_fewest_layers_go_until_the_gate_holds(call, sample, tmp_path, plain_db):
    done = call(*searched(sample, f"sqnr_db>={plain_db + 3}", "200", "-o", "out"))
    assert done.code == 0, done.err
    assert "\nSearch    the gate" in done.out
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    report = load_report(out / "report.json")
    found = report.mixed_precision
    table = json.loads((out / "model.table.json").read_text(encoding="utf-8"))
    left = table["settings"]["left_for_gates"]
    assert left
    assert {row.node for row in found.layers if row.decision == "float"} == set(left)
    told = [line for line in report.decisions if ": float, " in line]
    assert sorted(line.split(":")[0].split(" ", 1)[1] for line in told) == sorted(left)
    assert report.gates[0].passed
    curve = found.curve
    assert [point.kept for point in curve].count(True) == 1
    kept = next(point for point in curve if point.kept)
    assert kept.layers_left == len(left)
    assert kept.sqnr_db == report.metrics.sqnr_db
    assert kept.estimated_percent <= 200
    assert not curve[0].gates[f"sqnr_db>={plain_db + 3}"].passed
    assert {node.node: node.reason for node in report.fusion.nodes}.items() >= left.items()
    for page in ("report.md", "report.html"):
        assert "Mixed precision" in (out / page).read_text(encoding="utf-8")
    shown = call("inspect", out / "report.json")
    assert "estimated time" in shown.out
    assert call("quantize", sample / "model.onnx", "--table", out / "model.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (out / "model.int8.onnx").read_bytes()


def test_a_gate_that_holds_costs_nothing(call, sample, tmp_path, plain_db):
    assert call(*searched(sample, f"sqnr_db>={plain_db - 1}", "10", "-o", "out", "-q")).code == 0
    found = load_report(tmp_path / "out" / "report.json").mixed_precision
    assert found.layers == ()
    assert [(point.layers_left, point.kept) for point in found.curve] == [(0, True)]
    assert found.outcome == "the gates hold with every layer in int8"


def test_a_budget_that_is_too_small_fails_and_names_one_that_would_do(call, sample, tmp_path, plain_db):
    gate = f"sqnr_db>={plain_db + 6}"
    done = call(*searched(sample, gate, "0.5", "-o", "out", "-q"))
    assert done.code == 7
    assert "a budget of 0.5 % does not suffice" in done.message
    found = load_report(tmp_path / "out" / "report.json").mixed_precision
    assert found.needed_percent > 0.5
    assert any("does not suffice" in line for line in load_report(tmp_path / "out" / "report.json").warnings)
    advised = done.message.partition("--budget ")[2].split(",")[0]
    assert call(*searched(sample, gate, str(2 * int(advised)), "-o", "more", "-q")).code == 0


def test_what_reads_pixels_stays_int8(call, sample, tmp_path):
    """So does the layer behind it: beside a layer in float it would be faster in float."""
    done = call(*searched(sample, "sqnr_db>=200", "10000", "--uint8-input", "-o", "out", "-q"))
    assert done.code == 7
    assert done.message.endswith("no number of layers does; relax the gate")
    report = load_report(tmp_path / "out" / "report.json")
    float_nodes = {row.node for row in report.mixed_precision.layers if row.decision == "float"}
    assert "/head/Gemm" in float_nodes
    assert not {"/stem/Conv", "/block1/conv/Conv"} & float_nodes


def test_a_killed_run_leaves_a_model_and_is_taken_up_again(call, sample, tmp_path, plain_db):
    asked = searched(sample, f"sqnr_db>={plain_db + 6}", "500", "-q")
    assert call(*asked, "-o", "whole").code == 0
    process = subprocess.Popen([sys.executable, "-m", "int8cal", *asked, "-o", "killed"], cwd=tmp_path)
    state = tmp_path / "killed" / "model.search.json"
    while process.poll() is None and not state.exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = {path.name for path in (tmp_path / "killed").iterdir()}
    assert {"model.int8.onnx", "model.table.json", "model.stats.npz"} <= killed
    assert call(*asked, "-o", "killed").code == 2
    assert call(*asked, "-o", "killed", "--overwrite").code == 0
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(FILES)
    for name in ("model.int8.onnx", "model.table.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "there is no gate"),
        (("--gate", "size.ratio<=0.5"), "no gate is about it"),
        (("--gate", "sqnr_db>=30", "--optimize", "latency"), "not both in one job"),
    ],
)
def test_a_budget_without_use_is_refused(call, sample, more, told):
    done = call("calibrate", sample / "model.onnx", "--data", sample / "calib", "--budget", "10", *more)
    assert done.code == 2
    assert told in done.message


def test_a_gate_of_the_users_counts_where_it_is_one_that_is_always_on(call, sample):
    done = call(*searched(sample, "outputs.dead<=0", 10))
    assert done.code == 0
    assert done.out.startswith("Result    the accuracy gate passed\n")
