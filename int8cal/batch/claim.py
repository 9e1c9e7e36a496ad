"""A directory that bears its job's name from the first second, so that a job that is killed finds its place again."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.atomic import atomic_write
from int8cal.batch.record import RECORD, Record, compare_outputs, write_record
from int8cal.batch.sources import file_digest
from int8cal.errors import OutputError

if TYPE_CHECKING:
    from int8cal.batch.decide import Decision


@dataclass
class Claim:
    """Writes the record of a job that starts; a job that fails leaves the directory as it was, and none for none.

    Attributes:
        decision: What was decided about the job.
        started: Its record.
    """

    decision: Decision
    started: Record
    _made: list[Path] = field(default_factory=list, init=False)
    _before: bytes | None = field(default=None, init=False)

    def __enter__(self) -> None:
        directory = self.decision.directory
        self._made = [each for each in (directory, *directory.parents) if not each.exists()]
        path, old = directory / RECORD, self.decision.record
        self._before = path.read_bytes() if path.is_file() else None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be made ({error.strerror or error})"
            raise OutputError(what, where=str(directory), do="give another output directory") from error
        outputs = old.outputs if old is not None and self.decision.owned else {}
        write_record(replace(self.started, outputs=outputs), directory)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._undo()

    def _undo(self) -> None:
        directory, old = self.decision.directory, self.decision.record
        if self._before is None:
            if directory in self._made and any(path.name != RECORD for path in directory.iterdir()):
                return  # with a budget, the best model so far: it is this job's
            (directory / RECORD).unlink(missing_ok=True)
            for path in self._made:
                with contextlib.suppress(OSError):  # somebody else put something there
                    path.rmdir()
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
