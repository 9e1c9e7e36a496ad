"""Fewer residual codes where all together were not worth their time."""

import math

import pytest

from int8cal.search.residual import Upgrade, fewer, in_force


def some_of(tensor, gain, us, channels=()):
    fine = {f"reads {tensor}": channels} if channels else {}
    return Upgrade(f"codes of {tensor}", () if fine else (f"reads {tensor}",), (), gain, us, tensor, fine)


A, B, C = some_of("a", 0.2, 1, (3,)), some_of("b", 0.1, 1, (5,)), some_of("c", 0.1, 8)
ALL_OF_A = some_of("a", 0.3, 12)


def db(share):
    return -10 * math.log10(1 - share)


def test_of_a_tensor_what_was_taken_last_is_in_force():
    assert in_force([A, B, ALL_OF_A]) == (ALL_OF_A, B)
    assert in_force([]) == ()


@pytest.mark.parametrize(
    ("taken", "gained", "left"),
    [
        ([A, B, C], 0.2, (A, B)),  # half of the promise: 0.15 for 2 beats 0.1 for 1
        ([A, B, C], 0.015, (A,)),  # so little that the second is not worth its time either
        ([A, B, C], 0.004, ()),  # so little that none is
        ([A, B, C], 0.0, (A, B)),
        ([A, B, C], -0.2, (A, B)),
        ([A, ALL_OF_A], 0.1, (A,)),
        ([A], 0.1, ()),
        ([C], -0.1, ()),
    ],
)
def test_they_are_expected_to_fall_short_as_all_together_did(taken, gained, left):
    def worth(some):
        return sum(0.02 * each.us for each in some)

    assert fewer(taken, db(gained), worth) == left


def test_nothing_is_proposed_twice():
    for taken in ([A], [A, B], [A, B, C], [A, B, ALL_OF_A]):
        for gained in (-0.2, 0.0, 0.01, 0.2, 0.9):
            assert fewer(taken, db(gained), lambda some: 0.0) != in_force(taken)
