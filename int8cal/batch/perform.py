"""One job of a batch from its decision to its result, with the record that makes it resumable."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.atomic import OutputDirectory
from int8cal.batch.claim import Claim, remove_left_over
from int8cal.batch.decide import Decision, permitted
from int8cal.batch.figures import figures_of
from int8cal.batch.inputs import Lookups, with_contents
from int8cal.batch.record import Record, relative_config, with_outputs, write_record
from int8cal.batch.task import JobResult, Status
from int8cal.config.patterns import placed_patterns
from int8cal.errors import GateError, Int8calError
from int8cal.report.document import document_of
from int8cal.report.load import load_report

if TYPE_CHECKING:
    from int8cal.batch.task import Endings, Task
    from int8cal.job import Job
    from int8cal.progress import Alone, Progress


def perform(
    task: Task, decision: Decision, endings: Endings, *, progress: Progress, alone: Alone = nullcontext
) -> JobResult:
    """Do what was decided about a job.

    Args:
        task: The job.
        decision: What `decide` said.
        endings: How its end is told.
        progress: Shows how far each pass is.
        alone: Keeps other jobs from running while speed is measured.

    Returns:
        Its result, whatever happened; only an interrupt passes through.
    """
    if decision.action == "skip":
        return up_to_date(task, decision)
    blank = JobResult(task.job.name, "failed", decision.directory, task.job.model.name, ran=True, why=decision.why)
    began = time.monotonic()
    try:
        if decision.error is not None:
            raise decision.error
        done = _run(task, decision, endings, progress, alone, blank)
    except Int8calError as error:
        text = endings.crashed(error) if error.exit_code == 1 else str(error)
        return replace(
            blank, exit_code=error.exit_code, error=text, kind=_kind(error), seconds=time.monotonic() - began
        )
    except Exception as error:  # noqa: BLE001 - one job's bug must not hide the others' results; crashed() keeps its traceback
        text = endings.crashed(error)
        return replace(blank, exit_code=1, error=text, kind=_kind(error), seconds=time.monotonic() - began)
    return done


def up_to_date(task: Task, decision: Decision) -> JobResult:
    """Read the result of a job that need not run from its files."""
    blank = JobResult(task.job.name, "up to date", decision.directory, task.job.model.name, why=decision.why)
    record = decision.record
    try:
        document = load_report(decision.directory / "report.json")
    except Int8calError as error:
        return replace(blank, status="failed", exit_code=error.exit_code, error=str(error), kind=_kind(error))
    return replace(
        blank,
        status="gate failed" if record is not None and record.exit_code else "up to date",
        exit_code=0 if record is None else record.exit_code,
        error="" if record is None else record.error,
        metrics=figures_of(document),
        gates=tuple(gate.as_json() for gate in document.gates),
        seconds=None if record is None else record.seconds,
    )


def _run(
    task: Task, decision: Decision, endings: Endings, progress: Progress, alone: Alone, blank: JobResult
) -> JobResult:
    from int8cal.pipeline import calibrate_job, require_writable

    began = time.monotonic()
    job = permitted(task.job, decision)
    require_writable(job)
    inputs = decision.inputs and with_contents(decision.inputs, job, Lookups())
    started = Record(job.name, relative_config(task, decision.directory), "started", inputs)
    with (
        OutputDirectory(decision.directory, overwrite=job.output.overwrite) as output,
        Claim(decision, started, output),
        placed_patterns(task.places.get),
    ):
        outcome = calibrate_job(_forced(job), progress=progress, alone=alone, output=output)
        for failure in outcome.report.evaluation.failures:
            raise failure
        status: Status = "done"
        error: GateError | None = None
        try:
            endings.require_gates(outcome.report)
        except GateError as failed:
            status, error = "gate failed", failed
        code, text = (0, "") if error is None else (error.exit_code, str(error))
        seconds = time.monotonic() - began
        if inputs and "sha256" in outcome.report.model:  # the file may have been replaced since it was decided about
            inputs = replace(inputs, sha256=str(outcome.report.model["sha256"]))
        record = with_outputs(replace(started, inputs=inputs), decision.directory, outcome.files)
        record = replace(record, state="done", exit_code=code, error=text, seconds=round(seconds, 3))
        remove_left_over(decision, record)
        write_record(record, decision.directory)
    document = document_of(outcome.report)
    return replace(
        blank,
        status=status,
        directory=outcome.directory,
        exit_code=code,
        error=text,
        metrics=figures_of(document),
        gates=tuple(gate.as_json() for gate in document.gates),
        seconds=seconds,
    )


def _kind(error: Exception) -> str:
    return type(error).__name__


def _forced(job: Job) -> Job:
    """Let a job write into the directory that its record has claimed."""
    return replace(job, output=replace(job.output, overwrite=True))
