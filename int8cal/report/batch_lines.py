"""summary.json and job.json in the terminal: what became of a batch, and what a job was made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from int8cal.errors import ConfigError
from int8cal.report import wording
from int8cal.report.reading import flat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from int8cal.report.screen import Screen

SUMMARY = "int8cal/summary"
JOB = "int8cal/job"
# What a row shows of a job.
COLUMNS = ("SQNR", "top-1 drop", "size", "speedup")


def figure_cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a job's figures as one cell per column; empty ones for a job without results."""
    if not figures:
        return ("",) * len(COLUMNS)
    sizes = (figures["size.fp32_bytes"], figures["size.int8_bytes"])
    return (
        wording.decibel(figures["sqnr_db"]),
        wording.points(figures["top1.drop"]),
        wording.smaller(*sizes) if all(sizes) else "",
        wording.times(figures["latency.speedup"]),
    )


def gates_passed(gates: Sequence[Mapping[str, Any]]) -> str:
    """Say how many of a job's gates hold; "" where it has none."""
    return f"{sum(bool(gate['passed']) for gate in gates)} of {len(gates)} passed" if gates else ""


def load_batch_file(path: Path) -> dict[str, Any]:
    """Read a summary.json or job.json.

    Raises:
        ConfigError: It is damaged, or of a newer version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(document, dict) or document.get("format") not in (SUMMARY, JOB):
        raise _damaged(path, f'"format" is neither "{SUMMARY}" nor "{JOB}"')
    if document.get("version") != 1:
        raise ConfigError(
            f"its version is {document.get('version')!r}, this int8cal reads version 1",
            where=str(path),
            do="update int8cal, or run the batch again",
        )
    return document


def batch_file_names(document: dict[str, Any]) -> list[str]:
    """Name what a glob chooses from: the jobs of a summary, the settings of a job."""
    if document["format"] == SUMMARY:
        return [str(job["name"]) for job in document["jobs"]]
    return [name for name, _ in flat((document["inputs"] or {}).get("settings", {}))]


def batch_file_lines(path: Path, document: dict[str, Any], screen: Screen) -> list[str]:
    """Show a summary.json or job.json.

    Args:
        path: Of the file.
        document: What `load_batch_file` gave.
        screen: Where.

    Raises:
        ConfigError: The file lacks a part.
    """
    try:
        lines = (_summary if document["format"] == SUMMARY else _job)(path.name, document, screen)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    return lines


def _summary(name: str, document: dict[str, Any], screen: Screen) -> list[str]:
    jobs = screen.chosen(document["jobs"], lambda job: str(job["name"]), lambda job: -int(job["exit_code"]))
    counts = ", ".join(f"{number} {status}" for status, number in document["counts"].items())
    head = [
        ("summary", f"{name} of {', '.join(map(str, document['configs']))}"),
        ("jobs", f"{len(document['jobs'])}: {counts}; exit code {document['exit_code']}"),
    ]
    rows = [("job", *COLUMNS, "gates", "time", "result"), *map(_row, jobs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    reasons = [(wording.printable(str(job["name"])), _reason(job)) for job in jobs if _reason(job)]
    lines = [*screen.aligned(head), "", shown[0], *screen.cut(shown[1:], "job")]
    return lines + (["", *screen.aligned(reasons)] if reasons else [])


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    time = "" if job["seconds"] is None else wording.seconds(float(job["seconds"]))
    again = ", up to date" if job["status"] == "gate failed" and not job["ran"] else ""
    cells = (
        str(job["name"]),
        *figure_cells(job["metrics"]),
        gates_passed(job["gates"]),
        time,
        f"{job['status']}{again}",
    )
    return tuple(map(wording.printable, cells))


def _reason(job: dict[str, Any]) -> str:
    """Say why a job has no results, or failed."""
    return wording.printable(str(job["error"] or (job["why"] if job["status"] == "not run" else "")))


def _job(name: str, document: dict[str, Any], screen: Screen) -> list[str]:
    inputs, seconds = document["inputs"], document["seconds"]
    took = "" if seconds is None else f", in {wording.seconds(float(seconds))}"
    killed = " and not ended: it runs, or was killed" if document["state"] == "started" else ""
    rows = [
        ("record", f"{name} of job {document['job']} in {document['config']}"),
        ("state", f"{document['state']}{killed}, exit code {document['exit_code']}{took}"),
    ]
    rows += [("error", str(document["error"]))] if document["error"] else []
    if inputs is not None:
        settings = screen.chosen(flat(inputs["settings"]), lambda item: item[0], lambda _: 0.0)
        rows += [
            ("model", f"{inputs['model']} (sha256 {inputs['sha256'][:12]})"),
            ("data", _source(inputs["data"])),
            ("evaluation", "the same data" if inputs["evaluation"] is None else _source(inputs["evaluation"])),
            ("settings", ", ".join(f"{key} {value}" for key, value in settings if value not in ("none", "no"))),
            ("versions", ", ".join(f"{key} {value}" for key, value in inputs["versions"].items())),
        ]
    rows.append(("files", ", ".join(document["outputs"]) or "none"))
    return screen.aligned([(label, wording.printable(text)) for label, text in rows])


def _source(source: dict[str, Any]) -> str:
    if not source["listing"]:
        return "a Python function"
    return f"{wording.count(source['files'], 'file')}, {wording.size(source['size'])}"


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"is damaged ({what})", where=str(path), do="run the batch again")
