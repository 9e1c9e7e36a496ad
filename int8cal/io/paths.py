"""What may be read and what may be written where, asked before any work: every command says the same of a path."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.errors import Int8calError, OutputError, reason_of
from int8cal.io.locks import new_file, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable

# What the files of a run end with, behind the name of the model; the reports have no other names.
MODEL, TABLE, STATISTICS = ".int8.onnx", ".table.json", ".stats.npz"
REPORT_FILES = REPORT, REPORT_MARKDOWN, REPORT_PAGE = "report.json", "report.md", "report.html"
_LONGEST_NAME = 255  # bytes, on the file systems in use
_OTHER = "give another output path"


def from_home(text: str | Path) -> Path:
    """Return a path with "~" and "~user" replaced; a user who has no home here stays as it is written."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for such a user


def require_readable(path: Path, error: type[Int8calError], do: str) -> None:
    """Refuse a path that is no regular file, or that may not be read.

    Raises:
        Int8calError: Of the class `error`, that of the station that the file is for; says whether it is missing, a
            directory, something else, or not readable.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
            raise error(what, where=str(path), do=do, path=path)
        with path.open("rb"):
            return
    except FileNotFoundError as missing:
        raise error("does not exist", where=str(path), do=do, path=path) from missing
    except PermissionError as refused:
        what = f"cannot be read ({reason_of(refused)})"
        raise error(what, where=str(path), do="check its permissions and those of its folders", path=path) from refused
    except (OSError, ValueError) as failure:  # a link to itself, a name too long or with a zero byte, a broken disk
        why = reason_of(failure) if isinstance(failure, OSError) else str(failure)
        raise error(f"cannot be read ({why})", where=str(path), do=do, path=path) from failure


def require_no_device(path: Path, error: type[Int8calError], do: str, *, may_be_pipe: bool = False) -> None:
    """Refuse a pipe, device or socket: reading one may wait for ever, or never end. Whoever reads tells all else.

    Args:
        path: To read.
        error: What is raised.
        do: What to do about it.
        may_be_pipe: Whether what another command writes is read too: a file that nobody opens twice.

    Raises:
        Int8calError: Of the class `error`.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (may_be_pipe and stat.S_ISFIFO(mode))):
        raise error("is not a regular file", where=str(path), do=do, path=path)


def require_free(path: Path, *, overwrite: bool, directory: bool = False) -> None:
    """Refuse an output that exists without --overwrite, is of the wrong kind, or cannot be written; creates nothing.

    Raises:
        OutputError: Says which of these.
    """
    _require_possible(path, directory=directory)
    if exists(path):
        if directory != path.is_dir():
            kind = "a file" if directory else "a directory"
            raise OutputError(f"is {kind}", where=str(path), do="give another output path")
        if not overwrite:
            raise OutputError("exists", where=str(path), do="give --overwrite, or another output path")
    parent = path if path.is_dir() else next((each for each in path.absolute().parents if exists(each)), Path("/"))
    if not directory and not path.parent.is_dir():
        raise OutputError(f"its directory {path.parent} does not exist", where=str(path), do="create it first")
    if not parent.is_dir():
        raise OutputError(f"{parent} is not a directory", where=str(path), do="give another output path")
    # access rights alone do not tell (read-only mounts, root): try to create a file
    if directory:
        _probe(parent, path)


def exists(path: Path) -> bool:
    """Tell whether something is there; not a path that cannot be one, such as a name that is too long."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def require_apart(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, with --overwrite too.

    Raises:
        OutputError: Names the output.
    """
    # not resolve(), which fails on a link that leads to itself
    read = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        if os.path.realpath(path) in read:
            raise OutputError("is also an input", where=str(path), do="give another output path")


def require_possible(*files: Path) -> None:
    """Refuse files that cannot be: a name that is too long, or a folder behind a link that leads nowhere.

    Raises:
        OutputError: Says which of these.
    """
    for path in files:
        _require_possible(path, directory=False)


def _require_possible(path: Path, *, directory: bool) -> None:
    """Refuse a path that no file or directory can have, or that stands for standard output elsewhere."""
    if str(path) == "-":
        raise OutputError("is not taken for standard output here", where="-", do="give the path of a file or directory")
    for part in path.parts:
        if len(os.fsencode(part)) > _LONGEST_NAME:
            what = f"the name {part[:20]}... is longer than {_LONGEST_NAME} bytes"
            raise OutputError(what, where=f"{str(path)[:60]}...", do="give a shorter name")
    for each in (*reversed(path.parents), path):  # the first that cannot be is named, not what lies behind it
        try:
            each.stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OutputError("is a link that leads to itself", where=str(each), do=_OTHER) from error
            if error.errno in (errno.EACCES, errno.EPERM):
                what = f"cannot be written ({reason_of(error)})"
                raise OutputError(
                    what, where=str(path), do=f"check the permissions of its folders, or {_OTHER}"
                ) from error
            if error.errno == errno.ENAMETOOLONG:
                raise OutputError("is too long", where=f"{str(path)[:60]}...", do="give a shorter path") from error
            # a file is written through a link to nothing; no directory is made through one
            if error.errno == errno.ENOENT and os.path.islink(each) and (directory or each != path):  # noqa: PTH114 - says no where Path raises
                raise OutputError(
                    f"is a link to {os.readlink(each)}, which does not exist",  # noqa: PTH115 - text
                    where=str(each),
                    do=f"create that directory, or {_OTHER}",
                ) from error


def _probe(parent: Path, path: Path) -> None:
    sweep(parent)
    try:
        with new_file(parent):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror})", where=str(path), do="give another output path"
        ) from error


def temporary_directory() -> Path:
    """Return the directory for temporary files, without trying it as `tempfile` does: a kill leaves the trial there."""
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    places = (tempfile.tempdir, *named, "/tmp")  # noqa: S108 - nothing is written under a name that others know
    found = next((Path(place) for place in places if place and Path(place).is_dir()), None)
    return found or Path(tempfile.gettempdir())


def require_room(folder: Path) -> None:
    """Tell a full disk as what it is: of it the runtime says only that a model is broken, or cuts a file off.

    Args:
        folder: Where the runtime wrote; what it could write is still there.

    Raises:
        OSError: No further file of that size can be written there.
    """
    needed = (1 << 20) + sum(file.stat().st_size for file in folder.iterdir())
    probe = folder / "probe"
    try:
        with probe.open("wb") as stream:
            for _ in range(-(-needed >> 20)):
                stream.write(bytes(1 << 20))
    finally:
        probe.unlink(missing_ok=True)
