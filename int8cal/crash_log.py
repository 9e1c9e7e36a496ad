"""The log of a bug in int8cal: its traceback in a file, and one line for the user."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

import int8cal
from int8cal.errors import notes_of


def keep_crash(error: BaseException) -> str:
    """Keep a bug's traceback in a log file, or print it where none can be written.

    Args:
        error: The exception that nobody expected.

    Returns:
        The one line for the user.
    """
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    try:
        log = _write_log(error)
    except OSError as failure:
        traceback.print_exception(error, file=sys.stderr)
        log_missing = f"this is a bug in int8cal, and its log could not be written: {failure}"
        return f"internal: {what}; {log_missing}{notes_of(error)}"
    return f"internal: {what}; this is a bug in int8cal, please report it with {log}{notes_of(error)}"


def _write_log(error: BaseException) -> Path:
    path = Path(tempfile.gettempdir()) / f"int8cal-crash-{os.getpid()}.log"
    text = "".join(
        [
            f"int8cal {int8cal.__version__}, Python {platform.python_version()}, {platform.platform()}\n",
            f"arguments: {sys.argv[1:]}\n\n",
            *traceback.format_exception(error),
        ]
    )
    try:
        # Exclusive creation: never through a link that someone left under this name in a shared directory.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        handle, name = tempfile.mkstemp(prefix=f"int8cal-crash-{os.getpid()}-", suffix=".log")
        path = Path(name)
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - an open descriptor, not a path
            file.write(text)
    return path
