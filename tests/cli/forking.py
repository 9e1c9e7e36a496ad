"""Runs of int8cal in forks of one process that has imported everything: a third of what a new interpreter costs.

As a script it is that process. A fork has a working directory, an environment and standard streams of its own, and ends
without a word to the others, like the process that a user starts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

# what may differ from the first process without having mattered to its imports
FREE = {"TMPDIR", "COLUMNS", "PYTEST_CURRENT_TEST"}
HANGS_AFTER_S = 600
STATIONS = ("calibrating", "evaluating", "describe", "audit.audit", "interop.convert", "quantizing", "batch.run")


def differs(one: dict[str, str], other: dict[str, str]) -> bool:
    return any(one.get(name) != other.get(name) for name in (one.keys() | other.keys()) - FREE)


class Forks:
    """Starts runs, one after the other, in forks of a process that is started with the first; to be closed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._streams = [folder / name for name in ("stdout", "stderr")]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def can_run(self, environment: dict[str, str]) -> bool:
        """Say whether a fork would be like a process with this environment."""
        return hasattr(os, "fork") and not differs(environment, self._environment)

    def __call__(self, folder: Path, arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Run int8cal in a folder; returns its exit code (negative: the signal that ended it), stdout and stderr."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment | {"OPENBLAS_NUM_THREADS": "1"},  # a fork has no thread of its parent's
            )
        order = (str(folder), arguments, environment, list(map(str, self._streams)))
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, *(path.read_text(encoding="utf-8") for path in self._streams)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait(timeout=30)


def _serve() -> None:
    import onnxruntime  # noqa: F401 - imported once, for all forks

    from int8cal.cli.main import BESIDE, COMMANDS

    for name in (*(f"cli.{command}" for command in COMMANDS if command not in BESIDE), *STATIONS):
        importlib.import_module(f"int8cal.{name}")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 warns of threads, which libraries may have
            child = os.fork()
        if not child:
            _run(*json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _run(folder: str, arguments: list[str], environment: dict[str, str], streams: list[str]) -> NoReturn:
    from int8cal.cli.main import entry

    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR is asked again
        sys.argv = ["int8cal", *arguments]
        sys.path[0] = folder  # as with -m: a function of the user's is found there
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(streams, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)  # to the run's stderr, as exit code 1
        entry()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does it, and then the fork must end
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
