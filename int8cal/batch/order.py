"""The order of a batch: what is decided, what runs, what is told, and with which code it ends."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from int8cal.batch.crew import Crew, can_pause
from int8cal.batch.decide import Decision, decide
from int8cal.batch.inputs import Lookups
from int8cal.batch.perform import perform, up_to_date
from int8cal.batch.summary import write_summary
from int8cal.batch.task import Endings, JobResult, Task
from int8cal.batch.worker import Order
from int8cal.errors import UsageError
from int8cal.progress import silent
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from int8cal.progress import Progress

_INTERRUPTED = 130
# stays where the whole batch was killed
_NOT_YET = "the batch had not come to it"


class Teller(Protocol):
    """Tells the user of a job that has ended."""

    def __call__(self, result: JobResult, printed: str, /) -> None:
        """Tell of it, and of what it printed."""


@dataclass(frozen=True)
class GateGoal:
    """How a batch is run.

    Attributes:
        at_a_time: Jobs that run at a time; above 1 each has a process of its own.
        keep_going: Whether the next job starts after one failed.
        rerun: Whether jobs run that are up to date.
        summary: Where summary.json goes; None for nowhere.
    """

    at_a_time: int
    keep_going: bool
    rerun: bool
    summary: Path | None


@dataclass(frozen=True)
class Outcome:
    """How a batch ended.

    Attributes:
        results: All, in the order of the files.
        exit_code: That of the first job that failed.
        interrupted: By what it was stopped, Ctrl-C or a signal; the exit code is that of an interrupt then.
    """

    results: tuple[JobResult, ...]
    exit_code: int
    interrupted: KeyboardInterrupt | None = None


def run_batch(tasks: Sequence[Task], course: GateGoal, endings: Endings, progress: Progress, tell: Teller) -> Outcome:
    """Run the jobs of a batch.

    Args:
        tasks: The jobs, in the order of the files.
        course: How.
        endings: How a job's end is told.
        progress: Shows how far each pass is, where jobs run in this process.
        tell: Called with each result as it comes.

    Raises:
        UsageError: Several jobs at a time on a system that cannot stop a process while another measures its speed.
        OutputError: The summary cannot be written.
    """
    if course.at_a_time > 1:
        _require_pauses(tasks)
    lookups = Lookups()
    decisions = [decide(task, lookups, rerun=course.rerun) for task in tasks]
    results = [_not_run(task, decision) for task, decision in zip(tasks, decisions, strict=True)]

    def told(index: int, result: JobResult, printed: str = "") -> None:
        results[index] = result
        if result.exit_code and not course.keep_going:
            _reason(results, f'job "{result.name}" failed')
        tell(result, printed)
        write_summary(course.summary, tasks, results, _code(results))

    try:
        write_summary(course.summary, tasks, results, 0)
        if course.at_a_time > 1:
            _together(tasks, decisions, course, endings, told)
        else:
            for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True)):
                shown = silent if task.job.quiet else progress
                told(index, perform(task, decision, endings, progress=shown))
                if results[index].exit_code and not course.keep_going:
                    break
    except KeyboardInterrupt as error:
        _reason(results, "interrupted")
        write_summary(course.summary, tasks, results, _INTERRUPTED)
        return Outcome(tuple(results), _INTERRUPTED, error)
    return Outcome(tuple(results), _code(results))


class _Told(Protocol):
    def __call__(self, index: int, result: JobResult, printed: str = "") -> None: ...


def _together(
    tasks: Sequence[Task], decisions: Sequence[Decision], course: GateGoal, endings: Endings, told: _Told
) -> None:
    """Run several jobs at a time; those that need not run are told first, in order."""
    size = min(course.at_a_time, sum(decision.action == "run" for decision in decisions))
    threads = max(cpu_count() // max(size, 1), 1)
    orders: list[tuple[int, Order]] = []
    for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True)):
        if decision.action == "run":
            orders.append((index, Order(task, decision, endings, threads)))
            continue
        result = up_to_date(task, decision)
        told(index, result)
        if result.exit_code and not course.keep_going:
            break  # as one at a time: the jobs before it run, those behind it do not
    crew = Crew(size)
    with contextlib.closing(crew.run(orders)) as ends:
        for finished in ends:
            told(finished.index, finished.result, finished.printed)
            crew.stopping = crew.stopping or bool(finished.result.exit_code and not course.keep_going)


def _require_pauses(tasks: Sequence[Task]) -> None:
    measuring = [task.job for task in tasks if task.job.evaluation.latency or task.job.quantization.optimize]
    if measuring and not can_pause():
        raise UsageError(
            f'job "{measuring[0].name}" measures speed, and {sys.platform} cannot stop the other jobs meanwhile',
            do="leave --jobs out, or set latency: false under evaluation",
        )


def _not_run(task: Task, decision: Decision) -> JobResult:
    return JobResult(task.job.name, "not run", decision.directory, task.job.model.name, why=_NOT_YET)


def _reason(results: list[JobResult], why: str) -> None:
    """Say why the jobs that have not run do not; the first reason stays."""
    for index, result in enumerate(results):
        if result.status == "not run" and result.why == _NOT_YET:
            results[index] = replace(result, why=why)


def _code(results: Sequence[JobResult]) -> int:
    return next((result.exit_code for result in results if result.exit_code), 0)
