"""Every file under configs/ runs as it is; two of them on models and data that are made here under the names they use."""

import json
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from int8cal.cli.main import main

sys.path.append(str(Path(__file__).parent))
from forking import hurry
from small_models import photo_classifier, save_photos, save_tokens, transformer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ON_THE_SAMPLE = {
    "minimal.yaml": ["model-int8"],
    "batch.yaml": [
        "results/model-auto-int8",
        "results/model-narrow-weights-auto-int8",
        "results/model-narrow-weights-percentile-int8",
        "results/model-percentile-int8",
    ],
    "matrix.yaml": [
        f"results/matrix/model-{method}-{target}" for method in ("auto", "max") for target in ("portable", "x86-vnni")
    ],
    "ci-gate.yaml": ["results/ci"],
}
BESIDE = {"imagenet-style.yaml": "out", "bert-style.yaml": "bert-int8"}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Copies of configs/ and sample_data/, so that results do not go into the project."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    monkeypatch.chdir(tmp_path)
    hurry(monkeypatch.setattr)
    return tmp_path


def test_every_config_is_run_here():
    names = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert names == ON_THE_SAMPLE.keys() | BESIDE.keys()


@pytest.mark.parametrize("name", ON_THE_SAMPLE)
def test_it_runs_on_the_sample(checkout, capsys, name):
    assert main(["run", f"configs/{name}", "--dry-run"]) == 0
    assert main(["run", f"configs/{name}"]) == 0, capsys.readouterr().err
    made = sorted(path.parent.relative_to(checkout).as_posix() for path in checkout.rglob("report.json"))
    assert made == ON_THE_SAMPLE[name]


def test_the_gates_of_ci_are_judged(checkout):
    text = (checkout / "configs/ci-gate.yaml").read_text()
    assert '"sqnr_db>=25"' in text
    (checkout / "configs/ci-gate.yaml").write_text(text.replace('"sqnr_db>=25"', '"sqnr_db>=250"'))
    assert main(["run", "configs/ci-gate.yaml"]) == 7
    gates = json.loads((checkout / "results/ci/report.json").read_text())["gates"]
    assert [gate["passed"] for gate in gates] == [True, False, True, True, True]


def test_the_config_for_photos_runs(checkout, capsys):
    folder = checkout / "configs"
    onnx.save(photo_classifier(), folder / "resnet50.onnx")
    save_photos(folder / "photos/train", 3, seed=0)
    save_photos(folder / "photos/val", 2, seed=1)
    assert main(["run", "configs/imagenet-style.yaml"]) == 0, capsys.readouterr().err
    report = json.loads((folder / "out/report.json").read_text())
    assert report["metrics"]["top1"]["fp32"] == 1.0
    judged = [(gate["gate"], gate["passed"]) for gate in report["gates"]]
    assert judged == [("top1.drop<=1.0", True), ("outputs.dead<=0", True)]


def test_the_config_for_tokens_runs(checkout, capsys):
    folder = checkout / "configs"
    onnx.save(transformer(), folder / "bert.onnx")
    save_tokens(folder / "tokens/calib", 4, seed=0)
    save_tokens(folder / "tokens/val", 2, seed=1)
    assert main(["run", "configs/bert-style.yaml"]) == 0, capsys.readouterr().err
    report = json.loads((folder / "bert-int8/report.json").read_text())
    assert report["model"]["samples"] == 32
    assert report["samples"] == 16
    assert report["gates"][0]["passed"]
