"""Makes a process on Linux behave as on Windows where that matters to files and signals; PYTHONPATH loads it first.

- no fcntl, resource, SIGSTOP, SIGCONT, SIGKILL, pthread_kill, getuid, fork or list of CPUs;
- a file that is open or mapped is neither removed nor replaced, and no folder that holds one is renamed;
- a folder cannot be opened.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile

for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None  # type: ignore[assignment]
for module, names in (
    (signal, ("SIGSTOP", "SIGCONT", "SIGKILL", "SIGHUP", "pthread_kill")),
    (os, ("getuid", "fork", "sched_getaffinity", "getpgid")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
shutil._use_fd_functions = False  # type: ignore[attr-defined]  # Windows has none of them
_open, _removals = os.open, {name: getattr(os, name) for name in ("replace", "rename", "unlink", "remove")}


def _in_use() -> set[str]:
    """Return the files that this process has open or mapped."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return found | {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if len(line.split(maxsplit=5)) == 6}


def _guarded(name):
    def call(*paths, **options):
        by_tempfile = sys._getframe(1).f_code.co_filename == tempfile.__file__  # Windows has O_TEMPORARY for that
        for path in () if by_tempfile else paths:
            whole = os.path.realpath(os.fsdecode(path))
            if any(each == whole or each.startswith(whole + os.sep) for each in _in_use()):
                raise PermissionError(
                    13, "The process cannot access the file because it is being used", os.fsdecode(path)
                )
        return _removals[name](*paths, **options)

    return call


def _open_file(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fsdecode(path))
    return _open(path, *arguments, **options)


for name in _removals:
    setattr(os, name, _guarded(name))
os.open = _open_file
