"""Files that are either the old one or the new one, never half of one, and directories that one process writes to.

A file is written under a hidden name in its own directory, flushed to disk, and moved over the old one in one step. A
directory that is not there yet is filled under a hidden name as well, and gets its own with everything in it. Hidden
names that a killed process left are cleared by the next one that writes there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from int8cal.errors import DISK_ERRORS, OutputError, reason_of
from int8cal.io.locks import LOCKS, Lock, hidden_name, new_file, new_folder, surely, sweep, take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# How often, and after how many seconds, a directory is tried again that another process has just begun or ended with.
_TRIES, _PAUSE_S = 10, 0.05


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a whole file atomically.

    Args:
        path: The file to write or replace; its directory must exist.
        data: The content; text is written as UTF-8 with line ends as they are, bytes of a
            path that are no UTF-8 as escapes.

    Raises:
        OutputError: The file cannot be written; the old file, if any, is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `path` when the block ends well, and is removed otherwise.

    Args:
        path: The file to write or replace; its directory must exist. A symbolic link stays one.

    Yields:
        An empty file in the same directory, with the same suffix (numpy.savez appends one where it is missing).

    Raises:
        OutputError: The file cannot be created, filled or moved. Other exceptions of the block, KeyboardInterrupt
            included, pass through after the temporary file is gone.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OutputError("is not a regular file", do="give another output path", where=str(path), path=str(path))
    sweep(target.parent)
    temporary = None
    try:
        with new_file(target.parent, target.stem, target.suffix) as temporary:
            yield temporary
            _flush(temporary)
            temporary.replace(target)
    except OSError as error:
        if temporary is None or error.filename == str(temporary) or error.errno in DISK_ERRORS:
            raise _output_error(path, error) from error
        raise
    _flush_directory(target.parent)


class OutputDirectory:
    """A directory of results that this process alone writes to, from the start of its work to the end of the block.

    Entering makes nothing that is seen, and waits for nobody: a second process is refused. Results appear with `stage`.

    Attributes:
        path: The directory; it exists, or will with the first stage that ends well.
        stages: How many have ended well.
    """

    def __init__(self, path: Path, *, overwrite: bool = True) -> None:
        """Name a directory.

        Args:
            path: Parents are made where they are missing, and removed again if nothing came of it.
            overwrite: Whether it may exist.
        """
        self.path, self.stages = path, 0
        self._overwrite = overwrite
        self._lock = Lock(None)
        self._made: list[Path] = []
        whole = path.absolute()
        digits = hashlib.sha256(os.fsencode(whole.name)).hexdigest()[:12]
        self._hidden = whole.with_name(hidden_name(whole.name, digits)) if whole.name else whole
        self._unborn = False

    def __enter__(self) -> Self:
        """Lock the directory.

        Raises:
            OutputError: Another process writes to it, it exists and may not, or it cannot be made.
        """
        parent = self.path.absolute().parent
        try:
            self._made = [each for each in (parent, *parent.parents) if not each.exists()]
            parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
            sweep(parent)
            if not self._unborn:
                sweep(self.path)
        except BaseException as error:
            if not self._unborn:  # an interrupt may have come before the hidden folder was known to be this one's
                self._lock.release()
                sweep(parent)
            self._leave()
            if isinstance(error, OSError):
                raise _output_error(self.path, error) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock it; a directory without results is none."""
        self._leave()

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Give an empty hidden directory on the same disk; what is in it becomes results when the block ends well.

        Files of other names stay. When the block fails, the results are as they were.

        Raises:
            OutputError: The directory cannot be written.
        """
        self._require_own()
        place = self._hidden
        try:
            with nullcontext(place) if self._unborn else new_folder(self.path) as place:
                yield place
                self._publish(place)
        except OutputError as error:
            error.where = error.where.replace(str(place), str(self.path))  # not the hidden name, which is gone by then
            raise
        except OSError as error:
            named = (str(place), str(self.path))
            if any(name in str(error.filename) for name in named) or error.errno in DISK_ERRORS:
                raise _output_error(self.path, error) from error
            raise
        finally:
            if self._unborn:
                _clear(place)

    def _acquire(self) -> None:
        for _ in range(_TRIES):
            try:
                if self.path.is_dir():
                    self._lock = take(self.path)
                    if not self._overwrite:
                        raise OutputError("exists", where=str(self.path), do="give --overwrite, or another output path")
                    return
                if not LOCKS:
                    self._make_own()
                    return
                self._hidden.mkdir(exist_ok=True)
                self._lock = take(self._hidden)
                if self.path.is_dir():  # another process has ended in between
                    self._hidden.rmdir()
                    self._lock.release()
                    continue
                if self._lock.descriptor is None:  # a drive without locks
                    self._hidden.rmdir()
                    self._make_own()
                    return
                self._unborn = True
                _clear(self._hidden)
            except FileNotFoundError:
                continue
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            else:
                return
        raise OutputError(
            "another run is writing to it",
            where=str(self.path),
            do="wait for its end, or give another output directory",
            path=str(self.path),
        )

    def _make_own(self) -> None:
        """Make the hidden folder under a name that nobody else has: without locks none can tell whose it is."""
        self._hidden = self._hidden.with_name(hidden_name("", secrets.token_hex(6)))
        self._unborn = True  # first: an interrupt may come before the next line has ended
        self._hidden.mkdir()

    def _require_own(self) -> None:
        """Refuse a directory that is no longer the one that was locked: what it leads to may be anybody's."""
        if self._unborn:
            same = not self.path.is_symlink()
        elif self._lock.descriptor is None:
            return
        else:
            same = os.path.samestat(os.fstat(self._lock.descriptor), self.path.stat())
        if not same:
            raise OutputError(
                "was replaced while the run wrote to it",
                where=str(self.path),
                do="run again, and leave the directory alone until the end",
                path=str(self.path),
            )

    def _publish(self, place: Path) -> None:
        self._require_own()
        if self._unborn:
            _flush_directory(place)
            with contextlib.suppress(OSError):  # somebody else has made it meanwhile: its files are replaced below
                place.rename(self.path)
                self._unborn = False
        if not self._unborn and not place.exists():
            _flush_directory(self.path.absolute().parent)
        else:
            self.path.mkdir(exist_ok=True)
            for file in sorted(place.iterdir()):
                file.replace(self.path / file.name)
            _flush_directory(self.path)
        self.stages += 1

    def _leave(self) -> None:
        if self._unborn:
            surely(partial(shutil.rmtree, self._hidden, ignore_errors=True))
        for each in self._made:
            with contextlib.suppress(OSError):  # something is in it
                each.rmdir()
        self._lock.release()


def _clear(folder: Path) -> None:
    """Remove everything in a folder."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _flush(path: Path) -> None:
    """Force the content to disk, so that a power cut after the move cannot leave an empty file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    """Force the move itself to disk where the system allows to open a directory; the file is complete either way."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _output_error(path: Path, error: OSError) -> OutputError:
    advice = {
        errno.ENOENT: "create the directory first",
        errno.ENOTDIR: "give a path inside a directory",
        errno.ENOSPC: "free some space on that disk",
        errno.ENAMETOOLONG: "give a shorter name",
    }.get(error.errno or 0, "check the permissions, or give another output directory")
    return OutputError(f"cannot be written ({reason_of(error)})", do=advice, where=str(path), path=str(path))
