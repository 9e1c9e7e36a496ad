"""Whether a file can be read: asked in one place, so that every command says the same of a file that cannot."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from int8cal.errors import Int8calError, reason_of

if TYPE_CHECKING:
    from pathlib import Path


def require_readable(path: Path, error: type[Int8calError], do: str) -> None:
    """Refuse a path that is no regular file, or that may not be read.

    Args:
        path: The file.
        error: What to raise: the error of the station that the file is for.
        do: What to give in its place.

    Raises:
        Int8calError: Of the class `error`; says whether it is missing, a directory, something else, or not readable.
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
