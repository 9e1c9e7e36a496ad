"""How a command ends: its exit code, and its one line on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

import click

from int8cal.errors import printable

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
    from int8cal.crash_log import keep_crash

    say(keep_crash(error))
    return EXIT_CRASH
