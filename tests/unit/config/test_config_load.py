"""Layers: command line beats YAML beats defaults, and paths keep their meaning."""

from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pytest

from int8cal.config.layers import layered, nest
from int8cal.config.load import job_from_options, load_jobs, require_available
from int8cal.errors import ConfigError, UsageError
from int8cal.job import CalibrationSettings, DataSettings, Job
from int8cal.preprocess import SETS, Preprocess

YAML = "model: m.onnx\ndata: {path: photos, samples: 9}\ncalibration: {method: kl, percentile: 99}\n"


def test_command_line_beats_yaml_beats_defaults(folder):
    (folder / "job.yaml").write_text(YAML)
    job = job_from_options({"calibration.method": "max", "data.path": "other"}, Path("job.yaml"))
    assert job.calibration.method == "max"
    assert job.calibration.percentile == 99
    assert job.calibration.batch_size == 8
    assert (job.data.path, job.data.samples) == ("other", 9)


def test_overrides_win_in_every_job_of_a_batch(load):
    jobs = load(
        "defaults: {data: d}\njobs:\n- {model: a.onnx, calibration: {method: kl}}\n- model: b.onnx\n"
        "matrix: {calibration.threads: [1, 2]}\n",
        {"calibration.method": "mse", "quiet": True},
    )
    assert [job.calibration.method for job in jobs] == ["mse"] * 4
    assert all(job.quiet for job in jobs)


def test_options_alone_make_a_job():
    job = job_from_options({"model": "x/net.onnx", "data.path": "d", "output.dir": "o", "evaluation.labels": "l.csv"})
    assert (job.model, job.name, job.output.dir) == (Path("x/net.onnx"), "net", Path("o"))
    assert job.data.labels == "l.csv"
    assert job.evaluation.data is None


def test_a_yaml_of_settings_needs_no_model_when_the_command_line_names_one(folder):
    (folder / "job.yaml").write_text("calibration: {method: kl}\n")
    job = job_from_options({"model": "m.onnx", "data.path": "d"}, Path("job.yaml"))
    assert job.calibration.method == "kl"


@pytest.mark.parametrize(
    ("text", "missing"), [("data: d\n", "model"), ("model: m\n", "data"), ("quiet: true\n", "model")]
)
def test_what_is_missing_everywhere_is_named(refused, text, missing):
    assert f"job.yaml:1:1: {missing} is missing" in refused(text)


def test_data_without_a_path_is_named(refused):
    assert "data.path is missing" in refused("model: m\ndata: {samples: 3}\n")
    assert "evaluation.data.path is missing" in refused("model: m\ndata: d\nevaluation: {data: {samples: 3}}\n")


def test_a_bad_option_is_named_by_its_flag():
    with pytest.raises(ConfigError) as caught:
        job_from_options(
            {"model": "m", "data.path": "d", "calibration.percentile": 0.9999},
            flags={"calibration.percentile": "--percentile"},
        )
    assert (
        str(caught.value)
        == "config: --percentile: expected a number of at least 50, got 0.9999; it is in percent: write 99.99"
    )


@pytest.mark.parametrize("method", ["auto", "percentile", "kl", "mse", "max"])
def test_a_percentile_that_the_method_does_not_use_is_refused(method):
    given = {"model": "m", "data.path": "d", "calibration.method": method, "calibration.percentile": 99.9}
    with (
        nullcontext()
        if method in ("auto", "percentile")
        else pytest.raises(UsageError, match=f"percentile: method {method} uses none")
    ):
        job_from_options(given, flags={"calibration.percentile": "--percentile"})


@pytest.mark.parametrize("budget", [None, 10.0])
def test_a_fallback_without_a_budget_is_refused(budget):
    given = {"model": "m", "data.path": "d", "quantization.fallback": "planes", "evaluation.gates": ["sqnr_db>=30"]}
    if budget is not None:
        job_from_options(given | {"quantization.budget": budget})
        return
    with pytest.raises(UsageError, match="--fallback: is how a budget is spent, and there is none"):
        job_from_options(given, flags={"quantization.fallback": "--fallback"})


def test_an_option_without_a_flag_is_named_by_its_key():
    with pytest.raises(ConfigError, match=r"expected a whole number"):
        job_from_options({"model": "m", "data.path": "d", "data.samples": "3"})


def test_several_jobs_are_too_many_for_one_command(folder):
    (folder / "job.yaml").write_text("defaults: {data: d}\njobs: [{model: a.onnx}, {model: b.onnx}]\n")
    with pytest.raises(ConfigError, match="holds 2 jobs, this command takes one"):
        job_from_options({"model": "m.onnx"}, Path("job.yaml"))


def test_yaml_paths_are_relative_to_the_file_and_option_paths_to_the_working_directory(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "job.yaml").write_text(
        "model: m.onnx\ndata: {path: d, labels: l.csv}\nevaluation: {data: v, labels: folders}\noutput: {dir: o}\n"
    )
    (job,) = (located.job for located in load_jobs(Path("sub/job.yaml"), {"evaluation.data.path": "here"}))
    assert job.model == Path("sub/m.onnx")
    assert (job.data.path, job.data.labels) == ("sub/d", "sub/l.csv")
    assert job.evaluation.data is not None
    assert (job.evaluation.data.path, job.evaluation.data.labels) == ("here", "folders")
    assert job.output.dir == Path("sub/o")


def test_absolute_and_home_paths_stay(load, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    (job,) = load("model: /models/m.onnx\ndata: ~/photos\n")
    assert (str(job.model), job.data.path) == ("/models/m.onnx", "/home/someone/photos")


@pytest.mark.parametrize("name", ["pkg.mod:feeds", "mod:Photos.feeds", "bïlder:photos"])
def test_a_python_callable_is_no_path_unless_a_file_has_its_name(folder, name):
    (folder / "sub").mkdir()
    (folder / "sub" / "job.yaml").write_text(f"model: m.onnx\ndata: {name}\n", encoding="utf-8")
    assert load_jobs(Path("sub/job.yaml"))[0].job.data.path == name
    (folder / "sub" / name).touch()
    assert load_jobs(Path("sub/job.yaml"))[0].job.data.path == f"sub/{name}"


def test_evaluation_data_inherits_preprocessing_unless_it_has_its_own(load):
    text = "model: m\ndata: {path: d, samples: 4, skip_bad: true, preprocess: {resize: 8}}\nevaluation: {data: %s}\n"
    inherited = load(text % "v")[0].evaluation.data
    assert inherited.preprocess.resize == 8
    assert inherited.skip_bad
    assert inherited.samples is None
    own = load(text % "{path: v, preprocess: {crop: 4}}")[0].evaluation.data
    assert (own.preprocess.resize, own.preprocess.crop) == (None, 4)


def test_a_named_set_of_preprocessing_is_put_in_place_and_keys_beside_it_win(load):
    (plain,) = load("model: m\ndata: {path: d, preprocess: imagenet}\n")
    assert plain.data.preprocess == Preprocess(
        256, None, 224, "RGB", None, 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )
    (job,) = load("model: m\ndata: {path: d, preprocess: {set: imagenet, resize: [300, 200], std: []}}\n")
    assert job.data.preprocess == replace(plain.data.preprocess, resize=(300, 200), std=())
    assert load("model: m\ndata: {path: d, preprocess: {set: null, crop: 4}}\n")[0].data.preprocess == Preprocess(
        crop=4
    )


def test_a_named_set_replaces_what_an_earlier_layer_says_and_later_keys_win_over_it(load):
    defaults = "defaults: {model: m, data: {path: d, preprocess: {set: clip, layout: NHWC}}, output: {dir: '{name}'}}\n"
    jobs = "jobs: [{name: a, data: {preprocess: yolo}}, {name: b, data: {preprocess: {crop: 100}}}]\n"
    first, second = (job.data.preprocess for job in load(defaults + jobs))
    assert first == Preprocess((640, 640), 114, None, "RGB", "NHWC", 1 / 255)
    assert (second.resize, second.crop, second.mean[0]) == (224, 100, 0.48145466)
    (job,) = load("model: m\ndata: {path: d, preprocess: clip}\n", {"data.preprocess.set": "tf"})
    assert (job.data.preprocess.scale, job.data.preprocess.mean, job.data.preprocess.std) == (2 / 255, (1.0,), ())


@pytest.mark.parametrize("name", SETS)
def test_a_named_set_says_everything_but_the_layout(name):
    assert set(SETS[name].keys) == {each.name for each in fields(Preprocess)} - {"layout", "text", "audio", "fill"}


def test_merging_keeps_both_layers_unchanged_and_replaces_lists():
    base, over = {"a": {"x": 1, "y": [1, 2]}, "b": 1}, {"a": {"y": [3]}, "c": 2}
    assert layered(base, over) == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 2}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_null_resets_a_mapping(load):
    text = "defaults: {data: {path: d, preprocess: {resize: 8}}}\njobs: [{model: a.onnx, data: {preprocess: null}}]\n"
    assert load(text)[0].data.preprocess is None


def test_key_paths_nest():
    assert nest({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


def test_overrides_win_over_the_matrix(load):
    (job,) = load("model: a.onnx\ndata: d\nmatrix: {calibration.method: [kl]}\n", {"calibration.method": "mse"})
    assert job.calibration.method == "mse"


JOB = Job(Path("m.onnx"), DataSettings("d"), name="m")


def test_the_defaults_are_available():
    require_available(JOB)


def test_an_address_of_no_cluster_is_refused():
    with pytest.raises(UsageError) as caught:
        require_available(replace(JOB, calibration=CalibrationSettings(address="head:6379")))
    assert str(caught.value) == (
        "usage: an address is that of a Ray cluster, and engine local uses none; give engine ray, or leave address out"
    )
    assert caught.value.exit_code == 2
