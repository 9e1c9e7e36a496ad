"""Ranges of what rows of a constant table are: of rows, too, that no sample looked up."""

import numpy as np
import pytest

from int8cal.calibration.lookups import find_lookups
from int8cal.search.candidate import plain_candidate
from int8cal.search.search import first_state, search
from int8cal.search.steps import output_error

RNG = np.random.default_rng(3)
TEXT = """g (float[N,4] x) => (float[N,8] y) {
    i = ArgMax <axis = 1, keepdims = 0> (x) e = Gather (W, i) y = MatMul (e, V)
}"""
SEEN, OTHERS = RNG.normal(size=(4, 16)), 5 * RNG.normal(size=(196, 16))
PRODUCT = RNG.normal(size=(16, 8)).astype(np.float32)


def table(*rows):
    return np.concatenate(rows).astype(np.float32)


def test_a_range_has_room_for_rows_that_no_sample_looked_up(search_inputs):
    inputs = search_inputs(TEXT, W=table(SEEN, OTHERS), V=PRODUCT)
    entry = plain_candidate(inputs).ranges.entries["e"]
    assert max(entry.observed) <= SEEN.max() + 1e-6  # what was observed is still that
    assert np.mean(np.clip(OTHERS, entry.low, entry.high) != OTHERS) < 0.01
    state = search(first_state(inputs, plain_candidate(inputs)), (output_error.propose,), inputs)
    assert state.table.tensors["e"].high >= entry.high  # no step narrows it by what samples see


@pytest.mark.parametrize("rows", [SEEN, np.repeat(SEEN, 9, axis=0)])
def test_rows_that_are_all_seen_have_the_range_of_samples(search_inputs, rows, monkeypatch):
    inputs = search_inputs(TEXT, W=table(rows), V=PRODUCT)
    entry = plain_candidate(inputs).ranges.entries["e"]
    monkeypatch.setattr("int8cal.search.candidate.find_lookups", lambda index, plan: {})
    other = plain_candidate(search_inputs(TEXT, W=table(rows), V=PRODUCT)).ranges.entries["e"]
    assert entry.high == pytest.approx(other.high, rel=0.15)
    assert entry.low == pytest.approx(other.low, rel=0.15)


def test_a_table_that_is_not_finite_tells_nothing(search_inputs):
    broken = np.where(np.arange(196)[:, None] == 100, np.inf, OTHERS)
    entry = plain_candidate(search_inputs(TEXT, W=table(SEEN, broken), V=PRODUCT)).ranges.entries["e"]
    assert entry.high < 2 * SEEN.max()


def test_a_tensor_is_known_with_the_table_that_its_rows_are_of(search_inputs):
    inputs = search_inputs(TEXT, W=table(SEEN, OTHERS), V=PRODUCT)
    assert find_lookups(inputs.index, inputs.plan) == {"e": "W"}
    assert inputs.looked_up.keys() == {"e"}
