"""Damaged files of every kind: read, or refused with a place and an advice; nothing else, see run.py.

A short form of `python -m tests.fuzz all`, and every input that once was a finding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuzz.parsers import PARSERS, Parser
from fuzz.run import complaint, damaged, fuzz

from int8cal.errors import DataError

REGRESSIONS = Path(__file__).parent / "regressions"
FEW = 40


@pytest.mark.slow
@pytest.mark.newest  # what libraries make of damaged files differs between their versions
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_read_or_refused(name):
    result = fuzz(PARSERS[name], FEW, seed=0)
    assert not result.findings, "\n".join(
        f"input {each.first}: {what}\n{each.trace}" for what, each in result.findings.items()
    )
    assert result.accepted + result.refused == FEW
    assert result.refused


@pytest.mark.newest
@pytest.mark.parametrize("file", sorted(REGRESSIONS.glob("*/*")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_was_a_finding_is_none_any_more(file, tmp_path, monkeypatch):
    parser = PARSERS.get(file.parent.name)
    if parser is None:
        pytest.skip("the library that reads such files is not installed")
    monkeypatch.chdir(tmp_path)
    parser.beside(tmp_path)
    assert complaint(parser, file.read_bytes(), tmp_path)[:2] == ("", "")


def failing(error):
    def read(path):
        if path.read_bytes() != b"sound":
            raise error

    return Parser("file", lambda _: [b"sound"], lambda rng, data: rng.choice((data, b"broken")), read)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("x"), "ValueError"),
        (MemoryError(), "MemoryError"),
        (DataError("is broken", do="mend it"), "without place"),
        (DataError("is broken", where="file"), "without advice"),
    ],
)
def test_a_failure_is_a_finding(error, told):
    (finding,) = fuzz(failing(error), 40, seed=1).findings.values()
    assert told in finding.what
    assert 0 < finding.count < 40


def test_the_end_of_the_process_is_a_finding_and_the_next_inputs_are_read():
    import os
    import signal

    def read(path):
        if path.read_bytes() == b"7":
            os.kill(os.getpid(), signal.SIGKILL)

    parser = Parser("file", lambda _: [b""], lambda rng, data: str(rng.randrange(10)).encode(), read)
    result = fuzz(parser, 50, seed=0)
    (finding,) = result.findings.values()
    assert finding.what == "the process died of SIGKILL"
    assert finding.count == sum(damaged(parser, [b""], 0, each) == b"7" for each in range(50))
    assert result.accepted == 50 - finding.count


def test_an_input_that_takes_too_long_or_too_much_is_a_finding(monkeypatch):
    monkeypatch.setattr("fuzz.run.SECONDS", 1.0)
    monkeypatch.setattr("fuzz.run.MEMORY", 1 << 24)
    held = []

    def read(path):
        if path.read_bytes() == b"long":
            while True:
                pass
        if path.read_bytes() == b"large":
            held.append(np.ones(1 << 23))

    parser = Parser("file", lambda _: [b""], lambda rng, data: rng.choice((b"long", b"large", b"")), read)
    found = "\n".join(fuzz(parser, 6, seed=3).findings)
    assert "TooLongError" in found
    assert "MB of memory" in found
