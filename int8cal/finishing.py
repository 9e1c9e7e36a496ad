"""The end of a job: table, statistics and int8 model are written whatever becomes of their evaluation and report."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from int8cal.calibration.statistics_file import save_statistics
from int8cal.calibration.table_file import save_table
from int8cal.identity import save_stamped
from int8cal.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import onnx

    from int8cal.atomic import OutputDirectory
    from int8cal.calibration.statistics import Statistics
    from int8cal.calibration.table import CalibrationTable
    from int8cal.evaluation.result import Evaluation, Report

REPORT_FILES = ("report.json", "report.md", "report.html")


@dataclass
class Caught:
    """An error that waits until everything has been written."""

    error: BaseException | None = None

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Run a block unless there is an error already; its error is kept, the interrupt of a user as well."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - told when the results are written
            self.error = self.error or error

    def reraise(self) -> NoReturn:
        """Raise the error.

        Raises:
            ValueError: There is none.
        """
        raise self.error or ValueError("nothing was caught")


@dataclass(frozen=True)
class Finisher:
    """Writes what a job found.

    Attributes:
        output: Where to.
        names: Files of the model, the table and the statistics.
        evaluate: Measures the int8 model of a file.
        missing: Makes the evaluation of an int8 model that could not be evaluated, and why.
        report: Makes the report.
    """

    output: OutputDirectory
    names: tuple[str, str, str]
    evaluate: Callable[[Path], Evaluation]
    missing: Callable[[Path, BaseException], Evaluation]
    report: Callable[[Evaluation], Report]

    def finish(
        self, models: list[onnx.ModelProto], table: CalibrationTable, statistics: Statistics, found: Caught
    ) -> tuple[Report, tuple[Path, ...]]:
        """Write all files, also after an error.

        Args:
            models: The int8 model alone; taken out when it is written, since evaluation reads the file.
            table, statistics: What belongs to it.
            found: What came before this; an error there stands in the place of the evaluation.

        Returns:
            The report and the files that were written. What could not be evaluated is among its evaluation's failures.

        Raises:
            OutputError: The directory cannot be written.
            KeyboardInterrupt: The interrupt that was caught; a note on it says what was written.
            Exception: Of making the report; likewise.
        """
        model, table_name, statistics_name = self.names
        reports: list[Report] = []
        unreported = Caught()
        with self.output.stage() as stage:
            save_stamped(models.pop(), table, stage / model)
            save_table(table, stage / table_name)
            save_statistics(statistics, stage / statistics_name)
            evaluation: Evaluation | None = None
            if found.error is None:
                with found.catching():
                    evaluation = self.evaluate(stage / model)
            with unreported.catching():
                if evaluation is None and found.error is not None:
                    evaluation = self.missing(stage / model, found.error)
                if evaluation is not None:
                    reports.append(self.report(evaluation))
                    write_reports(reports[0], stage)
            written = tuple(file.name for file in sorted(stage.iterdir()))
        for name in set(REPORT_FILES) - set(written):  # of an earlier run
            (self.output.path / name).unlink(missing_ok=True)
        self._tell(found, unreported, reports)
        return reports[0], tuple(self.output.path / name for name in written)

    def _tell(self, found: Caught, unreported: Caught, reports: list[Report]) -> None:
        """Note on every error what was written, and raise the one that leaves no report to return."""
        kept = f"model, table and statistics are kept in {self.output.path}"
        if unreported.error is not None:
            unreported.error.add_note(f"{kept}, and the report could not be written")
            raise unreported.error
        for failure in reports[0].evaluation.failures:
            failure.add_note(f"{kept}, and the report there says what is missing")
        if isinstance(found.error, KeyboardInterrupt):
            found.error.add_note(f"{kept}, and the report there says what is missing")
            raise found.error
