"""Runs of int8cal that are killed, at an event of the file system or after a time, and what must be true after that.

As a script it is the process that runs are forked from: it has made a run itself, so that all is imported, loaded from caches
and compiled, and no thread of it goes on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# what is the same bytes in every run; reports and records hold times
SAME = (".int8.onnx", ".table.json", ".stats.npz")
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


class Runs:
    """Starts runs, each in a fork of a process of its own; to be closed."""

    def __init__(self, temporary: Path) -> None:
        import int8cal

        environment = os.environ | {
            "PYTHONPATH": str(Path(int8cal.__file__).parents[1]),
            "TMPDIR": str(temporary),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(
        self, folder: Path, *arguments: str, kill_at: int | None = None, kill_after: float | None = None
    ) -> tuple[int, int]:
        """Run int8cal in a folder; returns its exit code (-9 when killed) and the number of events it came to.

        It is killed at an event, or after some seconds, if it still runs then.
        """
        order = {"folder": str(folder), "arguments": arguments, "kill_at": kill_at, "kill_after": kill_after}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code, events = json.loads(self._process.stdout.readline())
        return code, events

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


class Folder:
    """A folder with inputs, and with results of another run in `old` beside; what a run makes of it."""

    def __init__(self, path: Path, inputs: set[str]) -> None:
        self.path, self._inputs = path, inputs

    @classmethod
    def of(cls, template: Path, path: Path, old: str = "") -> Folder:
        """Copy a template; its results in `old` become those in that place."""
        shutil.copytree(template, path)
        inputs = {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}
        inputs = {name for name in inputs if not name.startswith("old")}
        if old:
            (path / old).parent.mkdir(parents=True, exist_ok=True)
            (path / "old").rename(path / old)
        shutil.rmtree(path / "old", ignore_errors=True)
        return cls(path, inputs)

    def files(self) -> dict[str, bytes]:
        """Return every file but the inputs; of those that hold times only that they are there."""
        found = {str(each.relative_to(self.path)): each for each in self.path.rglob("*") if each.is_file()}
        return {
            name: each.read_bytes() if name.endswith(SAME) else b""
            for name, each in found.items()
            if name not in self._inputs and "__pycache__" not in name
        }

    def torn(self, before: dict[str, bytes], new: dict[str, bytes]) -> list[str]:
        """Name the files that are neither what they were nor what they should become."""
        return [
            name
            for name, content in self.files().items()
            if ".int8cal-" not in name and not name.endswith(".checkpoint")
            if content not in (before.get(name), new.get(name)) or not is_whole(self.path / name)
        ]


def is_whole(path: Path) -> bool:
    """Tell whether a text that has an end has one."""
    if path.suffix == ".json":
        try:
            json.loads(path.read_text())
        except ValueError:
            return False
    return path.suffix != ".html" or path.read_text().rstrip().endswith("</html>")


def _serve() -> None:
    import int8cal.batch.run  # noqa: F401 - imported once, for all forks
    from int8cal.cli.main import main

    _make_one(main)
    for line in sys.stdin:
        order = json.loads(line)
        take, give = os.pipe()
        child = os.fork()
        if not child:
            os.close(take)
            _run(main, order, give)
        os.close(give)
        if order["kill_after"] is not None:
            time.sleep(order["kill_after"])
            os.kill(child, signal.SIGKILL)  # it is there until it is waited for, whether or not it has ended
        with os.fdopen(take) as pipe:
            events = len(pipe.read())
        _, status = os.waitpid(child, 0)
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), events]) + "\n")
        sys.stdout.flush()


def _make_one(main) -> None:
    """Make an undisturbed run."""
    from small_batch import fill

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        fill(Path(folder))
        given = [f"{folder}/net.onnx", "--data", f"{folder}/data", "-o", f"{folder}/out", "--threads", "1"]
        if main(["calibrate", *given, "--no-latency", "--quiet"]):
            raise RuntimeError("an undisturbed run failed")


def _run(main, order, give) -> None:
    os.chdir(order["folder"])
    log = os.open(f"{os.environ['TMPDIR']}/../log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    lock = threading.Lock()
    count = 0
    fsync = os.fsync

    def event() -> None:
        nonlocal count
        with lock:
            count += 1
            os.write(give, b".")
            if count == order["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    def hook(name, arguments) -> None:
        if name in CHANGES:
            event()
        elif name == "open":
            path, mode, flags = arguments
            written = any(letter in (mode or "") for letter in "wxa+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
            if written and isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path) != os.devnull:
                event()

    def counted(descriptor) -> None:
        event()
        fsync(descriptor)

    os.fsync = counted
    sys.addaudithook(hook)
    code = 1
    try:
        code = main(order["arguments"])
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
