"""Which jobs are up to date, why the others have to run, and whether they may write where they want to.

A dry run checks beside that everything about a job that can be known without running it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.batch.record import Record, compare_outputs, read_record
from int8cal.calibrating import files_of, require_writable
from int8cal.calibration.ranges import require_known_tensors
from int8cal.config.load import placed_patterns
from int8cal.data.opening import open_feeds
from int8cal.errors import Int8calError, OutputError
from int8cal.evaluating import open_samples
from int8cal.evaluation.gates import gates_of, need_labels
from int8cal.graph.prepare import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.inputs import FileCache, JobInputs, describe_changes, gives_others, has_function, inputs_of
from int8cal.io.locks import MARK
from int8cal.io.paths import exists
from int8cal.quantization.corrections.uint8_input import plan_uint8_input
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from int8cal.batch.jobs import Task
    from int8cal.job import Job


@dataclass(frozen=True)
class Decision:
    """What to do about a job.

    Attributes:
        up_to_date: Whether its results are there, unchanged, and would come out the same; else it is to run.
        why: In words.
        directory: Where its results are or go.
        inputs: What it reads; None where that cannot be told, the job itself then says why.
        record: What its directory's record says; None without one.
        owned: Whether the directory was made by this very job, or holds nothing, so that it may be replaced.
        error: Why it may not run.
    """

    up_to_date: bool
    why: str
    directory: Path
    inputs: JobInputs | None = None
    record: Record | None = None
    owned: bool = False
    error: OutputError | None = None


def decide(task: Task, files: FileCache, *, rerun: bool = False) -> Decision:
    """Decide about a job, reading files only; with `rerun` it runs even though its results are up to date."""
    directory, _ = files_of(task.job)
    inputs = _inputs(task.job, files)
    record = read_record(directory)
    if record is None:
        empty = _is_empty(directory)
        found = "no record of results there" if exists(directory) and not empty else "no results yet"
        return Decision(False, found, directory, inputs, owned=empty)
    missing, changed = compare_outputs(record, directory) if record.state == "done" else ([], [])
    owned = record.made_by(task, directory)
    why = "asked to run again" if rerun else _why(record, inputs, missing, changed, task.job, files)
    if not why:
        return Decision(True, "up to date", directory, inputs, record, owned)
    error = None if task.job.output.overwrite else _refusal(record, directory, changed, owned=owned)
    return Decision(False, why, directory, inputs, record, owned, error)


def with_overwrite(job: Job) -> Job:
    """Let a job replace what is in its directory."""
    return replace(job, output=replace(job.output, overwrite=True))


def job_to_run(task: Task, decision: Decision) -> Job:
    """Return a job's settings, which let it replace what it made itself."""
    return with_overwrite(task.job) if decision.owned else task.job


def _is_empty(directory: Path) -> bool:
    """Tell whether there is nothing to replace in a directory."""
    try:
        # what a killed run left is nothing
        return all(each.name.startswith(f".{MARK}") for each in directory.iterdir())
    except OSError:
        return False


def _inputs(job: Job, files: FileCache) -> JobInputs | None:
    """Take a job's inputs; None where they cannot be read."""
    try:
        return inputs_of(job, files)
    except (Int8calError, OSError, ValueError):
        return None  # the job finds the same when it runs, and tells it better
    except Exception as error:
        if type(error).__module__.startswith("google.protobuf"):
            return None  # the model is none
        raise


def _refusal(record: Record, directory: Path, changed: list[str], *, owned: bool) -> OutputError | None:
    """Say why a job may not replace the results in its directory; None where it may."""
    if not owned:
        return OutputError(
            f'holds results of job "{record.job}" of {record.config}',
            where=str(directory),
            do="give --overwrite, or another output directory",
        )
    if changed:
        return OutputError(
            f"{', '.join(changed)} changed since this job wrote it",
            where=str(directory),
            do="keep a copy and give --overwrite, or give another output directory",
        )
    return None


def _why(
    record: Record, inputs: JobInputs | None, missing: list[str], changed: list[str], job: Job, files: FileCache
) -> str:
    """Say why results are not up to date; "" where they are."""
    if record.state != "done":
        return "was not finished"
    if missing:
        return f"{', '.join(missing)} missing"
    if changed:
        return f"{', '.join(changed)} changed"
    if inputs is None or record.inputs is None:
        return "its inputs cannot be compared"
    if has_function(inputs):
        return "samples come from a function, which may give others"
    return "; ".join(f"changed: {each}" for each in describe_changes(record.inputs, inputs, job, files))


@dataclass(frozen=True)
class Checked:
    """A job as it would be run.

    Attributes:
        task, decision: The job, and whether it would run.
        samples: Number of samples for calibration and for evaluation; None where only a pass can tell.
        error: The first thing that would stop it.
    """

    task: Task
    decision: Decision
    samples: tuple[int | None, int | None]
    error: Int8calError | None


def check_jobs(tasks: Sequence[Task], *, rerun: bool) -> Iterator[Checked]:
    """Check jobs without any inference, in order.

    Models are loaded and planned, patterns and ranges matched, data listed and its headers read, labels matched,
    preprocessing held against the input, output directories tried. Nothing is raised for a mistake in a job.

    Args:
        tasks: The jobs.
        rerun: Whether those would run whose results are up to date.
    """
    files = FileCache()
    last: tuple[tuple[Path, bool], Prepared] | None = None  # jobs of a matrix follow each other with one model
    other = set[str]()  # models of a chain whose float outputs may not be those that were recorded
    for task in tasks:
        decision = _in_chain(task, decide(task, files, rerun=rerun), other, files)
        job = job_to_run(task, decision)
        samples: tuple[int | None, int | None] = (None, None)
        error: Int8calError | None = None
        if not decision.up_to_date:
            try:
                if decision.error is not None:
                    raise decision.error
                require_writable(job)
                kind = (job.model, job.quantization.activations == "u16")  # whose opset is another
                if last is None or last[0] != kind:
                    last = (kind, prepare(job.model, simplify, job.quantization.activations))
                with placed_patterns(task.places.get):
                    linked = task.chain is not None and bool(task.chain.links)
                    samples = _require_fit(job, last[1], recorded=linked)
            except Int8calError as found:
                error = found
        yield Checked(replace(task, job=job), decision, samples, error)


def _in_chain(task: Task, decision: Decision, other: set[str], files: FileCache) -> Decision:
    """Let a job run whose recorded samples are about to be recorded anew; the job is entered in `other` likewise.

    What a model gives follows from its file and its data: where its settings alone changed, it stays as it is.
    """
    links = () if task.chain is None else task.chain.links
    source = next((link.source for link in links if link.source in other), "")
    before, now = None if decision.record is None else decision.record.inputs, decision.inputs
    if source or before is None or now is None or gives_others(before, now, task.job, files):
        other.add(task.job.name)
    if not source or not decision.up_to_date:
        return decision
    return replace(decision, up_to_date=False, why=f'what "{source}" gives may be another now')


def _require_fit(job: Job, prepared: Prepared, *, recorded: bool) -> tuple[int | None, int | None]:
    """Hold the settings and the data's headers against the model; count samples for calibration and evaluation.

    Samples that will be `recorded` from other models are not there yet.
    """
    quantization = job.quantization
    plan = require_layers(prepared, Selection.of(quantization))
    plan_uint8_input(prepared, plan, job.data.preprocess, quantization)
    require_known_tensors(plan, quantization.ranges)
    if recorded:
        return None, None
    model, signature, threads = prepared.model, prepared.signature, job.calibration.threads
    feeds = open_samples(job.data, model, signature, None, None, threads=threads, judged=job.evaluation.data)
    gates = gates_of(job.evaluation)
    evaluation = open_feeds(job.evaluation.data or job.data, feeds.signature, require_labels=need_labels(gates))
    return feeds.count, evaluation.count
