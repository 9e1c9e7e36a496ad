"""The option --junit: its file is checked before any work, and written when the command ends, well or not.

`int8cal.report.junit` makes what stands in it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

import click

from int8cal.cli.console import say
from int8cal.cli.grouped import GroupedOption
from int8cal.errors import OutputError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from int8cal.evaluation.result import Report
    from int8cal.report.junit import Suite

P = ParamSpec("P")
R = TypeVar("R")
# not an object of click's: a usage error is not a result of the job
_NOT_A_RESULT = (click.ClickException, click.Abort, click.exceptions.Exit)


class JUnitFile:
    """Where the verdicts of this call go; nowhere without a path."""

    def __init__(self, path: Path | None, action: str) -> None:
        self._path, self._action = path, action
        self._name, self._gates, self._overwrite = action, tuple[str, ...](), False
        self._suites: Sequence[Suite] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a path."""
        return self._path is not None

    def expect(self, name: str, gates: Iterable[str], inputs: Iterable[Path], *, overwrite: bool) -> None:
        """Say what is going to be judged, before any work; the file may be none of the inputs.

        Raises:
            OutputError: The file could not be written.
        """
        self._name, self._gates, self._overwrite = name, tuple(gates), overwrite
        if self._path is not None:
            from int8cal.io.paths import require_apart

            path, self._path = self._path, None  # a file that is refused gets no error either
            self._check(path)
            require_apart((path,), inputs)
            self._path = path

    def record(self, report: Report) -> None:
        """Keep the verdicts of a report."""
        if self._path is None:
            return
        from int8cal.report.junit import suite_of_report

        self.keep([suite_of_report(self._name, report, action=self._action)])

    def keep(self, suites: Sequence[Suite]) -> None:
        """Keep suites as they are."""
        self._suites = suites

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        if self._suites is not None:
            self._write(self._path, self._suites)
        elif isinstance(error, Exception) and not isinstance(error, _NOT_A_RESULT):
            from int8cal.report.junit import suite_of_error

            try:
                self._check(self._path)
                suite = suite_of_error(self._name, error, action=self._action, gates=self._gates)
                self._write(self._path, [suite])
            except OutputError as failure:
                say(f"{failure}; so the error is not in it")

    def _check(self, path: Path) -> None:
        from int8cal.io.paths import require_free
        from int8cal.report.junit import is_junit

        if path.suffix != ".xml":
            raise OutputError(
                "is not a name for JUnit XML", where=str(path), do="give a path that ends in .xml", path=str(path)
            )
        # the directory is made with the file: it may be that of the results, which is not there yet
        require_free(path.parent, overwrite=True, directory=True)
        if path.exists():
            require_free(path, overwrite=self._overwrite or is_junit(path))

    def _write(self, path: Path, suites: Sequence[Suite]) -> None:
        from int8cal.io.atomic import atomic_write
        from int8cal.report.junit import junit_xml

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"its directory cannot be made ({reason_of(error)})"
            raise OutputError(what, where=str(path), do="give another path", path=str(path)) from error
        atomic_write(path, junit_xml(suites))


def junit_option(action: str) -> Callable[[Callable[Concatenate[JUnitFile, P], R]], Callable[P, R]]:
    """Declare --junit for a command, hand the file to it, and write it when the command ends, well or not.

    Args:
        action: What the command does, such as "calibrate".
    """

    def decorate(command: Callable[Concatenate[JUnitFile, P], R]) -> Callable[P, R]:
        @functools.wraps(command)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            given = kwargs.pop("junit", None)
            with JUnitFile(Path(str(given)) if given else None, action) as file:
                return command(file, *args, **kwargs)

        option = click.option(
            "--junit",
            cls=GroupedOption,
            group="Output",
            type=click.Path(readable=False),
            metavar="FILE.xml",
            help="Write the verdicts as JUnit XML, one test case per gate; an error too.",
        )
        return option(wrapper)

    return decorate
