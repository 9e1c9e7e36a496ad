"""Hidden files and folders that tell whether the process that made them lives: each is locked while it is in use.

The lock (flock) vanishes with its process, however that ends. What a killed process left has a name with `MARK` and
twelve hexadecimal digits in it and a lock that anybody can take; `sweep` removes it. Systems without such locks
(Windows, some network drives) keep what was left.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MARK = "int8cal-"
_MARKED = re.compile(rf"(.*\.)?{MARK}[0-9a-f]{{12}}(\..*)?", re.DOTALL)
_STEM, _SUFFIX = 40, 20  # characters of a hidden name: below 255 bytes in any script


@dataclass
class Lock:
    """A lock that this process holds.

    Attributes:
        descriptor: Of what is locked; None where the system has no locks, and nobody can tell who else writes there.
    """

    descriptor: int | None

    def release(self) -> None:
        """Let others take it."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = None


def take(path: Path, descriptor: int | None = None) -> Lock:
    """Lock a file or folder.

    Args:
        path: What to lock.
        descriptor: Of the same, where it is open already; closed with the lock.

    Raises:
        BlockingIOError: Another process holds it.
        FileNotFoundError: It is gone, or another one has its name now.
    """
    if fcntl is None:
        if descriptor is not None:
            os.close(descriptor)
        return Lock(None)
    if descriptor is None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError:  # may be entered, but not read
            return Lock(None)
    lock = Lock(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # a sweep may have removed it in between
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)
    except (BlockingIOError, FileNotFoundError):
        lock.release()
        raise
    except OSError:
        lock.release()
    return lock


def hidden_name(name: str, digits: str, suffix: str = "") -> str:
    """Make the name of a hidden file or folder that `sweep` knows: of what it is going to be, with twelve digits."""
    return f".{name[:_STEM]}{'.' if name else ''}{MARK}{digits}{suffix[:_SUFFIX]}"


def new_file(folder: Path, name: str = "", suffix: str = "") -> tuple[Path, Lock]:
    """Make an empty hidden file, locked; it follows the umask, as output files do.

    Raises:
        OSError: Of the folder; names the file.
    """
    while True:
        path = folder / hidden_name(name, secrets.token_hex(6), suffix)
        # Not mkstemp: its files are private to the user.
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            return path, take(path, descriptor)


def new_folder(folder: Path, *, private: bool = False) -> tuple[Path, Lock]:
    """Make an empty folder, locked: a hidden one, or (`private`) one for this user alone in a temporary directory.

    Raises:
        OSError: Of the folder around it.
    """
    while True:
        digits = secrets.token_hex(6)
        path = folder / (f"{MARK}{digits}" if private else hidden_name("", digits))
        path.mkdir(0o700 if private else 0o777)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            return path, take(path)


def sweep(folder: Path) -> None:
    """Remove what killed processes of this user left in a folder; what is in use stays."""
    try:
        with os.scandir(folder) as entries:
            left = [
                (Path(entry.path), entry.is_dir(follow_symlinks=False))
                for entry in entries
                if _MARKED.fullmatch(entry.name)
                and not entry.is_symlink()
                and (not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid())
            ]
    except OSError:
        return  # what cannot be listed is told by whoever writes there
    for path, is_folder in left:
        with contextlib.suppress(OSError):
            lock = take(path)
            if lock.descriptor is None:
                continue
            try:
                if is_folder:
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            finally:
                lock.release()
