from dataclasses import replace

import pytest

from int8cal.search import search
from int8cal.search.candidate import counted_over, plain_candidate
from int8cal.search.scorer import Gain
from int8cal.search.steps import widest_ranges

NET = "g (float[N,2,6,6] x) => (float[A,B,C,D] y) { c = Conv(x, W) r = Relu(c) y = Conv(r, V) }"
WEIGHTS = {"W": (4, 2, 3, 3), "V": (2, 4, 1, 1)}
ALL = "all ranges by max"
OF_OTHERS = f"{ALL} (ranges of other samples)"


@pytest.fixture
def asked(search_inputs):
    """Inputs that leave the method open: sixteen samples to score on, of so many that were counted."""

    def asked(counted=16):
        inputs = search_inputs(NET, counted, **WEIGHTS)
        calibration = replace(inputs.job.calibration, method="auto")
        recipe = replace(inputs.recipe, sweep_s=1.5)
        return replace(inputs, job=replace(inputs.job, calibration=calibration), recipe=recipe)

    return asked


def test_each_half_of_few_samples_is_scored_with_the_ranges_of_the_other(asked):
    inputs = asked()
    (proposal,) = widest_ranges.propose(search.first_state(inputs, plain_candidate(inputs)), inputs)
    samples = inputs.holdout.validation
    assert [rows for rows, _ in proposal.folds] == [range(8), range(8, 16)]
    for (_, fold), others in zip(proposal.folds, (samples[8:], samples[:8]), strict=True):
        assert fold.statistics.fingerprint == counted_over(inputs, others).fingerprint
        assert fold.statistics.samples == 8


@pytest.mark.parametrize(("gain", "kept"), [(-0.31, False), (-0.29, True), (0.5, True)])
def test_of_few_samples_auto_has_to_be_better_on_others(asked, monkeypatch, gain, kept):
    """Whether other samples may change the difference is no matter."""
    monkeypatch.setattr(search, "gain_of", lambda before, after: Gain(gain, 9.0, gain, 9.0))
    inputs = asked()
    state = search.first_state(inputs, plain_candidate(inputs))
    found = search.search(state, [widest_ranges.propose], inputs)
    (result,) = found.results
    assert (result.name, result.kept) == (OF_OTHERS, kept)
    observed = inputs.statistics.tensors["r"].histogram.observed
    assert (found.table.tensors["r"].high == pytest.approx(observed[1])) or not kept
    assert found.candidate.method == ("max" if kept else "auto")
    assert (found.table.tensors == state.table.tensors) or kept


def test_scores_of_few_samples_are_of_all_of_them(asked):
    inputs = asked()
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert found.notes[-1].startswith(f"{OF_OTHERS} ")
    assert "SQNR on the validation samples" in found.notes[-1]


@pytest.mark.parametrize("counted", [40, 17])
def test_with_more_samples_the_holdout_decides(asked, counted):
    """Of 17 one is not kept: it is in no half."""
    inputs = asked(counted)
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert [each.name for each in found.results] == [ALL]


def test_of_a_slow_model_nothing_is_counted_again(asked):
    inputs = asked()
    inputs = replace(inputs, recipe=replace(inputs.recipe, sweep_s=-1.0))
    (proposal,) = widest_ranges.propose(search.first_state(inputs, plain_candidate(inputs)), inputs)
    assert not proposal.folds
