"""The pictures of the docs are made by scripts; the drawings are what docs/diagrams.py draws."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def diagrams():
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_drawing_is_what_the_script_draws(diagrams):
    for name, text in diagrams.drawings().items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text


def test_a_drawing_follows_the_pairs_of_the_code(diagrams, monkeypatch):
    monkeypatch.setattr(diagrams, "ONEDNN", diagrams.ONNXRUNTIME)
    assert (IMAGES / "pairs.svg").read_text(encoding="utf-8") != diagrams.pairs()


def test_every_picture_is_made_by_a_script():
    scripts = [*(ROOT / "docs").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    known = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    known += "scaling-samples scaling-tensors"  # "scaling-{axis}" there; tests/unit/benchmarks runs it
    assert [path.name for path in IMAGES.iterdir() if path.stem not in known] == []
