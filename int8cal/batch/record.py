"""job.json, the record in an output directory: which job made its files, from what, and what they were.

It is written when the job starts, so that a job that is killed finds its directory again, and when it has ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, NonNegativeFloat, TypeAdapter

import int8cal
from int8cal.errors import DataError, GateError
from int8cal.inputs import JobInputs, file_digest
from int8cal.io.atomic import atomic_write
from int8cal.report.file_lines import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from int8cal.batch.jobs import Task
    from int8cal.io.atomic import OutputDirectory

RECORD = "job.json"
VERSION = 1


def _require_file_name(name: str) -> str:
    """Refuse a name that leads out of the directory: outputs of another run are removed later."""
    if Path(name).name != name or name == ".." or "\0" in name:
        raise ValueError(name)
    return name


FileName = Annotated[str, AfterValidator(_require_file_name)]


@dataclass(frozen=True)
class Record:
    """What stands in a job.json; the fields are its keys.

    Attributes:
        job: The job's name.
        config: Its YAML file, relative to the directory, so that both may move together.
        state: "started" while it runs, and after it was killed.
        inputs: What it was made from; None where that could not be told.
        outputs: File name -> SHA-256.
        exit_code, error: How it ended: 0, 7 with the gates that failed, or 4 with strict findings about data.
        seconds: How long it took.
    """

    __pydantic_config__: ClassVar = ConfigDict(allow_inf_nan=False)

    job: str
    config: str
    state: Literal["started", "done"]
    inputs: JobInputs | None
    outputs: dict[FileName, str] = field(default_factory=dict)
    exit_code: int = 0
    error: str = ""
    seconds: NonNegativeFloat | None = None

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
        text = (directory / RECORD).read_bytes()
        # strict here, not in the config above, which pydantic 2.10 does not hand on to the dataclasses within
        record = _reader().validate_json(text, strict=True)
        document = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    # whatever the reader filled in or left out was not written by this version; another one may have added keys
    return record if document == document | _document(record) | {"int8cal": document.get("int8cal")} else None


@functools.cache
def _reader() -> TypeAdapter[Record]:
    return TypeAdapter(Annotated[Record, AfterValidator(_require_ending)])


def _require_ending(record: Record) -> Record:
    """Refuse an exit code that fits neither the state nor the error."""
    codes = (0, GateError.exit_code, DataError.exit_code) if record.state == "done" else (0,)
    if record.exit_code not in codes or bool(record.exit_code) != bool(record.error):
        raise ValueError(record.exit_code)
    return record


def write_record(record: Record, directory: Path) -> None:
    """Write a record into an output directory, or what becomes it.

    Raises:
        OutputError: It cannot be written.
    """
    atomic_write(directory / RECORD, json.dumps(_document(record), indent=1, ensure_ascii=False) + "\n")


def _document(record: Record) -> dict[str, object]:
    return {"format": JOB, "version": VERSION, "int8cal": int8cal.__version__} | asdict(record)


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
    """Remove what a job wrote the time before under other names, as for another model, and nobody changed since."""
    old = {} if before is None else before.outputs
    for name in old.keys() - record.outputs.keys():
        path = directory / name
        if path.is_file() and file_digest(path) == old[name]:
            path.unlink()


def with_outputs(record: Record, directory: Path, files: Iterable[Path]) -> Record:
    """List in a record what was written: these files, and the data files that large models have beside them."""
    paths = [path for file in files for path in (file, file.with_name(f"{file.name}.data")) if path.is_file()]
    return replace(record, outputs={path.relative_to(directory).as_posix(): file_digest(path) for path in paths})


def compare_outputs(record: Record, directory: Path) -> tuple[list[str], list[str]]:
    """Name the files of a record that are missing in its directory, and those that were changed since."""
    missing = [name for name in record.outputs if not (directory / name).is_file()]
    there = {name: digest for name, digest in record.outputs.items() if name not in missing}
    return missing, [name for name, digest in there.items() if file_digest(directory / name) != digest]
