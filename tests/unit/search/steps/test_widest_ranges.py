from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration import ranges
from int8cal.progress import Clock
from int8cal.search import candidate, search
from int8cal.search.candidate import plain_candidate, with_ranges
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


@pytest.mark.parametrize(("gain", "kept"), [(0.29, False), (0.31, True)])
def test_all_ranges_by_max_have_to_be_better_by_a_little(asked, monkeypatch, gain, kept):
    monkeypatch.setattr(ranges, "ROOM_OF_AUTO", 0.0)
    monkeypatch.setattr(search, "gain_of", lambda before, after: Gain(gain, 0.0, gain, 0.0))
    inputs = asked()
    state = search.first_state(inputs, plain_candidate(inputs))
    found = search.search(state, [widest_ranges.propose], inputs)
    (result,) = found.results
    assert (result.name, result.kept) == (f"{ALL} with room", kept)
    assert found.candidate.method == ("max" if kept else "auto")
    assert found.table.tensors == (
        with_ranges(inputs, state.candidate, "max").ranges.entries if kept else state.table.tensors
    )


@pytest.mark.parametrize("counted", [2, 7, 16])
def test_ranges_of_few_samples_have_room_whatever_they_are_chosen_by(asked, monkeypatch, counted):
    inputs = asked(counted)
    with_it = {
        method: with_ranges(inputs, plain_candidate(inputs), method).ranges.entries for method in ("auto", "max")
    }
    assert plain_candidate(inputs).ranges.entries == with_it["auto"]
    monkeypatch.setattr(candidate, "VERY_FEW", 0)
    monkeypatch.setattr(candidate, "FEW", 0)
    bare = asked(counted)
    for method, entries in with_it.items():
        seen = with_ranges(bare, plain_candidate(bare), method).ranges.entries
        assert all(entries[name].high > seen[name].high for name in entries)
        assert all(entries[name].high <= with_it["max"][name].high for name in entries)


@pytest.mark.parametrize(("few", "values", "are_few"), [(16, 10**6, True), (15, 10**6, False), (16, 100, False)])
def test_of_more_samples_or_values_ranges_are_those_that_were_seen(asked, monkeypatch, few, values, are_few):
    monkeypatch.setattr(ranges, "ROOM_OF_AUTO", 0.0)
    monkeypatch.setattr(candidate, "VERY_FEW", 1)
    monkeypatch.setattr(candidate, "FEW", few)
    monkeypatch.setattr(candidate, "FEW_VALUES", values)
    inputs = asked()
    assert inputs.few == are_few
    widest = with_ranges(inputs, plain_candidate(inputs), "max").ranges.entries["r"]
    assert (widest.high > 1.001 * widest.observed[1]) == are_few
    found = search.search(search.first_state(inputs, plain_candidate(inputs)), [widest_ranges.propose], inputs)
    assert [each.name for each in found.results] == [f"{ALL} with room" if are_few else ALL]


def test_what_all_ranges_are_already_is_not_offered(asked):
    inputs = asked()
    widest = with_ranges(inputs, plain_candidate(inputs), "max")
    found = search.search(search.first_state(inputs, widest), [widest_ranges.propose], inputs)
    assert (found.results, found.notes) == ((), ())


@pytest.mark.parametrize(("counted", "room"), [(1, ""), (2, " with room"), (16, " with room")])
def test_explained_steps_name_the_ranges_that_there_are(asked, counted, room):
    found = [each.name for each in plain_steps(asked(counted), Clock())]
    assert found == ["nothing but ranges by max", f"nothing but ranges by auto{room}"]


def test_only_what_has_room_is_said_to_have_it(asked):
    inputs = asked(7)
    wide = replace(inputs.job.quantization, activations="u16")  # they have room whatever the samples
    assert [inputs.ranges_by(method) for method in ("max", "kl")] == ["ranges by max with room", "ranges by kl"]
    assert replace(inputs, job=replace(inputs.job, quantization=wide)).ranges_by("max") == "ranges by max"


def test_room_ends_at_the_bound_of_a_clip(asked):
    """What ends beyond it does not absorb the Clip, whose layer would stay float."""
    inputs = asked(4)
    seen = inputs.statistics.tensors["r"].maximum
    assert plain_candidate(inputs).ranges.entries["r"].high > 1.02 * seen
    bound = float(np.float32(seen * 1.01))
    inputs = asked(4, NET.replace("Relu(c)", "Clip(c, zero, most)"), zero=np.float32(0), most=np.float32(bound))
    assert plain_candidate(inputs).ranges.entries["r"].high == pytest.approx(bound)
