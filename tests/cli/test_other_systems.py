"""What Windows does otherwise, as far as a process on Linux can pretend it: files in use, signals, locks, code pages."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import int8cal

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to know which files are in use"),
]
BATCH = """
defaults: {data: sample_data/calib, evaluation: {latency: false}}
jobs:
  - {model: sample_data/model.onnx, name: größer, output: {dir: first}}
  - {model: sample_data/model.onnx, name: max, calibration: {method: max}, output: {dir: second}}
"""

SLOW = """
import pathlib, time
import numpy as np

def feeds():
    yield {"image": np.zeros((1, 1, 32, 32), np.float32)}
    pathlib.Path("begun").touch()
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def pretended(tmp_path):
    """A folder with the sample, an empty one for temporary files, and the environment of such a process."""
    loaded, work, temporary = (tmp_path / name for name in ("loaded", "work", "temporary"))
    for folder in (loaded, work, temporary):
        folder.mkdir()
    shutil.copy(ROOT / "tests" / "like_windows.py", loaded / "sitecustomize.py")
    shutil.copytree(SAMPLE, work / "sample_data")
    (work / "jobs.yaml").write_text(BATCH, encoding="utf-8")
    path = f"{loaded}{os.pathsep}{Path(int8cal.__file__).parents[1]}"
    variables = {"PYTHONPATH": path, "TMPDIR": str(temporary), "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}
    return work, temporary, os.environ | variables


def run(pretended, *arguments):
    work, _, variables = pretended
    command = [sys.executable, "-m", "int8cal", *arguments]
    done = subprocess.run(command, cwd=work, env=variables, capture_output=True)
    return done.returncode, done.stdout.decode("cp1252"), done.stderr.decode("cp1252")


def left(pretended):
    """What is there that nobody asked for; onnxruntime keeps a file of its own among the temporary ones."""
    work, temporary, _ = pretended
    names = {path.name for path in (*temporary.iterdir(), *work.rglob("*"))} - {".ses"}
    return [name for name in names if name.startswith((".", "int8cal-", "tmp"))]


def test_a_job_runs_twice_where_files_in_use_cannot_be_removed(pretended):
    calibrate = ("calibrate", "sample_data/model.onnx", "--data", "sample_data/calib", "-o", "int8", "--overwrite")
    for arguments in (calibrate, (*calibrate, "--gate", "sqnr_db>=44", "--budget", "100")):
        code, out, err = run(pretended, *arguments)
        assert code == 0, err
        assert out.splitlines()[-1] == f"Report    {Path('int8') / 'report.html'}"
        assert left(pretended) == []


def test_a_batch_runs_beside_itself_and_prints_in_the_code_page(pretended):
    code, out, err = run(pretended, "run", "jobs.yaml", "--jobs", "2")
    assert code == 0, err
    assert "größer" in out
    assert left(pretended) == []
    assert {path.name for path in pretended[0].iterdir()} >= {"first", "second", "summary.json"}


def test_a_batch_that_is_interrupted_leaves_nothing_half_written(pretended):
    work, _, variables = pretended
    (work / "slow.py").write_text(SLOW, encoding="utf-8")
    (work / "jobs.yaml").write_text(BATCH.replace("sample_data/calib", "'slow:feeds'"), encoding="utf-8")
    command = [sys.executable, "-m", "int8cal", "run", "jobs.yaml", "--jobs", "2"]
    with subprocess.Popen(command, cwd=work, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while not (work / "begun").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert running.returncode == 130, err.decode("cp1252")
    assert [path.name for path in work.rglob("*") if path.name.startswith(".")] == []
