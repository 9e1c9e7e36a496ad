"""`--optimize latency`: what is written, not what this machine finds fast."""

import json
from dataclasses import replace

import onnx
import pytest

from int8cal.cli.main import main
from int8cal.search.goals import latency

pytestmark = pytest.mark.slow


@pytest.fixture
def calibrated(sample, tmp_path, monkeypatch):
    """Calibrate in this process with given times; returns the folder and the report.

    Args of what it gives:
        search: Times of two models in each round of the search.
        last: Of float, plain int8 and the best mix, round by round, in the last measurement.
        slow: Whether every float kernel takes a microsecond, so that layers in int8 are slower.
    """
    profiled, out = latency.profile_kernels, tmp_path / "out"

    def slow_int8(models, feeds, **_):
        before, after = profiled(models, feeds, budget_s=0.0)
        return replace(before, kernels=dict.fromkeys(before.kernels, 1.0)), after

    def calibrate(*, search=None, last=(), slow=False):
        def timed(sessions, feeds, *, enough=None, **_):
            return [search] * 8 if enough is not None else [times[: len(sessions)] for times in last]

        if slow:
            monkeypatch.setattr(latency, "profile_kernels", slow_int8)
        if search is not None:
            monkeypatch.setattr(latency, "measure_interleaved", timed)
        options = ("--samples", "4", "--no-latency", "--quiet", "--optimize", "latency", "-o", str(out))
        assert main(["calibrate", str(sample / "model.onnx"), "--data", str(sample / "calib"), *options]) == 0
        return out, json.loads((out / "report.json").read_text(encoding="utf-8"))

    return calibrate


def test_the_report_holds_what_was_measured_and_the_table_gives_the_same_bytes(
    call, sample, calibrated, tmp_path, monkeypatch
):
    monkeypatch.setattr(latency, "_BUDGET_S", 0.05)  # what is written is the same
    out, report = calibrated()
    table = json.loads((out / "model.table.json").read_text(encoding="utf-8"))
    found = report["optimize"]
    assert table["settings"]["optimize"] == "latency"
    assert table["settings"].get("left_for_latency", {}) == found["left"]
    assert {row["node"] for row in found["rows"] if row["decision"] == "float"} == set(found["left"])
    assert found["rows"]
    assert all(row["fp32_us"] > 0 and row["int8_us"] > 0 and row["op_type"] for row in found["rows"])
    for page in ("report.md", "report.html"):
        assert "Optimized for latency" in (out / page).read_text(encoding="utf-8")
    assert call("quantize", sample / "model.onnx", "--table", out / "model.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (out / "model.int8.onnx").read_bytes()


@pytest.mark.parametrize("sure", [True, False])
def test_a_mix_is_kept_only_where_its_last_measurement_finds_it_surely_faster(calibrated, sure):
    last = [(200.0, 80.0, 70.0 if sure else 95.0)] * 8
    found = calibrated(search=(100.0, 90.0), last=last, slow=True)[1]["optimize"]
    assert bool(found["left"]) is sure
    assert ("given_up" in found) is not sure
    assert (found["plain_int8_us"], found["int8_us"]) == (80.0, 70.0 if sure else 80.0)
    assert {row["node"] for row in found["rows"] if row["decision"] == "float"} == set(found["left"])
    if not sure:
        assert found["given_up"]
        assert found["given_up_us"] == 95.0


@pytest.mark.parametrize(("fp32_us", "warned"), [(75.0, True), (79.5, False)])
def test_a_mix_that_may_be_slower_than_float_stays_and_is_warned_of(calibrated, fp32_us, warned):
    last = [(fp32_us, 80.0), (fp32_us, 80.0), (95.0, 80.0)] * 2
    report = calibrated(search=(90.0, 100.0), last=last)[1]
    assert report["optimize"]["left"] == {}
    assert report["fusion"]["integer"] > 0
    assert any("75.0 µs" in line for line in report["warnings"]) is warned


def test_without_the_option_nothing_is_measured_per_layer(sample_run):
    assert "optimize" not in json.loads((sample_run / "report.json").read_text(encoding="utf-8"))


def test_a_table_that_leaves_an_unknown_node_is_refused(call, sample, sample_run, tmp_path):
    path = tmp_path / "model.table.json"
    table = json.loads((sample_run / "model.table.json").read_text(encoding="utf-8"))
    for left, expected in (({"nobody": "slower"}, "nobody"), (["nobody"], "left_for_latency")):
        table["settings"]["left_for_latency"] = left
        path.write_text(json.dumps(table), encoding="utf-8")
        done = call("quantize", sample / "model.onnx", "--table", path, "-o", "q.onnx")
        assert done.code == 6
        assert expected in done.message


@pytest.fixture
def table_in_float(sample, sample_run, tmp_path):
    """Write a table that leaves every layer in float for one reason; takes the setting's name."""

    def write(key):
        path = tmp_path / f"{key}.table.json"
        table = json.loads((sample_run / "model.table.json").read_text(encoding="utf-8"))
        model = onnx.load(sample / "model.onnx")
        layers = [node.name for node in model.graph.node if node.op_type in {"Conv", "Gemm", "MatMul"}]
        table["settings"][key] = dict.fromkeys(layers, "slower")
        path.write_text(json.dumps(table), encoding="utf-8")
        return path

    return write


def test_a_table_that_leaves_no_layer_is_refused(call, sample, table_in_float):
    done = call("quantize", sample / "model.onnx", "--table", table_in_float("left_for_accuracy"), "-o", "q.onnx")
    assert done.code == 6
    assert "settings: leaves no layer in int8" in done.message


def test_a_table_that_leaves_no_layer_for_latency_gives_the_float_model(call, sample, table_in_float, tmp_path):
    model, table = sample / "model.onnx", table_in_float("left_for_latency")
    assert call("quantize", model, "--table", table, "-o", "q.onnx").code == 0
    built = onnx.load(tmp_path / "q.onnx")
    assert not {node.op_type for node in built.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    done = call("evaluate", model, "q.onnx", "--data", sample / "calib", "--gate", "agreement>=1.0")
    assert done.code == 0


@pytest.mark.parametrize("found", ["plain", "mix"])
def test_where_float_is_surely_faster_than_every_mix_the_model_stays_float(call, sample, calibrated, tmp_path, found):
    search = (100.0, 90.0 if found == "mix" else 110.0)
    out, report = calibrated(search=search, last=[(60.0, 80.0, 70.0)] * 8, slow=True)
    optimized = report["optimize"]
    assert (optimized["fp32_us"], optimized["plain_int8_us"], optimized["int8_us"]) == (60.0, 80.0, 60.0)
    assert {row["decision"] for row in optimized["rows"]} == {"float"}
    assert {row["node"] for row in optimized["rows"]} == set(optimized["left"])
    assert optimized.get("given_up_us") == (70.0 if found == "mix" else None)
    assert any("no int8 model faster" in line for line in report["warnings"])
    assert report["fusion"]["integer"] == 0
    assert "every layer stays in float" in (out / "report.md").read_text(encoding="utf-8")
    built = onnx.load(out / "model.int8.onnx")
    assert not {node.op_type for node in built.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    assert call("quantize", sample / "model.onnx", "--table", out / "model.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (out / "model.int8.onnx").read_bytes()
