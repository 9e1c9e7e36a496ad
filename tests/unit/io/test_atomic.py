from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from int8cal.errors import OutputError
from int8cal.io import locks
from int8cal.io.atomic import OutputDirectory, atomic_path, atomic_write


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_text_is_utf8_with_its_line_ends_and_bytes_are_bytes(tmp_path):
    atomic_write(tmp_path / "a.txt", "é\n\r\n")
    atomic_write(tmp_path / "b.bin", b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\n\r\n"
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a.txt", "b.bin"]


def test_the_old_file_is_there_until_the_block_has_ended(tmp_path):
    target = tmp_path / "table.json"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["table.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError, SystemExit])
def test_an_interrupted_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "model.onnx"
    target.write_text("old")

    def interrupted():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["model.onnx"]


def test_an_interrupted_first_write_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "x"):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_missing_directory_is_an_output_error(tmp_path):
    with pytest.raises(OutputError) as caught:
        atomic_write(tmp_path / "none" / "x.json", "")
    assert str(tmp_path / "none" / "x.json") in str(caught.value)
    assert "create the directory first" in str(caught.value)


def test_a_directory_or_a_device_in_the_place_of_the_file_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="not a regular file"):
        atomic_write(tmp_path, "")
    with pytest.raises(OutputError, match="not a regular file"):
        atomic_write(type(tmp_path)(os.devnull), "")


def test_a_refused_permission_is_an_output_error(tmp_path, monkeypatch):
    # Root may write everywhere, so the refusal is simulated.
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OutputError, match="permission denied"):
        atomic_write(tmp_path / "x", "")


def test_a_full_disk_is_an_output_error_and_leaves_the_old_file(tmp_path):
    target = tmp_path / "x"
    target.write_text("old")
    with pytest.raises(OutputError, match="free some space"), atomic_path(target):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_an_error_about_another_file_is_not_taken_for_one_about_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "x"):
        (tmp_path / "input").read_text()
    assert names(tmp_path) == []


def test_what_cannot_be_written_into_a_new_directory_is_told_with_its_own_name(tmp_path):
    with (
        OutputDirectory(tmp_path / "out") as directory,
        pytest.raises(OutputError) as caught,
        directory.stage() as place,
    ):
        atomic_write(place / "missing" / "model.onnx", b"")
    assert str(caught.value).startswith(f"output: {tmp_path}/out/missing/model.onnx: cannot be written")


def test_the_new_file_follows_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "x", "")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_symbolic_link_keeps_pointing_to_its_file(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("at", ["before the results", "before they are moved"])
@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_is_replaced_by_a_link_meanwhile_is_refused(tmp_path, there, at):
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "model").write_text("precious")

    def replace():
        if there:
            out.rename(tmp_path / "gone")
        out.symlink_to(other)

    def run():
        with OutputDirectory(out) as directory:
            if at == "before the results":
                replace()
            with directory.stage() as stage:
                (stage / "model").write_text("new")
                if at == "before they are moved":
                    replace()

    if there:
        out.mkdir()
    with pytest.raises(OutputError, match="replaced while the run wrote to it"):
        run()
    assert [*other.iterdir()] == [other / "model"]
    assert (other / "model").read_text() == "precious"
    # what was moved away keeps its hidden folder, which the next run into it clears
    assert not [path for path in (*tmp_path.iterdir(), *other.iterdir()) if ".int8cal-" in path.name]


def test_a_link_to_a_directory_is_one_as_long_as_it_leads_there(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with OutputDirectory(tmp_path / "out") as directory, directory.stage() as stage:
        (stage / "model").write_text("new")
    assert (tmp_path / "real/model").read_text() == "new"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the listing of an interrupted sweep
@pytest.mark.parametrize("locks_there", [True, False])
@pytest.mark.parametrize("which", ["directory", "stage", "file", "folder"])
def test_an_interrupt_anywhere_on_the_way_in_leaves_nothing(tmp_path, monkeypatch, which, locks_there):
    """Ctrl-C may land between the making of a hidden file and the note that it is there.

    Python looks for signals at the start of a function and when a call into C has returned.
    """
    if not locks_there:
        monkeypatch.setattr("int8cal.io.locks.LOCKS", False)
        monkeypatch.setattr("int8cal.io.atomic.LOCKS", False)
    (tmp_path / "there").mkdir()
    contexts = {
        "directory": lambda: OutputDirectory(tmp_path / "deep" / "new"),
        "stage": lambda: OutputDirectory(tmp_path / "there").stage(),
        "file": lambda: atomic_path(tmp_path / "a.json"),
        "folder": lambda: locks.new_folder(tmp_path, private=True),
    }

    def interrupted_at(chance):
        """Return the place of the interrupt; None once there are fewer chances on the way in."""
        context, left = contexts[which](), chance

        def profile(frame, event, _argument):
            nonlocal left
            if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt(f"{event} in {frame.f_code.co_qualname}:{frame.f_lineno}")

        sys.setprofile(profile)
        try:
            context.__enter__()
        except KeyboardInterrupt as interrupt:
            return str(interrupt)
        finally:
            sys.setprofile(None)
        context.__exit__(None, None, None)
        return None

    chance = 0
    while place := interrupted_at(chance):
        assert [*names(tmp_path), *names(tmp_path / "there")] == ["there"], place
        chance += 1
    assert chance > 10
