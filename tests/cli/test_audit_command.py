"""`int8cal audit`."""

import json

import numpy as np
import onnx
import pytest
from quantized_models import SAFE, UNSAFE, conv_codes, feed_of, float_model, qdq


@pytest.fixture
def write(tmp_path):
    def write(model, name="net.onnx"):
        onnx.save(model, tmp_path / name)
        return name

    return write


@pytest.fixture
def data(tmp_path):
    def data(model, count=3):
        np.savez(tmp_path / "data.npz", x=np.concatenate([feed_of(model, seed)["x"] for seed in range(count)]))
        return "data.npz"

    return data


def test_an_unsafe_model_is_shown_layer_by_layer_with_what_to_do(call, write):
    done = call("audit", write(UNSAFE["conv per channel"]()))
    assert (done.code, done.err) == (0, "")
    assert "Conv_y_f (Conv)" in done.out
    assert "4 of 4 channels can saturate, in 1 of 1 integer layer;" in done.out
    verdict = done.out.splitlines()[-1]
    assert "UNSAFE" in verdict
    assert "--fix -o OUT.onnx" in verdict


def test_a_safe_model_is_said_to_be_safe(call, write):
    done = call("audit", write(SAFE["small codes"]()), "--gate", "unsafe_channels<=0")
    assert done.code == 0
    assert "pass  unsafe_channels<=0" in done.out
    assert done.out.splitlines()[-1].endswith("safe whatever the activations")


@pytest.mark.parametrize(
    "name", ["QLinearConv", "matmul per tensor", "conv, odd channels", "conv, groups", "MatMulInteger"]
)
def test_json_is_one_object_and_nothing_else(call, write, name):
    done = call("audit", write(UNSAFE[name]()), "--json")
    assert done.err == ""
    found = json.loads(done.out)
    assert list(found) == [
        "format", "version", "model", "target", "layers", "totals", "fusion", "fusion_reason", "on_data", "fixed", "gates",
    ]  # fmt: skip
    assert (found["format"], found["version"], found["target"]) == ("int8cal/audit", 1, "portable")
    (layer,) = found["layers"]
    assert layer["verdict"] == "unsafe"
    assert layer["unsafe_channels"] == found["totals"]["unsafe_channels"] > 0
    assert layer["unsafe_pairs"] == found["totals"]["unsafe_pairs"]
    assert 128 < layer["worst_sum"] <= 256
    assert 0 < layer["accumulator"] < 0.01
    assert found["fusion"]["integer"] >= 1


def test_a_target_that_sums_exactly_is_safe(call, write):
    done = call("audit", write(UNSAFE["gemm"]()), "--target", "x86-vnni", "--gate", "unsafe_channels<=0")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("safe: x86-vnni sums products exactly")


def test_depthwise_layers_and_products_of_activations_are_told(call, write):
    assert "depthwise" in call("audit", write(SAFE["depthwise"]())).out
    assert "depends on the data" in call("audit", write(SAFE["products"]())).out


@pytest.mark.parametrize(
    "gate", ["unsafe_channels<=0", "saturation.unsafe_channels<=0", "unsafe_pairs < 1", "worst_sum<=128"]
)
def test_a_gate_that_fails_is_exit_code_7(call, write, gate):
    done = call("audit", write(UNSAFE["conv per channel"]()), "--gate", gate, "--gate", "layers>=1", "--quiet")
    assert (done.code, done.out) == (7, "")
    assert done.message.startswith(f"int8cal: gate: 1 of 2 failed: {gate} (is ")


@pytest.mark.parametrize(
    ("gate", "hint"),
    [
        ("unsafe_chanels<=0", 'did you mean "unsafe_channels"?'),
        ("unsafe_channels", "unsafe_channels<=0"),
        ("unsafe_channels<=none", "without a unit"),
        ("saturated_on_data<=0", "give --data"),
    ],
)
def test_gates_that_mean_nothing_are_refused_before_any_work(call, gate, hint):
    done = call("audit", "missing.onnx", "--gate", gate)
    assert done.code == 2
    assert hint in done.message


def test_on_data_sums_are_counted(call, write, data):
    model = UNSAFE["conv per channel"]()
    name, samples = write(model), data(model)
    done = call("audit", name, "--data", samples, "--json", "--gate", "saturated_on_data<=0")
    assert done.code == 7
    found = json.loads(done.out)
    assert found["on_data"]["samples"] == 3
    runtimes = found["layers"][0]["on_data"]["runtimes"]
    assert set(runtimes) == {"onnxruntime", "onednn"}
    assert found["on_data"]["saturated"] == max(each["saturated"] for each in runtimes.values()) > 0
    assert found["gates"] == [{"gate": "saturated_on_data<=0", "value": found["on_data"]["saturated"], "passed": False}]
    shown = call("audit", name, "--data", samples, "--samples", "2")
    assert "over 2 samples" in shown.out
    assert "steps" in shown.out


def test_a_safe_model_saturates_on_no_data(call, write, data):
    model = SAFE["small codes"]()
    done = call("audit", write(model), "--data", data(model), "--gate", "saturated_on_data<=0")
    assert done.code == 0
    assert "0 pair sums saturated" in done.out


@pytest.mark.parametrize("name", ["conv per channel", "conv per tensor", "QLinearConv", "gemm behind Transpose"])
def test_fix_writes_a_model_that_audits_clean(call, write, tmp_path, name):
    path = write(UNSAFE[name]())
    done = call("audit", path, "--fix", "-o", "fixed.onnx", "--gate", "unsafe_channels<=0")
    assert (done.code, done.err) == (0, "")
    assert "wrote fixed.onnx" in done.out
    assert "new scales and codes, weights kept to" in done.out
    onnx.checker.check_model(onnx.load(tmp_path / "fixed.onnx"), full_check=True)
    again = call("audit", "fixed.onnx", "--gate", "unsafe_channels<=0", "--json")
    assert again.code == 0
    assert json.loads(again.out)["totals"]["unsafe_channels"] == 0


def test_with_fix_gates_judge_the_fixed_model_and_totals_stay_those_of_the_audited_one(call, write, data):
    model = UNSAFE["conv per channel"]()
    gates = ("--gate", "saturated_on_data<=0", "--gate", "unsafe_channels<=0")
    done = call("audit", write(model), "--data", data(model), "--fix", "-o", "fixed.onnx", "--json", *gates)
    assert done.code == 0
    found = json.loads(done.out)
    assert found["totals"]["saturated_on_data"] == found["on_data"]["saturated"] > 0
    assert found["totals"]["unsafe_channels"] == found["layers"][0]["unsafe_channels"] > 0
    assert found["fixed"]["totals"]["saturated_on_data"] == found["fixed"]["totals"]["unsafe_channels"] == 0
    assert [gate["value"] for gate in found["gates"]] == [0, 0]


def test_a_failed_gate_does_not_advise_the_repair_that_was_just_made(call, write):
    path = write(UNSAFE["gemm"]())
    done = call("audit", path, "--fix", "-o", "fixed.onnx", "--gate", "layers<=0", "--quiet")
    assert done.code == 7
    assert "--fix" not in done.message
    assert "--fix" in call("audit", path, "--gate", "unsafe_channels<=0", "--quiet").message


def test_an_empty_output_is_refused_not_taken_for_none(call, write):
    done = call("audit", write(UNSAFE["gemm"]()), "--fix", "-o", "")
    assert (done.code, done.out) == (2, "")


def test_unreadable_files_are_left_out_and_counted_where_asked(call, write, data, tmp_path):
    model = UNSAFE["conv per channel"]()
    path = write(model)
    (tmp_path / "samples").mkdir()
    (tmp_path / data(model)).rename(tmp_path / "samples" / "good.npz")
    (tmp_path / "samples" / "torn.npz").write_bytes(b"PK")
    done = call("audit", path, "--data", "samples")
    assert done.code == 4
    assert "--skip-bad" in done.message
    done = call("audit", path, "--data", "samples", "--skip-bad", "--json")
    assert done.code == 0
    assert (json.loads(done.out)["on_data"]["samples"], json.loads(done.out)["on_data"]["skipped"]) == (3, 1)


def test_fix_says_in_json_what_it_changed(call, write):
    done = call("audit", write(UNSAFE["conv per channel"]()), "--fix", "-o", "fixed.onnx", "--json")
    assert done.err == "int8cal: wrote fixed.onnx\n"
    fixed = json.loads(done.out)["fixed"]
    assert (fixed["path"], fixed["unsafe_channels"]) == ("fixed.onnx", 0)
    assert fixed["layers"][0]["channels"] == 4
    assert fixed["layers"][0]["sqnr_db"] > 35


def test_fix_never_writes_over_a_file(call, write, tmp_path):
    path = write(UNSAFE["gemm"]())
    (tmp_path / "there.onnx").write_bytes(b"mine")
    done = call("audit", path, "--fix", "-o", "there.onnx")
    assert done.code == 2
    assert "--overwrite" in done.message
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"
    assert call("audit", path, "--fix", "-o", path, "--overwrite").code == 2
    assert call("audit", path, "--fix", "-o", "there.onnx", "--overwrite").code == 0


@pytest.mark.parametrize(
    "options",
    [["--fix"], ["-o", "out.onnx"], ["--samples", "3"], ["--config", "job.yaml"], ["--skip-bad"], ["--threads", "2"]],
)
def test_options_that_need_another_are_usage_errors(call, write, options):
    done = call("audit", write(UNSAFE["gemm"]()), *options)
    assert done.code == 2
    assert "need" in done.message


def test_a_float_model_is_nothing_to_audit(call, write):
    done = call("audit", write(float_model()), "--gate", "unsafe_channels<=0")
    assert done.code == 3
    assert "is a float model" in done.message
    assert "give the int8 model" in done.message


@pytest.mark.parametrize("content", [b"", b"not a model at all", None])
def test_a_broken_or_missing_file_is_exit_code_3(call, tmp_path, content):
    if content is not None:
        (tmp_path / "broken.onnx").write_bytes(content)
    done = call("audit", "broken.onnx")
    assert done.code == 3
    assert "broken.onnx" in done.message


def test_data_that_does_not_fit_is_exit_code_4(call, write, tmp_path):
    np.savez(tmp_path / "bad.npz", x=np.zeros((2, 7, 8, 8), np.float32))
    assert call("audit", write(UNSAFE["conv per channel"]()), "--data", "bad.npz").code == 4
    assert call("audit", write(UNSAFE["conv per channel"]()), "--data", "nowhere").code == 4


def test_what_the_audit_says_does_not_depend_on_who_asks_twice(call, write):
    path = write(qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0))
    first, second = (call("audit", path, "--json").out for _ in range(2))
    assert first == second
