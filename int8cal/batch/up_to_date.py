"""Which jobs are up to date; why the others have to run, and whether they may write where they want to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.batch.inputs import FileCache, Inputs, describe_changes, has_function, inputs_of
from int8cal.batch.record import Record, compare_outputs, read_record
from int8cal.errors import Int8calError, OutputError
from int8cal.locks import MARK
from int8cal.output_paths import exists
from int8cal.pipeline import files_of

if TYPE_CHECKING:
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
    inputs: Inputs | None = None
    record: Record | None = None
    owned: bool = False
    error: OutputError | None = None

    @property
    def own_record(self) -> Record | None:
        """The record, if this very job wrote it."""
        return self.record if self.owned else None


def decide(task: Task, files: FileCache, *, rerun: bool = False) -> Decision:
    """Decide about a job, reading files only.

    Args:
        task: The job.
        files: What is known of the batch's files.
        rerun: Whether to run it even though its results are up to date.

    Returns:
        Whether it is up to date, why not, and what else was found about its directory and inputs.
    """
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


def _inputs(job: Job, files: FileCache) -> Inputs | None:
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
    record: Record, inputs: Inputs | None, missing: list[str], changed: list[str], job: Job, files: FileCache
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
