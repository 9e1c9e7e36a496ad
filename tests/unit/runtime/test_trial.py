"""A runtime that crashes does so in a process of its own."""

import os

import numpy as np
import pytest

from int8cal.runtime.scratch import as_file
from int8cal.runtime.sessions import Session
from int8cal.runtime.trial import find_crash

MODULE = """
import os
import signal
from int8cal.runtime.sessions import Session

def kill(model, threads):
    os.kill(os.getpid(), signal.SIGSEGV)

def leave(model, threads):
    os._exit(77)

def fail(model, threads):
    raise OSError("libtbb.so is missing")

class Second:
    def __init__(self, model, threads):
        self.session = Session(model, threads=threads)

    def run(self, feed):
        if len(feed["x"]) == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.session.run(feed)
"""
SIGNALS = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")


@pytest.fixture
def openers(tmp_path, monkeypatch):
    (tmp_path / "crashing_openers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import crashing_openers

    return crashing_openers


@pytest.mark.parametrize(
    ("opener", "crash"),
    [
        pytest.param("kill", (0, "SIGSEGV"), marks=SIGNALS),
        pytest.param("Second", (1, "SIGSEGV"), marks=SIGNALS),
        ("leave", (0, "exit code 77")),
        ("fail", None),
        ("Session", None),
    ],
)
def test_which_model_a_runtime_crashes_on_is_found_and_an_exception_is_no_crash(
    bench, openers, tmp_path, opener, crash
):
    model = bench.text("g (float[N,3] x) => (float[N,3] y) { y = Relu (x) }")
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    feeds = [{"x": np.ones((rows, 3), np.float32)} for rows in (1, 2)]
    with as_file(file) as first, as_file(model) as second:
        assert find_crash(vars(openers)[opener], (first, second), feeds, threads=1) == crash
    assert Session(file).run(feeds[1])["y"].shape == (2, 3)  # this process has the models still
