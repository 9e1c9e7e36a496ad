"""The one loop that decides: what a step proposes is built, scored on the holdout, and kept where it is surely better."""

import pkgutil
import weakref
from dataclasses import replace

import numpy as np
import pytest

from int8cal.progress import Clock
from int8cal.quantization.build import build_model
from int8cal.search import steps
from int8cal.search.candidate import plain_candidate, with_ranges
from int8cal.search.recipes import RECIPES, run_recipe
from int8cal.search.search import Proposal, Remark, Settled, finished, first_state, propose_candidate, search

CONV = "agraph (float[N, 2, 6, 6] x) => (float[N, 3, 6, 6] y) {c = Conv(x, w, b) y = Relu(c)}"


@pytest.fixture
def inputs(search_inputs):
    rng = np.random.default_rng(8)
    return search_inputs(CONV, w=rng.normal(size=(3, 2, 1, 1)).astype(np.float32), b=np.ones(3, np.float32))


@pytest.fixture
def state(inputs):
    return first_state(inputs, plain_candidate(inputs))


def scaled(table, factor):
    """The table with the range of the input so many times as wide."""
    entry = table.tensors["x"]
    affine = replace(entry.affine, scale=entry.scale * factor)
    return replace(table, tensors={**table.tensors, "x": entry.with_affine(affine)})


def test_a_state_is_dropped_as_soon_as_another_is_in_force(inputs):
    held = []

    def another(state, _):
        held.append(weakref.ref(state))
        state = yield Settled(replace(state, notes=("another",)))
        assert held[0]() is None
        held.append(weakref.ref(state))
        yield Settled(replace(state, notes=("a third",)))

    def look(state, _):
        assert held[1]() is None
        yield Remark((f"after {state.notes[0]}",))

    found = search(first_state(inputs, plain_candidate(inputs)), (another, look), inputs)
    assert found.notes == ("a third", "after a third")


def test_a_table_that_is_surely_better_is_kept_and_what_follows_builds_on_it(inputs, state):
    worse = replace(state, table=scaled(state.table, 16), built=None)
    worse = first_of(inputs, worse)
    seen = []

    def step(before, _):
        seen.append(before)
        after = yield Proposal("a fitting range", state.table, notes=("it fits",))
        seen.append(after)
        seen.append((yield Proposal("a bad range again", scaled(state.table, 16))))

    found = search(worse, [step], inputs)
    before, better, last = seen
    assert before is worse
    assert better.table is state.table
    assert better.results[0].kept
    assert [(each.name, each.kept) for each in found.results] == [
        ("a fitting range", True),
        ("a bad range again", False),
    ]
    assert found.results[0].after_db == found.results[1].before_db > found.results[0].before_db + 6
    assert found.notes[0].startswith("a fitting range kept: ")
    assert found.notes[1] == "it fits"
    assert found.notes[2].startswith("a bad range again dropped: ")
    assert last.table is better.table
    assert last.built is better.built


def first_of(inputs, state):
    """A state with the model of its table."""
    return replace(state, built=build_model(inputs.prepared, inputs.plan, state.table))


def test_a_gain_below_what_the_proposal_asks_for_is_not_kept(inputs, state):
    worse = first_of(inputs, replace(state, table=scaled(state.table, 2)))

    def step(_state, _inputs):
        yield Proposal("somewhat better", state.table, least_db=30.0)

    found = search(worse, [step], inputs)
    (result,) = found.results
    assert result.after_db > result.before_db
    assert not result.kept
    assert found.table is worse.table


def test_the_same_table_again_is_no_gain(inputs, state):
    def step(before, _):
        yield Proposal("nothing", before.table)

    found = search(state, [step, step], inputs)
    assert [each.kept for each in found.results] == [False, False]


def test_remarks_and_settled_states_need_no_score(inputs, state):
    scorer = inputs.holdout.scorer
    without = replace(inputs, holdout=replace(inputs.holdout, scorer=None))

    def step(before, _):
        after = yield Remark(("first", "second"))
        assert after.notes[-2:] == ("first", "second")
        yield Settled(replace(after, notes=(*after.notes, "third")))

    found = search(state, [step], without)
    assert found.notes[-3:] == ("first", "second", "third")
    assert found.results == ()
    assert scorer.able


def test_a_step_that_proposes_nothing_changes_nothing(inputs, state):
    assert search(state, [lambda _state, _inputs: iter(())], inputs) is state


def test_another_candidate_comes_with_its_ranges_and_the_scales_of_its_weights(inputs, state):
    narrow = with_ranges(replace(inputs, job=percentile(inputs.job, 60.0)), state.candidate, "percentile")
    start = first_state(inputs, narrow)

    def step(before, _):
        yield propose_candidate(before, inputs, "wide", plain_candidate(inputs))

    found = search(start, [step], inputs)
    assert found.results[-1].kept
    assert found.candidate.ranges.entries["x"].high > narrow.ranges.entries["x"].high
    assert found.table.weights.keys() == state.table.weights.keys()


def percentile(job, percent):
    return replace(job, calibration=replace(job.calibration, method="percentile", percentile=percent))


def test_the_finished_table_tells_all_warnings_once(inputs, state):
    warned = replace(state, warnings=("twice", "twice", "once"))
    assert finished(warned, inputs).table.warnings[-2:] == ("twice", "once")


def test_every_step_is_in_a_recipe():
    taken = {step.__module__.rpartition(".")[2] for recipe in RECIPES.values() for step in recipe.steps}
    assert taken == {module.name for module in pkgutil.iter_modules(steps.__path__)}


def test_a_recipe_is_its_steps_in_their_order(inputs):
    called = []

    def noted(name):
        def step(_state, _inputs):
            called.append(name)
            yield from ()

        return step

    run_recipe(replace(inputs, recipe=replace(RECIPES["fast"], steps=(noted("b"), noted("a"), noted("b")))), Clock())
    assert called == ["b", "a", "b"]
