"""Progress is drawn on a terminal, told now and then in a log, and never changes what passes through it."""

import io
import json
import os
import subprocess
import sys

import pytest

from int8cal.cli.progress_line import TOLD_EVERY_S, ProgressLine, plain_line, shown_progress
from int8cal.progress import Event, stage, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("event", "seconds", "line"),
    [
        (Event("", "prepare"), 2.4, "prepare, 2 s"),
        (Event("cnn", "calibrate", "samples", 0, 64), 3.0, "cnn: calibrate: samples, 0 of 64, 3 s"),
        (
            Event("", "calibrate", "samples", 16, 64),
            10.0,
            "calibrate: samples, 16 of 64, 10 s, about 30 s left",
        ),
        (Event("", "evaluate", "outputs", 16, None), 10.0, "evaluate: outputs, 10 s"),
        (Event("", "quantize", "bias", 8, 9), 90.0, "quantize: bias, 8 of 9, 90 s, about 11 s left"),
    ],
)
def test_a_line_says_what_how_far_and_how_long(event, seconds, line):
    assert plain_line(event, seconds) == line


def test_a_log_gets_a_line_every_ten_seconds_and_the_order_with_the_first():
    stream, time = io.StringIO(), Time()
    line = ProgressLine(stream, time)
    line.announce("prepare, calibrate")
    line(Event("", "calibrate", "samples", 1, 4))
    time.now = TOLD_EVERY_S - 0.5
    line.refresh()
    assert stream.getvalue() == ""
    time.now = TOLD_EVERY_S
    line.refresh()
    line.refresh()
    time.now = 2 * TOLD_EVERY_S
    line.refresh()
    assert stream.getvalue().splitlines() == [
        "int8cal: prepare, calibrate",
        "int8cal: calibrate: samples, 1 of 4, 10 s, about 30 s left",
        "int8cal: calibrate: samples, 1 of 4, 20 s, about 60 s left",
    ]


def test_between_stages_a_log_gets_nothing():
    stream, time = io.StringIO(), Time()
    line = ProgressLine(stream, time)
    line(Event("", "prepare"))
    line(Event())
    time.now = 5 * TOLD_EVERY_S
    line.refresh()
    assert stream.getvalue() == ""


def test_a_terminal_is_redrawn_and_clear_at_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    line = ProgressLine(stream, Time())
    line.announce("prepare, calibrate")
    assert stream.getvalue() == "int8cal: prepare, calibrate\n"
    line(Event("", "calibrate", "samples", 3, 4, 3.0))
    line.refresh()
    drawn = stream.getvalue().rpartition("\r")[2]
    assert drawn.startswith("calibrate: samples")
    assert "3/4" in drawn
    assert len(drawn) < 100
    line(Event())
    assert stream.getvalue().endswith("\r" + " " * len(drawn) + "\r")


def test_quiet_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown_progress(quiet=True) as line, stage("prepare"):
        assert line is None
        assert list(track([1, 2], 2, "samples")) == [1, 2]
    assert sys.stderr.getvalue() == ""


def test_a_reader_that_has_left_stops_nothing():
    stream = Terminal()
    line = ProgressLine(stream, Time())
    line(Event("", "prepare"))
    stream.close()
    line.refresh()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_order_of_a_run_is_told_on_a_terminal(make_model_and_data, run_on_terminal):
    model, data = make_model_and_data
    code, shown = run_on_terminal("calibrate", model, "--data", data, "-o", "out")
    assert code == 0
    assert "int8cal: prepare, calibrate, quantize (recipe fast), evaluate, report\r\n" in shown
    assert "report.html" in shown
    assert json.loads((model.parent / "out" / "report.json").read_text())["samples"]


@pytest.fixture
def run_on_terminal(tmp_path):
    import pty

    def run(*arguments):
        terminal, end = pty.openpty()
        command = [sys.executable, "-m", "int8cal", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=end, stdout=end, stderr=end)
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the process has closed its end
                break
            shown += part
        os.close(terminal)
        return process.wait(), shown.decode()

    return run


@pytest.fixture
def make_model_and_data(tmp_path):
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [weight],
    )
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.save(tmp_path / "x.npy", rng.normal(size=(8, 16)).astype(np.float32))
    return model, tmp_path / "x.npy"
