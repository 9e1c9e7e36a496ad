"""Writes report.json, report.md and report.html."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.atomic import atomic_write
from int8cal.errors import OutputError
from int8cal.report.document import report_to_json
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.evaluation.result import Report


def write_reports(report: Report, directory: Path) -> None:
    """Write the three reports of one job.

    Args:
        report: Any report.
        directory: Created with its parents where missing; files of these names in it are replaced, each atomically.

    Raises:
        OutputError: The directory cannot be made, or a file cannot be written.
        Exception: Of the first view that cannot be made; the others are written by then.
    """
    # All three are made before the first is written: a failure in between would leave reports of different runs.
    texts: dict[str, str] = {}
    failure: Exception | None = None
    for name, view in (
        ("report.json", report_to_json),
        ("report.md", report_to_markdown),
        ("report.html", report_to_html),
    ):
        try:
            texts[name] = view(report)
        except Exception as error:  # noqa: BLE001 - raised again below: the other views are written all the same
            failure = failure or error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(
            f"the output directory cannot be made ({reason})",
            do="give another output directory",
            where=str(directory),
            path=str(directory),
        ) from error
    for name, text in texts.items():
        atomic_write(directory / name, text)
    if failure is not None:
        raise failure
