"""What a path with samples holds, told cheaply: names, sizes and times of its files, and their bytes where in doubt."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from int8cal.data.callables import is_callable_path
from int8cal.data.find import find
from int8cal.errors import Int8calError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.data.find import Found
    from int8cal.job import DataSettings

# Bytes that are read to tell whether files whose times have changed hold what they held: seconds. Beyond, the job's own
# pass over its samples is the cheaper answer.
CONTENT_LIMIT = 1 << 30
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Source:
    """The files behind one data path, labels included.

    Attributes:
        files, size: How many there are, and their bytes.
        listing: Hash of their places, sizes and times of change; "" for a function, which nobody can look into.
        content: Hash of their places and bytes; "" where they were not read.
    """

    files: int
    size: int
    listing: str
    content: str = ""


def source_of(data: DataSettings) -> Source:
    """List the files of a data path, without reading them.

    Args:
        data: Its path and labels count.

    Raises:
        DataError: There are none.
        OSError: A file is gone.
    """
    if is_callable_path(data.path, None):
        return Source(0, 0, "")
    found = find(data.path)
    listing = xxhash.xxh3_128()
    count = size = 0
    for place, path in _entries(found, data.labels):
        listing.update(_named(place))
        if path is not None:
            stat = path.stat()
            listing.update(f"{stat.st_size}|{stat.st_mtime_ns}|".encode())
            count, size = count + 1, size + stat.st_size
    return Source(count, size, listing.hexdigest())


def content_of(data: DataSettings, source: Source) -> str:
    """Hash the bytes of all files of a data path; "" where there are none, or more than `CONTENT_LIMIT`.

    Args:
        data: As for `source_of`.
        source: What that gave.

    Raises:
        DataError, OSError: As for `source_of`.
    """
    if not source.listing or source.size > CONTENT_LIMIT:
        return ""
    content = xxhash.xxh3_128()
    for place, path in _entries(find(data.path), data.labels):
        content.update(_named(place))
        if path is not None:
            content.update(f"{path.stat().st_size}|".encode())
            with path.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    content.update(block)
    return content.hexdigest()


def paths_of(data: DataSettings) -> Iterator[Path]:
    """Name what a data path reads, as far as that can be found: the path itself, its files, and their labels."""
    if is_callable_path(data.path, None):
        return
    yield Path(data.path)
    with contextlib.suppress(Int8calError, OSError, ValueError):  # the job tells it better
        for _, path in _files(find(data.path), data.labels):
            yield path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _entries(found: Found, labels: str | None) -> Iterator[tuple[str, Path | None]]:
    """Name the folders right under the root, where a class without samples still counts, and all files."""
    with os.scandir(found.root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for folder in folders:
        yield f"{folder}/", None
    yield from _files(found, labels)


def _named(place: str) -> bytes:
    return f"{len(place)}:{place}|".encode("utf-8", "surrogateescape")


def _files(found: Found, labels: str | None) -> Iterator[tuple[str, Path]]:
    for file in found.files:
        yield file.relative, file.path
    beside = found.root / "labels.csv"
    if labels is None and beside.is_file():
        yield "labels.csv", beside
    elif labels not in (None, "folders"):
        yield "/labels", Path(str(labels)).expanduser()
