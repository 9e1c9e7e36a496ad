"""Which layers leave int8, and how many: on made-up figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.graph.plan import Layer
from int8cal.quantization.error_model import Cause
from int8cal.search.goals.mixed import MOST_EVALUATIONS, Ladder, Open, Planes, Rung, fewest, needed


def layer(node, reads, *, us=1.0, freed=(), exact=(), free=False):
    made = Layer(node, "Conv", f"{node}.w", None, 0, reads, f"{node}.out", 4)
    return Open(made, frozenset(freed), frozenset(exact), us, free)


def chain(*inputs, us=1.0):
    """Layers one behind the other: each reads what the one before writes as codes."""
    return [
        layer(f"n{number}", f"t{number}", freed={f"t{number + 1}"}, free=number == 0, us=us)
        for number, _ in enumerate(inputs)
    ]


def noise(inputs, weights):
    return {Cause("input", f"n{number}"): value for number, value in enumerate(inputs)} | {
        Cause("weights", f"n{number}"): value for number, value in enumerate(weights)
    }


def test_a_layer_whose_input_another_one_rounds_is_taken_with_it():
    inputs = (0.0, 0.1, 0.8)
    ladder = Ladder(chain(*inputs), (), noise(inputs, (0.05, 0.03, 0.02)), 100.0, keep=1)
    rungs = ladder.rungs(math.inf)
    assert rungs[1].floats == ("n1", "n2")
    assert rungs[1].gain == pytest.approx(0.85)
    assert rungs[1].percent == pytest.approx(2.0)


def test_without_its_neighbour_a_layer_only_gains_exact_weights():
    inputs = (0.1, 0.5)
    ladder = Ladder(chain(*inputs), (), noise(inputs, (0.1, 0.3)), 100.0, keep=1)
    (_, first) = ladder.rungs(1.0)
    assert (first.floats, first.gain) == (("n1",), pytest.approx(0.3))


def test_one_layer_stays_int8():
    inputs = (0.3, 0.3, 0.3)
    ladder = Ladder(chain(*inputs), (), noise(inputs, (0.01, 0.01, 0.01)), 100.0, keep=1)
    assert len(ladder.rungs(math.inf)[-1].floats) == 2


def test_what_does_not_fit_is_left_out_and_something_cheaper_still_fits():
    layers = [
        layer("dear", "a", us=50.0, free=True),
        layer("cheap", "b", us=1.0, free=True),
        layer("c", "c", free=True),
    ]
    figures = {Cause("input", "dear"): 0.9, Cause("input", "cheap"): 0.005, Cause("input", "c"): 0.0}
    rungs = Ladder(layers, (), figures, 100.0, keep=0).rungs(10.0)
    assert [rung.floats for rung in rungs] == [(), ("cheap",)]


def test_second_planes_come_first_and_make_way_for_float():
    layers = [layer("a", "t", free=True, us=10.0), layer("b", "u", free=True, us=10.0)]
    figures = {Cause("input", "a"): 0.6, Cause("input", "b"): 0.3, Cause("weights", "a"): 0.1}
    figures |= {Cause("input", "a", planes=True): 0.02, Cause("input", "b", planes=True): 0.01}
    rungs = Ladder(layers, (Planes(("b",), 1.0), Planes(("a",), 1.0)), figures, 100.0, keep=0).rungs(math.inf)
    assert [(rung.floats, rung.planes) for rung in rungs] == [
        ((), ()),
        ((), ("a",)),
        ((), ("a", "b")),
        (("a",), ("b",)),
        (("a", "b"), ()),
    ]
    assert rungs[-1].gain == pytest.approx(1.0)


@given(top=st.integers(1, 300), first=st.integers(1, 400))
def test_the_search_finds_the_fewest_of_a_monotonic_gate(top, first):
    asked = []

    def holds(number):
        asked.append(number)
        return number >= first

    found = fewest(top, holds)
    assert len(set(asked)) == len(asked) <= MOST_EVALUATIONS + 1
    assert all(1 <= number <= top for number in asked)
    if first > top:
        assert found is None
    else:
        assert found is not None
        assert found >= first
        # five steps reach the top from a sixteenth of it, and what is left halves the last of them three times
        assert found - first < max(1, math.ceil(top / 16))


def test_what_would_be_needed():
    rungs = [Rung(), Rung(("a",), (), 5.0, 0.5), Rung(("a", "b"), (), 9.0, 0.9)]
    assert needed(rungs, 0.5) == rungs[1]
    assert needed(rungs, 0.11) == rungs[2]
    assert needed(rungs, 0.01) is None
