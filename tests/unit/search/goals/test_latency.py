"""The decision which layers stay float, from made-up measurements."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.evaluation.latency import LayerCost
from int8cal.search.goals.latency import (
    is_faster,
    is_hopeless,
    is_surely_faster,
    proposals,
    reason,
    search_layers,
    stretches,
)

CHAIN = (("a", "b"), ("b", "c"), ("c", "d"))


def costs(**pairs):
    return [LayerCost(node, "Conv", fp32, int8) for node, (fp32, int8) in pairs.items()]


def timed(times):
    """Compare models by a table of their times; what it lacks cannot be built."""

    def compare(before, after, gain):
        if before not in times or after not in times:
            return ()
        return [times[before] / times[after]] * 8

    return compare


def sets(*names):
    return tuple(frozenset(name) for name in names)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.05] * 8, True),
        ([1.005] * 8, False),
        ([1.2, 1.2, 1.2, 1.2, 1.2, 0.9, 0.9, 0.9], False),
        ([1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 0.9, 0.9], True),
        ([], False),
    ],
)
def test_faster_means_by_a_percent_in_three_rounds_of_four(ratios, expected):
    assert is_faster(ratios) is expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([100.0] * 8, [95.0] * 8, True),
        ([100.0, 102.0, 98.0, 101.0] * 2, [95.0, 96.0, 94.0, 97.0] * 2, True),
        ([83.8, 84.0, 83.0, 85.0] * 2, [97.0, 96.0, 99.0, 95.0] * 2, False),
        # faster by the medians, but one round in eight says that there is nothing to tell
        ([100.0] * 7 + [300.0], [95.0] * 7 + [2000.0], False),
        ([100.0], [50.0], False),
    ],
)
def test_surely_faster_means_by_the_interval_over_the_rounds(before, after, expected):
    assert is_surely_faster(before, after) is expected


TIMES = st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(1.0, 1e6)), min_size=1, max_size=8)


@given(TIMES)
def test_what_is_surely_faster_is_faster_by_the_medians_that_are_told(rounds):
    before, after = zip(*rounds, strict=True)
    if is_surely_faster(before, after):
        assert statistics.median(after) < statistics.median(before)


RATIOS = st.lists(st.sampled_from([0.9, 1.0, 1.005, 1.01, 1.05, 1.1, 1.2]), min_size=1, max_size=8)


@given(ratios=RATIOS, gain=st.sampled_from([1.0, 1.03, 1.1]))
def test_stopping_where_it_is_hopeless_decides_what_all_rounds_decide(ratios, gain):
    def wins(found):
        return is_faster(found) and statistics.median(found) > gain

    stopped = next((count for count in range(1, len(ratios)) if is_hopeless(ratios[:count], 8, gain)), len(ratios))
    assert wins(ratios[:stopped]) == wins(ratios)


def test_a_slower_model_is_hopeless_after_three_rounds_of_eight():
    assert [is_hopeless([0.9] * count, 8, 1.0) for count in range(5)] == [False, False, False, True, True]
    assert [is_hopeless([1.05] * count, 8, 1.1) for count in (4, 5)] == [False, True]


def test_connected_slow_layers_are_proposed_together_and_the_greatest_loss_first():
    found = proposals(costs(a=(5, 9), b=(5, 7), c=(9, 3), d=(5, 6)), CHAIN)
    assert found[0] == frozenset("abd")
    assert frozenset("ab") in found
    assert found[-1] == frozenset("d")


def test_a_fast_layer_between_slow_ones_is_proposed_where_the_head_loses_with_it():
    found = proposals(costs(a=(5, 9), b=(6, 5), c=(5, 9), d=(9, 3)), CHAIN)
    assert frozenset("abc") in found


LOSSES = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=7)


@given(losses=LOSSES, border=st.sampled_from([0.0, 0.5, 2.0, 5.5]), data=st.data())
def test_stretches_win_the_most_that_any_choice_can(losses, border, data):
    fixed = data.draw(st.lists(st.booleans(), min_size=len(losses), max_size=len(losses)))

    def worth(chosen):
        won = sum(loss for loss, is_float in zip(losses, chosen, strict=True) if is_float)
        return won - border * sum(one != other for one, other in itertools.pairwise(chosen))

    choices = itertools.product([False, True], repeat=len(losses))
    allowed = [each for each in choices if all(float_ or not held for float_, held in zip(each, fixed, strict=True))]
    found = stretches(losses, fixed, border)
    assert tuple(found) in allowed
    assert worth(found) == max(map(worth, allowed))


def test_short_gains_between_losses_are_proposed_to_stay_float_too():
    found = proposals(costs(a=(5, 9), b=(6, 5), c=(5, 9), d=(5, 9), e=(9, 3)), CHAIN)
    assert {frozenset("acd"), frozenset("abcd")} <= set(found)


def test_what_int8_takes_longer_outside_of_layers_counts_in_half_of_the_stretches():
    layers = costs(a=(10, 9), b=(10, 9), c=(10, 1))
    assert proposals(layers, CHAIN) == ()
    assert frozenset("ab") in proposals(layers, CHAIN, rest_us=19.0)


def test_where_all_should_be_float_the_one_that_gains_most_is_left():
    assert proposals(costs(a=(5, 9), b=(9, 9.5), c=(5, 9)), CHAIN).count(frozenset("ac")) == 1


def test_what_would_leave_no_layer_in_int8_is_not_proposed():
    assert frozenset("ab") not in proposals(costs(a=(5, 9), b=(5, 9)), CHAIN)


def test_fast_layers_give_no_proposal():
    assert proposals(costs(a=(9, 5), b=(9, 5)), CHAIN) == ()


def test_the_search_keeps_what_is_faster_as_a_whole_not_what_looks_slow_alone():
    times = {frozenset(): 100.0, frozenset("a"): 110.0, frozenset("ab"): 90.0, frozenset("b"): 99.5}
    assert search_layers(costs(a=(5, 9), b=(5, 7), c=(9, 3)), CHAIN, timed(times)) == frozenset("ab")


def test_the_search_goes_on_from_the_best_so_far():
    times = {frozenset(): 100.0, frozenset("a"): 80.0, frozenset("ac"): 70.0, frozenset("c"): 95.0}
    assert search_layers(costs(a=(5, 9), b=(9, 3), c=(5, 6)), CHAIN, timed(times)) == frozenset("ac")


def test_nothing_stays_float_where_nothing_is_faster_or_can_be_built():
    assert search_layers(costs(a=(5, 9), b=(9, 3)), CHAIN, timed({frozenset(): 1.0})) == frozenset()
    assert (
        search_layers(costs(a=(5, 9), b=(9, 3)), CHAIN, timed({frozenset(): 1.0, frozenset("a"): 1.0})) == frozenset()
    )


def test_the_reason_states_both_times():
    assert reason(LayerCost("a", "Conv", 8.1, 12.3)) == "slower in int8: 12.3 µs against 8.1 µs"
    assert reason(LayerCost("a", "Conv", 8.1, 7.0)).startswith("between layers slower in int8")
