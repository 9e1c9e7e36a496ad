"""What is told of a batch: summary.json, summary.md and JUnit suites, all made from the results of its jobs."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import int8cal
from int8cal.batch.record import RECORD
from int8cal.calibrating import files_of
from int8cal.errors import OutputError, printable
from int8cal.evaluation.figures import value_of
from int8cal.inputs import paths_of
from int8cal.io.atomic import atomic_write
from int8cal.io.paths import require_apart
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.document import part_as_json
from int8cal.report.file_lines import COLUMNS, SUMMARY, figure_cells, gates_passed
from int8cal.report.junit import Case, Suite, cases_of_gates, skipped_gates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.batch.jobs import JobResult, Task
    from int8cal.evaluation.result_parts import Gate
    from int8cal.report.document import Document

VERSION = 1
NAME = "summary.json"
_TITLE = "# int8cal summary"
_FIGURES = (
    "sqnr_db",
    "cosine",
    "max_abs_error",
    "agreement",
    *(f"{top}.{part}" for top in ("top1", "top5") for part in ("fp32", "int8", "drop", "drop_ci95.lo", "drop_ci95.hi")),
    "metric.fp32",
    "metric.int8",
    "metric.drop",
    "metric.drop_ci95.lo",
    "metric.drop_ci95.hi",
    "size.fp32_bytes",
    "size.int8_bytes",
    "latency.fp32",
    "latency.int8",
    "latency.speedup",
    "saturation.unsafe_channels",
)
_SPEEDUP_INTERVAL = ("latency.speedup_ci95.lo", "latency.speedup_ci95.hi")


def default_summary(tasks: Sequence[Task]) -> Path | None:
    """Choose the summary's place: the folder that holds the directories of all jobs, or the working directory.

    None for a single job, whose report says as much.
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
        exit_code: What the batch ends with.

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
    document = {
        "format": SUMMARY,
        "version": VERSION,
        "int8cal": int8cal.__version__,
        "configs": list(dict.fromkeys(_text(str(task.config)) for task in tasks)),
        "exit_code": exit_code,
        "counts": dict(Counter(result.status for result in results)),
        "jobs": [_job(task, result) for task, result in zip(tasks, results, strict=True)],
    }
    atomic_write(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    atomic_write(_markdown_path(path), summary_markdown(results))


def summary_markdown(results: Sequence[JobResult]) -> str:
    """Write one table for people."""
    head = ("job", *COLUMNS, "gates", "time", "result")
    lines = [_TITLE, "", _row(head), _row(("---",) * len(head))]
    for result in results:
        time = "" if result.seconds is None else wording.seconds(result.seconds)
        # the status of a gate that failed says what the error begins with
        station = f"{result.station}: " if result.status == "gate failed" else ""
        ending = ": ".join(filter(None, (result.status, result.error.removeprefix(station))))
        ending += "; check the data" if result.findings else ""
        passed = gates_passed(result.gates)
        lines.append(_row((result.name, *figure_cells(result.metrics), passed, time, ending)))
    return "\n".join([*lines, "", describe_counts(results) + ".", ""])


def describe_counts(results: Sequence[JobResult]) -> str:
    """Say how many jobs ended how."""
    counts = Counter(result.status for result in results)
    ends = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"{counted(len(results), 'job')}: {ends}"


def junit_suite(result: JobResult, gates: Sequence[str] = ()) -> Suite:
    """Make a JUnit suite of what became of a job: whether it ended well, and a case per gate.

    Args:
        gates: What it was to be held to: without results, these are the gates that nobody could judge.
    """
    if result.status == "not run":
        why = result.why or "not run"
        return Suite(result.name, (Case("run", "skipped", why), *skipped_gates(gates, why)))
    seconds = result.seconds or 0.0
    if result.status == "failed":
        stopped = Case("run", "error", result.error, result.error_type, seconds)
        return Suite(result.name, (stopped, *skipped_gates(gates, "run stopped")))
    up_to_date = "" if result.ran else "up to date, "
    ended = Case("run", message=f"{up_to_date}results are in {result.directory}", seconds=seconds)
    return Suite(result.name, (ended, *cases_of_gates(result.gates, [_value(gate) for gate in result.gates])))


def _value(gate: Gate) -> str:
    """Say what a gate was held against: the value, with its interval where it has one."""
    interval = f", 95 % interval {' to '.join(map(wording.plain, gate.ci95))}" if gate.ci95 else ""
    return wording.plain(gate.value) + interval


def figures_of(document: Document) -> dict[str, float | None]:
    """Take the figures that a batch tells of a job from its report, under the names that gates use.

    The interval of the speedup is there where several rounds were timed, of which it could be made.
    """
    rounds = None if document.latency is None else document.latency.rounds
    names = (*_FIGURES, *_SPEEDUP_INTERVAL) if rounds is not None and rounds > 1 else _FIGURES
    sizes = {"size.fp32_bytes": document.size.fp32_bytes, "size.int8_bytes": document.size.int8_bytes}  # whole numbers
    return {name: value_of(name, document) for name in names} | sizes


def _job(task: Task, result: JobResult) -> dict[str, object]:
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
        "gates": [part_as_json(gate) for gate in result.gates],
        "findings": [_text(finding) for finding in result.findings],
        "seconds": None if result.seconds is None else round(result.seconds, 3),
    }


def _row(cells: Sequence[str]) -> str:
    texts = (printable(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _is_summary(path: Path) -> bool:
    """Tell a summary, which may be replaced, by how it begins."""
    try:
        with path.open("rb") as stream:
            start = stream.read(200).decode("utf-8", "replace")
    except OSError:
        return False
    return start.startswith(f"{_TITLE}\n") or f'"format": "{SUMMARY}"' in start


def _markdown_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.md" if path.suffix == ".json" else f"{path.name}.md")


def _text(text: str) -> str:
    """Text that UTF-8 can hold: file names may carry bytes that it cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
