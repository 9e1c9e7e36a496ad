"""`--metric` as users meet it: gates of its name, errors that name it and the sample, what is written all the same."""

import json

import pytest

MODULE = """
import numpy as np

def right(outputs, labels):
    (scores,) = outputs.values()
    return scores.argmax(axis=1) == labels

def margin(outputs, labels):
    (scores,) = outputs.values()
    first, second = np.sort(scores, axis=1)[:, :-3:-1].T
    return float((first - second).mean())

def broken(outputs, labels, origins):
    if any(origin.endswith("0/0048.png") for origin in origins):
        raise ValueError("no such class")
    return np.zeros(len(origins))

def ending(outputs, labels):
    raise SystemExit
"""
# as a notebook's code, or a script without a main guard
PRINTING = """
print("imported")
import numpy as np

def samples():
    print("called")
    for seed in range(4):
        print("sample", seed)
        yield {"image": np.random.default_rng(seed).normal(size=(1, 32, 32)).astype(np.float32)}

def metric(outputs, labels):
    print("judged")
    return 1.0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def judged(sample, sample_run, *more):
    int8 = sample_run / "model.int8.onnx"
    return "evaluate", sample / "model.onnx", int8, "--data", sample / "eval", "--no-latency", *more


def test_a_metric_is_a_gate_of_its_name(call, folder, sample, sample_run):
    gates = ("--gate", "right>=0.5", "--gate", "right.drop<=0.05", "--gate", "right>=1.5")
    done = call(*judged(sample, sample_run, "--metric", "mine:right", *gates, "-o", "out", "--junit", "out.xml"))
    assert done.code == 7, done.err
    assert "failed: right>=1.5 (is " in done.err
    result, accuracy, *_ = done.out.splitlines()
    assert result.startswith("Result    1 of 3 accuracy gates failed (right>=1.5, is ")
    assert accuracy.startswith("Accuracy  right drop ")
    report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    top1 = report["metrics"]["top1"]
    # figures of 0 and 1 for each sample are the accuracy, and get its interval
    assert (report["metric"]["fp32"], report["metric"]["int8"]) == pytest.approx((top1["fp32"], top1["int8"]))
    assert [100 * end for end in report["metric"]["drop_ci95"]] == pytest.approx(top1["drop_ci95"])
    assert report["settings"]["evaluation"]["metric"] == "mine:right"
    assert 'name="right.drop"' in (folder / "out.xml").read_text(encoding="utf-8")


def test_a_broken_metric_names_itself_and_the_sample_and_all_files_are_written(call, folder, sample, sample_run):
    done = call(*judged(sample, sample_run, "--metric", "mine:broken", "-o", "out"))
    assert done.code == 2
    sample_file = sample / "eval" / "0" / "0048.png"
    told = f"int8cal: metric: mine:broken on the FP32 model, sample {sample_file}: raises ValueError: no such class"
    assert done.err.splitlines()[-1].startswith(told)
    report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["metric"]["int8"] is None
    assert "raises ValueError" in report["reasons"]["metric"]
    assert report["metrics"]["sqnr_db"] > 20


def test_a_metric_that_ends_the_process_is_an_error_of_its_own(call, folder, sample, sample_run):
    done = call(*judged(sample, sample_run, "--metric", "mine:ending", "-o", "out"))
    assert done.code == 2
    assert "metric: mine:ending on the FP32 model: raises RuntimeError: it calls sys.exit()" in done.err
    assert json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))["metrics"]["sqnr_db"] > 20


def test_samples_that_a_function_draws_anew_are_told(call, folder, sample):
    drawing = PRINTING.replace("default_rng(seed)", "default_rng()").replace("range(4)", "range(6)")
    (folder / "drawing.py").write_text(drawing, encoding="utf-8")
    given = ("--data", "drawing:samples", "--no-latency", "-o", "out")
    done = call("calibrate", sample / "model.onnx", *given)
    assert done.code == 0, done.err
    assert "6 of 6 evaluation samples are none of those that were calibrated on" in done.out
    assert call("calibrate", sample / "model.onnx", *given, "--overwrite", "--strict").code == 4


def test_what_functions_of_the_users_print_is_not_on_stdout(call, folder, sample, sample_run):
    (folder / "loud.py").write_text(PRINTING, encoding="utf-8")
    models = (sample / "model.onnx", sample_run / "model.int8.onnx")
    given = ("--data", "loud:samples", "--metric", "loud:metric", "--no-latency", "--json")
    done = call("evaluate", *models, *given)
    assert json.loads(done.out)["metric"]["int8"] == 1.0
    assert {"imported", "called", "sample 3", "judged"} <= set(done.err.splitlines())


def test_what_cannot_be_imported_or_judged_is_told_before_any_work(call, folder, sample, sample_run):
    for more, told in (
        (("--metric", "mine:wrong"), 'module "mine" has no "wrong"'),
        (("--metric", "mine right"), 'expected "package.module:function"'),
        (("--metric", "mine:right", "--gate", "rigth>=0.9"), 'unknown figure "rigth"; did you mean "right"?'),
        (("--gate", "metric.drop<=1"), "about a metric of your own, and there is none"),
    ):
        done = call(*judged(sample, sample_run, *more))
        assert (done.code, told in done.message) == (2, True), done.err


def test_a_gate_in_yaml_on_an_unknown_figure_is_told_with_its_line(call, folder, sample):
    text = f"model: {sample}/model.onnx\ndata: {sample}/calib\nevaluation:\n  metric: mine:right\n  gates:\n  - right>=0.5\n"
    (folder / "job.yaml").write_text(f"{text}  - wright>=0.5\n", encoding="utf-8")
    done = call("run", "job.yaml")
    assert done.code == 2
    assert 'job.yaml:7:5: evaluation.gates[1]: gate "wright>=0.5" names an unknown figure "wright"' in done.message


@pytest.mark.slow
def test_a_budget_is_spent_on_a_metrics_gate(call, folder, sample):
    data = ("--data", sample / "calib", "--samples", "20", "--eval-data", sample / "eval" / "[01]", "--no-latency")
    plain = call("calibrate", sample / "model.onnx", *data, "--metric", "mine:margin", "-o", "plain", "-q")
    assert plain.code == 0, plain.err
    before = json.loads((folder / "plain" / "report.json").read_text(encoding="utf-8"))["metric"]
    gate = f"margin.drop<={before['drop'] / 2}" if before["drop"] > 0 else f"margin.drop>={before['drop'] / 2}"
    more = ("--metric", "mine:margin", "--gate", gate, "--budget", "300", "-o", "out")
    done = call("calibrate", sample / "model.onnx", *data, *more)
    assert done.code == 0, done.err
    report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    assert {each["gate"]: each["passed"] for each in report["gates"]}[gate]
    curve = report["mixed_precision"]["curve"]
    kept = next(point for point in curve if point["kept"])
    assert kept["gates"][gate]["value"] == report["metric"]["drop"]
    assert not curve[0]["gates"][gate]["passed"]
    compared = call("compare", "out", "plain", "--limit", "margin.drop.rise<=0")
    assert compared.code == 7
    assert "margin.drop.rise<=0" in compared.err, compared.err
