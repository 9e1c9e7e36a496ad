"""What contributors run, each in an environment of its own: `nox -l` lists, `nox -s quick` runs one.

.ci/run is the whole of continuous integration; each session is one of its parts, by the same name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "quick"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
# what .ci/run asks of the minimum versions, and why it is not more
OLDEST = (
    "tests/unit",
    "tests/cli/test_audit_command.py",
    "tests/cli/test_calibrate_command.py",
    "tests/cli/test_evaluate_command.py",
    "tests/cli/test_inspect_command.py",
    "tests/cli/test_merge_command.py",
    "tests/cli/test_quantize_command.py",
    "tests/cli/test_run_command.py",
    "tests/cli/test_table_command.py",
    "tests/cli/test_ray.py::test_the_command_starts_a_cluster_and_ends_it",
    "-m",
    "not newest and not zoo and not slow and not long",
)
NO_MKDOCS_2_WARNING = {"NO_MKDOCS_2_WARNING": "1"}


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff and mypy, strictly; no tests."""
    session.install(".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the tests marked quick, two at a time: under two minutes on two cores."""
    session.install(".[dev]")
    session.run("pytest", "-m", "quick", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run what .ci/run tests with the newest dependencies; `nox -s tests -- tests/cli -n 4` passes arguments on."""
    session.install(".[dev]")
    session.run("pytest", "-m", "not (zoo and slow) and not long", *session.posargs)


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the unit tests and those of the commands with the oldest dependencies that pyproject.toml allows."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["ray"], *extras["remote"]]
    pinned = [each.replace(">=", "==") for each in needed]
    session.install(".", "pytest", "hypothesis", *pinned)
    session.run("pytest", *OLDEST, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, strictly, into ./site; run the tests that read and run its pages."""
    session.install(".[dev,docs]")
    session.run("mkdocs", "build", "--strict", env=NO_MKDOCS_2_WARNING)
    session.run("pytest", "tests/docs", "tests/unit/test_docs.py", *session.posargs)
