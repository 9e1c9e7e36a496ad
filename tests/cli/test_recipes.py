"""What `--recipe` and `--explain` do, seen from outside."""

import itertools
import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.slow

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,5] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, A, p)
    b = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (b, B, q)
    d = Relu (c)
    e = GlobalAveragePool (d)
    f = Flatten (e)
    y = Gemm (f, C, r)
}"""
RECIPES = ("fast", "balanced", "accurate")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model between whose layers channels differ by up to 2**4, and its data."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(12)
    model = onnx.parser.parse_model(NET)
    factors = 2.0 ** rng.integers(-4, 5, 12)
    values = {
        "A": rng.normal(size=(12, 3, 3, 3)) * factors[:, None, None, None],
        "p": rng.normal(size=12) * factors,
        "B": rng.normal(size=(8, 12, 3, 3)) / factors[None, :, None, None],
        "q": rng.normal(size=8),
        "C": rng.normal(size=(8, 5)),
        "r": rng.normal(size=5),
    }
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(96, 3, 8, 8)).astype(np.float32))
    np.savez(folder / "unseen.npz", x=rng.normal(size=(64, 3, 8, 8)).astype(np.float32))
    return folder


def calibrate(call, out, *arguments):
    data = ("--data", "data.npz", "--eval-data", "unseen.npz", "--no-latency")
    done = call("calibrate", "net.onnx", *data, "-o", out, *arguments)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def explained(shared, made):
    """Each recipe with --explain, run once for all tests: what it showed; its files are in `made`."""
    shown = {}
    for recipe in RECIPES:
        calibrate(lambda *each: shared(made, *each), recipe, "--recipe", recipe, "--explain")
        shown[recipe] = shared(made, "inspect", f"{recipe}/report.json").out
    return shown


@pytest.fixture
def here(made, explained, tmp_path):
    """The same files in the working directory of `call`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_each_recipe_is_as_good_as_the_one_before_on_unseen_data(here):
    figures = []
    for recipe in RECIPES:
        report = read(here / recipe / "report.json")
        assert report["settings"]["recipe"] == recipe
        figures.append(report["metrics"]["sqnr_db"])
    fast, balanced, accurate = figures
    assert balanced > fast - 0.5
    assert accurate > fast - 0.5  # of four such networks one gains and one loses a dB; tests/zoo has real ones


@pytest.mark.parametrize("recipe", RECIPES)
def test_quantize_writes_what_calibrate_wrote(call, here, recipe):
    assert call("quantize", "net.onnx", "--table", f"{recipe}/net.table.json", "-o", "again.onnx").code == 0
    assert (here / "again.onnx").read_bytes() == (here / recipe / "net.int8.onnx").read_bytes()


def test_accurate_is_deterministic_and_rounds_weights_by_the_data(call, here):
    calibrate(call, "again", "--recipe", "accurate", "--explain", "--quiet", "--threads", "1")
    assert (here / "accurate" / "net.table.json").read_bytes() == (here / "again" / "net.table.json").read_bytes()
    assert read(here / "accurate" / "net.table.json")["corrections"]["rounding"]
    assert call("audit", "accurate/net.int8.onnx").out.count("Saturation  0 of") == 1


def test_explain_says_what_each_step_gave_in_report_table_and_model(call, here, explained):
    steps = read(here / "balanced" / "report.json")["steps"]
    assert [step["step"] for step in steps[:2]] == ["nothing but ranges by max", "nothing but ranges by auto with room"]
    assert steps[0]["before_db"] is None
    kept = [step for step in steps if step["kept"]]
    for before, after in itertools.pairwise(kept):
        assert after["before_db"] == before["sqnr_db"]  # each kept step starts where the one before ended
        assert after["sqnr_db"] > after["before_db"] or after is steps[1]  # which nothing decided
    assert any("rescaled" in step["step"] for step in kept)
    assert read(here / "balanced" / "net.table.json")["settings"]["steps"][0]["name"] == "nothing but ranges by max"
    for step in steps:
        assert step["step"] in explained["balanced"]
    again = call(
        "evaluate", "net.onnx", "balanced/net.int8.onnx", "--data", "unseen.npz", "--no-latency", "-o", "later"
    )
    assert again.code == 0
    assert read(here / "later" / "report.json")["steps"] == steps
    for name in ("report.md", "report.html"):
        assert "What each step gave" in (here / "later" / name).read_text(encoding="utf-8")
    shown = call("inspect", "later/report.json").out
    assert "nothing but ranges by auto" in shown
    assert f"{steps[0]['sqnr_db']:.2f} dB" in shown


def test_without_explain_nothing_is_said_of_steps(call, here):
    calibrate(call, "out", "--quiet")
    assert "steps" not in read(here / "out" / "report.json")
    assert "steps" not in read(here / "out" / "net.table.json")["settings"]


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '[{"name": "x"}]', '[{"name": 1, "before_db": 1, "after_db": 2, "kept": true}]', "nothing"]
)
def test_steps_that_are_none_are_the_model_s_fault(call, here, text):
    model = onnx.load(here / "fast" / "net.int8.onnx")
    (steps,) = (entry for entry in model.metadata_props if entry.key == "int8cal.steps")
    steps.value = text
    onnx.save(model, here / "odd.onnx")
    done = call("evaluate", "net.onnx", "odd.onnx", "--data", "unseen.npz", "--no-latency")
    assert done.code == 3
    assert 'its metadata "int8cal.steps" is not a list of steps' in done.message


def test_with_few_samples_nothing_is_fitted(call, here):
    calibrate(call, "out", "--recipe", "accurate", "--samples", "6", "--quiet")
    assert not read(here / "out" / "net.table.json")["corrections"].get("rounding")
