"""Corrections of layers are offered all together, and else those that do no harm by themselves."""

from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration import ranges
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.integers import Bias
from int8cal.search import scorer
from int8cal.search import search as search_module
from int8cal.search.candidate import plain_candidate
from int8cal.search.search import first_state, propose_layers, search
from int8cal.search.steps import widest_ranges

TWO = """agraph (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y, float[N, 2, 4, 4] z)
    {y = Conv(x, v, a) z = Conv(x, w, b)}"""
SHIFT, NONE = (4.0, 4.0), (0.0, 0.0)


@pytest.fixture
def inputs(search_inputs):
    rng = np.random.default_rng(4)
    weights = {name: rng.normal(size=(2, 2, 1, 1)).astype(np.float32) for name in "vw"}
    return search_inputs(TWO, **weights, **{name: np.ones(2, np.float32) for name in "ab"})


def with_bias(table, deltas):
    return table.corrected(Bias(deltas))


def after(inputs, before, deltas, *, small=False):
    """The search's end, from a table whose biases are off by `before` to one offered with `deltas`."""
    state = first_state(inputs, plain_candidate(inputs))
    table = with_bias(state.table, before)
    state = replace(state, table=table, built=build_model(inputs.prepared, inputs.plan, table))
    step = lambda now, inputs: propose_layers(now, inputs, "bias", with_bias(now.table, deltas), (Bias,), small=small)  # noqa: E731
    return search(state, [step], inputs)


@pytest.fixture
def nodes(inputs):
    first, second = (layer.node for layer in inputs.plan.layers)
    return first, second


def test_what_helps_all_together_is_kept_at_once(inputs, nodes):
    found = after(inputs, dict.fromkeys(nodes, SHIFT), dict.fromkeys(nodes, NONE))
    assert [(each.name, each.kept) for each in found.results] == [("bias", True)]
    assert Bias.of(found.table).values == dict.fromkeys(nodes, NONE)


def test_a_layer_that_does_harm_by_itself_is_left_out_and_named(inputs, nodes):
    good, bad = nodes
    # a large error goes and a larger one comes: only apart can they be told
    found = after(inputs, {good: SHIFT}, {good: NONE, bad: (40.0, 40.0)})
    assert [(each.name, each.kept) for each in found.results] == [("bias", False), ("bias of 1 of 2 layers", True)]
    assert Bias.of(found.table).values == {good: NONE}
    assert found.notes[-1] == f"bias does not help by itself, and was dropped, at {bad}"


def test_parts_are_not_scored_where_the_whole_is_lost_in_the_noise(inputs, nodes):
    found = after(inputs, {}, dict.fromkeys(nodes, (1e-4, -1e-4)), small=True)
    assert [(each.name, each.kept) for each in found.results] == [("bias", False)]
    assert not found.last.surely_worse


def test_few_samples_choose_no_parts(inputs, nodes, monkeypatch):
    monkeypatch.setattr(search_module, "PARTED_BY", len(inputs.holdout.validation) + 1)
    good, bad = nodes
    found = after(inputs, {good: SHIFT}, {good: NONE, bad: (40.0, 40.0)}, small=True)
    assert [(each.name, each.kept) for each in found.results] == [("bias", False)]


def test_where_every_layer_does_harm_nothing_changes(inputs, nodes):
    found = after(inputs, {}, dict.fromkeys(nodes, SHIFT))
    assert [each.kept for each in found.results] == [False]
    assert found.last.surely_worse
    assert not Bias.of(found.table)


def test_parts_are_scored_on_as_many_samples_as_tell_them(inputs, nodes, monkeypatch):
    monkeypatch.setattr(scorer, "SCORING_S", -1.0)  # else what is in force is scored whole at once
    ran, score = [], scorer.Scorer._score

    def counted(self, int8, rows):
        ran.append(rows)
        return score(self, int8, rows)

    monkeypatch.setattr(scorer.Scorer, "_score", counted)
    found = after(inputs, {}, dict.fromkeys(nodes, SHIFT))
    assert found.last.surely_worse
    half = range(inputs.holdout.scorer.samples // 2)
    assert ran == [half] * 4  # the one in force, all together, and each by itself
    assert len(found.score.noise) == len(half)


def test_what_parts_needed_of_the_score_in_force_stays_with_the_state(inputs, nodes, monkeypatch):
    monkeypatch.setattr(scorer, "SCORING_S", -1.0)
    first, second = nodes
    found = after(inputs, {}, {first: (0.003, 0.003), second: SHIFT})  # half of the samples do not tell the first
    assert not found.results[0].kept
    assert len(found.score.noise) == inputs.holdout.scorer.samples


def test_layers_that_stay_as_they_are_are_not_offered(inputs, nodes):
    assert after(inputs, dict.fromkeys(nodes, SHIFT), dict.fromkeys(nodes, SHIFT)).results == ()


@pytest.mark.parametrize(("method", "offered"), [("auto", True), ("max", False), ("percentile", False)])
def test_the_widest_ranges_are_offered_where_the_method_is_left_open(inputs, monkeypatch, method, offered):
    monkeypatch.setattr(ranges, "ROOM_OF_AUTO", 0.0)  # with it those of auto are the widest here
    job = replace(inputs.job, calibration=replace(inputs.job.calibration, method=method))
    asked = replace(inputs, job=job)
    found = search(first_state(asked, plain_candidate(asked)), [widest_ranges.propose], asked)
    name = f"all {asked.ranges_by('max')}"
    assert [each.name for each in found.results] == [name] * offered


def test_without_a_holdout_nothing_is_offered(inputs):
    job = replace(inputs.job, calibration=replace(inputs.job.calibration, method="auto"))
    alone = replace(inputs, job=job, holdout=replace(inputs.holdout, scorer=None))
    assert search(first_state(alone, plain_candidate(alone)), [widest_ranges.propose], alone).results == ()
