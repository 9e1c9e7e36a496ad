"""The page of files names every key of a real report and a real table, and no key that neither has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
# parts whose keys are names of the user's model
NAMED = ("tensors", "weights", "outputs")
# parts that other settings or other data bring
ABSENT = {
    "data.padding.…",
    "data.bodies.PATH",
    "bodies.PATH.…",
    "metric.…",
    "runtimes.…",
    "layers[].compared",
    "latencies_ms.…",
    "fastest.…",
    "families[].…",
    "steps[].…",
    "optimize.…",
    "mixed_precision.…",
    "fusion.nodes[].residual",
    "gates[].why",
    "gates[].own",
    "outputs.NAME.decisions[].channels",
    "outputs.NAME.faults",
    "outputs.NAME.groups[].…",
}


def documented(title: str) -> set[str]:
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(f"{title}\n")]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def paths(value: object, path: str = "") -> set[str]:
    """Every key path to a value that is no mapping, as the page writes them."""
    if isinstance(value, dict) and value:
        named = path in NAMED
        inner = [paths(each, f"{path}.{'NAME' if named else key}".lstrip(".")) for key, each in value.items()]
        return set().union(*inner)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return set().union(*(paths(each, f"{path}[]") for each in value))
    return {path}


def differences(found: set[str], page: set[str]) -> tuple[set[str], set[str]]:
    """Keys that the page lacks, and keys of the page that there are not."""
    parts = {key.removesuffix("…") for key in page if key.endswith("…")}
    unnamed = {key for key in found if key not in page and not any((key + ".").startswith(part) for part in parts)}
    stale = {
        key
        for key in page - ABSENT
        if not any(each == key or f"{each}.".startswith(key.removesuffix("…")) for each in found)
    }
    return unnamed, stale


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    sample = ROOT / "sample_data"
    data = ["--data", sample / "calib", "--samples", "20", "--eval-data", sample / "eval", "--labels", "folders"]
    gate = ["--gate", "sqnr_db>=10"]
    command = [
        sys.executable,
        "-m",
        "int8cal",
        "calibrate",
        sample / "model.onnx",
        *data,
        *gate,
        "-q",
        "-o",
        folder / "out",
    ]
    subprocess.run(command, check=True)
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize(("title", "file"), [("table.json", "model.table.json"), ("report.json", "report.json")])
def test_the_page_and_the_file_have_the_same_keys(written, title, file):
    found = paths(json.loads((written / file).read_text(encoding="utf-8")))
    assert differences(found, documented(title)) == (set(), set())


def test_a_key_that_only_one_of_them_has_is_found():
    assert differences({"a.b", "c.d"}, {"a.…", "e"}) == ({"c.d"}, {"e"})


def test_the_page_names_every_file_that_is_written(written):
    assert {name for path in written.iterdir() if (name := path.name.replace("model.", "MODEL.")) not in PAGE} == set()
