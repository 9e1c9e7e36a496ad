"""A path becomes a sorted list of files of one kind: directory, single file or glob."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from int8cal.data.remote import files_at, is_url
from int8cal.errors import DataError
from int8cal.io.paths import STATISTICS, TABLE, from_home

if TYPE_CHECKING:
    from collections.abc import Iterator

FileKind = Literal["image", "audio", ".npy", ".npz", "input_*.pb", ".txt", ".csv", ".tsv", ".jsonl"]

_KINDS: dict[str, FileKind] = {
    ".jpg": "image",
    ".jpeg": "image",
    ".png": "image",
    ".bmp": "image",
    ".webp": "image",
    ".npy": ".npy",
    ".npz": ".npz",
    ".wav": "audio",
    ".flac": "audio",
    ".ogg": "audio",
    ".txt": ".txt",
    ".csv": ".csv",
    ".tsv": ".tsv",
    ".jsonl": ".jsonl",
}
# Beside samples of other kinds they are lists, labels and notes
TEXTS: frozenset[FileKind] = frozenset({".txt", ".csv", ".tsv", ".jsonl"})
REMOTE: frozenset[FileKind] = frozenset({"image", ".npy", ".npz", "input_*.pb"})
LABELS = "labels.csv"  # of the samples that it lies beside
INPUT_FILE = re.compile(r"input_(\d+)\.pb")
_ACCEPTED = f"{', '.join(_KINDS)}, test_data_set_*/input_*.pb"


@dataclass(frozen=True)
class Found:
    """All usable files of a source, one kind, sorted by their place under the root.

    Attributes:
        kind: What they hold.
        root: The directory; the parent of a single file; a glob's directories up to the first wildcard.
        files: As the user would write them.
    """

    kind: FileKind
    root: Path
    files: tuple[Path, ...]

    def place(self, file: Path) -> str:
        """Return the place of a file under the root, such as "cat/1.png"."""
        return file.relative_to(self.root).as_posix()


def find(text: str) -> Found:
    """List what a path means.

    Args:
        text: Directory (searched to any depth), file, or glob ("**" allowed; a matched directory is searched); or a URL
            of such (see `remote`).

    Returns:
        At least one file. Hidden files and folders are left out, so is every file that is no source of samples, and
        what an earlier run wrote into the directory.

    Raises:
        DataError: The path does not exist or cannot be listed, nothing usable is there, or several kinds are mixed.
    """
    if is_url(text):
        root, paths, file = files_at(text)
    else:
        root, paths, file = _files_here(text)
    kinds = {path: kind for path in paths if (kind := _kind(path)) is not None}
    if not file:
        tables = [path for path in paths if path.name.endswith(TABLE)]
        beside = {path.with_name(path.name.removesuffix(TABLE) + STATISTICS) for path in tables}
        kinds = {path: kind for path, kind in kinds.items() if path not in beside}
        others = not TEXTS.issuperset(kinds.values())
        kinds = {path: kind for path, kind in kinds.items() if path.name != LABELS and not (others and kind in TEXTS)}
    if not kinds:
        unused = f" ({len(paths)} other files)" if paths else ""
        raise DataError(f"holds nothing usable{unused}", where=text, do=f"accepted are {_ACCEPTED}", path=text)
    if is_url(text):
        kinds = _sent(kinds, text)
    counts = Counter(kinds.values())
    if len(counts) > 1:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        raise DataError(
            f"mixes kinds of samples: {listed}", where=text, do='say which with a glob, e.g. "calib/*.png"', path=text
        )
    return Found(next(iter(counts)), root, tuple(sorted(kinds, key=lambda path: path.relative_to(root).parts)))


def _files_here(text: str) -> tuple[Path, list[Path], bool]:
    """List what a path of this machine means: the root, the files, and whether it is one file."""
    literal = from_home(text)
    try:
        folder, file, exists = literal.is_dir(), literal.is_file(), literal.exists()
    except OSError as error:  # no permission, a link that leads back to itself, a name that is too long
        raise DataError(f"cannot be read: {error.strerror}", where=text, do="check the path", path=text) from error
    if folder:
        root, paths = literal, list(visible_files(literal))
    elif file:
        root, paths = literal.parent, [literal]
    elif exists:
        raise DataError("is no regular file", where=text, do="give a directory, a file or a glob", path=text)
    elif glob.has_magic(text):
        root, paths = _match(text)
    else:
        raise DataError(
            "does not exist", where=text, do="give a directory, a file, a glob or package.module:function", path=text
        )
    return root, paths, file


def _sent(kinds: dict[Path, FileKind], text: str) -> dict[Path, FileKind]:
    """Return the files that are read at URLs: images and arrays."""
    kept = {path: kind for path, kind in kinds.items() if kind in REMOTE}
    if not kept:
        raise DataError(
            f"holds {next(iter(kinds.values()))} files, which are not read at a URL",
            where=text,
            do="copy them to this machine, or store images or arrays",
            path=text,
        )
    return kept


def holds(folder: Path, kind: FileKind) -> bool:
    """Tell whether a folder holds a file of this kind, at any depth; stops at the first."""
    return any(_kind(path) == kind for path in visible_files(folder))


def _kind(path: Path) -> FileKind | None:
    if INPUT_FILE.fullmatch(path.name):
        return "input_*.pb"
    return _KINDS.get(path.suffix.lower())


def _match(text: str) -> tuple[Path, list[Path]]:
    pattern = from_home(text)
    fixed: list[str] = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    paths: dict[Path, None] = {}
    for match in glob.glob(str(pattern), recursive=True):  # noqa: PTH207 - Path.glob shows hidden files
        path = Path(match)
        paths.update(dict.fromkeys(visible_files(path) if path.is_dir() else [path]))
    if not paths:
        raise DataError("matches no file", where=text, do="quote the glob and check its folder", path=text)
    return Path(*fixed), list(paths)


def visible_files(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """List the files in a folder at any depth, sorted, links followed, hidden ones left out.

    Args:
        folder: A directory.
        above: Real paths of the folders that are being listed; a link back to one of them would never end.

    Raises:
        DataError: A folder cannot be listed.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as entries:
            visible = sorted(
                (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
            )
    except OSError as error:
        raise DataError(f"cannot be listed: {error.strerror}", where=str(folder), do="check its permissions") from error
    for entry in visible:
        try:
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except OSError as error:  # a link that leads back to itself
            raise DataError(f"cannot be followed: {error.strerror}", where=entry.path, do="remove the link") from error
        if is_folder:
            yield from visible_files(Path(entry.path), (*above, real))
        elif is_file or entry.is_symlink():  # a link to nothing is told when it is read; a pipe or device has no end
            yield Path(entry.path)
