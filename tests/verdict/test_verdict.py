"""Every broken job of the corpus is told, in the right words; the same jobs done right are not."""

from __future__ import annotations

import re

import pytest
from cases import CASES, OK


def told(says, verdict):
    """The sentence that holds all patterns; None where nobody says it."""
    found = (line for line in verdict.sentences if all(re.search(each, line) for each in says))
    return next(found, None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_job_is_told(case, judge):
    verdict = judge(case.broken)
    assert (verdict.code, told(case.says, verdict) is not None) == (case.code, True), (verdict.sentences, verdict.out)


@pytest.mark.parametrize("right", sorted({case.right for case in CASES}))
def test_a_right_job_is_not_told_anything(right, judge):
    verdict = judge(right)
    assert (verdict.code, verdict.warnings) == (OK, []), verdict.sentences
    assert all(gate["passed"] for gate in (verdict.report or {"gates": []})["gates"])


def test_there_are_many_pairs_and_more():
    assert len({case.broken for case in CASES}) == len(CASES) >= 12
    assert {case.broken for case in CASES}.isdisjoint(case.right for case in CASES)
