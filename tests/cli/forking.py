"""Runs of int8cal in forks of one process that has imported everything and run a small job: a tenth of what a new one costs.

    python forking.py serve DOOR        is that process; DOOR is the socket at which it takes orders
    python forking.py call DOOR ...     stands in for `int8cal ...`, for scripts: a fork, or a new interpreter where it must be

A fork has a working directory, an environment and standard streams of its own, and ends without a word to the others, like
the process that a user starts. Speed is measured for a moment only: no test is about what is fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

# what may differ from the first process without having mattered to its imports; a shell sets the last ones
FREE = {"TMPDIR", "COLUMNS", "PYTEST_CURRENT_TEST", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}
HANGS_AFTER_S = 600
STATIONS = ("calibrating", "evaluating", "describe", "audit.audit", "interop.convert", "quantizing", "batch.run")


def differs(one: dict[str, str], other: dict[str, str]) -> bool:
    return any(one.get(name) != other.get(name) for name in (one.keys() | other.keys()) - FREE)


class Forks:
    """Starts runs, one after the other, in forks of a process that is started with the first; to be closed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._streams = [folder / name for name in ("stdout", "stderr")]
        self._environment = environment
        # not in the folder: the name of a socket may have a hundred characters
        self._place = Path(tempfile.mkdtemp(prefix="forks-"))
        self._process: subprocess.Popen[str] | None = None

    def can_run(self, environment: dict[str, str]) -> bool:
        """Say whether a fork would be like a process with this environment."""
        return hasattr(os, "fork") and not differs(environment, self._environment)

    @property
    def door(self) -> Path:
        """Where the process, which is started if need be, takes orders."""
        door = self._place / "door"
        if self._process is None:
            Path(f"{door}.json").write_text(json.dumps(self._environment), encoding="utf-8")
            self._process = subprocess.Popen(
                [sys.executable, __file__, "serve", str(door)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment | {"OPENBLAS_NUM_THREADS": "1"},  # a fork has no thread of its parent's
            )
            self._process.stdout.readline()  # it listens
        return door

    def __call__(self, folder: Path, arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Run int8cal in a folder; returns its exit code (negative: the signal that ended it), stdout and stderr."""
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(open(os.devnull, "rb"))]  # noqa: PTH123 - no file of ours
            streams += [stack.enter_context(path.open("wb")) for path in self._streams]
            code = order(str(self.door), str(folder), arguments, environment, [each.fileno() for each in streams])
        return code, *(path.read_text(encoding="utf-8") for path in self._streams)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait(timeout=30)
        shutil.rmtree(self._place)


def order(door: str, folder: str, arguments: list[str], environment: dict[str, str], streams: list[int]) -> int:
    """Have a fork run int8cal on three open files; returns as `Forks` does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(door)
        socket.send_fds(connection, [b"\0"], streams)
        connection.sendall(json.dumps((folder, arguments, environment)).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(8))


def _call(door: str, arguments: list[str]) -> NoReturn:
    environment, first = dict(os.environ), json.loads(Path(f"{door}.json").read_text(encoding="utf-8"))
    if differs(environment, first):
        os.execv(sys.executable, [sys.executable, "-m", "int8cal", *arguments])  # noqa: S606 - it takes this one's place
    code = order(door, str(Path.cwd()), arguments, environment, [0, 1, 2])
    sys.exit(code if code >= 0 else 128 - code)


def _serve(place: str) -> None:
    import importlib
    import select
    import warnings

    import onnxruntime  # noqa: F401 - imported once, for all forks

    from int8cal.cli.main import BESIDE, COMMANDS

    for name in (*(f"cli.{command}" for command in COMMANDS if command not in BESIDE), *STATIONS):
        importlib.import_module(f"int8cal.{name}")
    _warm_up()
    hurry()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        print(flush=True)  # noqa: T201 - what Forks waits for
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            connection, _ = door.accept()
            with connection:
                streams = socket.recv_fds(connection, 1, 3)[1]
                given = b"".join(iter(lambda taken=connection: taken.recv(1 << 16), b""))
                with warnings.catch_warnings():
                    # Python 3.12 warns of threads, which libraries may have
                    warnings.simplefilter("ignore", DeprecationWarning)
                    child = os.fork()
                if not child:
                    door.close()
                    connection.close()
                    _run(*json.loads(given), streams)
                for each in streams:
                    os.close(each)
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _warm_up() -> None:
    """Run a small job, for all that is built on first use: numba's compiler, loops and templates. It leaves no thread."""
    import gc
    import threading
    import warnings

    from small_batch import fill

    from int8cal.cli.main import main

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not shown here is not taken for shown in forks
        fill(Path(name))
        job = [f"{name}/net.onnx", "--data", f"{name}/data", "-o", f"{name}/out", "--recipe", "accurate"]
        code = main(["calibrate", *job, "--no-latency", "--threads", "1", "--quiet"])
    if code or threading.active_count() > 1:
        raise RuntimeError(f"the job that forks start from ended with {code} and {threading.enumerate()}")
    gc.freeze()  # a fork's collections leave its parent's pages alone


def hurry(put: Callable[..., None] = setattr) -> None:
    """Measure speed for a moment only; `put` is a monkeypatch's setattr where that ends with a test."""
    from functools import partial

    from int8cal.evaluation import speed
    from int8cal.search.goals import latency

    put(speed, "measure_latencies", partial(speed.measure_latencies, budget_s=0.3))
    put(latency, "_BUDGET_S", 0.05)


def _run(folder: str, arguments: list[str], environment: dict[str, str], streams: list[int]) -> NoReturn:
    import faulthandler
    import traceback

    from int8cal.cli.main import entry

    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR is asked again
        sys.argv = ["int8cal", *arguments]
        sys.path[0] = folder  # as with -m: a function of the user's is found there
        for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
            os.dup2(stream, number)
            os.close(stream)
            old = getattr(sys, name)  # which may believe that it can seek
            new = open(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
            new.reconfigure(line_buffering=number == 2 or new.isatty())
            setattr(sys, name, new)
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
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _call(sys.argv[2], sys.argv[3:])
