"""`int8cal calibrate`."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import photo_classifier

import int8cal
from int8cal.cli.main import main
from int8cal.errors import UsageError
from int8cal.job import CalibrationSettings, DataSettings, EvaluationSettings, OutputSettings, QuantizationSettings
from int8cal.preprocess import Preprocess

FILES = ["model.int8.onnx", "model.stats.npz", "model.table.json", "report.html", "report.json", "report.md"]


def test_every_option_reaches_its_setting(here, pipeline):
    done = here(
        *("calibrate", "m.onnx", "--data", "d", "-o", "out", "--method", "percentile", "--percentile", "99.5"),
        *("--recipe", "fast", "--target", "x86-avx2", "--activations", "s8", "--weights", "s7"),
        *("--exclude", "/head/*", "--exclude", "op:Softmax", "--include", "op:Conv", "--samples", "8"),
        *("--batch-size", "4", "--threads", "2", "--labels", "l.csv", "--gate", "top1.drop<=1", "--gate", "cosine>0.9"),
        *("--engine", "local", "--seed", "3", "--overwrite", "--quiet", "--skip-bad", "--eval-data", "v"),
        "--no-latency",
    )
    assert (done.code, done.out, done.err) == (0, "", "")
    (call,) = pipeline.calls
    job = call.job
    assert str(job.model) == "m.onnx"
    assert job.data == DataSettings("d", samples=8, skip_bad=True, seed=3)
    assert job.calibration == CalibrationSettings("percentile", 99.5, 4, 2, engine="local")
    assert job.quantization == QuantizationSettings(
        "fast", "x86-avx2", "s8", "s7", exclude=("/head/*", "op:Softmax"), include=("op:Conv",)
    )
    assert job.evaluation == EvaluationSettings(
        DataSettings("v", labels="l.csv", skip_bad=True, seed=3), gates=("top1.drop<=1", "cosine>0.9"), latency=False
    )
    assert (str(job.output.dir), job.output.overwrite, job.quiet) == ("out", True, True)


def test_preprocessing_on_the_command_line_is_that_of_the_yaml(here, pipeline):
    given = ("--resize", "256x320", "--crop", "224", "--color", "BGR", "--layout", "NHWC", "--scale", "1/255")
    assert here("calibrate", "m.onnx", "--data", "d", *given, "--mean", "0.485, 1/2,-1e-2", "--std", "0.5").code == 0
    assert pipeline.calls[0].job.data.preprocess == Preprocess(
        resize=(256, 320),
        crop=224,
        color="BGR",
        layout="NHWC",
        scale=0.00392156862745098,
        mean=(0.485, 0.5, -0.01),
        std=(0.5,),
    )
    assert (
        here("calibrate", "m.onnx", "--data", "d", "--preprocess", "clip", "--resize", "336", "--crop", "336").code == 0
    )
    large = pipeline.calls[1].job.data.preprocess
    assert (large.resize, large.crop, large.std) == (336, 336, (0.26862954, 0.26130258, 0.27577711))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--preprocess", "imagnet", "'imagnet' is not one of 'imagenet', 'clip'"),
        ("--resize", "12x", '"12x" is no size: give pixels, such as 256, or HEIGHTxWIDTH, such as 256x320'),
        ("--resize", "0", "--resize: expected a number of pixels"),
        ("--scale", "1/0", '"1/0" is no number: give for example 1/255'),
        ("--scale", "0", "--scale: expected a number other than 0"),
        ("--mean", "1,a", '"a" is no number: give for example 0.485,0.456,0.406'),
        ("--std", "1,0,1", "--std: expected a number other than 0"),
    ],
)
def test_wrong_preprocessing_on_the_command_line_is_refused(here, option, value, message):
    done = here("calibrate", "m.onnx", "--data", "d", option, value)
    assert done.code == 2
    assert message in done.message


def test_settings_that_contradict_each_other_are_told_without_a_name_in_front(here):
    done = here("calibrate", "m.onnx", "--data", "d", "--budget", "10")
    assert done.code == 2
    assert done.message.startswith("int8cal: usage: a budget is spent until the gates hold, but there is no gate; give")


def test_what_is_not_given_keeps_its_default(here, pipeline):
    assert here("calibrate", "m.onnx", "--data", "d").code == 0
    job = pipeline.calls[0].job
    assert job.data == DataSettings("d")
    assert (job.calibration, job.quantization) == (CalibrationSettings(), QuantizationSettings())
    assert (job.evaluation, job.output, job.quiet) == (EvaluationSettings(), OutputSettings(), False)


def test_options_win_over_the_yaml(here, pipeline, tmp_path):
    (tmp_path / "job.yaml").write_text("model: m.onnx\ndata: d\ncalibration: {method: kl, percentile: 99}\n")
    assert here("calibrate", "--config", "job.yaml", "--method", "mse").code == 0
    job = pipeline.calls[0].job
    assert (str(job.model), job.calibration.method, job.calibration.percentile) == ("m.onnx", "mse", 99)


def test_the_summary_says_where_the_results_are(here, pipeline):
    done = here("calibrate", "m.onnx", "--data", "d")
    assert done.err == ""
    assert "31.5" in done.out
    assert done.out.splitlines()[-1] == f"Report    {pipeline.folder / 'results' / 'report.html'}"
    assert len(done.out.splitlines()) <= 8


def test_json_is_the_only_thing_on_stdout(here, pipeline):
    done = here("calibrate", "m.onnx", "--data", "d", "--json")
    assert done.out == '{"format": "int8cal/report"}\n'
    assert done.message == f"results are in {pipeline.folder / 'results'}"
    assert here("calibrate", "m.onnx", "--data", "d", "--json", "--quiet").err == ""


def test_a_failed_gate_ends_with_7_after_the_summary(here, pipeline, gated):
    pipeline.report = gated(("top1.drop<=0.5", 1.0, False), ("cosine>0.9", 0.999, True), ("top5.drop<=1", None, False))
    done = here("calibrate", "m.onnx", "--data", "d")
    assert done.code == 7
    assert done.out.splitlines()[-1].endswith("report.html")
    assert done.message.startswith(
        "int8cal: gate: 2 of 3 failed: top1.drop<=0.5 (is 1), "
        "top5.drop<=1 (not computed: the model has 4 classes); the results are kept"
    )


def test_a_failed_saturation_gate_says_what_helps_there(here, pipeline, gated):
    pipeline.report = gated(("saturation.unsafe_channels<=0", 3.0, False))
    done = here("calibrate", "m.onnx", "--data", "d")
    assert done.code == 7
    assert "--target portable" in done.message
    assert "--method" not in done.message


def test_gates_that_hold_end_with_0(here, pipeline, gated):
    pipeline.report = gated(("top1.drop<=1.5", 1.0, True))
    assert here("calibrate", "m.onnx", "--data", "d").code == 0


def test_an_engine_that_is_not_installed_ends_with_2_and_says_what_to_install(here, pipeline, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = here("calibrate", "m.onnx", "--data", "d", "--engine", "ray")
    assert (done.code, pipeline.calls) == (2, [])
    assert "usage: engine ray needs ray, which is not installed; pip install" in done.message
    assert len(done.message.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "d"], "missing argument 'MODEL'"),
        (["m.onnx"], "missing option '--data'"),
        (["m.onnx", "--data", "d", "--percentile", "0"], "config: --percentile: expected a number of at least 50"),
        (["m.onnx", "--data", "d", "--samples", "0"], "config: --samples: expected a number of at least 1"),
        (["m.onnx", "--data", "d", "--gate", "top1"], 'config: --gate: gate "top1" is not of the form NAME<=VALUE'),
        (["m.onnx", "--data", "d", "--config", "missing.yaml"], "config: missing.yaml: cannot be read"),
    ],
)
def test_options_that_cannot_be_meant_end_with_2_before_any_work(here, pipeline, arguments, message):
    done = here("calibrate", *arguments)
    assert (done.code, pipeline.calls) == (2, [])
    assert message in done.message


@pytest.fixture
def bad_input(sample, tmp_path):
    """Give the sample's model and data, one of them replaced by something unusable."""
    (tmp_path / "broken.onnx").write_bytes(b"this is no model")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "readme.txt").write_text("no images here")

    def bad_input(model: str = "", data: str = ""):
        return model or sample / "model.onnx", data or sample / "calib"

    return bad_input


# From here on the real pipeline runs, in processes of their own.


def test_the_sample_job_writes_all_files_and_nothing_else(sample_run):
    assert sorted(path.name for path in sample_run.iterdir()) == FILES
    assert [path.name for path in sample_run.parent.iterdir()] == ["out"]


def test_the_sample_model_loses_at_most_one_point(sample_run):
    report = json.loads((sample_run / "report.json").read_text())
    assert (report["format"], report["version"]) == ("int8cal/report", 1)
    assert report["metrics"]["top1"]["drop"] <= 1.0
    assert report["latency_ms"] is None


def test_json_of_a_real_run_is_the_report_file(call, sample, tmp_path):
    done = call(
        "calibrate", sample / "model.onnx", "--data", sample / "calib", "--samples", 8, "--no-latency", "--json"
    )
    assert done.code == 0
    assert done.out == (tmp_path / "model-int8" / "report.json").read_text(encoding="utf-8")


def test_a_failed_gate_of_a_real_run_leaves_all_files(call, sample, tmp_path):
    done = call(
        *("calibrate", sample / "model.onnx", "--data", sample / "calib", "--samples", 8, "--no-latency"),
        *("-o", "out", "--gate", "sqnr_db>=300"),
    )
    assert done.code == 7
    assert "sqnr_db>=300 (is " in done.message
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES


@pytest.mark.parametrize("name", ["missing.onnx", "broken.onnx"])
def test_an_unusable_model_ends_with_3(call, bad_input, name):
    model, data = bad_input(model=name)
    done = call("calibrate", model, "--data", data, "-o", "out")
    assert done.code == 3
    assert done.message.startswith("int8cal: model: ")
    assert name in done.message


@pytest.mark.parametrize("name", ["missing", "nothing"])
def test_unusable_data_ends_with_4(call, bad_input, name):
    model, data = bad_input(data=name)
    done = call("calibrate", model, "--data", data, "-o", "out")
    assert done.code == 4
    assert done.message.startswith("int8cal: data: ")
    assert name in done.message


def test_bad_input_leaves_nothing_behind(call, bad_input, tmp_path):
    model, data = bad_input(data="nothing")
    before = sorted(tmp_path.rglob("*"))
    assert call("calibrate", model, "--data", data, "-o", "out").code == 4
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_directory_that_exists_is_refused_without_overwrite(call, sample, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    done = call("calibrate", sample / "model.onnx", "--data", sample / "calib", "-o", "out", "--samples", 2)
    assert done.code == 2
    assert "--overwrite" in done.message
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_pattern_that_matches_nothing_ends_with_2(call, sample):
    done = call("calibrate", sample / "model.onnx", "--data", sample / "calib", "--exclude", "/nowhere/*")
    assert done.code == 2
    assert done.message.startswith("int8cal: usage: --exclude: pattern '/nowhere/*' matches no node")


def test_a_pattern_that_matches_nothing_is_told_from_where_it_was_given(tmp_path, monkeypatch, capsys, sample):
    monkeypatch.chdir(tmp_path)
    job = (
        f"model: {sample}/model.onnx\ndata: {{path: {sample}/calib, samples: 2}}\nquantization:\n  exclude: ['/no/*']\n"
    )
    Path("job.yaml").write_text(job)
    told = "usage: job.yaml:4:12: quantization.exclude: pattern '/no/*' matches no node"
    for arguments in (["calibrate", "--config", "job.yaml"], ["run", "job.yaml"], ["run", "job.yaml", "--dry-run"]):
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
    assert main(["calibrate", "--config", "job.yaml", "--exclude", "op:Nothing"]) == 2
    assert "usage: --exclude: pattern 'op:Nothing'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="usage: include: pattern"):
        int8cal.calibrate(sample / "model.onnx", sample / "calib", samples=2, include=["op:Nothing"])


def test_what_differs_between_two_runs_stands_under_one_key_beside_durations(call, sample, tmp_path):
    job = ("calibrate", sample / "model.onnx", "--data", sample / "calib", "--samples", 8, "--no-latency", "-q")
    reports = []
    for name, date in (("one", "0"), ("two", "86400")):
        assert call(*job, "-o", name, SOURCE_DATE_EPOCH=date).code == 0
        reports.append(json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8")))
    origins = [report.pop("origin") for report in reports]
    assert [origin["date"] for origin in origins] == ["1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"]
    assert origins[0]["command"].startswith(f"int8cal calibrate {sample / 'model.onnx'} --data ")
    assert origins[0]["machine"] == origins[1]["machine"]
    for report in reports:
        del report["timing_s"]
    assert reports[0] == reports[1]
    for end in ("int8.onnx", "table.json", "stats.npz"):
        assert (tmp_path / "one" / f"model.{end}").read_bytes() == (tmp_path / "two" / f"model.{end}").read_bytes()


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        (["agreement>=99"], 'write "agreement>=0.99" or "agreement>=99%"'),
        (["top1.drop<=1", "top1.drop>=2"], "no value passes both"),
        (["top5.drop<=1"], "only 3 classes"),
    ],
)
def test_a_gate_that_can_never_hold_ends_before_any_work(call, tmp_path, gates, told):
    onnx.save(photo_classifier(), tmp_path / "net.onnx")
    options = [word for gate in gates for word in ("--gate", gate)]
    done = call("calibrate", "net.onnx", "--data", "nowhere", *options)
    assert done.code == 2
    assert told in done.message
    assert not (tmp_path / "net-int8").exists()


def test_layers_that_share_a_weight_share_its_codes(call, tmp_path):
    rng = np.random.default_rng(0)
    layer = "m{0} = MatMul (r{0}, W) s{0} = Mul (m{0}, S{0}) r{1} = Relu (s{0}) "
    body = "".join(layer.format(at, at + 1) for at in range(6))
    net = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N,64] x) => (float[N,64] y) '
        f"{{ r0 = Identity (x) {body} y = Identity (r6) }}"
    )
    values = {"W": rng.normal(0, 0.15, (64, 64))} | {f"S{at}": rng.uniform(1, 2, 64) for at in range(6)}
    net.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items())
    onnx.save(net, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(16, 64)).astype(np.float32))
    done = call("calibrate", "net.onnx", "--data", "data.npz", "-o", "out", "--no-latency")
    assert done.code == 0, done.err
    model = onnx.load(tmp_path / "out/net.int8.onnx")
    assert sum(list(each.dims) == [64, 64] for each in model.graph.initializer) == 1
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()


@pytest.mark.parametrize(
    ("length", "more"), [(242, ()), (242, ("--resume",)), (242, ("--shard", "1/2")), (249, ("-o", "out"))]
)
def test_names_that_the_results_cannot_have_are_told_before_any_work(call, tmp_path, length, more):
    """Each of them is the model's with an ending; that of the checkpoint is the directory's with one."""
    path = tmp_path / f"{'m' * length}.onnx"
    onnx.save(photo_classifier(), path)
    np.save(tmp_path / "data.npy", np.ones((2, 3, 224, 224), np.float32))
    done = call("calibrate", path.name, "--data", "data.npy", "--no-latency", "-q", *more)
    assert done.code == 2
    assert "is longer than 255 bytes; give a shorter name" in done.message
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.npy", path.name]
