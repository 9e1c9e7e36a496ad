"""`--runtime`: the int8 model in OpenVINO beside onnxruntime."""

import json
from pathlib import Path

import pytest

from int8cal.extras import extra_hint

SAMPLE = Path(__file__).parents[2] / "sample_data"


@pytest.fixture
def without_openvino(tmp_path_factory):
    """A folder for PYTHONPATH that makes openvino look as if it were not installed."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['openvino'] = None\n")
    return str(folder)


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_a_missing_package_is_one_message_before_any_work(call, without_openvino, tmp_path, command):
    models = {"evaluate": (SAMPLE / "model.onnx", "no.onnx"), "calibrate": (SAMPLE / "model.onnx",)}[command]
    import int8cal

    path = f"{without_openvino}:{Path(int8cal.__file__).parents[1]}"
    arguments = (command, *models, "--data", SAMPLE / "calib", "-o", "out", "--runtime", "openvino")
    done = call(*arguments, PYTHONPATH=path)
    assert done.code == 2
    assert done.message.endswith(f"runtime openvino is not installed; {extra_hint('openvino')}")
    assert not (tmp_path / "out").exists()


def test_an_unknown_runtime_is_refused_with_those_there_are(call):
    done = call("evaluate", "a.onnx", "b.onnx", "--data", "d", "--runtime", "tensorrt")
    assert done.code == 2
    assert "onnxruntime" in done.err
    assert "openvino" in done.err


@pytest.mark.slow
def test_the_sample_agrees_in_both_runtimes(call, tmp_path):
    pytest.importorskip("openvino")
    model = SAMPLE / "model.onnx"
    command = ("calibrate", model, "--data", SAMPLE / "calib", "-o", "out", "--eval-data", SAMPLE / "eval", "--quiet")
    done = call(*command, "--runtime", "openvino", "--runtime", "onnxruntime", "--json", "--no-latency")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    first, second = report["runtimes"]["onnxruntime"], report["runtimes"]["openvino"]
    assert second["metrics"]["sqnr_db"] > first["metrics"]["sqnr_db"] - 1
    assert second["against_onnxruntime"]["sqnr_db"] > first["metrics"]["sqnr_db"]
    assert second["against_onnxruntime"]["agreement"] >= 0.99
    assert second["kernels"]["integer"] > second["kernels"]["float"]
    assert report["settings"]["versions"]["openvino"]
    shown = call("inspect", tmp_path / "out" / "report.json")
    assert "OpenVINO" in shown.out


@pytest.mark.slow
def test_the_sample_is_timed_in_openvino_unasked_unless_onnxruntime_is_named(call, without_openvino):
    pytest.importorskip("openvino")
    import int8cal

    model = SAMPLE / "model.onnx"
    command = ("evaluate", model, model, "--data", SAMPLE / "eval", "--samples", "5", "--json")
    found = {}
    for name, options, path in (
        ("default", (), ""),
        ("alone", ("--runtime", "onnxruntime"), ""),
        ("without", (), without_openvino),
    ):
        done = call(*command, *options, PYTHONPATH=f"{path}:{Path(int8cal.__file__).parents[1]}")
        assert done.code == 0, done.err
        found[name] = json.loads(done.out)
    assert list(found["default"]["latencies_ms"]) == ["onnxruntime", "openvino"]
    assert found["default"]["fastest"]["gain"] >= 1
    assert "openvino" in found["default"]["origin"]["machine"]["runtimes"]
    for each in found.values():
        assert "openvino" not in each["settings"]["versions"]
    for name in ("alone", "without"):
        assert {"latencies_ms", "fastest", "runtimes"}.isdisjoint(found[name])
        assert list(found[name]["origin"]["machine"]["runtimes"]) == ["onnxruntime"]


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_a_provider_that_is_not_there_is_refused_with_those_that_are(call, tmp_path, command):
    models = {"evaluate": (SAMPLE / "model.onnx", "no.onnx"), "calibrate": (SAMPLE / "model.onnx",)}[command]
    done = call(command, *models, "--data", SAMPLE / "calib", "-o", "out", "--provider", "npu")
    assert done.code == 2
    assert "provider 'npu'" in done.message
    assert "cpu (CPUExecutionProvider)" in done.message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_providers_come_from_the_yaml_too_and_are_in_the_report(call, tmp_path):
    from int8cal.runtime.machine import providers

    if "AzureExecutionProvider" not in providers():
        pytest.skip("no provider beside CPU")
    (tmp_path / "job.yaml").write_text("evaluation: {providers: [azure, cpu]}\n")
    model = SAMPLE / "model.onnx"
    done = call("evaluate", model, model, "--data", SAMPLE / "eval", "--config", "job.yaml", "--json", "--samples", "5")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["settings"]["evaluation"]["providers"] == ["AzureExecutionProvider", "CPUExecutionProvider"]
    assert report["fusion"] is None
    assert "only the CPU provider" in report["reasons"]["fusion"]
    done = call("evaluate", model, model, "--data", SAMPLE / "eval", "--config", "job.yaml", "--provider", "azure")
    assert done.code == 2
    assert "add --provider cpu" in done.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "said"), [("openvino", "--runtime openvino measures there"), ("tensorrt", "on this CPU")]
)
def test_a_target_of_another_runtime_is_said_to_be_one(call, tmp_path, target, said):
    model, data = SAMPLE / "model.onnx", SAMPLE / "calib"
    out, again = tmp_path / "out", tmp_path / "again.onnx"
    done = call("calibrate", model, "--data", data, "-o", out, "--target", target, "--no-latency", "--samples", "60")
    assert done.code == 0, done.err
    assert f"target {target}: latency and fusion are those of onnxruntime" in done.out
    assert said in done.out
    done = call("quantize", model, "--table", out / "model.table.json", "-o", again)
    assert done.code == 0, done.err
    assert again.read_bytes() == (out / "model.int8.onnx").read_bytes()


def test_tensorrt_refuses_u8(call):
    done = call("calibrate", SAMPLE / "model.onnx", "--data", SAMPLE, "--target", "tensorrt", "--activations", "u8")
    assert done.code == 2
    assert "target tensorrt takes activations s8, not u8" in done.message
