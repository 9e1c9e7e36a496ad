"""Reads many damaged files in child processes: what is neither success nor an error of int8cal's own is a finding.

So are: an error that does not say where it is or what to do, a warning of Python's, a crash or a hang of the process, and
an input that takes more than `SECONDS` of processor time or `MEMORY` of memory.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.errors import Int8calError

if TYPE_CHECKING:
    from types import FrameType

    from .parsers import Parser

SECONDS = 20.0  # of processor time for one input; sound ones take milliseconds
MEMORY = 1 << 29  # bytes that one small input may cost on top
SILENCE = 300.0  # seconds after which a child that counts no further hangs
_STATE = struct.Struct("<qqq")  # input, accepted, refused


class TooLongError(BaseException):
    """No `except Exception` on the way may hold it up."""


@dataclass
class Finding:
    """One kind of failure: what it is, how often it was met, the input that met it first."""

    what: str
    first: int
    count: int = 1
    trace: str = ""


@dataclass
class Result:
    """What became of the inputs of one parser."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)

    def add(self, what: str, index: int, trace: str = "") -> None:
        if what in self.findings:
            self.findings[what].count += 1
        else:
            self.findings[what] = Finding(what, index, trace=trace)


def damaged(parser: Parser, sound: list[bytes], seed: int, index: int) -> bytes:
    """Return the input of a number: the same one for the same seed."""
    rng = random.Random(f"{seed}:{index}")  # noqa: S311 - to be had again
    data = rng.choice(sound)
    return data if index < 0 else parser.change(rng, data)


def complaint(parser: Parser, data: bytes, folder: Path) -> tuple[str, str, bool]:
    """Read one input.

    Returns:
        What is wrong with how it was read, "" for nothing; the traceback; whether the input was accepted.
    """
    path = folder / parser.name
    path.write_bytes(data)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            parser.read(path)
    except Int8calError as error:
        advice = error.do or "expected" in error.what  # what was expected says what to write
        lacking = [name for name, part in (("place", error.where), ("advice", advice)) if not part]
        if not lacking:
            return "", "", False
        return f"{_place(error)}: {type(error).__name__} without {' or '.join(lacking)}", traceback.format_exc(), False
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding: a panic of Rust's is no Exception
        return f"{_place(error)}: {type(error).__name__}", traceback.format_exc(), False
    # what libraries say to people of a file is theirs; a warning about arithmetic is about int8cal's own
    strays = [
        f"{Path(each.filename).name}:{each.lineno}: {each.message}"
        for each in warned
        if each.category is RuntimeWarning
    ]
    return (f"a warning: {strays[0][:200]}" if strays else ""), "", True


def _place(error: BaseException) -> str:
    """Name the innermost line of int8cal's on the way to an error."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if f"{os.sep}int8cal{os.sep}" in frame.filename]
    if not own:
        return "outside"
    return f"{own[-1].filename.rpartition(f'{os.sep}int8cal{os.sep}')[2]}:{own[-1].lineno}"


def fuzz(
    parser: Parser, inputs: int, seed: int, *, first: int = 0, keep: Path | None = None, tell: bool = False
) -> Result:
    """Read damaged files.

    Args:
        parser: What reads them.
        inputs: How many.
        seed: Of the changes.
        first: The number of the first one, so that a long run can be made of several.
        keep: A folder that gets the first input of each finding.
        tell: Whether progress goes to stderr.
    """
    result = Result()
    work = Path(tempfile.mkdtemp(prefix="int8cal-fuzz-"))
    try:
        made = work / "made"
        made.mkdir()
        sound = parser.make(made)
        shared = mmap.mmap(-1, _STATE.size)
        start, end = first, first + inputs
        while start < end:
            _STATE.pack_into(shared, 0, start, result.accepted, result.refused)
            start = _child(parser, sound, (start, end, seed), work, shared, result, tell=tell)
            _, result.accepted, result.refused = _STATE.unpack_from(shared)
        result.inputs = inputs
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for finding in result.findings.values():
                (keep / f"{finding.first}-{parser.name}").write_bytes(damaged(parser, sound, seed, finding.first))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return result


def _child(
    parser: Parser,
    sound: list[bytes],
    what: tuple[int, int, int],
    work: Path,
    shared: mmap.mmap,
    result: Result,
    *,
    tell: bool,
) -> int:
    """Let a child read inputs until one of them ends it; returns the number of the next one."""
    found = work / "findings"
    found.write_bytes(b"")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if not process:
        code = 70
        try:
            _read_inputs(parser, sound, what, work, shared, found)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    status, at, since = None, -1, time.monotonic()
    while status is None:
        ended, code = os.waitpid(process, os.WNOHANG)
        now, accepted, refused = _STATE.unpack_from(shared)
        if ended:
            status = code
        elif now != at:
            at, since = now, time.monotonic()
        elif time.monotonic() - since > SILENCE:
            os.kill(process, signal.SIGKILL)
        if tell:
            sys.stderr.write(f"\r{now:>9,} inputs, {accepted:,} accepted, {refused:,} refused ")
            sys.stderr.flush()
        time.sleep(0.05)
    at = _STATE.unpack_from(shared)[0]
    for line in found.read_text(encoding="utf-8").splitlines():
        result.add(*json.loads(line))
    if os.WIFSIGNALED(status):
        result.add(f"the process died of {signal.Signals(os.WTERMSIG(status)).name}", at)
        return at + 1
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"the script failed on input {at}")
    return at


def _read_inputs(
    parser: Parser, sound: list[bytes], what: tuple[int, int, int], work: Path, shared: mmap.mmap, found: Path
) -> None:
    start, end, seed = what
    folder = work / "read"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    parser.beside(folder)
    signal.signal(signal.SIGPROF, _too_long)
    # what an input claims to need is not there: a hundred times that of a sound one
    limit = 6 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, accepted, refused = _STATE.unpack_from(shared)
    with found.open("a", encoding="utf-8") as findings:
        for index in range(start, end):
            _STATE.pack_into(shared, 0, index, accepted, refused)
            data = damaged(parser, sound, seed, index)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            wrong, trace, is_accepted = complaint(parser, data, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            cost = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            if not wrong and cost > MEMORY:
                wrong, trace = f"{cost >> 20} MB of memory", ""
            accepted, refused = accepted + is_accepted, refused + (not wrong and not is_accepted)
            if wrong:
                findings.write(json.dumps([wrong, index, trace]) + "\n")
                findings.flush()
            if wrong or (index - start) >= 20_000:  # a fresh process: the peak of memory is counted from its own
                _STATE.pack_into(shared, 0, index + 1, accepted, refused)
                if index - start >= 20_000 or cost > MEMORY:
                    return
        _STATE.pack_into(shared, 0, end, accepted, refused)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLongError(f"more than {SECONDS:g} s of processor time")


def tally(results: dict[str, Result]) -> str:
    """Return the counts as rows of a Markdown table."""
    rows = [
        (name, f"{each.inputs:,}", f"{each.accepted:,}", f"{each.refused:,}", str(len(each.findings)))
        for name, each in results.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [("parser", "inputs", "read", "refused", "findings"), *rows])
