"""Two ways to call the command line: as users do, in a process of its own, and in this process on a pretended pipeline.

A process of its own is a fork of one that has imported everything and run a small job (forking.py), unless the environment
asks for a new interpreter. test_surroundings.py and tests/e2e always start new ones.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import int8cal

sys.path.append(str(Path(__file__).parent))

from forking import Forks

from int8cal.evaluation.result import Drop, Evaluation, Latency, Metrics, Report, Saturation, Size
from int8cal.evaluation.result_parts import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# once, since libraries that tests import here, as ray and threadpoolctl, set variables of their own
GIVEN = dict(os.environ)
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_data"

REPORT = Report(
    model={"name": "net.onnx"},
    settings={},
    evaluation=Evaluation(
        samples=4,
        metrics=Metrics(
            sqnr_db=31.5,
            cosine=0.999,
            max_abs_error=0.25,
            agreement=1.0,
            top1=Drop(0.98, 0.97, 1.0, (0.2, 1.8), 400),
            top5=None,
        ),
        outputs={},
        layers=(),
        fusion=None,
        saturation=Saturation("portable", None),
        size=Size(4000, 1000),
        latency=Latency(2.0, 1.0, 2.0),
        reasons={"metrics.top5": "the model has 4 classes", "fusion": "not asked for", "saturation": "not asked for"},
    ),
    timing_s={},
)


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one line that stderr must be, but for warnings in front of an error: tests have few samples."""
        lines = self.err.splitlines()
        (line,) = [each for each in lines if each == lines[-1] or not each.startswith("int8cal: warning: ")]
        return line


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child process: pytest's, this very int8cal, wherever it was imported from, and 100 columns."""
    source = str(Path(int8cal.__file__).parents[1])
    return GIVEN | {"PYTHONPATH": source, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"} | extra


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Iterator[Callable[..., Finished]]:
    """Run `int8cal ARGUMENTS` in a given directory, for fixtures that many tests share."""
    forks = Forks(tmp_path_factory.mktemp("forks"), environment())

    def run(directory: Path, *arguments: object, **extra: str) -> Finished:
        words, variables = list(map(str, arguments)), environment(**extra)
        if forks.can_run(variables):
            done = Finished(*forks(directory, words, variables))
        else:
            done = new_process(directory, words, variables)
        assert "Traceback" not in done.err
        return done

    yield run
    forks.close()


def new_process(directory: Path, arguments: list[str], variables: dict[str, str]) -> Finished:
    """Run `python -m int8cal ARGUMENTS` in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "int8cal", *arguments],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def call(shared, tmp_path, tmp_path_factory) -> Callable[..., Finished]:
    """Run `int8cal ARGUMENTS` in an empty directory; the log of a crash goes to a temporary one of its own."""
    temporary = str(tmp_path_factory.mktemp("temporary"))
    return lambda *arguments, **extra: shared(tmp_path, *arguments, TMPDIR=temporary, **extra)


@pytest.fixture
def calibrated(request, tmp_path) -> Path:
    """A copy, in the working directory of `call`, of the folder that the test file's own fixture `results` filled."""
    return Path(shutil.copytree(request.getfixturevalue("results"), tmp_path, dirs_exist_ok=True))


@pytest.fixture(scope="session")
def sample_run(shared, tmp_path_factory) -> Path:
    """The sample job, run once for all tests that need its files: calibrate on 40 images, judge on the evaluation set."""
    directory = tmp_path_factory.mktemp("sample")
    judged = ["--eval-data", SAMPLE / "eval", "--labels", "folders", "--no-latency"]
    calibrated = ["--data", SAMPLE / "calib", "--samples", "40"]
    done = shared(directory, "calibrate", SAMPLE / "model.onnx", *calibrated, *judged, "-o", "out")
    assert done.code == 0, done.err
    return directory / "out"


@dataclass
class FakePipeline:
    """Stands in for the work behind the commands: remembers each call, raises `error` if set, else answers like a good run.

    `errors` holds one entry per coming job (None: it succeeds); it is used up before `error`.
    """

    folder: Path
    error: BaseException | None = None
    errors: list[BaseException | None] = field(default_factory=list)
    report: Report = REPORT
    lines: tuple[str, ...] = ("version: 1", "providers: CPU")
    said: tuple[str, ...] = ()
    calls: list[SimpleNamespace] = field(default_factory=list)

    def _called(self, **arguments: object) -> None:
        self.calls.append(SimpleNamespace(**arguments))
        error = self.errors.pop(0) if self.errors else self.error
        if error is not None:
            raise error

    def calibrate_job(self, job, *, exclusive=None, output=None, command="", tell=None, warnings=()):
        self._called(job=job, warnings=warnings)
        for line in self.said:
            tell(line)
        directory = self.folder / "results"
        directory.mkdir(exist_ok=True)
        (directory / "report.json").write_text('{"format": "int8cal/report"}\n')
        return SimpleNamespace(directory=directory, report=self.report, files=())

    def quantize_file(self, model, table, output, *, force=False, overwrite=False):
        self._called(model=model, table=table, output=output, force=force, overwrite=overwrite)
        return ("tensor x is constant",)

    def evaluate_files(self, job, int8, *, command="", tell=None, warnings=()):
        self._called(job=job, int8=int8, command=command, tell=tell, warnings=warnings)
        for line in self.said:
            tell(line)
        return self.report

    def merge_files(self, inputs, output, *, overwrite):
        self._called(inputs=inputs, output=output, overwrite=overwrite)
        return SimpleNamespace(samples=12, warnings=(), shards=frozenset())

    def describe_file(self, path, screen):
        self._called(path=path, screen=screen)
        return list(self.lines)

    def describe_machine(self):
        self._called()
        return list(self.lines)


@pytest.fixture
def pipeline(monkeypatch, tmp_path) -> FakePipeline:
    """Put a fake in the place of the work behind the commands, and work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    fake = FakePipeline(tmp_path)
    homes = {
        "int8cal.calibrating": ("calibrate_job",),
        "int8cal.quantizing": ("quantize_file",),
        "int8cal.calibration.statistics_file": ("merge_files",),
        "int8cal.evaluating": ("evaluate_files",),
        "int8cal.describe": ("describe_file", "describe_machine"),
    }
    for home, names in homes.items():
        module = ModuleType(home)
        # the rest is real: who imports it now keeps it for other tests
        vars(module).update(vars(importlib.import_module(home)))
        for name in names:
            setattr(module, name, getattr(fake, name))
        monkeypatch.setitem(sys.modules, home, module)
    return fake


@pytest.fixture
def here(pipeline, capsys) -> Callable[..., Finished]:
    """Run a command in this process on the fake pipeline."""
    from int8cal.cli.main import main

    def here(*arguments: object) -> Finished:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return here


@pytest.fixture
def terminal(monkeypatch, capsys) -> Callable[[int], None]:
    """Make `here` print on a terminal of so many columns, without colours."""

    def terminal(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")

    return terminal


@pytest.fixture
def gated() -> Callable[..., Report]:
    """Make a report with gates: text, value and verdict of each."""

    def gated(*gates: tuple[str, float | None, bool]) -> Report:
        return replace(REPORT, gates=tuple(Gate(*gate) for gate in gates))

    return gated


@pytest.fixture(scope="session")
def sample() -> Path:
    return SAMPLE
