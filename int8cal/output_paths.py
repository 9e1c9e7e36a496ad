"""What may be written where: asked before any work, so that nobody waits for results that cannot be kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.atomic import atomic_path
from int8cal.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def require_free(path: Path, *, overwrite: bool, directory: bool = False) -> None:
    """Refuse an output that exists without --overwrite, is of the wrong kind, or cannot be written; creates nothing.

    Raises:
        OutputError: Says which of these.
    """
    if path.exists():
        if directory != path.is_dir():
            kind = "a file" if directory else "a directory"
            raise OutputError(f"is {kind}", where=str(path), do="give another output path")
        if not overwrite:
            raise OutputError("exists", where=str(path), do="give --overwrite, or another output path")
    parent = path if path.is_dir() else next((each for each in path.absolute().parents if each.exists()), Path("/"))
    if not directory and not path.parent.is_dir():
        raise OutputError(f"its directory {path.parent} does not exist", where=str(path), do="create it first")
    if not parent.is_dir():
        raise OutputError(f"{parent} is not a directory", where=str(path), do="give another output path")
    # access rights alone do not tell (read-only mounts, root): try to create a file
    if directory:
        _probe(parent, path)


def require_apart(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, with --overwrite too.

    Raises:
        OutputError: Names the output.
    """
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path.resolve() in read:
            raise OutputError("is also an input", where=str(path), do="give another output path")


def _probe(parent: Path, path: Path) -> None:
    try:
        with atomic_path(parent / ".int8cal-probe") as temporary:
            temporary.write_bytes(b"")
        (parent / ".int8cal-probe").unlink()
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror})", where=str(path), do="give another output path"
        ) from error
