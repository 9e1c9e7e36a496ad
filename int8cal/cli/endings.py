"""How a command ends: its exit code, its one line on stderr, and the log of a crash."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TextIO

import click

import int8cal
from int8cal.errors import notes_of, printable

EXIT_CRASH = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports of a program that it ended


def say(message: str) -> None:
    """Print one line about this run on stderr, even when nobody reads it."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"int8cal: {printable(' '.join(message.splitlines()))}", err=True)


def tell(line: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line of results; a reader that has left does not stop the work that comes after it."""
    try:
        click.echo(line, err=err, nl=nl)
    except BrokenPipeError:
        discard(sys.stderr if err else sys.stdout)


def discard(stream: TextIO) -> None:
    """Send what is still buffered, and all that follows, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed_streams() -> None:
    """Open standard streams that were closed (`>&-`) on nothing: else the next file would take their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) != number:
                continue
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor


def crash(error: BaseException) -> int:
    """Report a bug in int8cal: one line for the user, the traceback in a log file.

    Args:
        error: The exception that nobody expected.

    Returns:
        The exit code.
    """
    say(keep_crash(error))
    return EXIT_CRASH


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
