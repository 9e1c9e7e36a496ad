"""A job of a batch, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from int8cal.evaluation.result import Report
    from int8cal.job import Job

Status = Literal["done", "up to date", "gate failed", "failed", "not run"]


@dataclass(frozen=True)
class Task:
    """One job of a batch.

    Attributes:
        job: Its settings.
        config: The YAML file that it stands in.
        differs: Key path -> text of each setting that is not the same in all jobs of the batch.
        places: Key path -> file, line and key of each setting that is held against the model when the job runs.
    """

    job: Job
    config: Path
    differs: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobResult:
    """What became of one job: the one thing that rows, summary files and other views of a batch are made from.

    Attributes:
        name: Of the job.
        status: "gate failed" of a job that is up to date as well; `ran` tells.
        directory: Its output directory.
        model: File name.
        ran: Whether it ran in this batch.
        exit_code: 0, or that of its error.
        error: One line; "" where there is none.
        kind: Class of that error; "" where there is none, and where a gate failed.
        why: Why it ran, or why it did not.
        metrics: Name of a gate's figure -> value, None where it was not measured; empty without a report.
        gates: As in report.json.
        seconds: Of the run that wrote the results, by the wall clock; None without results.
    """

    name: str
    status: Status
    directory: Path
    model: str
    ran: bool = False
    exit_code: int = 0
    error: str = ""
    why: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    gates: tuple[dict[str, Any], ...] = ()
    seconds: float | None = None
    kind: str = ""


@dataclass(frozen=True)
class Endings:
    """How the front end tells of a job's end; the functions can be pickled.

    Attributes:
        require_gates: Raises GateError for a report with a gate that failed.
        crashed: Keeps a bug's traceback; returns the line for the user.
    """

    require_gates: Callable[[Report], None]
    crashed: Callable[[BaseException], str]


def with_threads(task: Task, threads: int) -> Task:
    """Give a task's work so many threads."""
    calibration = replace(task.job.calibration, threads=threads)
    return replace(task, job=replace(task.job, calibration=calibration))
