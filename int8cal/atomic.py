"""Files that are either the old one or the new one, never half of one.

A file is written under a hidden name in its own directory, flushed to disk, and moved over the old one in one step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of the disk rather than of what the caller does while writing.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a whole file atomically.

    Args:
        path: The file to write or replace; its directory must exist.
        data: The content; text is written as UTF-8 with line ends as they are.

    Raises:
        OutputError: The file cannot be written; the old file, if any, is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


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
    temporary = target.with_name(f".{target.stem[:100]}.{secrets.token_hex(6)}{target.suffix}")
    try:
        # Not mkstemp: its files are private to the user, while an output file follows the umask.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        _flush(temporary)
        temporary.replace(target)
    except OSError as error:
        if error.filename == str(temporary) or error.errno in _DISK_ERRORS:
            raise _output_error(path, error) from error
        raise
    finally:
        # After the move there is nothing left to remove.
        with contextlib.suppress(OSError):
            temporary.unlink()
    _flush_directory(target.parent)


@contextmanager
def staged_directory(directory: Path) -> Iterator[Path]:
    """Give a hidden directory to write files to; they move into `directory` when the block ends well.

    Args:
        directory: Made if it does not exist, with its parents. Files in it of other names stay.

    Yields:
        An empty directory on the same disk. When the block fails it is removed, and `directory` is as it was.

    Raises:
        OutputError: The directory cannot be made or written.
    """
    parent = next((each for each in directory.absolute().parents if each.is_dir()), Path("/"))
    stage = parent / f".{directory.name[:100]}.{secrets.token_hex(6)}"
    try:
        stage.mkdir()
        try:
            yield stage
            directory.mkdir(parents=True, exist_ok=True)
            for file in sorted(stage.iterdir()):
                file.replace(directory / file.name)
            _flush_directory(directory)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        if str(stage) in str(error.filename) or str(directory) in str(error.filename) or error.errno in _DISK_ERRORS:
            raise _output_error(directory, error) from error
        raise


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
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"cannot be written ({reason})", do=advice, where=str(path), path=str(path))
