"""A directory that bears its job's name from the first second, so that a job that is killed finds its place again."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.atomic import atomic_write
from int8cal.batch.record import RECORD, Record, compare_outputs, write_record
from int8cal.batch.sources import file_digest

if TYPE_CHECKING:
    from int8cal.atomic import OutputDirectory
    from int8cal.batch.decide import Decision


@dataclass
class Claim:
    """Writes the record of a job that starts; a job that fails leaves the directory as it was, and none for none.

    Attributes:
        decision: What was decided about the job.
        started: Its record.
        output: The job's directory, which this process holds.
    """

    decision: Decision
    started: Record
    output: OutputDirectory
    _made: bool = field(default=False, init=False)
    _before: bytes | None = field(default=None, init=False)
    _stages: int = field(default=0, init=False)

    def __enter__(self) -> None:
        directory, old = self.decision.directory, self.decision.record
        path = directory / RECORD
        self._made = not directory.exists()
        self._before = path.read_bytes() if path.is_file() else None
        outputs = old.outputs if old is not None and self.decision.owned else {}
        with self.output.stage() as stage:  # a new directory appears with its record in it
            write_record(replace(self.started, outputs=outputs), stage)
        self._stages = self.output.stages

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._undo()

    def _undo(self) -> None:
        directory, old = self.decision.directory, self.decision.record
        if self.output.stages > self._stages:
            return  # a model that was not evaluated, or with a budget the best so far: it is this job's
        if self._before is None:
            (directory / RECORD).unlink(missing_ok=True)
            if self._made:
                with contextlib.suppress(OSError):  # somebody else put something there
                    directory.rmdir()
        elif (
            not self.decision.owned
            or old is None
            or old.state == "started"
            or compare_outputs(old, directory) == ([], [])
        ):
            atomic_write(directory / RECORD, self._before)


def remove_left_over(decision: Decision, record: Record) -> None:
    """Remove what a job wrote the time before under other names, as for another model, and nobody changed since.

    Args:
        decision: With the record of the time before.
        record: The new one.
    """
    old = decision.record
    if old is None or not decision.owned:
        return
    for name in old.outputs.keys() - record.outputs.keys():
        path = decision.directory / name
        if Path(name).name == name and path.is_file() and file_digest(path) == old.outputs[name]:
            path.unlink()
