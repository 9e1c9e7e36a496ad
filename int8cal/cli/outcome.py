"""What a command prints of a report, and of paths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from int8cal.cli.endings import tell

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.evaluation.result import Report


def show_report(report: Report, directory: Path | None, *, quiet: bool, as_json: bool) -> None:
    """Print a report in the form that was asked for.

    Args:
        report: What was measured.
        directory: Where the files are; None when none were written.
        quiet: Print no summary.
        as_json: Print the text of report.json on stdout, and nothing else there.
    """
    if as_json:
        if directory is not None:
            text = (directory / "report.json").read_text(encoding="utf-8")
        else:
            from int8cal.report.document import report_to_json

            text = report_to_json(report)
        tell(text, nl=not text.endswith("\n"))
    elif not quiet:
        from int8cal.report.terminal import summary_lines

        for line in summary_lines(report):
            tell(line)
    if directory is not None and not quiet:
        tell(f"results are in {shown_path(directory)}", err=as_json)


def shown_path(path: Path | str) -> str:
    """Write a path without its detours ("configs/../results"), unless they lead through a link to somewhere else."""
    short = os.path.normpath(path)
    return short if os.path.realpath(short) == os.path.realpath(path) else str(path)
