"""Another runtime in a process of its own first: where its native code crashes, it takes the whole process with it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.runtime.batching import Arrays, Runs

_START = "from int8cal.runtime.trial import run_all; run_all()"
_RAN = b"ran\n"
_SETTLED = (0, 1)  # exit codes of a Python that came to its end; 1 where it could not begin, as after a failed import


def find_crash(
    opener: Callable[..., Runs], files: Sequence[str], feeds: Sequence[Arrays], *, threads: int
) -> tuple[int, str] | None:
    """Open models in another process, and run each once.

    Args:
        opener: Opens a session of a file; a name that another process can import.
        files: Of the models, one after the other.
        feeds: The feed of each.
        threads: Of the session.

    Returns:
        Which model ended that process, by position, and how: the name of a signal, or an exit code. None where none
        did; an exception is no crash, and whoever opens the model here gets it too.
    """
    path_of_modules = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - text
    ended = subprocess.run(  # noqa: S603 - this very Python
        [sys.executable, "-P", "-c", _START],
        input=pickle.dumps((opener, list(files), list(feeds), threads)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path_of_modules},
        process_group=0 if os.name == "posix" else None,  # Ctrl-C reaches this process alone, which ends that one
        check=False,
    )
    if ended.returncode in _SETTLED:
        return None
    how = f"exit code {ended.returncode}"
    with suppress(ValueError):  # no signal of this system
        how = signal.Signals(-ended.returncode).name
    return min(ended.stdout.count(_RAN), len(files) - 1), how


def run_all() -> None:
    """Be that process: what to do is on stdin, and each model that ran is a line on stdout."""
    with suppress(Exception):
        opener, files, feeds, threads = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent
        for file, feed in zip(files, feeds, strict=True):
            opener(file, threads=threads).run(feed)
            os.write(1, _RAN)
    os._exit(0)  # a crash as it ends is none of a model
