"""`int8cal evaluate`."""

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from int8cal.job import DataSettings, EvaluationSettings, OutputSettings
from int8cal.preprocess import Preprocess

RESIZE = Preprocess(resize=8)
PAIR = ("evaluate", "f.onnx", "q.onnx", "--data", "v")


def judged(call):
    """The data that a call evaluates on."""
    return call.job.evaluation.data or call.job.data


def test_every_option_reaches_the_pipeline(here, pipeline):
    done = here(
        *PAIR,
        *("--labels", "l.csv", "--gate", "cosine>0.9", "--samples", "5", "--seed", "2", "--skip-bad"),
        *("--target", "x86-vnni"),
        *(
            "--runtime",
            "openvino",
            "--provider",
            "azure",
            "--provider",
            "CPU",
            "--threads",
            "3",
            "--no-latency",
            "--strict",
            "-o",
            "out",
            "--overwrite",
            "--quiet",
        ),
    )
    assert (done.code, done.out, done.err) == (0, "", "")
    (call,) = pipeline.calls
    assert call.command.startswith("int8cal evaluate f.onnx q.onnx --data v --labels l.csv --gate 'cosine>0.9' ")
    assert (call.job.model, call.int8, call.tell, call.warnings) == (Path("f.onnx"), Path("q.onnx"), None, ())
    assert judged(call) == DataSettings("v", samples=5, labels="l.csv", skip_bad=True, seed=2)
    assert call.job.output == OutputSettings(Path("out"), overwrite=True)
    assert (call.job.quantization.target, call.job.calibration.threads) == ("x86-vnni", 3)
    assert replace(call.job.evaluation, data=None) == EvaluationSettings(
        gates=("cosine>0.9",), runtimes=("openvino",), providers=("azure", "CPU"), latency=False, strict=True
    )


def test_without_output_nothing_is_written_and_the_summary_is_shown(here, pipeline):
    done = here(*PAIR)
    assert done.code == 0
    assert pipeline.calls[0].job.output.dir is None
    assert "31.5" in done.out
    assert done.out.splitlines()[-1] == "Report    not written; -o DIR writes it"


def test_preprocessing_labels_and_gates_come_from_the_yaml(here, pipeline, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: other.onnx\ndata: {path: d, preprocess: {resize: 8}}\n"
        "evaluation: {data: {path: w, samples: 7}, labels: folders, gates: ['cosine>0.5']}\n"
        "output: {dir: calibrated, overwrite: true}\n"
    )
    assert here(*PAIR, "--config", "job.yaml").code == 0
    (call,) = pipeline.calls
    assert judged(call) == DataSettings("v", samples=7, preprocess=Preprocess(resize=8), labels="folders")
    assert call.job.evaluation.gates == ("cosine>0.5",)
    assert (call.job.model, call.job.output) == (Path("f.onnx"), OutputSettings())


def test_no_labels_are_a_setting_like_others(here, pipeline, tmp_path):
    (tmp_path / "job.yaml").write_text("data: {path: d, labels: folders}\nevaluation: {labels: none}\n")
    assert here(*PAIR, "--labels", "none").code == 0
    assert here(*PAIR, "--config", "job.yaml").code == 0
    assert [judged(call).labels for call in pipeline.calls] == ["none", "none"]


@pytest.mark.parametrize("command", [PAIR, ("calibrate", "f.onnx")])
def test_gates_of_the_yaml_that_gates_of_the_command_line_replace_are_named(here, pipeline, tmp_path, command):
    text = "data: d\nevaluation: {gates: ['cosine>0.5', 'sqnr_db>=20', 'agreement>=99%']}\n"
    (tmp_path / "job.yaml").write_text(text)
    replaced = (*command, "--config", "job.yaml", "--gate", "sqnr_db>=20")
    told = "int8cal: --gate takes the place of all gates in job.yaml; not checked: cosine>0.5, agreement>=99%\n"
    for how in ((), ("--quiet",)):
        assert here(*replaced, *how).err.count(told) == 1
        assert pipeline.calls[-1].warnings == (told.removeprefix("int8cal: ").rstrip(),)
    assert "takes the place" not in here(*command, "--config", "job.yaml").err
    assert "takes the place" not in here(*replaced, "--gate", "cosine>0.5", "--gate", "agreement>=99%").err


def test_a_yaml_with_nothing_but_preprocessing_serves(here, pipeline, tmp_path):
    (tmp_path / "job.yaml").write_text("data: {preprocess: {crop: 4}}\n")
    assert here(*PAIR, "--config", "job.yaml").code == 0
    assert judged(pipeline.calls[0]).preprocess == Preprocess(crop=4)


def test_options_about_preprocessing_win_one_by_one_over_the_yaml(here, pipeline, tmp_path):
    text = "data: {preprocess: {crop: 4, mean: [1, 2, 3]}}\n"
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "own.yaml").write_text(text + "evaluation: {data: {path: w, preprocess: {resize: 9, std: [2]}}}\n")

    def used(*arguments):
        assert here(*arguments).code == 0
        return judged(pipeline.calls[-1]).preprocess

    given = ("--scale", "1/255", "--crop", "5x7")
    assert used(*PAIR, *given) == Preprocess(crop=(5, 7), scale=1 / 255)
    assert used(*PAIR, *given, "--config", "job.yaml") == Preprocess(crop=(5, 7), scale=1 / 255, mean=(1.0, 2.0, 3.0))
    assert used(*PAIR, *given, "--config", "own.yaml") == Preprocess(9, crop=(5, 7), scale=1 / 255, std=(2.0,))
    assert used(*PAIR[:3], "--preprocess", "tf", "--config", "own.yaml") == Preprocess(
        256, None, 224, "RGB", scale=2 / 255, mean=(1.0,)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evaluation: {data: {path: w, samples: 7}}\n", DataSettings("w", samples=7)),
        ("evaluation: {data: w}\ndata: {path: d, preprocess: {resize: 8}}\n", DataSettings("w", preprocess=RESIZE)),
        ("evaluation: {data: w}\ndata: {preprocess: {resize: 8}}\n", DataSettings("w", preprocess=RESIZE)),
        (
            "data: {path: d, samples: 5, preprocess: {resize: 8}}\nevaluation: {labels: folders}\n",
            DataSettings("d", samples=5, labels="folders", preprocess=RESIZE),
        ),
    ],
)
def test_without_data_that_of_the_yaml_is_used(here, pipeline, tmp_path, text, expected):
    (tmp_path / "job.yaml").write_text(text)
    assert here("evaluate", "f.onnx", "q.onnx", "--config", "job.yaml").code == 0
    assert judged(pipeline.calls[0]) == expected


@pytest.mark.parametrize("text", ["data: d\n", "evaluation: {data: d}\n"])
def test_options_of_the_data_go_with_the_data_of_the_yaml(here, pipeline, tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    options = ("--samples", "3", "--seed", "9", "--skip-bad", "--config", "job.yaml")
    assert here("evaluate", "f.onnx", "q.onnx", *options).code == 0
    assert judged(pipeline.calls[0]) == DataSettings("d", samples=3, seed=9, skip_bad=True)
    refused = here("evaluate", "f.onnx", "q.onnx", "--samples", "0", "--config", "job.yaml")
    assert (refused.code, "--samples" in refused.message) == (2, True)


@pytest.mark.parametrize("text", ["quiet: true\n", "data: {preprocess: {resize: 8}}\n"])
def test_a_yaml_without_data_is_named_and_told_what_to_add(here, pipeline, tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    done = here("evaluate", "f.onnx", "q.onnx", "--config", "job.yaml", "--samples", "3")
    assert (done.code, pipeline.calls) == (2, [])
    assert "job.yaml names no data" in done.message
    assert "give it, or evaluation.data (or data) in the YAML of --config" in done.message


def test_json_without_output_is_the_report_as_text(here):
    done = here(*PAIR, "--json")
    assert json.loads(done.out)["format"] == "int8cal/report"
    assert done.err == ""


def test_a_failed_gate_ends_with_7(here, pipeline, gated):
    pipeline.report = gated(("cosine>0.9999", 0.999, False))
    done = here(*PAIR)
    assert done.code == 7
    assert "1 of 1 failed: cosine>0.9999 (is 0.999)" in done.message


def test_a_model_agrees_with_itself(call, sample):
    model = sample / "model.onnx"
    done = call("evaluate", model, model, "--data", sample / "eval", "--samples", 10, "--no-latency", "--json")
    assert done.code == 0
    report = json.loads(done.out)
    assert report["metrics"]["agreement"] == 1.0
    assert report["metrics"]["max_abs_error"] == 0.0


def test_a_second_model_without_an_int8_layer_is_doubted(call, sample):
    model = sample / "model.onnx"
    done = call("evaluate", model, model, "--data", sample / "eval", "--samples", 10, "--no-latency")
    assert done.code == 0
    assert "the second model holds no int8 layer; no accuracy gates set" in done.out.splitlines()[0]


def test_the_sample_pair_passes_its_gate_and_writes_reports(call, sample, sample_run, tmp_path):
    done = call(
        *("evaluate", sample / "model.onnx", sample_run / "model.int8.onnx", "--data", sample / "eval"),
        *("--labels", "folders", "--gate", "top1.drop<=1.0", "--no-latency", "-o", "out"),
    )
    assert done.code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json", "report.md"]


def test_a_missing_model_ends_with_3_and_missing_data_with_4(call, sample):
    model = sample / "model.onnx"
    assert call("evaluate", model, "missing.onnx", "--data", sample / "eval").code == 3
    assert call("evaluate", model, model, "--data", "missing").code == 4


def test_models_in_each_others_place_are_refused(call, sample, sample_run):
    done = call("evaluate", sample_run / "model.int8.onnx", sample / "model.onnx", "--data", sample / "eval")
    assert done.code == 3
    assert "model.int8.onnx: is quantized, and the model that it is compared with is not" in done.message


def test_a_gate_that_needs_labels_is_refused_before_any_work_where_there_are_none(call, sample, tmp_path):
    images = tmp_path / "flat"
    images.mkdir()
    for number, image in enumerate(sorted((sample / "calib/0").iterdir())[:2]):
        (images / f"{number}.png").write_bytes(image.read_bytes())
    gated = ("--data", "flat", "--gate", "top1.drop<=1")
    calibrated = call("calibrate", sample / "model.onnx", *gated, "-o", "out")
    evaluated = call("evaluate", sample / "model.onnx", sample / "model.onnx", *gated)
    (tmp_path / "g.yaml").write_text(
        f"model: {sample / 'model.onnx'}\ndata: flat\nevaluation: {{gates: ['top1.drop<=1']}}\n"
    )
    dry = call("run", "g.yaml", "--dry-run")
    for done in (calibrated, evaluated, dry):
        assert done.code == 4
        assert "flat: has no labels, without which there is no top-1 and no top-5" in done.err
        assert "--labels FILE" in done.err
    assert not (tmp_path / "out").exists()


def test_a_report_tells_of_gates_that_others_took_the_place_of(call, sample, sample_run, tmp_path):
    gates = "evaluation: {gates: ['top1.drop<=1.0', 'sqnr_db>=20']}\n"
    (tmp_path / "job.yaml").write_text(f"data: {json.dumps(str(sample / 'eval'))}\n{gates}")
    given = ("--config", "job.yaml", "--gate", "sqnr_db>=20", "--no-latency", "--quiet", "-o", "out")
    assert call("evaluate", sample / "model.onnx", sample_run / "model.int8.onnx", *given).code == 0
    told = "--gate takes the place of all gates in job.yaml; not checked: top1.drop<=1.0"
    assert told in json.loads((tmp_path / "out" / "report.json").read_text())["warnings"]
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert told in page


@pytest.mark.parametrize(("inputs", "told"), [("float[0,4] x", "input 'x' has shape (0, 4)"), ("", "has no inputs")])
def test_a_model_that_takes_no_sample_is_named(call, tmp_path, inputs, told):
    body = "y = Relu(x)" if inputs else "y = Constant<value = float[2] {1, 2}>()"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[a,b] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "none.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    done = call("evaluate", "none.onnx", "none.onnx", "--data", "x.npy")
    assert done.code == 3
    assert done.message.startswith(f"int8cal: model: none.onnx: {told}")
