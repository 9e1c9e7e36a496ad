"""package.module:function: a function of the user's, found by its name, and what it may not do to this process."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from int8cal.errors import Int8calError

SPELLING = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class _Printing:
    """Keeps what code of the user's prints off stdout, which may be the report's alone; samples are read in threads."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._stdout: TextIO = sys.stdout

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._stdout, sys.stdout = sys.stdout, sys.stderr
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.stdout = self._stdout


_PRINTING = _Printing()


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Run code of the user's: what it prints goes to stderr, and it cannot end this process.

    Raises:
        RuntimeError: It calls sys.exit(), as a script does that is imported.
    """
    try:
        with _PRINTING:
            yield
    except SystemExit as error:
        raise RuntimeError(f"it calls sys.exit({'' if error.code is None else repr(error.code)})") from error


def import_function(text: str, error: type[Int8calError]) -> Callable[..., object]:
    """Import a function; it is not called.

    Args:
        text: "package.module:function", importable from the working directory, or installed.
        error: What to raise.

    Raises:
        Int8calError: The module cannot be imported, has no such name, or it is not callable.
    """
    module_name, _, function_name = text.partition(":")
    # stays on the path: the function may import its neighbours only once it runs
    if (place := str(Path().absolute())) not in sys.path:
        sys.path.insert(0, place)
    try:
        with users_code():
            found: object = importlib.import_module(module_name)
    except Exception as failure:
        reason = "" if isinstance(failure, ModuleNotFoundError) else f"{type(failure).__name__}: "
        raise error(
            f'module "{module_name}" cannot be imported: {reason}{failure}',
            where=text,
            do="run int8cal from the folder that holds it, or install it",
        ) from failure
    for part in function_name.split("."):
        if not hasattr(found, part):
            raise error(f'module "{module_name}" has no "{function_name}"', where=text, do="check the spelling")
        found = getattr(found, part)
    if not callable(found):
        raise error(
            f'"{function_name}" is {type(found).__name__}, expected a function', where=text, do="name a function"
        )
    return found
