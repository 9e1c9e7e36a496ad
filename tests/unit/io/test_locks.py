"""What is in use stays, what a killed process left goes; a directory of results has one writer."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import int8cal
from int8cal.errors import OutputError
from int8cal.io.atomic import OutputDirectory, atomic_write
from int8cal.io.locks import new_file, new_folder, sweep, take
from int8cal.io.paths import require_free

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no locks that end with their process")


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def python(code, folder, **options):
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment, **options)


KILLED = """
import os, signal
from pathlib import Path
from int8cal.io.atomic import OutputDirectory, atomic_path
from int8cal.io.locks import new_file, new_folder
here = Path()
with OutputDirectory(here / "out") as out, out.stage() as stage, atomic_path(here / "a.txt") as temporary:
    (stage / "model.onnx").write_text("half")
    temporary.write_text("half")
    with new_file(here), new_folder(here, private=True):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_cleared_by_the_next_that_writes_there(tmp_path):
    assert python(KILLED, tmp_path).wait() == -9
    assert len(names(tmp_path)) == 4
    atomic_write(tmp_path / "b.txt", "new")
    assert names(tmp_path) == ["b.txt"]


def test_results_that_a_killed_process_left_half_done_are_not_in_those_of_the_next(tmp_path):
    assert python(KILLED, tmp_path).wait() == -9
    with OutputDirectory(tmp_path / "out") as out, out.stage() as stage:
        assert names(stage) == []
        (stage / "table.json").write_text("whole")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["table.json"]


def test_what_a_live_process_writes_is_left_alone(tmp_path):
    code = "import pathlib; from int8cal.io.locks import sweep; sweep(pathlib.Path())"
    with new_file(tmp_path, "a", ".json") as file, new_folder(tmp_path) as folder:
        assert python(code, tmp_path).wait() == 0
        assert file.exists()
        assert folder.exists()
    assert names(tmp_path) == []


def test_files_of_users_stay_whatever_they_are_called(tmp_path):
    kept = ["int8cal-results", ".int8cal-probe", "a.int8cal-0123.txt", "int8cal-0123456789abc"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".int8cal-0123456789ab").symlink_to(tmp_path / kept[0])
    sweep(tmp_path)
    assert names(tmp_path) == sorted([*kept, ".int8cal-0123456789ab"])


def test_a_lock_is_on_what_has_the_name_now(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    lock = take(path)
    with pytest.raises(BlockingIOError):
        take(path)
    lock.release()
    flock = fcntl.flock

    def just_replaced(descriptor, how):
        path.rmdir()
        path.mkdir()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", just_replaced)
    with pytest.raises(FileNotFoundError):
        take(path)


class TestOutputDirectory:
    def test_a_new_directory_appears_with_all_that_is_in_it(self, tmp_path):
        with OutputDirectory(tmp_path / "deep" / "out", overwrite=False) as out:
            with out.stage() as stage:
                (stage / "a").write_text("1")
                (stage / "b").write_text("1")
                assert not out.path.exists()
            assert names(out.path) == ["a", "b"]
            with out.stage() as stage:
                (stage / "b").write_text("2")
                assert (out.path / "b").read_text() == "1"
            assert (out.path / "b").read_text() == "2"
            assert out.stages == 2
        assert names(tmp_path) == ["deep"]
        assert names(tmp_path / "deep") == ["out"]
        assert names(out.path) == ["a", "b"]

    def test_nothing_is_left_where_nothing_came_of_it(self, tmp_path):
        def interrupted():
            with OutputDirectory(tmp_path / "deep" / "out") as out, out.stage() as stage:
                (stage / "a").write_text("1")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert names(tmp_path) == []

    def test_results_stay_as_they_were_when_a_later_stage_fails(self, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a").write_text("old")

        def failing():
            with OutputDirectory(tmp_path / "out") as out, out.stage() as stage:
                (stage / "a").write_text("new")
                raise ValueError

        with pytest.raises(ValueError):
            failing()
        assert names(tmp_path / "out") == ["a"]
        assert (tmp_path / "out" / "a").read_text() == "old"

    @pytest.mark.parametrize("existing", [False, True])
    def test_a_second_writer_is_refused_until_the_first_has_ended(self, tmp_path, existing):
        if existing:
            (tmp_path / "out").mkdir()
        with OutputDirectory(tmp_path / "out") as first:
            with pytest.raises(OutputError, match="another run is writing"), OutputDirectory(tmp_path / "out"):
                pass
            with first.stage() as stage:
                (stage / "a").write_text("1")
            with pytest.raises(OutputError, match="another run is writing"), OutputDirectory(tmp_path / "out"):
                pass
        with pytest.raises(OutputError, match="exists"), OutputDirectory(tmp_path / "out", overwrite=False):
            pass
        with OutputDirectory(tmp_path / "out"):
            pass
        assert names(tmp_path / "out") == ["a"]

    def test_files_that_somebody_else_put_there_meanwhile_stay(self, tmp_path):
        with OutputDirectory(tmp_path / "out") as out, out.stage() as stage:
            (stage / "a").write_text("1")
            out.path.mkdir()
            (out.path / "mine").write_text("2")
        assert names(out.path) == ["a", "mine"]
        assert names(tmp_path) == ["out"]

    def test_names_of_the_greatest_length_are_taken(self, tmp_path):
        for name in ("ü" * 127, "漢" * 85, "x." + "y" * 250):
            with OutputDirectory(tmp_path / name) as out, out.stage() as stage:
                atomic_write(stage / name, "1")
            assert names(out.path) == [name]


@pytest.mark.parametrize("removal", ["unlink", "rmtree"])
@pytest.mark.parametrize("interrupts", [1, 2, 100])
def test_an_interrupt_in_the_middle_of_a_removal_keeps_nothing_from_being_removed(
    tmp_path, monkeypatch, removal, interrupts
):
    owner = Path if removal == "unlink" else shutil
    real, left = getattr(owner, removal), [interrupts]

    def interrupted(*given, **options):
        left[0] -= 1
        if left[0] >= 0:
            raise KeyboardInterrupt
        return real(*given, **options)

    def use():
        if removal == "unlink":
            with new_file(tmp_path):
                pass
        elif interrupts == 1:
            with OutputDirectory(tmp_path / "out"):
                pass
        else:
            with new_folder(tmp_path):
                pass

    monkeypatch.setattr("int8cal.io.locks.LOCKS", False)  # with locks the next run would clear it
    monkeypatch.setattr("int8cal.io.atomic.LOCKS", False)
    monkeypatch.setattr(owner, removal, interrupted)
    with pytest.raises(KeyboardInterrupt):
        use()
    monkeypatch.undo()
    # whoever never lets go of Ctrl-C ends it all the same
    assert bool(names(tmp_path)) == (interrupts == 100)


def test_a_directory_is_tried_by_many_processes_at_a_time(tmp_path):
    code = """
import sys
from pathlib import Path
from int8cal.io.paths import require_free
sys.stdin.read()
for number in range(200):
    require_free(Path(f"out{number}"), overwrite=False, directory=True)
"""
    several = [python(code, tmp_path, stdin=subprocess.PIPE) for _ in range(4)]
    for process in several:
        process.stdin.close()
    assert [process.wait() for process in several] == [0] * 4
    assert names(tmp_path) == []
    require_free(tmp_path / "out", overwrite=False, directory=True)
