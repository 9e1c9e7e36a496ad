"""A batch: see which jobs are up to date, run the rest, and report each as it ends."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.atomic import OutputDirectory
from int8cal.batch.inputs import FileCache, with_contents
from int8cal.batch.jobs import JobResult, Task
from int8cal.batch.pool import WorkerPool, can_pause
from int8cal.batch.record import (
    Record,
    claim_directory,
    relative_config,
    remove_left_over,
    with_outputs,
    write_record,
)
from int8cal.batch.summary import figures_of, write_summary
from int8cal.batch.up_to_date import decide, job_to_run, with_overwrite
from int8cal.config.patterns import placed_patterns
from int8cal.crash_log import keep_crash
from int8cal.errors import GateError, Int8calError, UsageError
from int8cal.gating import gate_failure, require_complete
from int8cal.progress import silent
from int8cal.report.document import document_of
from int8cal.report.load import load_report
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from int8cal.batch.up_to_date import Decision
    from int8cal.progress import Exclusive, Progress

# Shows a job's result, and what the job printed.
Reporter = Callable[[JobResult, str], None]
# The place of a job in the batch, its result, and what it printed.
Ended = tuple[int, JobResult, str]

_INTERRUPTED = 130
# stays where the whole batch was killed
_NOT_YET = "the batch had not come to it"


@dataclass(frozen=True)
class BatchOptions:
    """How a batch is run.

    Attributes:
        workers: Jobs that run at a time; above 1 each has a process of its own.
        keep_going: Whether the next job starts after one failed.
        rerun: Whether jobs run that are up to date.
        summary: Where summary.json goes; None for nowhere.
    """

    workers: int
    keep_going: bool
    rerun: bool
    summary: Path | None


@dataclass(frozen=True)
class BatchOutcome:
    """How a batch ended.

    Attributes:
        results: All, in the order of the files.
        exit_code: That of the first job that failed.
        interrupted: By what it was stopped, Ctrl-C or a signal; the exit code is that of an interrupt then.
    """

    results: tuple[JobResult, ...]
    exit_code: int
    interrupted: KeyboardInterrupt | None = None


def run_batch(tasks: Sequence[Task], options: BatchOptions, progress: Progress, report: Reporter) -> BatchOutcome:
    """Run the jobs of a batch.

    Args:
        tasks: The jobs, in the order of the files.
        options: How.
        progress: Shows how far each pass is, where jobs run in this process.
        report: Called with each result as it comes.

    Returns:
        A result for every job. An interrupt is among its fields, not raised.

    Raises:
        UsageError: Several jobs at a time on a system that cannot stop a process while another measures its speed.
        OutputError: The summary cannot be written.
    """
    if options.workers > 1:
        _require_pauses(tasks)
    files = FileCache()
    decisions = [decide(task, files, rerun=options.rerun) for task in tasks]
    finished: dict[int, JobResult] = {}
    stopped = ""  # why the jobs that have not run do not; the first reason stays
    interrupted: KeyboardInterrupt | None = None

    def write() -> BatchOutcome:
        """Write the summary of all jobs, as far as the batch has come."""
        results = tuple(
            finished.get(index) or _not_run(task, decision, stopped or _NOT_YET)
            for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True))
        )
        code = next((result.exit_code for result in results if result.exit_code), 0)
        code = _INTERRUPTED if interrupted else code
        write_summary(options.summary, tasks, results, code)
        return BatchOutcome(results, code, interrupted)

    run = _run_in_workers if options.workers > 1 else functools.partial(_run_here, progress=progress)
    try:
        outcome = write()
        with contextlib.closing(run(tasks, decisions, options)) as ended:
            for index, result, printed in ended:
                finished[index] = result
                if result.exit_code and not options.keep_going:
                    stopped = stopped or f'job "{result.name}" failed'
                report(result, printed)
                outcome = write()
    except KeyboardInterrupt as error:
        stopped, interrupted = stopped or "interrupted", error
        outcome = write()
    return outcome


def _run_here(
    tasks: Sequence[Task], decisions: Sequence[Decision], options: BatchOptions, progress: Progress
) -> Generator[Ended, None, None]:
    """Run jobs in this process, one after the other."""
    for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True)):
        result = run_job(task, decision, progress=silent if task.job.quiet else progress)
        yield index, result, ""
        if result.exit_code and not options.keep_going:
            return


def _run_in_workers(
    tasks: Sequence[Task], decisions: Sequence[Decision], options: BatchOptions
) -> Generator[Ended, None, None]:
    """Run jobs in worker processes; those that are up to date come first, in order."""
    size = min(options.workers, sum(not decision.up_to_date for decision in decisions))
    threads = max(cpu_count() // max(size, 1), 1)
    calls = []
    for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True)):
        if not decision.up_to_date:
            calls.append((index, functools.partial(_run_in_worker, task, decision, threads)))
            continue
        result = _result_on_disk(task, decision)
        yield index, result, ""
        if result.exit_code and not options.keep_going:
            break  # as one after the other: the jobs before it run, those behind it do not
    pool = WorkerPool(size)
    with contextlib.closing(pool.run(calls)) as ends:
        for end in ends:
            index = end.key
            result = (
                end.result
                if isinstance(end.result, JobResult)
                else _died(tasks[index], decisions[index], end.exit_code)
            )
            yield index, result, end.printed
            pool.stopping = pool.stopping or bool(result.exit_code and not options.keep_going)


def _run_in_worker(task: Task, decision: Decision, threads: int, exclusive: Exclusive) -> JobResult:
    """Run a job in a worker process.

    Args:
        task, decision: The job, and what was decided about it.
        threads: Its share, for a job that leaves their number open; while it measures speed, it has all CPUs.
        exclusive: Keeps other jobs from running while speed is measured.

    Returns:
        Its result.
    """
    own = task.job.calibration.threads
    calibration = replace(task.job.calibration, threads=own or threads)
    task = replace(task, job=replace(task.job, calibration=calibration))
    return run_job(task, decision, progress=silent, exclusive=lambda _: exclusive(own))


def run_job(task: Task, decision: Decision, *, progress: Progress, exclusive: Exclusive = nullcontext) -> JobResult:
    """Do what was decided about a job.

    Args:
        task: The job.
        decision: What `decide` said.
        progress: Shows how far each pass is.
        exclusive: Keeps other jobs from running while speed is measured.

    Returns:
        Its result, whatever happened; only an interrupt passes through.
    """
    if decision.up_to_date:
        return _result_on_disk(task, decision)
    began = time.monotonic()
    try:
        if decision.error is not None:
            raise decision.error
        return _calibrate(task, decision, progress, exclusive)
    except Exception as error:  # noqa: BLE001 - one job's bug must not hide the others' results; a log keeps its traceback
        is_bug = not isinstance(error, Int8calError) or error.exit_code == 1
        text = keep_crash(error) if is_bug else str(error)
        return replace(_failed(_blank(task, decision), error), ran=True, error=text, seconds=time.monotonic() - began)


def _calibrate(task: Task, decision: Decision, progress: Progress, exclusive: Exclusive) -> JobResult:
    """Run a job: claim its directory with a record that says "started", and write the record of its end.

    Raises:
        Exception: What stopped it; the directory is then as it was, unless there are results without an evaluation.
    """
    from int8cal.pipeline import calibrate_job, require_writable

    began = time.monotonic()
    job = job_to_run(task, decision)
    require_writable(job)
    before = decision.own_record
    inputs = decision.inputs and with_contents(decision.inputs, job, FileCache())
    started = Record(job.name, relative_config(task, decision.directory), "started", inputs)
    with (
        OutputDirectory(decision.directory, overwrite=job.output.overwrite) as output,
        claim_directory(output, started, before),
        placed_patterns(task.places.get),
    ):
        # the directory exists from here on: the record is in it
        outcome = calibrate_job(with_overwrite(job), progress=progress, exclusive=exclusive, output=output)
        require_complete(outcome.report)
        failure = gate_failure(outcome.report)
        code, text = (0, "") if failure is None else (failure.exit_code, str(failure))
        seconds = time.monotonic() - began
        if inputs and "sha256" in outcome.report.model:  # the file may have been replaced since it was decided about
            inputs = replace(inputs, sha256=str(outcome.report.model["sha256"]))
        record = with_outputs(replace(started, inputs=inputs), decision.directory, outcome.files)
        record = replace(record, state="done", exit_code=code, error=text, seconds=round(seconds, 3))
        remove_left_over(decision.directory, before, record)
        write_record(record, decision.directory)
    document = document_of(outcome.report)
    return replace(
        _blank(task, decision),
        status="done" if failure is None else "gate failed",
        ran=True,
        directory=outcome.directory,
        exit_code=code,
        error=text,
        station="" if failure is None else failure.station,
        metrics=figures_of(document),
        gates=tuple(gate.as_json() for gate in document.gates),
        seconds=seconds,
    )


def _result_on_disk(task: Task, decision: Decision) -> JobResult:
    """Read the result of a job that is up to date from its files."""
    blank, record = _blank(task, decision), decision.record
    try:
        document = load_report(decision.directory / "report.json")
    except Int8calError as error:
        return _failed(blank, error)
    result = replace(
        blank, status="up to date", metrics=figures_of(document), gates=tuple(gate.as_json() for gate in document.gates)
    )
    if record is None:
        return result
    result = replace(result, seconds=record.seconds)
    if not record.exit_code:
        return result
    # the one error with which a job has results
    return replace(
        result,
        status="gate failed",
        exit_code=record.exit_code,
        error=record.error,
        station=GateError.station,
    )


def _blank(task: Task, decision: Decision) -> JobResult:
    return JobResult(task.job.name, "failed", decision.directory, task.job.model.name, why=decision.why)


def _failed(blank: JobResult, error: Exception) -> JobResult:
    code, station = (error.exit_code, error.station) if isinstance(error, Int8calError) else (1, Int8calError.station)
    return replace(
        blank, status="failed", exit_code=code, error=str(error), station=station, error_type=type(error).__name__
    )


def _not_run(task: Task, decision: Decision, why: str) -> JobResult:
    return replace(_blank(task, decision), status="not run", why=why)


def _died(task: Task, decision: Decision, exit_code: int) -> JobResult:
    """Make the result of a job whose process ended without one."""
    station = Int8calError.station
    error = f"{station}: the job's process ended without a result (exit code {exit_code})"
    if exit_code < 0:  # somebody else's doing, as a rule the system's
        station = "killed"
        memory = " (out of memory?); give fewer --jobs" if -exit_code == getattr(signal, "SIGKILL", 9) else ""
        error = f"{station}: the job's process was killed by signal {-exit_code}{memory}"
    return replace(
        _blank(task, decision),
        ran=True,
        exit_code=1,
        error=error,
        station=station,
        error_type=ChildProcessError.__name__,
    )


def _require_pauses(tasks: Sequence[Task]) -> None:
    """Refuse jobs that measure speed at a time with others, where the others cannot be stopped meanwhile."""
    measuring = [task.job for task in tasks if task.job.evaluation.latency or task.job.quantization.optimize]
    if measuring and not can_pause():
        raise UsageError(
            f'job "{measuring[0].name}" measures speed, and {sys.platform} cannot stop the other jobs meanwhile',
            do="leave --jobs out, or set latency: false under evaluation",
        )
