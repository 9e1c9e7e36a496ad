"""A run may be killed at any change that it makes in the file system: nothing is torn, refused or left over."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from killing import Folder, Runs
from small_batch import fill, write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no fork")

CALIBRATE = ("calibrate", "net.onnx", "--data", "data", "-o", "deep/out", "--no-latency", "--quiet", "--threads", "1")
RUN = ("run", "batch.yaml", "--quiet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    temporary = tmp_path_factory.mktemp("killed") / "temporary"
    temporary.mkdir()
    runs = Runs(temporary)
    runs.temporary = temporary
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory, runs):
    """A folder with a model, data and a batch, and with results of another run in `old`."""
    folder = tmp_path_factory.mktemp("template")
    fill(folder)
    write(folder, "name: one, calibration: {method: max, threads: 1}", "name: two, calibration: {threads: 1}")
    assert runs(folder, *CALIBRATE[:5], "old", *CALIBRATE[6:], "--method", "max")[0] == 0
    return folder


class Case:
    """One command in folders of its own, undisturbed and killed."""

    def __init__(self, runs, template, place, command, *, old=False):
        self.runs, self.template, self.place, self.command, self.old = runs, template, place, command, old
        self.first = ("--overwrite",) if old else ()
        folder = self._folder("undisturbed")
        code, self.events = runs(folder.path, *command, *self.first)
        assert code == 0
        self.new = folder.files()

    def _folder(self, name):
        return Folder.of(self.template, self.place / name, "deep/out" if self.old else "")

    def killed(self, event):
        """Kill at an event, look, run again, look."""
        folder = self._folder(f"killed{event}")
        before = folder.files()
        code, _ = self.runs(folder.path, *self.command, *self.first, kill_at=event)
        assert code == -9
        assert folder.torn(before, self.new) == []
        again = ("--overwrite",) if self.command[0] == "calibrate" and (folder.path / "deep/out").exists() else ()
        code, _ = self.runs(folder.path, *self.command, *again)
        assert code == 0, (self.runs.temporary.parent / "log").read_text()
        assert folder.files() == self.new
        left = {path.name for path in self.runs.temporary.iterdir()}
        assert left <= {".ses"}  # onnxruntime's own
        shutil.rmtree(folder.path)


def cases(runs, template, place):
    for name in ("new", "over", "batch"):
        (place / name).mkdir()
    yield "new", Case(runs, template, place / "new", CALIBRATE)
    yield "over", Case(runs, template, place / "over", CALIBRATE, old=True)
    yield "batch", Case(runs, template, place / "batch", RUN)


def spread(case, kills):
    """Choose so many events, evenly, the last among them."""
    return sorted({case.events - case.events * number // kills for number in range(kills)} - {0})


def test_a_killed_run_is_made_good_by_the_next(runs, template, tmp_path):
    for _, case in cases(runs, template, tmp_path):
        for event in spread(case, 3):
            case.killed(event)


@pytest.mark.long
def test_no_kill_at_any_of_200_events_does_harm(runs, template, tmp_path):
    kills = 0
    several = dict(cases(runs, template, tmp_path))
    total = sum(case.events for case in several.values())
    for case in several.values():
        for event in spread(
            case, min(case.events, max(1, round(200 * case.events / total)) if total > 200 else case.events)
        ):
            case.killed(event)
            kills += 1
    assert kills >= min(total, 198)
