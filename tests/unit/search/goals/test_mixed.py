"""Which layers leave int8, and how many: on made-up figures."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.graph.layers import Layer
from int8cal.probe.rounded import NoiseSource
from int8cal.search.goals import mixed
from int8cal.search.goals.mixed import (
    LEAST_GAIN,
    MOST_EVALUATIONS,
    MixPlanner,
    PrecisionMix,
    fewest,
    needed,
)
from int8cal.search.goals.optional_layers import OptionalLayer
from int8cal.search.residual import ResidualGroup


def layer(node, reads, *, us=1.0, freed=(), exact=(), free=False):
    made = Layer(node, "Conv", f"{node}.w", None, 0, reads, f"{node}.out", 4)
    return OptionalLayer(made, frozenset(freed), frozenset(exact), us, free)


def chain(*inputs, us=1.0):
    """Layers one behind the other: each reads what the one before writes as codes."""
    return [
        layer(f"n{number}", f"t{number}", freed={f"t{number + 1}"}, free=number == 0, us=us)
        for number, _ in enumerate(inputs)
    ]


def noise(inputs, weights):
    return {NoiseSource("input", f"n{number}"): value for number, value in enumerate(inputs)} | {
        NoiseSource("weights", f"n{number}"): value for number, value in enumerate(weights)
    }


def test_a_layer_whose_input_another_one_rounds_is_taken_with_it():
    inputs = (0.0, 0.1, 0.8)
    planner = MixPlanner(chain(*inputs), (), noise(inputs, (0.05, 0.03, 0.02)), 100.0, keep=1)
    mixes = planner.mixes(math.inf)
    assert mixes[1].floats == ("n1", "n2")
    assert mixes[1].gain == pytest.approx(0.85)
    assert mixes[1].percent == pytest.approx(2.0)


def test_without_its_neighbour_a_layer_only_gains_exact_weights():
    inputs = (0.1, 0.5)
    planner = MixPlanner(chain(*inputs), (), noise(inputs, (0.1, 0.3)), 100.0, keep=1)
    (_, first) = planner.mixes(1.0)
    assert (first.floats, first.gain) == (("n1",), pytest.approx(0.3))


def test_one_layer_stays_int8():
    inputs = (0.3, 0.3, 0.3)
    planner = MixPlanner(chain(*inputs), (), noise(inputs, (0.01, 0.01, 0.01)), 100.0, keep=1)
    assert len(planner.mixes(math.inf)[-1].floats) == 2


def test_what_does_not_fit_is_left_out_and_something_cheaper_still_fits():
    layers = [
        layer("dear", "a", us=50.0, free=True),
        layer("cheap", "b", us=1.0, free=True),
        layer("c", "c", free=True),
    ]
    figures = {NoiseSource("input", "dear"): 0.9, NoiseSource("input", "cheap"): 0.005, NoiseSource("input", "c"): 0.0}
    mixes = MixPlanner(layers, (), figures, 100.0, keep=0).mixes(10.0)
    assert [mix.floats for mix in mixes] == [(), ("cheap",)]


SHARES = st.floats(0.0, 1.0).map(lambda share: share / 50)


@st.composite
def networks(draw):
    """Layers that read and free some of the same tensors, alone or several, and their noise."""
    tensors, layers, figures = ["a", "b", "c", "d"], [], {}
    some = st.frozensets(st.sampled_from(tensors), max_size=2)
    for number in range(draw(st.integers(1, 7))):
        name, reads = f"n{number}", draw(st.sampled_from(tensors))
        made = layer(name, reads, us=draw(st.floats(0.5, 9.0)), freed=draw(some) - {reads}, exact=draw(some))
        layers.append(replace(made, free=draw(st.booleans())))
        figures[NoiseSource("input", name)], figures[NoiseSource("weights", name)] = draw(SHARES), draw(SHARES)
    figures |= {NoiseSource("others", tensor): draw(SHARES) for tensor in tensors}
    return layers, figures


def share_without(layers, figures):
    """The noise that goes when these layers are float, counted anew."""
    freed = {tensor for each in layers for tensor in each.freed}
    parts = [figures[NoiseSource("weights", each.node)] for each in layers]
    parts += [figures[NoiseSource("input", each.node)] for each in layers if each.free or each.layer.input in freed]
    parts += [figures[NoiseSource("others", tensor)] for tensor in {tensor for each in layers for tensor in each.exact}]
    return math.fsum(parts)


@given(networks(), st.floats(0.0, 60.0), st.integers(0, 1))
def test_each_step_gains_most_per_microsecond_of_all_that_fit(network, budget, keep):
    layers, figures = network
    by_name = {each.node: each for each in layers}
    mixes = MixPlanner(layers, (), figures, 100.0, keep).mixes(budget)
    assert [len(mix.floats) for mix in mixes] == sorted({len(mix.floats) for mix in mixes})
    for before, after in itertools.pairwise([*mixes, None]):
        taken = [by_name[name] for name in before.floats]
        assert before.gain == pytest.approx(min(share_without(taken, figures), 1.0))
        steps = {
            (*others, each): share_without([*taken, *others, each], figures) - share_without(taken, figures)
            for each in layers
            for others in ((), *((one,) for one in layers if each.layer.input in one.freed and not each.free))
            if not {each.node, *(one.node for one in others)} & {*before.floats} and each not in others
        }
        fits = {
            step: gain / math.fsum(one.us for one in step)
            for step, gain in steps.items()
            if gain >= 1.001 * LEAST_GAIN
            and before.percent + math.fsum(one.us for one in step) <= budget * 0.999999
            and len(taken) + len(step) <= len(layers) - keep
        }
        if after is None:
            assert not fits
        else:
            step = tuple(by_name[name] for name in after.floats[len(before.floats) :])
            assert steps[step] / math.fsum(one.us for one in step) >= max(fits.values(), default=0.0) * 0.999999


def test_thousands_of_layers_weigh_each_step_some_times(monkeypatch):
    calls, weigh = [], mixed._Steps._weigh
    monkeypatch.setattr(mixed._Steps, "_weigh", lambda self, number: (calls.append(number), weigh(self, number)))
    count = 3000
    shares = np.random.default_rng(1).dirichlet(np.ones(count)).tolist()
    planner = MixPlanner(chain(*shares), (), noise(shares, [0.001] * count), 1e6, keep=1)
    mixes = planner.mixes(math.inf)
    assert len(mixes[-1].floats) == count - 1
    assert len(calls) < 20 * count


def test_residual_codes_come_first_and_make_way_for_float():
    layers = [layer("a", "t", free=True, us=10.0), layer("b", "u", free=True, us=10.0)]
    figures = {NoiseSource("input", "a"): 0.6, NoiseSource("input", "b"): 0.3, NoiseSource("weights", "a"): 0.1}
    figures |= {NoiseSource("input", "a", residual=True): 0.02, NoiseSource("input", "b", residual=True): 0.01}
    mixes = MixPlanner(layers, (ResidualGroup(("b",), 1.0), ResidualGroup(("a",), 1.0)), figures, 100.0, keep=0).mixes(
        math.inf
    )
    assert [(mix.floats, mix.residual) for mix in mixes] == [
        ((), ()),
        ((), ("a",)),
        ((), ("a", "b")),
        (("a",), ("b",)),
        (("a", "b"), ()),
    ]
    assert mixes[-1].gain == pytest.approx(1.0)


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
    mixes = [PrecisionMix(), PrecisionMix(("a",), (), 5.0, 0.5), PrecisionMix(("a", "b"), (), 9.0, 0.9)]
    assert needed(mixes, 0.5) == mixes[1]
    assert needed(mixes, 0.11) == mixes[2]
    assert needed(mixes, 0.01) is None
