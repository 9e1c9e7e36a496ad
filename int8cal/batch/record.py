"""job.json, the record in an output directory: which job made its files, from what, and what they were.

It is written when the job starts, so that a job that is killed finds its directory again, and when it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import int8cal
from int8cal.atomic import atomic_write
from int8cal.batch.inputs import Inputs, file_digest, inputs_from
from int8cal.errors import GateError
from int8cal.report.batch_lines import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from int8cal.atomic import OutputDirectory
    from int8cal.batch.jobs import Task

RECORD = "job.json"
FORMAT = JOB
VERSION = 1


@dataclass(frozen=True)
class Record:
    """What stands in a job.json; the fields are its keys.

    Attributes:
        job: The job's name.
        config: Its YAML file, relative to the directory, so that both may move together.
        state: "started" while it runs, and after it was killed.
        inputs: What it was made from; None where that could not be told.
        outputs: File name -> SHA-256.
        exit_code, error: How it ended: 0, or 7 with the gates that failed.
        seconds: How long it took.
    """

    job: str
    config: str
    state: Literal["started", "done"]
    inputs: Inputs | None
    outputs: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    error: str = ""
    seconds: float | None = None

    def made_by(self, task: Task, directory: Path) -> bool:
        """Tell whether this very job made the directory's files: the same name in the same YAML file."""
        return (self.job, self.config) == (task.job.name, relative_config(task, directory))


def relative_config(task: Task, directory: Path) -> str:
    """Write the YAML file's path as a record does."""
    try:
        return Path(os.path.relpath(task.config.resolve(), directory.resolve())).as_posix()
    except ValueError:  # another drive
        return task.config.resolve().as_posix()


def read_record(directory: Path) -> Record | None:
    """Read a directory's record; None where there is none, or one that this version would not have written."""
    try:
        document = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        if not _is_sound(document):
            return None
        inputs = None if document["inputs"] is None else inputs_from(document["inputs"])
        return Record(**{each.name: document[each.name] for each in fields(Record)} | {"inputs": inputs})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_sound(document: Any) -> bool:
    """Tell whether a document is as `write_record` leaves it; a KeyError or TypeError says no as well.

    Anybody may have edited the file, and its names of outputs are removed later: every value is checked by type, names
    stay in the directory, and the exit code fits the state and the error.
    """
    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()  # a ValueError for what no file of ours holds
    outputs, seconds, code = document["outputs"], document["seconds"], document["exit_code"]
    return (
        (document["format"], document["version"]) == (FORMAT, VERSION)
        and all(type(document[key]) is str for key in ("job", "config", "error"))
        and document["state"] in {"started", "done"}
        and type(outputs) is dict
        and all(
            type(value) is str and Path(name).name == name != ".." and "\0" not in name
            for name, value in outputs.items()
        )
        and type(code) is int
        and code in ((0, GateError.exit_code) if document["state"] == "done" else (0,))
        and bool(code) == bool(document["error"])
        and (seconds is None or (type(seconds) in {int, float} and seconds >= 0))
        and (document["inputs"] is None or _are_sound_inputs(document["inputs"]))
    )


def _are_sound_inputs(inputs: Any) -> bool:
    versions, evaluation = inputs["versions"], inputs["evaluation"]
    return (
        all(type(inputs[key]) is str for key in ("model", "sha256"))
        and type(inputs["settings"]) is dict
        and type(versions) is dict
        and all(type(version) is str for version in versions.values())
        and _is_sound_source(inputs["data"])
        and (evaluation is None or _is_sound_source(evaluation))
    )


def _is_sound_source(source: Any) -> bool:
    return all(type(source[key]) is int and source[key] >= 0 for key in ("files", "size")) and all(
        type(source[key]) is str for key in ("listing", "content")
    )


def write_record(record: Record, directory: Path) -> None:
    """Write a directory's record.

    Args:
        record: What is to stand in it.
        directory: The job's output directory, or what becomes it.

    Raises:
        OutputError: It cannot be written.
    """
    document = {"format": FORMAT, "version": VERSION, "int8cal": int8cal.__version__} | asdict(record)
    atomic_write(directory / RECORD, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def claim_directory(output: OutputDirectory, record: Record, before: Record | None) -> Iterator[None]:
    """Write the record of a job that starts, and take it back when the block fails without results.

    Args:
        output: The job's directory, which this process holds. A new one appears with the record in it.
        record: Of the job, "started"; it lists the files of the time before until the job has written its own.
        before: The record of the time before, if that was this very job's.
    """
    path = output.path / RECORD
    is_new = not output.path.exists()
    old_bytes = path.read_bytes() if path.is_file() else None
    with output.stage() as stage:
        write_record(replace(record, outputs={} if before is None else before.outputs), stage)
    stages = output.stages
    try:
        yield
    except BaseException:
        # after a stage of the job's own there are results: a model that was not evaluated, or, with a budget, the best
        # so far; they keep the record of the job that has not ended
        if output.stages == stages:
            _release_directory(output.path, old_bytes, before, is_new=is_new)
        raise


def _release_directory(directory: Path, old_bytes: bytes | None, before: Record | None, *, is_new: bool) -> None:
    """Leave a directory as it was before its claim, a new one not at all."""
    if old_bytes is None:
        (directory / RECORD).unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):  # somebody else put something there
                directory.rmdir()
    elif before is None or before.state == "started" or compare_outputs(before, directory) == ([], []):
        atomic_write(directory / RECORD, old_bytes)


def remove_left_over(directory: Path, before: Record | None, record: Record) -> None:
    """Remove what a job wrote the time before under other names, as for another model, and nobody changed since.

    Args:
        directory: The job's.
        before: The record of the time before, if that was this very job's.
        record: The new one.
    """
    old = {} if before is None else before.outputs
    for name in old.keys() - record.outputs.keys():
        path = directory / name
        if Path(name).name == name and path.is_file() and file_digest(path) == old[name]:
            path.unlink()


def with_outputs(record: Record, directory: Path, files: Iterable[Path]) -> Record:
    """List in a record what was written: these files, and the data files that large models have beside them."""
    paths = [path for file in files for path in (file, file.with_name(f"{file.name}.data")) if path.is_file()]
    return replace(record, outputs={path.relative_to(directory).as_posix(): file_digest(path) for path in paths})


def compare_outputs(record: Record, directory: Path) -> tuple[list[str], list[str]]:
    """Compare a directory's files with its record.

    Returns:
        Names of the files that are missing, and of those that were changed since.
    """
    missing = [name for name in record.outputs if not (directory / name).is_file()]
    there = {name: digest for name, digest in record.outputs.items() if name not in missing}
    return missing, [name for name, digest in there.items() if file_digest(directory / name) != digest]
