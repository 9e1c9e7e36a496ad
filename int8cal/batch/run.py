"""A batch: see which jobs are up to date, run the rest, and report each as it ends."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.batch.jobs import JobResult, Status, Task
from int8cal.batch.pool import WorkerPool
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
from int8cal.calibration.engines.ray import cluster_connection
from int8cal.config.load import placed_patterns
from int8cal.errors import DataError, GateError, Int8calError, UsageError, keep_crash, shortage_of
from int8cal.gating import failure_of, require_complete
from int8cal.inputs import FileCache, with_contents
from int8cal.io.atomic import OutputDirectory
from int8cal.io.paths import REPORT
from int8cal.progress import own_job, stage
from int8cal.report.document import document_of
from int8cal.report.files import load_report
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from int8cal.batch.up_to_date import Decision
    from int8cal.job import Job
    from int8cal.progress import Exclusive
    from int8cal.report.document import Document

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
        keep_going: Whether the next job starts after one that gave no results.
        rerun: Whether jobs run that are up to date.
        summary: Where summary.json goes; None for nowhere.
        command: What was run, for the reports.
    """

    workers: int
    keep_going: bool
    rerun: bool
    summary: Path | None
    command: str = ""


def run_batch(
    tasks: Sequence[Task], options: BatchOptions, report: Reporter
) -> tuple[tuple[JobResult, ...], KeyboardInterrupt | None]:
    """Run the jobs of a batch.

    Args:
        tasks: The jobs, in the order of the files.
        options: How.
        report: Called with each result as it comes.

    Returns:
        A result for every job, in the order of the files; and what stopped the batch, Ctrl-C or a signal, not raised.

    Raises:
        UsageError: Several jobs at a time, one of which measures its speed, where the others cannot be stopped
            meanwhile; no answer of the Ray cluster that the jobs run in.
        OutputError: The summary cannot be written.
    """
    if options.workers > 1:
        _require_pauses(tasks)
    files = FileCache()
    decisions = [decide(task, files, rerun=options.rerun) for task in tasks]
    # a job that has not run yet, and why it has not: that stays where the whole batch is killed
    results = [
        replace(_blank(task, decision), status="not run", why=_NOT_YET)
        for task, decision in zip(tasks, decisions, strict=True)
    ]
    stopped = ""  # why the jobs that have not run will not; the first reason stays
    interrupted: KeyboardInterrupt | None = None
    try:
        write_summary(options.summary, tasks, results, first_failure(results))
        asked = [task.job for task, decision in zip(tasks, decisions, strict=True) if not decision.up_to_date]
        with _one_cluster(asked) as address, contextlib.closing(_run(tasks, decisions, options, address)) as ended:
            for index, result, printed in ended:
                results[index] = result
                if result.stops and not options.keep_going and not stopped:
                    stopped = f'job "{result.name}" failed'
                    results = [_with_reason(each, stopped) for each in results]
                report(result, printed)
                write_summary(options.summary, tasks, results, first_failure(results))
    except KeyboardInterrupt as error:
        interrupted = error
        results = [_with_reason(each, stopped or "interrupted") for each in results]
        write_summary(options.summary, tasks, results, _INTERRUPTED)
    return tuple(results), interrupted


def first_failure(results: Sequence[JobResult]) -> int:
    """Return the exit code of the first job that failed; 0 where none did."""
    return next((result.exit_code for result in results if result.exit_code), 0)


def _with_reason(result: JobResult, why: str) -> JobResult:
    """Say of a job that has not run why it will not."""
    return replace(result, why=why) if result.status == "not run" else result


@contextmanager
def _one_cluster(jobs: Sequence[Job]) -> Iterator[str | None]:
    """Connect to the Ray cluster of jobs that name the same one, or none: it is there for all of them.

    Gives its address; None where no job runs in a cluster, or they name several.
    """
    asked = {job.calibration.address for job in jobs if job.calibration.engine == "ray"}
    if len(asked) != 1:
        yield None
        return
    with cluster_connection(asked.pop()) as address:
        yield address


def _run(
    tasks: Sequence[Task], decisions: Sequence[Decision], options: BatchOptions, address: str | None
) -> Generator[Ended, None, None]:
    """Run jobs one after the other in this process; of several at a time, those that are not up to date in workers.

    `address` is that of the Ray cluster which this process is connected to, if any.
    """
    calls = []
    size = min(options.workers, sum(not decision.up_to_date for decision in decisions))
    threads = max(cpu_count() // max(size, 1), 1)
    for index, (task, decision) in enumerate(zip(tasks, decisions, strict=True)):
        if options.workers > 1 and not decision.up_to_date:
            calls.append((index, functools.partial(_run_in_worker, task, decision, threads, options.command, address)))
            continue
        with own_job(task.job.name, quiet=task.job.quiet):
            result = run_job(task, decision, command=options.command)
        yield index, result, ""
        if result.stops and not options.keep_going:
            break  # with workers as without: the jobs before it run, those behind it do not
    pool = WorkerPool(size)
    with contextlib.closing(pool.run(calls)) as ends:
        for count in range(len(calls)):
            with stage(f"{count} of {len(calls)} jobs done"):  # rows are printed while no stage is open
                end = next(ends, None)
            if end is None:
                break
            task, decision = tasks[end.key], decisions[end.key]
            result = end.result if isinstance(end.result, JobResult) else _died(task, decision, end.exit_code)
            yield end.key, result, end.printed
            pool.stopping = pool.stopping or (result.stops and not options.keep_going)


def _run_in_worker(
    task: Task, decision: Decision, threads: int, command: str, address: str | None, exclusive: Exclusive
) -> JobResult:
    """Run a job in a worker process.

    Args:
        task, decision: The job, and what was decided about it.
        threads: Its share, for a job that leaves their number open; while it measures speed, it has all CPUs.
        command: What was run, for the report.
        address: Of the Ray cluster that all jobs run in; None for none.
        exclusive: Keeps other jobs from running while speed is measured.
    """
    calibration, own = task.job.calibration, task.job.calibration.threads
    if calibration.engine == "ray":  # whose workers have that many threads, too
        calibration = replace(calibration, address=calibration.address or address)
    else:
        calibration = replace(calibration, threads=own or threads)
    task = replace(task, job=replace(task.job, calibration=calibration))
    return run_job(task, decision, exclusive=lambda _: exclusive(own), command=command)


def run_job(task: Task, decision: Decision, *, exclusive: Exclusive = nullcontext, command: str) -> JobResult:
    """Do what was decided about a job; whatever happens is its result, only an interrupt passes through."""
    if decision.up_to_date and decision.record is not None:
        try:
            return _ended(task, decision, decision.record, load_report(decision.directory / REPORT), ran=False)
        except Int8calError as error:
            return _failed(task, decision, error)
    began = time.monotonic()
    try:
        if decision.error is not None:
            raise decision.error
        return _calibrate(task, decision, exclusive, command)
    except Exception as met:  # noqa: BLE001 - one job's bug must not hide the others' results; a log keeps its traceback
        told = shortage_of(met) or met
        is_bug = not isinstance(told, Int8calError) or told.exit_code == 1
        text = keep_crash(told) if is_bug else str(told)
        return replace(_failed(task, decision, told), ran=True, error=text, seconds=time.monotonic() - began)


def _calibrate(task: Task, decision: Decision, exclusive: Exclusive, command: str) -> JobResult:
    """Run a job: claim its directory with a record that says "started", and write the record of its end.

    Raises:
        Exception: What stopped it; the directory is then as it was, unless there are results without an evaluation.
    """
    from int8cal.calibrating import calibrate_job, require_writable

    began = time.monotonic()
    job = job_to_run(task, decision)
    require_writable(job)
    before = decision.record if decision.owned else None
    inputs = decision.inputs and with_contents(decision.inputs, job, FileCache())
    started = Record(job.name, relative_config(task, decision.directory), "started", inputs)
    with (
        OutputDirectory(decision.directory, overwrite=job.output.overwrite) as output,
        claim_directory(output, started, before),
        placed_patterns(task.places.get),
    ):
        # the directory exists from here on: the record is in it
        outcome = calibrate_job(with_overwrite(job), exclusive=exclusive, output=output, command=command)
        require_complete(outcome.report)
        failure = failure_of(outcome.report)
        code, text = (0, "") if failure is None else (failure.exit_code, str(failure))
        seconds = round(time.monotonic() - began, 3)
        # the file may have been replaced since it was decided about
        inputs = inputs and replace(inputs, sha256=str(outcome.report.model["sha256"]))
        record = with_outputs(replace(started, inputs=inputs), decision.directory, outcome.files)
        record = replace(record, state="done", exit_code=code, error=text, seconds=seconds)
        remove_left_over(decision.directory, before, record)
        write_record(record, decision.directory)
    return _ended(task, decision, record, document_of(outcome.report), ran=True)


def _ended(task: Task, decision: Decision, record: Record, document: Document, *, ran: bool) -> JobResult:
    """Make the result of a job that has a record and a report: its error is a gate that failed, or strict findings."""
    status: Status = "done" if ran else "up to date"
    station = DataError.station if record.exit_code == DataError.exit_code else GateError.station
    return replace(
        _blank(task, decision),
        status="failed" if record.exit_code == DataError.exit_code else "gate failed" if record.exit_code else status,
        ran=ran,
        exit_code=record.exit_code,
        error=record.error,
        station=station if record.exit_code else "",
        metrics=figures_of(document),
        gates=tuple(document.gates),
        findings=tuple(map(str, document.findings)),
        seconds=record.seconds,
    )


def _blank(task: Task, decision: Decision) -> JobResult:
    return JobResult(task.job.name, "failed", decision.directory, task.job.model.name, why=decision.why)


def _failed(task: Task, decision: Decision, error: Exception) -> JobResult:
    known = error if isinstance(error, Int8calError) else Int8calError
    return replace(
        _blank(task, decision),
        exit_code=known.exit_code,
        error=str(error),
        station=known.station,
        error_type=type(error).__name__,
    )


def _died(task: Task, decision: Decision, exit_code: int) -> JobResult:
    """Make the result of a job whose process ended without one."""
    station = Int8calError.station
    error = f"{station}: the job's process ended without a result (exit code {exit_code})"
    if exit_code < 0:  # somebody else's doing, as a rule the system's
        station = "killed"
        memory = " (out of memory?); give fewer --jobs" if -exit_code == getattr(signal, "SIGKILL", 9) else ""
        error = f"{station}: the job's process was killed by signal {-exit_code}{memory}"
    return replace(_failed(task, decision, ChildProcessError(error)), ran=True, station=station)


def _require_pauses(tasks: Sequence[Task]) -> None:
    """Refuse jobs that measure speed at a time with others, where the others cannot be stopped meanwhile."""
    measuring = [task.job for task in tasks if task.job.evaluation.latency or task.job.quantization.optimize]
    clustered = any(task.job.calibration.engine == "ray" for task in tasks)
    if measuring and (clustered or not hasattr(signal, "SIGSTOP")):
        others = "workers of a Ray cluster are not stopped"
        if not clustered:
            others = f"{sys.platform} cannot stop the other jobs"
        raise UsageError(
            f'job "{measuring[0].name}" measures speed, and {others} meanwhile',
            do="leave --jobs out, or set latency: false under evaluation",
        )
