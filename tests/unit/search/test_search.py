"""The one loop that decides: what a step proposes is built, scored on the holdout, and kept where it is surely better."""

import math
import pkgutil
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from int8cal.calibration.statistics import TensorStatistics
from int8cal.numerics.loglinear import SHIFT
from int8cal.progress import Clock
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.residual_codes import ResidualCodes
from int8cal.search import scorer, steps
from int8cal.search import search as module
from int8cal.search.candidate import plain_candidate, with_ranges
from int8cal.search.recipes import RECIPES, run_recipe
from int8cal.search.scorer import Score
from int8cal.search.search import (
    Proposal,
    Remark,
    Settled,
    finished,
    first_state,
    propose_candidate,
    scored,
    search,
)

CONV = "agraph (float[N, 2, 6, 6] x) => (float[N, 3, 6, 6] y) {c = Conv(x, w, b) y = Relu(c)}"


@pytest.fixture
def inputs(search_inputs):
    rng = np.random.default_rng(8)
    return search_inputs(CONV, w=rng.normal(size=(3, 2, 1, 1)).astype(np.float32), b=np.ones(3, np.float32))


@pytest.fixture
def state(inputs):
    return first_state(inputs, plain_candidate(inputs))


def bin_of(value):
    """The bin of a positive number."""
    return int(np.float32(value).view(np.uint32)) >> SHIFT


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


def test_a_gain_has_to_be_worth_the_bytes_that_it_takes(inputs, state, monkeypatch):
    worse = first_of(inputs, replace(state, table=scaled(state.table, 2)))
    asked = []

    def worth(saved, index, plan):
        asked.append(saved)
        return 0.0 if len(asked) == 1 else 30.0

    monkeypatch.setattr(module, "bytes_worth_db", worth)
    better = state.table.corrected(ResidualCodes({layer.node: 16 for layer in state.plan.layers}))

    def step(_state, _inputs):
        yield Proposal("as large", state.table)
        yield Proposal("twice as large", better)

    found = search(worse, [step], inputs)
    assert [each.kept for each in found.results] == [True, False]
    assert found.notes[-1].endswith("but less than the 30 dB asked for")
    codes = sum(math.prod(layer.dims) for layer in state.plan.layers)
    assert asked[0] == 0
    assert codes <= asked[1] < codes + 200  # and some scales


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


def with_outlier(inputs, value):
    """What a search starts from, if another value of the input had been counted."""
    statistics = inputs.statistics
    tensor = statistics.tensors["x"] + TensorStatistics(
        np.array([bin_of(value)], np.int64), np.ones(1, np.int64), 0, value, value, statistics.tensors["x"].channels
    )
    return replace(inputs, statistics=replace(statistics, tensors={**statistics.tensors, "x": tensor}))


@pytest.mark.parametrize(("outlier", "kept"), [(1.0, True), (4e4, False)], ids=["alike", "otherwise"])
def test_ranges_of_other_samples_have_to_agree_where_a_proposal_asks_for_it(inputs, state, outlier, kept):
    clipping = with_ranges(replace(inputs, job=percentile(inputs.job, 60.0)), state.candidate, "percentile")
    start = first_state(inputs, clipping)
    widest = with_ranges(inputs, state.candidate, "max")
    unseen = replace(with_outlier(inputs, outlier), job=percentile(inputs.job, 60.0))
    seen = []

    def step(before, _):
        seen.append((yield replace(propose_candidate(before, inputs, "widest", widest), unseen=unseen)))

    found = search(start, [step], inputs)
    (result,) = found.results
    assert result.kept is kept
    assert (result.name == "widest") is kept
    assert (found.table.tensors == first_state(inputs, widest).table.tensors) is kept
    assert (found.built is start.built) is not kept
    assert len(found.notes) == 1
    assert seen[0].last is found.last


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


def test_a_score_without_a_signal_stays_what_it_is(inputs, state):
    silent = Score(np.zeros((4, 1)), np.zeros((4, 1)))
    scorer = SimpleNamespace(told=lambda _: "", compare=lambda *_: (silent, silent))
    alike = replace(inputs, holdout=replace(inputs.holdout, scorer=scorer))

    def step(before, _):
        yield Proposal("the same", before.table)

    (result,) = search(replace(state, score=silent), [step], alike).results
    assert (result.before_db, result.after_db, result.kept) == (None, None, False)


@pytest.fixture
def ran(monkeypatch):
    """Samples that scores ran, one entry each."""
    ran = []
    run_each = scorer.run_each

    def counted(session, signature, samples):
        for sample, outputs in run_each(session, signature, samples):
            ran.append(sample)
            yield sample, outputs

    monkeypatch.setattr(scorer, "run_each", counted)
    return ran


def test_what_surely_loses_or_changes_nothing_on_half_of_the_samples_is_not_run_on_the_others(inputs, state, ran):
    state = replace(state, score=scored(state.built, inputs))
    half = -(-len(state.score.noise) // 2)

    def step(before, _):
        yield Proposal("sixteen times as wide", scaled(before.table, 16))
        yield Proposal("the same again", before.table)

    ran.clear()
    found = search(state, [step], inputs)
    assert len(ran) == 2 * half
    assert found.score is state.score
    assert all(f"SQNR on the first {half} validation samples " in each for each in found.notes[-2:])
    bad = found.results[0]
    assert bad.before_db == state.score.first(half).db
    assert bad.after_db < bad.before_db - 6


@pytest.mark.parametrize("long", [False, True])
def test_what_surely_gains_on_few_samples_is_kept_and_run_on_the_others_once_they_are_needed(
    inputs, state, ran, monkeypatch, long
):
    monkeypatch.setattr(scorer, "SCORING_S", -1.0 if long else 1.0)
    bad = replace(state, table=scaled(state.table, 16))
    bad = replace(bad, built=build_model(inputs.index, bad.plan, bad.table))

    def step(before, _):
        yield Proposal("sixteen times as narrow", state.table)

    found = search(bad, [step], inputs)
    count = inputs.holdout.scorer.samples
    half = -(-count // 2)
    assert found.results[-1].kept
    assert len(found.score.noise) == half
    reference = count
    in_force = half if long else count  # opening it once more would take longer
    assert len(ran) == reference + in_force + half
    whole = scored(found.built, inputs, found.score)
    assert len(ran) == reference + in_force + count
    np.testing.assert_array_equal(whole.noise, scored(found.built, inputs).noise)
    assert whole.outputs.keys() == scored(found.built, inputs).outputs.keys()


@pytest.mark.parametrize(
    ("recipe", "allowance", "worth"), [("fast", 10, 2.0), ("fast", 40, 0.5), ("balanced", 10, 0.0)]
)
def test_what_takes_time_has_to_take_its_worth_of_noise_away(inputs, recipe, allowance, worth):
    quantization = replace(inputs.job.quantization, latency_allowance=allowance)
    changed = replace(inputs, job=replace(inputs.job, quantization=quantization), recipe=RECIPES[recipe])
    assert changed.least_worth == worth
    assert changed.worth_db(0.0) == 0.0
    gone = 10 ** (-changed.worth_db(0.1 * changed.whole_us) / 10)
    assert gone == pytest.approx(1 - 0.1 * worth)
    assert changed.worth_db(100 * changed.whole_us) == (pytest.approx(20.0) if worth else 0.0)


def test_a_range_that_a_step_widened_clips_what_is_outside_the_wider_one(bench, inputs, state):
    narrow = scaled(state.table, 1 / 4)
    values = np.concatenate([sample.feed["x"].ravel() for sample in bench.samples(inputs.prepared, 16)])

    def outside(entry):
        room = entry.scale / 2
        return np.mean((values < entry.low - room) | (values > entry.high + room))

    for table in (narrow, state.table):
        found = finished(replace(state, table=table), inputs).table.tensors["x"]
        assert found.clipped == pytest.approx(outside(found), abs=1e-3)
    assert finished(replace(state, table=narrow), inputs).table.tensors["x"].clipped > 0.1


def test_what_a_later_round_finds_again_is_said_once(inputs, state):
    def step(_state, _inputs):
        yield Remark(("residual codes would take away 4 %", "too few samples"))

    found = search(state, [step, step], inputs)
    assert found.notes == (*state.notes, "residual codes would take away 4 %", "too few samples")
