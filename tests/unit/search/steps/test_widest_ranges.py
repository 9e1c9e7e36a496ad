from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration.ranges import MOST_ROOM
from int8cal.progress import Clock
from int8cal.search import candidate, search
from int8cal.search.candidate import counted_over, plain_candidate, rescaled_candidate, with_ranges
from int8cal.search.recipes import plain_steps
from int8cal.search.scorer import Gain
from int8cal.search.steps import widest_ranges

NET = "g (float[N,2,6,6] x) => (float[A,B,C,D] y) { c = Conv(x, W) r = Relu(c) y = Conv(r, V) }"
WEIGHTS = {"W": (4, 2, 3, 3), "V": (2, 4, 1, 1)}
ALL = "all ranges by max"


@pytest.fixture
def asked(search_inputs):
    """Inputs that leave the method open: sixteen samples to score on, of so many that were counted."""

    def asked(counted=16, net=NET, **weights):
        inputs = search_inputs(net, counted, **WEIGHTS, **weights)
        calibration = replace(inputs.job.calibration, method="auto")
        recipe = replace(inputs.recipe, sweep_s=1.5)
        return replace(inputs, job=replace(inputs.job, calibration=calibration), recipe=recipe)

    return asked


def name_of(inputs):
    """How the ranges of few samples are called, which have room for others."""
    return f"{ALL} and {100 * min(inputs.statistics.uncertainty, MOST_ROOM):.0f} % more"


def with_room(inputs, tensor="r"):
    """Where such a range ends."""
    seen = inputs.statistics.tensors[tensor]
    return pytest.approx(seen.maximum * (1 + min(seen.widths.uncertainty, MOST_ROOM)))


def test_each_half_of_few_samples_is_scored_with_the_ranges_of_the_other(asked):
    inputs = asked()
    (proposal,) = widest_ranges.propose(search.first_state(inputs, plain_candidate(inputs)), inputs)
    samples = inputs.holdout.validation
    assert [rows for rows, _ in proposal.folds] == [range(8), range(8, 16)]
    for (_, fold), others in zip(proposal.folds, (samples[8:], samples[:8]), strict=True):
        assert fold.statistics.fingerprint == counted_over(inputs, others).fingerprint
        assert fold.statistics.samples == 8


@pytest.mark.parametrize(
    ("gain", "kept", "very_few"),
    [(-0.31, False, 16), (-0.29, True, 16), (0.5, True, 16), (0.29, False, 8), (0.31, True, 8)],
)
def test_of_very_few_samples_auto_has_to_be_better_on_others(asked, monkeypatch, gain, kept, very_few):
    """Whether other samples may change the difference is no matter."""
    monkeypatch.setattr(search, "gain_of", lambda before, after: Gain(gain, 9.0, gain, 9.0))
    monkeypatch.setattr(widest_ranges, "VERY_FEW", very_few)
    inputs = asked()
    state = search.first_state(inputs, plain_candidate(inputs))
    found = search.search(state, [widest_ranges.propose], inputs)
    (result,) = found.results
    assert (result.name, result.kept) == (f"{name_of(inputs)} (ranges of other samples)", kept)
    assert (found.table.tensors["r"].high == with_room(inputs)) or not kept
    assert found.candidate.method == ("max" if kept else "auto")
    assert (found.table.tensors == state.table.tensors) or kept


def test_scores_of_few_samples_are_of_all_of_them(asked):
    inputs = asked()
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert found.notes[-1].startswith(f"{name_of(inputs)} (ranges of other samples) ")
    assert "SQNR on the validation samples" in found.notes[-1]


@pytest.mark.parametrize(("few", "values", "are_few"), [(16, 10**6, True), (15, 10**6, False), (16, 100, False)])
def test_of_more_samples_or_values_the_holdout_decides_on_what_was_observed(asked, monkeypatch, few, values, are_few):
    monkeypatch.setattr(candidate, "VERY_FEW", 1)
    monkeypatch.setattr(candidate, "FEW", few)
    monkeypatch.setattr(candidate, "FEW_VALUES", values)
    inputs = asked()
    assert inputs.few == are_few
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert [each.name.startswith(f"{ALL} and") for each in found.results] == [are_few]


def test_where_a_sample_was_not_kept_ranges_are_not_judged_by_halves(asked):
    inputs = asked(17)
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert [each.name for each in found.results] == [name_of(inputs)]


@pytest.mark.parametrize(("counted", "method"), [(1, "auto"), (2, "max"), (7, "max"), (8, "auto"), (40, "auto")])
def test_of_too_few_to_judge_ranges_are_the_widest_from_the_start(asked, counted, method):
    inputs = asked(counted)
    first = plain_candidate(inputs)
    assert first.method == method
    if method == "max":
        found = search.search(search.first_state(inputs, first), [widest_ranges.propose], inputs)
        assert found.notes == (f"{name_of(inputs)}, unjudged: {counted} samples are too few",)
        assert found.table.tensors["r"].high == with_room(inputs)


@pytest.mark.parametrize("counted", [2, 7, 8])
def test_explained_steps_name_the_ranges_that_there_are(asked, counted):
    inputs = asked(counted)
    first = name_of(inputs).removeprefix("all ") if counted < 8 else "ranges by auto"
    found = [each.name for each in plain_steps(inputs, Clock())]
    assert found == ["nothing but ranges by max", f"nothing but {first}"]


def test_room_of_16_bits_is_not_told_as_that_of_few_samples(asked):
    inputs = asked(7)
    wide = replace(inputs.job.quantization, activations="u16")
    assert inputs.ranges_by("max") == name_of(inputs).removeprefix("all ")
    assert replace(inputs, job=replace(inputs.job, quantization=wide)).ranges_by("max") == "ranges by max"


@pytest.mark.parametrize(("few", "kept"), [(16, "max"), (15, "auto")])
def test_rescaled_channels_have_the_ranges_that_few_samples_were_judged_to_need(asked, monkeypatch, few, kept):
    monkeypatch.setattr(candidate, "VERY_FEW", few)
    monkeypatch.setattr(candidate, "FEW", few)
    inputs = asked()
    before = with_ranges(inputs, plain_candidate(inputs), "max")
    assert rescaled_candidate(inputs, [], before).method == kept


def test_of_a_slow_model_nothing_is_counted_again(asked):
    inputs = asked()
    inputs = replace(inputs, recipe=replace(inputs.recipe, sweep_s=-1.0))
    (proposal,) = widest_ranges.propose(search.first_state(inputs, plain_candidate(inputs)), inputs)
    assert not proposal.folds


def test_room_ends_at_the_bound_of_a_clip(asked):
    """What ends beyond it does not absorb the Clip, whose layer would stay float."""
    seen = asked(4).statistics.tensors["r"].maximum
    bound = float(np.float32(seen * 1.01))
    inputs = asked(4, NET.replace("Relu(c)", "Clip(c, zero, most)"), zero=np.float32(0), most=np.float32(bound))
    assert with_room(inputs).expected > 1.02 * seen
    assert plain_candidate(inputs).ranges.entries["r"].high == pytest.approx(bound)
