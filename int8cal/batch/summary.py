"""What is told of a batch: summary.json, summary.md and JUnit suites, all made from the results of its jobs."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import int8cal
from int8cal.atomic import atomic_write
from int8cal.batch.inputs import paths_of
from int8cal.batch.record import RECORD
from int8cal.errors import OutputError
from int8cal.output_paths import require_apart
from int8cal.pipeline import files_of
from int8cal.report import wording
from int8cal.report.batch_lines import COLUMNS, SUMMARY, figure_cells, gates_passed
from int8cal.report.junit import Case, Suite, gate_case, skipped_gates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.batch.jobs import JobResult, Task
    from int8cal.report.document import Document
    from int8cal.report.parts import Drop

FORMAT = SUMMARY
VERSION = 1
NAME = "summary.json"
_TITLE = "# int8cal summary"


def default_summary(tasks: Sequence[Task]) -> Path | None:
    """Choose the summary's place: the folder that holds the directories of all jobs, or the working directory.

    Args:
        tasks: All jobs of the batch, whether they are going to run or not.

    Returns:
        The file; None for a single job, whose report says as much.
    """
    if len(tasks) == 1:
        return None
    parents = [files_of(task.job)[0].absolute().parent for task in tasks]
    try:
        common = Path(os.path.commonpath([os.path.normpath(parent) for parent in parents]))
    except ValueError:  # different drives
        common = Path()
    folder = Path() if common == Path(common.anchor) else common
    near = Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder
    return near / NAME


def require_summary(path: Path, tasks: Sequence[Task], *, overwrite: bool) -> None:
    """Refuse a summary in the place of something else; an earlier summary may be replaced.

    Args:
        path: Of the JSON.
        tasks: All jobs of the batch; what they read and write is not replaced, with `overwrite` either.
        overwrite: Whether any other file may be replaced.

    Raises:
        OutputError: Names the file.
    """
    require_apart((path, _markdown_path(path)), inputs_of_batch(tasks))
    written = {os.path.realpath(each): task.job.name for task in tasks for each in _outputs_of(task)}
    for file in (path, _markdown_path(path)):
        owner = written.get(os.path.realpath(file))
        if owner is not None:
            raise OutputError(f'is a file of job "{owner}"', where=str(file), do="give another --summary FILE")
        if file.is_dir():
            raise OutputError("is a directory", where=str(file), do="give another --summary FILE")
        if file.exists() and not overwrite and not _is_summary(file):
            raise OutputError(
                "exists and is no summary of a batch", where=str(file), do="give --overwrite, or another --summary FILE"
            )


def inputs_of_batch(tasks: Sequence[Task]) -> set[Path]:
    """List the files that a batch reads."""
    paths = {path for task in tasks for path in (task.config, task.job.model, task.job.calibration.statistics) if path}
    sources = {
        (data.path, data.labels): data
        for task in tasks
        for data in (task.job.data, task.job.evaluation.data)
        if data is not None
    }
    return paths.union(*map(paths_of, sources.values()))


def _outputs_of(task: Task) -> list[Path]:
    directory, names = files_of(task.job)
    return [directory / name for each in (*names, RECORD) for name in (each, f"{each}.data")]


def write_summary(path: Path | None, tasks: Sequence[Task], results: Sequence[JobResult], exit_code: int) -> None:
    """Write both files, each atomically.

    Args:
        path: Of the JSON; the Markdown goes beside it. None for nowhere.
        tasks, results: In the order of the files.
        exit_code: Of the batch.

    Raises:
        OutputError: They cannot be written.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot be made ({error.strerror})", where=str(path.parent), do="give another --summary FILE"
        ) from error
    document = summary_document(tasks, results, exit_code)
    atomic_write(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    atomic_write(_markdown_path(path), summary_markdown(results))


def summary_document(tasks: Sequence[Task], results: Sequence[JobResult], exit_code: int) -> dict[str, Any]:
    """Make the object that summary.json holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "int8cal": int8cal.__version__,
        "configs": list(dict.fromkeys(_text(str(task.config)) for task in tasks)),
        "exit_code": exit_code,
        "counts": dict(Counter(result.status for result in results)),
        "jobs": [_job(task, result) for task, result in zip(tasks, results, strict=True)],
    }


def summary_markdown(results: Sequence[JobResult]) -> str:
    """Write one table for people."""
    head = ("job", *COLUMNS, "gates", "time", "result")
    lines = [_TITLE, "", _row(head), _row(("---",) * len(head))]
    for result in results:
        time = "" if result.seconds is None else wording.seconds(result.seconds)
        # the status of a gate that failed says what the error begins with
        station = f"{result.station}: " if result.status == "gate failed" else ""
        ending = ": ".join(filter(None, (result.status, result.error.removeprefix(station))))
        lines.append(_row((result.name, *figure_cells(result.metrics), gates_passed(result.gates), time, ending)))
    return "\n".join([*lines, "", describe_counts(results) + ".", ""])


def describe_counts(results: Sequence[JobResult]) -> str:
    """Say how many jobs ended how."""
    counts = Counter(result.status for result in results)
    ends = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"{wording.count(len(results), 'job')}: {ends}"


def junit_suite(result: JobResult, gates: Sequence[str] = ()) -> Suite:
    """Make a JUnit suite of what became of a job: whether it ended well, and a case per gate.

    Args:
        result: Of a job that ran, was up to date, failed or was not run.
        gates: What it was to be held to: without results, these are the gates that nobody could judge.
    """
    if result.status == "not run":
        why = result.why or "not run"
        return Suite(result.name, (Case("run", "skipped", why), *skipped_gates(gates, why)))
    seconds = result.seconds or 0.0
    if result.status == "failed":
        stopped = Case("run", "error", result.error, result.error_type, seconds)
        return Suite(result.name, (stopped, *skipped_gates(gates, "run stopped")))
    ended = Case("run", message=result.why, seconds=seconds)
    judged = [gate_case(gate["gate"], _value(gate), passed=gate["passed"]) for gate in result.gates]
    return Suite(result.name, (ended, *judged))


def _value(gate: dict[str, Any]) -> str:
    """Say what a gate was held against: the value, with its interval where it has one."""
    bounds = gate.get("ci95")
    interval = f", 95 % interval {' to '.join(map(wording.plain, bounds))}" if bounds else ""
    return wording.plain(gate["value"]) + interval


def figures_of(document: Document) -> dict[str, Any]:
    """Take the figures that a batch tells of a job from its report, under the names that gates use.

    Args:
        document: Of report.json.

    Returns:
        Name -> value; None where one was not measured.
    """
    metrics, latency = document.metrics, document.latency
    return {
        "sqnr_db": metrics.sqnr_db,
        "cosine": metrics.cosine,
        "max_abs_error": metrics.max_abs_error,
        "agreement": metrics.agreement,
        **_drop("top1", metrics.top1),
        **_drop("top5", metrics.top5),
        "size.fp32_bytes": document.size.fp32_bytes,
        "size.int8_bytes": document.size.int8_bytes,
        "latency.fp32": latency and latency.fp32,
        "latency.int8": latency and latency.int8,
        "latency.speedup": latency and latency.speedup,
        "saturation.unsafe_channels": document.saturation.unsafe_channels,
    }


def _drop(name: str, drop: Drop | None) -> dict[str, Any]:
    low, high = (None, None) if drop is None else drop.drop_ci95
    return {
        f"{name}.fp32": drop and drop.fp32,
        f"{name}.int8": drop and drop.int8,
        f"{name}.drop": drop and drop.drop,
        f"{name}.drop_ci95.lo": low,
        f"{name}.drop_ci95.hi": high,
    }


def _job(task: Task, result: JobResult) -> dict[str, Any]:
    return {
        "name": _text(result.name),
        "status": result.status,
        "ran": result.ran,
        "why": _text(result.why),
        "exit_code": result.exit_code,
        "error": _text(result.error) or None,
        "config": _text(str(task.config)),
        "model": _text(result.model),
        "output": _text(str(result.directory)),
        "differs": {key: _text(text) for key, text in task.differs.items()},
        "metrics": result.metrics,
        "gates": list(result.gates),
        "seconds": None if result.seconds is None else round(result.seconds, 3),
    }


def _row(cells: Sequence[str]) -> str:
    texts = (wording.printable(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _is_summary(path: Path) -> bool:
    """Tell a summary, which may be replaced, by how it begins."""
    try:
        with path.open("rb") as stream:
            start = stream.read(200).decode("utf-8", "replace")
    except OSError:
        return False
    return start.startswith(f"{_TITLE}\n") or f'"format": "{FORMAT}"' in start


def _markdown_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.md" if path.suffix == ".json" else f"{path.name}.md")


def _text(text: str) -> str:
    """Text that UTF-8 can hold: file names may carry bytes that it cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
