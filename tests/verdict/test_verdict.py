"""Every broken job of the corpus is told, in the right words; the same jobs done right are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import CASES, CODES, DATA, GATE, OK

import int8cal


def told(says, sentences):
    """The sentence that holds all patterns; None where none does."""
    return next((line for line in sentences if all(re.search(each, line) for each in says)), None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_job_is_told(case, judge):
    verdict = judge(case.broken)
    assert (verdict.code, told(case.says, verdict.sentences) is not None) == (case.code, True), verdict.sentences


@pytest.mark.parametrize("case", [case for case in CASES if case.strict], ids=lambda case: case.name)
def test_a_broken_job_fails_when_strict(case, judge):
    verdict = judge(f"{case.broken} --strict")
    assert (verdict.code, verdict.err.splitlines()[-1][:14]) == (DATA, "int8cal: data:"), verdict.sentences


@pytest.mark.parametrize("right", sorted({case.right for case in CASES}))
def test_a_right_job_is_not_told_anything(right, judge):
    verdict = judge(right)
    assert (verdict.code, verdict.complaints) == (OK, []), verdict.sentences
    assert all(gate["passed"] for gate in (verdict.report or {"gates": []})["gates"])


def test_the_right_jobs_pass_strictly_too(judge):
    for right in sorted({case.right for case in CASES if case.strict}):
        assert judge(f"{right} --strict".replace("made/right", "made/strictly-right")).code == OK, right


def test_there_are_thirty_pairs_and_more():
    assert len({case.broken for case in CASES}) == len(CASES) >= 30
    assert {case.broken for case in CASES}.isdisjoint(case.right for case in CASES)
    assert {case.code for case in CASES} == CODES


@pytest.mark.parametrize(("name", "code"), [("detection head under one scale", GATE), ("NaN of the FP32 model", 5)])
def test_a_user_meets_the_same(name, code, folder):
    case = next(case for case in CASES if case.name.startswith(name))
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])}
    command = [sys.executable, "-m", "int8cal", *case.broken.split(), *(["-o", f"made/user-{code}"])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert told(case.says, done.stderr.splitlines()) is not None, done.stderr
