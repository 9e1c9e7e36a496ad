"""Every error int8cal raises on purpose: one tree, each class with the exit code of its station; the log of a bug.

An error names where (file, node, tensor, YAML line), what is wrong, what was expected, and what to do, in one line.
`cli.main` is the only place that turns these into a message and an exit code.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import int8cal

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of the disk rather than of what the caller does while writing.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})

_NO_MEMORY = ("bad_alloc", "Cannot allocate memory")  # C++ and the system, in whatever error a library makes of them


def printable(text: str) -> str:
    """Make text one line without control characters: names come from files and may hold terminal commands.

    Args:
        text: Anything; escape codes, line ends, marks that turn the direction of writing, and bytes of a path that are
            no UTF-8 become a replacement character each.
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def reason_of(error: OSError) -> str:
    """Say in a few words why a file could not be read or written."""
    return (error.strerror or str(error)).lower()


def notes_of(error: BaseException) -> str:
    """Return what was noted on an error on its way (`add_note`), such as which results are kept; "" for nothing."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


class Int8calError(Exception):
    """Base of all deliberate errors.

    Args:
        what: What is wrong and what was expected, one clause, no trailing full stop.
        do: What the user can do about it.
        where: File, node, tensor or YAML position the message starts with.
        fields: Machine-readable facts (path, node, tensor, sample, line, value), kept in `self.fields`.
    """

    exit_code: ClassVar[int] = 1
    station: ClassVar[str] = "internal"

    def __init__(self, what: str, *, do: str = "", where: str = "", **fields: object) -> None:
        self.what, self.do, self.where, self.fields = what, do, where, fields
        super().__init__(what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.do}" if self.do else ""
        return printable(" ".join(f"{self.station}: {place}{self.what}{advice}{notes_of(self)}".splitlines()))


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Name a model in errors of its copies, which know no more of it than the name of its graph.

    Args:
        model: What messages call it: its file.
    """
    try:
        yield
    except Int8calError as error:
        if "graph" in error.fields:
            error.where = model
        raise


class UsageError(Int8calError):
    """A command line that cannot mean anything (unknown pattern, contradictory options)."""

    exit_code = 2
    station = "usage"


class ConfigError(Int8calError):
    """A YAML file or setting that is malformed, unknown or out of range."""

    exit_code = 2
    station = "config"


class OutputError(Int8calError):
    """The output directory exists without --overwrite, or cannot be written."""

    exit_code = 2
    station = "output"


class ModelError(Int8calError):
    """A model that is missing, corrupt, unsupported or already quantized."""

    exit_code = 3
    station = "model"


class DataError(Int8calError):
    """Calibration or evaluation data that is missing, unreadable or does not fit the model's inputs."""

    exit_code = 4
    station = "data"


class MetricError(Int8calError):
    """The user's metric raises, or returns what is no figure; every file has been written by then."""

    exit_code = 2
    station = "metric"


class StatisticsError(Int8calError):
    """NaN or infinity in the network, an uncalibrated tensor, statistics that do not merge, a file that holds none."""

    exit_code = 5
    station = "statistics"


class NonFiniteError(StatisticsError):
    """A range, scale or activation that is NaN or infinite."""


class TableError(Int8calError):
    """A calibration table that is malformed or belongs to another model."""

    exit_code = 6
    station = "table"


class GateError(Int8calError):
    """An accuracy gate that failed; every file has been written by then."""

    exit_code = 7
    station = "gate"


class MemoryShortageError(Int8calError):
    """The system has no more memory to give."""

    exit_code = 2
    station = "memory"


def shortage_of(error: BaseException) -> MemoryShortageError | None:
    """Return the error to tell where an unexpected one means that memory ran out, else None.

    Python, the system and extension modules each say so in their own way.
    """
    out = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not out and not any(words in str(error) for words in _NO_MEMORY):
        return None
    what = f"there is not enough for this job ({printable(str(error)) or type(error).__name__})"
    told = MemoryShortageError(what, do="give fewer --threads, raise the limit (ulimit -v), or take a larger machine")
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def keep_crash(error: BaseException) -> str:
    """Keep a bug's traceback in a log file, or print it where none can be written; return the line for the user."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    try:
        log = _write_log(error)
    except OSError as failure:
        traceback.print_exception(error, file=sys.stderr)
        log_missing = f"this is a bug in int8cal, and its log could not be written: {failure}"
        return f"internal: {what}; {log_missing}{notes_of(error)}"
    return f"internal: {what}; this is a bug in int8cal, please report it with {log}{notes_of(error)}"


def keep_traceback(error: BaseException) -> str:
    """Keep the traceback of a function of the user's in a log file; return where it is, for a message."""
    try:
        return f"its traceback is in {_write_log(error, 'error')}"
    except OSError as failure:
        return f"its traceback could not be written: {reason_of(failure)}"


def _write_log(error: BaseException, kind: str = "crash") -> Path:
    path = Path(tempfile.gettempdir()) / f"int8cal-{kind}-{os.getpid()}.log"
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
        handle, name = tempfile.mkstemp(prefix=f"int8cal-{kind}-{os.getpid()}-", suffix=".log")
        path = Path(name)
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - an open descriptor, not a path
            file.write(text)
    return path
