"""Building the documentation site, for the tests that read its pages and the one that opens them in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import int8cal

ROOT = Path(__file__).resolve().parents[1]


def require_mkdocs() -> None:
    """Skip the tests of a file where the extra docs is not installed."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the documentation needs pip install '.[docs]'")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build strictly, with a proxy that refuses every request."""
    source = str(Path(int8cal.__file__).parents[1])
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=root,
        env=os.environ | nowhere | {"PYTHONPATH": source, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def built_site(folders: pytest.TempPathFactory) -> Path:
    """Build the site, or take that of INT8CAL_SITE, which .ci/run has built the same way before."""
    if built := os.environ.get("INT8CAL_SITE"):
        return Path(built)
    folder = folders.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
