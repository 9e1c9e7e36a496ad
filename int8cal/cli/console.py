"""What commands print: lines on stdout and stderr, reports, paths."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

import click

from int8cal.errors import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from int8cal.evaluation.result import Report
    from int8cal.report.screen import Screen


def say(message: str) -> None:
    """Print one line about this run on stderr, even when nobody reads it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():  # a line of progress may stand there
            click.echo("\r\x1b[K", err=True, nl=False)
        click.echo(f"int8cal: {printable(' '.join(message.splitlines()))}", err=True)


class Telling:
    """Says lines about a run, and remembers them, so that its results do not say them again."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, message: str) -> None:
        """Say a line."""
        say(message)
        self.told.append(message.removeprefix("warning: "))


def tell(line: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line of results; a reader that has left does not stop the work that comes after it."""
    try:
        click.echo(line, err=err, nl=nl)
    except BrokenPipeError:
        discard(sys.stderr if err else sys.stdout)


def tell_lines(lines: Iterable[str]) -> None:
    """Print lines of results."""
    for line in lines:
        tell(line)


def fitted(lines: Iterable[str], hang: int = 4) -> Iterator[str]:
    """Break lines between words where they are longer than the terminal is wide.

    Args:
        lines: Any.
        hang: Columns that further lines begin with.
    """
    shown = screen()
    for line in lines:
        yield from shown.wrap(line, hang)


def tell_fitted(lines: Iterable[str], hang: int = 4) -> None:
    """Print lines of results, see `tell` and `fitted`."""
    tell_lines(fitted(lines, hang))


def tell_written(path: Path | str, *, beside_json: bool = False) -> None:
    """Say which file was written; on stderr where stdout is JSON alone."""
    (say if beside_json else tell)(f"wrote {shown_path(path)}")


def command_line(context: click.Context) -> str:
    """Return the command that is running, with its arguments as they were given."""
    return str(context.obj or context.command_path)


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


def show_report(
    report: Report,
    directory: Path | None,
    *,
    quiet: bool,
    as_json: bool,
    told: Collection[str],
    explain: bool = False,
) -> None:
    """Print a report: a summary, or (`as_json`) the text of report.json and nothing else on stdout.

    Args:
        directory: Where the files are; None when none were written.
        told: What was said of it before.
        explain: Whether what each step of the recipe gave comes first.
    """
    from int8cal.io.paths import REPORT, REPORT_PAGE

    if as_json:
        if directory is not None:
            text = (directory / REPORT).read_text(encoding="utf-8")
        else:
            from int8cal.report.document import report_to_json

            text = report_to_json(report)
        tell(text, nl=not text.endswith("\n"))
    elif not quiet:
        from int8cal.report.document import document_of
        from int8cal.report.summary import summary_lines
        from int8cal.report.terminal import step_lines

        if explain:
            tell_lines(step_lines(document_of(report), screen()))
        page = "" if directory is None else shown_path(directory / REPORT_PAGE)
        tell_lines(summary_lines(report, screen(), page, told))
    if directory is not None and as_json and not quiet:
        tell(f"results are in {shown_path(directory)}", err=True)


def screen() -> Screen:
    """Find out what standard output can show."""
    from int8cal.report.screen import Screen

    terminal = sys.stdout.isatty()
    try:
        blocks = bool("█▏▁━┿×µ…".encode(sys.stdout.encoding or "ascii"))  # noqa: RUF001 (a ratio)
    except UnicodeEncodeError:
        blocks = False
    return Screen(
        width=max(shutil.get_terminal_size((100, 24)).columns, 20),
        blocks=blocks,
        colour=terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        whole_names=not terminal,
    )


def shown_path(path: Path | str) -> str:
    """Write a path without its detours ("configs/../results"), unless they lead through a link to somewhere else."""
    short = os.path.normpath(path)
    return short if os.path.realpath(short) == os.path.realpath(path) else str(path)
