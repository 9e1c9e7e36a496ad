"""The table of exports in docs/how-to/export.md is what docs/exports.py prints."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import int8cal

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "torchvision", "onnxscript", "transformers")


@pytest.mark.long
def test_the_table_is_what_the_script_prints():
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"exporting takes {', '.join(missing)}")
    source = str(Path(int8cal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "exports.py"],
        env=os.environ | {"PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    page = (ROOT / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert [row for row in rows if row not in page.splitlines()] == []
