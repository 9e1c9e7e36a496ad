"""Hidden files and folders that tell whether the process that made them lives: each is locked while it is in use.

The lock (flock) vanishes with its process, however that ends. What a killed process left has a name with `MARK` and
twelve hexadecimal digits in it and a lock that anybody can take; `sweep` removes it. Systems without such locks
(Windows, some network drives) keep what was left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKS = fcntl is not None  # whether the system has any
MARK = "int8cal-"
_MARKED = re.compile(rf"(.*\.)?{MARK}[0-9a-f]{{12}}(\..*)?", re.DOTALL)
_MOST_INTERRUPTS = 5  # in the middle of one removal: somebody who leans on Ctrl-C gets the better of it
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
            with suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = None


def take(path: Path) -> Lock:
    """Lock a file or folder.

    Raises:
        BlockingIOError: Another process holds it.
        FileNotFoundError: It is gone, or another one has its name now.
    """
    if not LOCKS:
        return Lock(None)
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
    except BaseException as error:  # an interrupt too: nobody could take it until this process ends
        lock.release()
        if not isinstance(error, OSError) or isinstance(error, (BlockingIOError, FileNotFoundError)):
            raise
    return lock


def hidden_name(name: str, digits: str, suffix: str = "") -> str:
    """Make the name of a hidden file or folder that `sweep` knows: of what it is going to be, with twelve digits."""
    return f".{name[:_STEM]}{'.' if name else ''}{MARK}{digits}{suffix[:_SUFFIX]}"


@contextmanager
def new_file(folder: Path, name: str = "", suffix: str = "") -> Iterator[Path]:
    """Make an empty hidden file, locked and there until the block ends; it follows the umask, as output files do.

    An interrupt leaves none, wherever it lands: systems without locks would keep it for good.

    Raises:
        OSError: Of the folder; names the file.
    """
    while True:
        path, lock = folder / hidden_name(name, secrets.token_hex(6), suffix), Lock(None)
        try:
            # Not mkstemp: its files are private to the user. And no descriptor: where an interrupt lands before it has
            # a name, nobody closes it, and Windows keeps files that are open.
            path.open("xb").close()
            try:
                lock = take(path)
            except (BlockingIOError, FileNotFoundError):  # another process swept it away
                continue
            yield path
            return
        finally:
            surely(path.unlink)  # it may have been moved
            lock.release()


@contextmanager
def new_folder(folder: Path, *, private: bool = False) -> Iterator[Path]:
    """Make an empty folder, locked and there until the block ends; an interrupt leaves none.

    Args:
        folder: The one around it.
        private: For this user alone, in a temporary directory; otherwise it is a hidden one.

    Raises:
        OSError: Of the folder around it.
    """
    while True:
        digits, lock = secrets.token_hex(6), Lock(None)
        path = folder / (f"{MARK}{digits}" if private else hidden_name("", digits))
        try:
            path.mkdir(0o700 if private else 0o777)
            try:
                lock = take(path)
            except (BlockingIOError, FileNotFoundError):  # another process swept it away
                continue
            yield path
            return
        finally:
            surely(partial(shutil.rmtree, path, ignore_errors=True))
            lock.release()


def surely(remove: Callable[[], object]) -> None:
    """Remove something also where interrupts land in the middle of it: they are raised when it is gone.

    What the system refuses to remove stays.
    """
    interrupt: KeyboardInterrupt | None = None
    for _ in range(_MOST_INTERRUPTS):
        try:
            with suppress(OSError):
                remove()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


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
        with suppress(OSError):
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
