"""Forks stand in for new processes: when they may."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import forking
from forking import Forks
from small_batch import fill

import int8cal

FEEDS = """
import os
import numpy as np

def tells():
    with open("told", "a") as file:
        print(os.getppid(), os.environ.get("SET_SINCE"), file=file)
    yield from ({"x": row[None]} for row in np.eye(8, dtype=np.float32))
"""


def test_what_libraries_set_in_the_process_of_the_tests_keeps_no_run_from_being_a_fork(call, tmp_path, monkeypatch):
    fill(tmp_path)
    (tmp_path / "feeds.py").write_text(FEEDS)
    for number in range(2):
        job = ("net.onnx", "--data", "feeds:tells", "-o", f"out{number}", "--no-latency")
        assert call("calibrate", *job).code == 0
        monkeypatch.setenv("SET_SINCE", "1")
    told = set((tmp_path / "told").read_text().splitlines())
    assert len(told) == 1
    assert told.pop().split()[1] == "None"


@pytest.fixture
def forks(tmp_path):
    started = Forks(tmp_path, dict(os.environ))
    yield started
    started.close()


def test_a_script_that_calls_has_the_streams_the_folder_and_the_code_of_the_run(forks, tmp_path):
    """As bash scripts on pages do: output into a pipe, errors into a file, and then the exit code."""
    command = f'"{sys.executable}" -I "{forking.__file__}" call "{forks.door}"'
    script = (
        f"{command} --version | cat; {command} inspect none.onnx 2> told; echo $?; INT8CAL_OTHER=1 {command} --version"
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    version = f"int8cal {int8cal.__version__}"
    assert done.stdout.splitlines() == [version, "3", version]
    assert "none.onnx" in (tmp_path / "told").read_text()


def test_a_run_that_is_killed_has_the_signal_as_its_code(forks, tmp_path):
    (tmp_path / "feeds.py").write_text("import os, signal\n\ndef some():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    (tmp_path / "job").mkdir()
    fill(tmp_path / "job")
    code, _, _ = forks(tmp_path, ["calibrate", "job/net.onnx", "--data", "feeds:some"], dict(os.environ))
    assert code == -signal.SIGKILL
    assert forks(tmp_path, ["--version"], dict(os.environ))[0] == 0
