"""Whether a job has to run, and whether it may write where it wants to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from int8cal.batch.inputs import Inputs, Lookups, changes, has_function, inputs_of
from int8cal.batch.record import Record, compare_outputs, read_record
from int8cal.errors import Int8calError, OutputError
from int8cal.locks import MARK
from int8cal.output_paths import exists
from int8cal.pipeline import files_of

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.batch.task import Task
    from int8cal.job import Job


@dataclass(frozen=True)
class Decision:
    """What to do about a job.

    Attributes:
        action: "run", or "skip" for one whose results are up to date.
        why: In words.
        directory: Where its results are or go.
        inputs: What it reads; None where that cannot be told, the job itself then says why.
        record: What its directory's record says; None without one.
        owned: Whether the directory was made by this very job, or holds nothing, so that it may be replaced.
        error: Why it may not run.
    """

    action: Literal["run", "skip"]
    why: str
    directory: Path
    inputs: Inputs | None = None
    record: Record | None = None
    owned: bool = False
    error: OutputError | None = None


def decide(task: Task, lookups: Lookups, *, rerun: bool = False) -> Decision:
    """Decide about a job, reading files only.

    Args:
        task: The job.
        lookups: What is known of the batch's files.
        rerun: Whether to run it even though its results are up to date.
    """
    directory, _ = files_of(task.job)
    inputs = _inputs(task.job, lookups)
    record = read_record(directory)
    if record is None:
        empty = _is_empty(directory)
        found = "no record of results there" if exists(directory) and not empty else "no results yet"
        return Decision("run", found, directory, inputs, owned=empty)
    gone, changed = compare_outputs(record, directory) if record.state == "done" else ([], [])
    owned = record.made_by(task, directory)
    why = "asked to run again" if rerun else _why(record, inputs, gone, changed, task.job, lookups)
    if not why:
        return Decision("skip", "up to date", directory, inputs, record, owned)
    error = None if task.job.output.overwrite else _refused(record, directory, changed, owned=owned)
    return Decision("run", why, directory, inputs, record, owned, error)


def permitted(job: Job, decision: Decision) -> Job:
    """Let a job replace what it made itself."""
    return replace(job, output=replace(job.output, overwrite=True)) if decision.owned else job


def _is_empty(directory: Path) -> bool:
    """Tell whether there is nothing to replace in a directory."""
    try:
        return all(
            each.name.startswith(f".{MARK}") for each in directory.iterdir()
        )  # what a killed run left is nothing
    except OSError:
        return False


def _inputs(job: Job, lookups: Lookups) -> Inputs | None:
    try:
        return inputs_of(job, lookups)
    except (Int8calError, OSError, ValueError):
        return None  # the job finds the same when it runs, and tells it better
    except Exception as error:
        if type(error).__module__.startswith("google.protobuf"):
            return None  # the model is none
        raise


def _refused(record: Record, directory: Path, changed: list[str], *, owned: bool) -> OutputError | None:
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


def _why(record: Record, inputs: Inputs | None, gone: list[str], changed: list[str], job: Job, lookups: Lookups) -> str:
    """Say why results are not up to date; "" where they are."""
    if record.state != "done":
        return "was not finished"
    if gone:
        return f"{', '.join(gone)} missing"
    if changed:
        return f"{', '.join(changed)} changed"
    if inputs is None or record.inputs is None:
        return "its inputs cannot be compared"
    if has_function(inputs):
        return "samples come from a function, which may give others"
    return "; ".join(f"changed: {each}" for each in changes(record.inputs, inputs, job, lookups))
