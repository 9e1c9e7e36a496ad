"""int8 models of the zoo as `int8cal calibrate` makes them by default, each made once for all files and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def calibrated(zoo, tmp_path_factory) -> Callable[[str], Path]:
    """By a model's name: the directory of its results, from all calibration data. To be read only."""
    fcntl = pytest.importorskip("fcntl")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers

    def calibrated(name: str) -> Path:
        data, out = base / f"{name}.data", base / f"{name}.out"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                zoo.write_calibration(name, data)
                # the tests compare outputs themselves: for the report one file is enough
                judged = ["--eval-data", str(min(data.iterdir())), "--no-latency", "--quiet"]
                command = [sys.executable, "-m", "int8cal", "calibrate", str(zoo.model_path(name)), "--data", str(data)]
                done = subprocess.run([*command, *judged, "-o", str(out)], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
        return out

    return calibrated
