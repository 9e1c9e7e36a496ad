"""URLs as sources: files of any file system that the library fsspec knows, read where they are.

A URL is a `Path` to everything behind: universal_pathlib gives it the same methods.
"""

from __future__ import annotations

import glob
import io
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from int8cal.errors import DataError, UsageError
from int8cal.extras import extra_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CHAIN = "::"  # "zip://folder::s3://bucket/data.zip" is a folder of an archive that is elsewhere


def is_url(text: str) -> bool:
    """Tell a URL from a path of this machine, a function, and a dataset."""
    return _URL.match(text) is not None


def path_of(text: str) -> Path:
    """Return a path, of this machine or elsewhere, with the methods of a `Path`.

    Raises:
        UsageError: It is a URL, and what reads such is not installed.
    """
    if not is_url(text):
        return Path(text)
    try:
        from upath import UPath
    except ImportError as error:
        raise UsageError(
            "data at a URL need fsspec, which is not installed", where=text, do=extra_hint("remote")
        ) from error
    return cast("Path", _asked(text, lambda: UPath(text)))


def files_at(text: str) -> tuple[Path, list[Path], bool]:
    """List what a URL means: a folder at any depth, a file, or a glob.

    Returns:
        The root, the files, and whether it is one file. Hidden files and folders are left out.

    Raises:
        DataError: Nothing is there, or it cannot be reached.
        UsageError: Its file system needs a library that is not installed.
    """
    path = path_of(text)
    if _asked(text, path.is_dir):
        return path, _asked(text, lambda: [*_below(path)]), False
    if _asked(text, path.is_file):
        return path.parent, [path], True
    if not glob.has_magic(text):
        raise DataError("does not exist", where=text, do="check the URL, and the rights to read it", path=text)
    own, chain, rest = text.partition(_CHAIN)
    fixed = own[: re.search(r"[*?\[]", own).start()].rpartition("/")[0]  # type: ignore[union-attr]
    root = path_of(f"{fixed if '://' in fixed else own.partition('://')[0] + '://'}{chain}{rest}")
    found = _asked(
        text, lambda: [*_matching(root, own[len(fixed) + 1 :] if "://" in fixed else own.partition("://")[2])]
    )
    if not found:
        raise DataError("matches no file", where=text, do="quote the glob and check its folder", path=text)
    return root, found, False


def content(source: Path | IO[bytes]) -> Path | IO[bytes]:
    """Return a file as libraries open it: by its path on this machine, in memory from elsewhere."""
    if hasattr(source, "read") or not is_url(source.as_posix()):
        return source
    return io.BytesIO(source.read_bytes())


def _below(root: Path) -> Iterator[Path]:
    remote = cast("Any", root)
    for name in sorted(remote.fs.find(remote.path)):
        place = _place(name, remote.path)
        if place and not any(part.startswith(".") for part in place.split("/")):
            yield root / place


def _matching(root: Path, pattern: str) -> Iterator[Path]:
    remote = cast("Any", root)
    base = remote.path.rstrip("/")
    for name in sorted(remote.fs.glob(f"{base}/{pattern}" if base else pattern)):
        path = root / _place(name, remote.path)
        if path.is_dir():
            yield from _below(path)
        elif not any(part.startswith(".") for part in _place(name, remote.path).split("/")):
            yield path


def _place(name: str, root: str) -> str:
    base = root.strip("/")
    return name.strip("/").removeprefix(base).strip("/")


def _asked(text: str, ask: Callable[[], T]) -> T:
    """Ask a file system, whose errors are those of many libraries."""
    try:
        return ask()
    except ImportError as error:
        what = str(error).strip().rstrip(".")
        raise UsageError(f"cannot be read: {what}", where=text, do="install that library") from error
    except Exception as error:
        what = str(error).strip().rstrip(".") or type(error).__name__
        raise DataError(
            f"cannot be reached: {what}", where=text, do="check the URL, and the rights to read it"
        ) from error
