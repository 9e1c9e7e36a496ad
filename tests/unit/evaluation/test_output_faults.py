"""Faults of outputs that a small mean error hides, and what is none: dead channels, saturated values, lost order."""

from dataclasses import dataclass

import numpy as np
import pytest

from int8cal.evaluation.figures import value_of
from int8cal.evaluation.gates import check_gates, parse_gates, with_standing
from int8cal.evaluation.output_faults import ALIVE, STEPS, GroupComparison, Spread, ties
from int8cal.evaluation.output_groups import OutputGroup
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.result import Evaluation, Saturation, Size


@dataclass(frozen=True)
class Bare:
    feed: dict
    origin: str = "sample"
    label: int | None = None


def group(pairs, kind="values", axis=1):
    """Compare pairs of arrays (x, y) as one group."""
    end = pairs[0][0].shape[axis] if axis is not None else 0
    comparison = GroupComparison(OutputGroup("y", kind, axis, 0, end))
    for x, y in pairs:
        comparison.add(x, y)
    return comparison.result(judged=True)


def samples(change, *, count=40, channels=6, seed=0):
    rng = np.random.default_rng(seed)
    made = [rng.normal(size=(1, channels)).astype(np.float32) for _ in range(count)]
    return [(x, change(x.copy())) for x in made]


def rounded(steps):
    return lambda x: (np.rint(x * steps) / steps).astype(np.float32)


def evaluated(pairs, gates=()):
    comparison = OutputComparison((("y", "y"),))
    for x, y in pairs:
        comparison.add(Bare({}), {"y": x}, {"y": y})
    rest = ((), None, Saturation("portable", None), Size(1, 1), None)
    evaluation = Evaluation(comparison.metrics(), comparison.outputs(), *rest, samples=len(pairs))
    return comparison, check_gates(with_standing(gates, parse_gates(gates, "")), evaluation), evaluation


def test_a_channel_that_is_constant_in_int8_alone_is_dead():
    def still(x):
        x[:, 3] = 0.25
        return x

    assert group(samples(still)).dead == (3,)
    _, gates, evaluation = evaluated(samples(still))
    assert [(gate.gate, gate.value, gate.passed) for gate in gates] == [("outputs.dead<=0", 1, False)]
    (fault,) = evaluation.outputs["y"].faults
    assert fault == (
        'output "y": 1 of 6 channels are constant in the int8 model and not in the FP32 model (values, channels 3)'
    )


def test_rounding_of_float_nodes_behind_a_constant_does_not_bring_it_to_life():
    noise = np.random.default_rng(1)
    assert group(samples(lambda x: 2.0 + 1e-6 * noise.normal(size=x.shape).astype(np.float32))).dead == tuple(range(6))


@pytest.mark.parametrize("share", [0.5 * ALIVE, 2 * ALIVE])
def test_a_channel_that_hardly_varies_beside_the_others_may_be_constant(share):
    pairs = samples(lambda x: x)
    for x, y in pairs:
        x[:, 0] *= share
        y[:, 0] = 0.0
    assert group(pairs).dead == ((0,) if share > ALIVE else ())


@pytest.mark.parametrize(("kind", "dead"), [("values", (0, 1)), ("probabilities", ())])
def test_probabilities_are_held_against_all_of_zero_to_one(kind, dead):
    rng = np.random.default_rng(0)  # silence, say: the FP32 model hears next to nothing
    pairs = [(STEPS / 2 * rng.random((1, 2)), np.zeros((1, 2))) for _ in range(20)]
    assert group(pairs, kind).dead == dead


def test_a_value_that_varies_by_less_than_eight_bits_show_is_not_dead():
    rng = np.random.default_rng(0)
    assert group([(100 + rng.random((1, 3)), np.full((1, 3), 100.0)) for _ in range(20)]).dead == ()


@pytest.mark.parametrize("steps", [4, 16, 64])
def test_rounded_and_noisy_outputs_have_no_fault(steps):
    metrics = group(samples(rounded(steps), count=200), "class scores")
    assert (metrics.dead, metrics.saturated, metrics.levels) == ((), 0.0, 0)


def test_values_that_stick_at_the_largest_are_saturated_and_a_few_that_are_clipped_are_not():
    def clipped(limit):
        return lambda x: np.minimum(x, np.float32(limit))

    # a normal distribution has 16 % beyond 1, and 0.1 % beyond 3
    assert group(samples(clipped(1.0), count=400)).saturated == pytest.approx(0.12, abs=0.03)
    assert group(samples(clipped(3.0), count=400)).saturated == 0.0
    assert group(samples(lambda x: np.maximum(x, np.float32(-1.0)), count=400)).saturated > 0.05


def test_what_both_models_clip_is_not_saturated():
    pairs = [(np.minimum(x, 1.0), np.minimum(y, 1.0)) for x, y in samples(rounded(50), count=100)]
    assert group(pairs).saturated == 0.0


def test_scores_of_few_values_have_lost_their_order():
    metrics = group(samples(rounded(0.5), count=100), "class scores")
    assert 1 < metrics.levels <= 5
    assert metrics.levels_of_8_bits > 100
    assert metrics.tied > 0.5


def test_ties_count_only_where_the_fp32_model_has_scores_apart():
    x = np.array([[0.0, 1.0, 5.0], [5.0, 4.99, 0.0], [5.0, 0.0, 4.0]])
    y = np.array([[0.0, 5.0, 5.0], [5.0, 5.0, 0.0], [5.0, 0.0, 4.0]])
    assert ties(x, y, 1, 0.25) == (3, 1)
    assert ties(x.T, y.T, 0, 0.25) == (3, 1)


def test_one_sample_cannot_tell_and_its_gate_says_nothing():
    comparison, gates, evaluation = evaluated(samples(np.zeros_like, count=1))
    assert gates == ()
    assert value_of("outputs.dead", evaluation) is None
    assert "one sample" in comparison.reasons()["outputs.dead"]


def test_outputs_that_are_equal_or_constant_in_both_have_no_fault():
    _, (gate,), _ = evaluated(samples(lambda x: x))
    assert gate.passed
    _, (gate,), _ = evaluated([(np.full((1, 4), 3.0), np.full((1, 4), 2.9))] * 5)
    assert gate.passed


@pytest.mark.parametrize(
    ("own", "told"),
    [((), ["outputs.dead<=0"]), (("outputs.dead=off",), []), (("outputs.dead<=3",), ["outputs.dead<=3"])],
)
def test_a_gate_of_the_users_own_takes_the_place_of_the_standing_one(own, told):
    _, gates, _ = evaluated(samples(lambda x: x), own)
    assert [gate.gate for gate in gates] == told


def test_only_a_standing_gate_can_be_switched_off():
    from int8cal.errors import ConfigError

    with pytest.raises(ConfigError, match="switches off a gate that nobody set"):
        parse_gates(["outputs.tied=off"], "")


def test_samples_of_other_sizes_along_the_channels_are_one_group():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, count)).astype(np.float32) for count in (5, 7, 6)]
    comparison, (gate,), _ = evaluated([(x, x + np.float32(0.01)) for x in arrays])
    assert gate.passed
    assert "differs between samples" in comparison.reasons()["outputs.y.groups"]


def test_a_few_equal_values_of_one_channel_may_be_chance_and_of_all_channels_are_not():
    def still(channels):
        def change(x):
            x[:, channels] = 0.5
            return x

        return change

    assert group(samples(still([2]), count=4)).dead == ()
    assert group(samples(still([2]), count=12)).dead == (2,)
    assert len(group(samples(still(slice(None)), count=4)).dead) >= 5


def test_a_part_that_is_mostly_noise_is_named_though_the_output_is_fine():
    from int8cal.evaluation.output_faults import poor_groups

    noise = np.random.default_rng(1)
    poor = group(samples(lambda x: x + noise.normal(size=x.shape).astype(np.float32)))
    (line,) = poor_groups("y", [group(samples(rounded(50))), poor], 10.0)
    assert line.startswith(f'output "y" has an SQNR of {poor.sqnr_db:.2f} dB in one part')
    assert line.endswith("(values, channels 0..5)")


def test_an_offset_of_values_that_hardly_vary_is_not_saturation():
    rng = np.random.default_rng(0)
    pairs = [(100 + rng.random((1, 3)), np.full((1, 3), 99.9)) for _ in range(20)]
    assert group(pairs).saturated == 0.0


def test_values_at_the_end_of_float16_are_compared_beyond_it():
    rng = np.random.default_rng(0)
    outputs = [rng.uniform(-65000, 65000, (1, 6)).astype(np.float16) for _ in range(40)]
    assert group([(x, x) for x in outputs]).saturated == 0.0


def told(mean, noise, **kwargs):
    """Return the warnings about an output that is `mean` but for a hundredth, in float and with noise of such a size."""
    rng = np.random.default_rng(5)

    def noisy(x):
        return (x + noise * rng.normal(size=x.shape)).astype(np.float32)

    floats = [np.float32(mean) + np.float32(0.01) * x for x, _ in samples(lambda x: x, **kwargs)]
    return evaluated([(x, noisy(x)) for x in floats])[0].warnings()


def test_noise_that_is_little_beside_a_constant_is_held_against_what_changes():
    (warning,) = told(1.0, 0.01)
    assert warning.startswith('output "y" has an SQNR of 40.')
    assert "dB, but noise of more than a tenth of what changes from sample to sample (" in warning
    decibels = float(warning.partition("sample to sample (")[2].partition(" dB")[0])
    assert decibels == pytest.approx(0.0, abs=1.0)  # both are a hundredth


@pytest.mark.parametrize(("mean", "noise", "count"), [(0.0, 0.001, 40), (1.0, 0.001, 40), (1.0, 0.01, 1)])
def test_noise_below_what_changes_is_not_told_nor_that_of_one_sample(mean, noise, count):
    assert told(mean, noise, count=count) == ()


def test_the_same_outputs_for_all_samples_are_not_told_twice():
    x = np.ones((1, 4), np.float32)
    comparison, _, _ = evaluated([(x, x * np.float32(1.001))] * 3)
    assert comparison.still
    assert comparison.warnings() == ()


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e150])
def test_spread_is_the_variance_over_samples(scale):
    values = scale * np.random.default_rng(0).normal(3.0, 1.0, size=(7, 2, 5))
    spread = Spread()
    for each in values:
        spread.add(each)
    assert spread.power == pytest.approx(7 * values.var(axis=0, ddof=1).sum(), rel=1e-12)


def test_spread_of_samples_of_several_shapes_is_not_told():
    spread = Spread()
    spread.add(np.zeros((1, 3)))
    assert spread.power is None
    spread.add(np.ones((1, 3)))
    assert spread.power == pytest.approx(3.0)
    spread.add(np.ones((1, 4)))
    assert spread.power is None
