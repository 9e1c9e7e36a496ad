"""What OutputComparison says of a model with several outputs, of outputs that are dead, and of outputs of zeros."""

from dataclasses import dataclass

import numpy as np
import pytest

import int8cal
from int8cal.errors import NonFiniteError
from int8cal.evaluation.data_checks import one_answer
from int8cal.evaluation.gates import check_gates, parse_gate
from int8cal.evaluation.output_groups import OutputGroup
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.result import Evaluation, Saturation, Size
from int8cal.numerics.metrics import EXACT_DB


@dataclass(frozen=True)
class Bare:
    feed: dict
    origin: str = "sample"
    label: int | None = None


def compared(count=4, **made):
    """Compare outputs made by functions of the FP32 output, float32 (1, 6)."""
    rng = np.random.default_rng(0)
    comparison = OutputComparison(tuple((name, name) for name in made))
    for _ in range(count):
        x = {name: rng.normal(size=(1, 6)).astype(np.float32) for name in made}
        comparison.add(Bare({}), x, {name: made[name](value) for name, value in x.items()})
    return comparison


def noisy(share):
    return lambda x: x + np.float32(share) * np.roll(x, 1)


def same(x):
    return x


@pytest.mark.parametrize("fill", [-np.inf, -1e9, np.nan])
def test_a_mask_is_left_out_and_decides_as_it_did(fill):
    rng = np.random.default_rng(3)
    comparison, pairs = OutputComparison((("y", "y"),)), []
    for _ in range(8):
        x = rng.normal(-8, 1, size=(1, 6)).astype(np.float32)  # zero would win
        y = x + rng.normal(0, 0.01, size=x.shape).astype(np.float32)
        mask = rng.permutation(6)[None] < 2
        pairs.append((x[~mask], y[~mask]))
        x, y = (np.where(mask, np.float32(fill), each) for each in (x, y))
        comparison.add(Bare({}), {"y": x}, {"y": y})
    exact, actual = (np.concatenate(each).astype(np.float64) for each in zip(*pairs, strict=True))
    metrics = comparison.metrics()
    assert metrics.sqnr_db == pytest.approx(10 * np.log10((exact**2).sum() / ((exact - actual) ** 2).sum()))
    assert metrics.max_abs_error == pytest.approx(np.abs(exact - actual).max())
    assert metrics.agreement == 1.0
    (told,) = comparison.warnings()
    assert told.startswith(f'output "y" is masked, with {fill:g} for 33 % of its values')


def test_nan_that_comes_with_a_later_sample_is_an_error():
    comparison, whole = OutputComparison((("y", "y"),)), np.ones((1, 3), np.float32)
    comparison.add(Bare({}), {"y": whole}, {"y": whole})
    lost = np.array([[1.0, np.nan, 1.0]], np.float32)
    with pytest.raises(NonFiniteError, match='output "y" of the FP32 model holds NaN'):
        comparison.add(Bare({}), {"y": lost}, {"y": lost})


def test_a_mask_that_differs_between_models_is_no_mask():
    comparison = OutputComparison((("y", "y"),))
    x = np.array([[1.0, -np.inf, 2.0]], np.float32)
    with pytest.raises(NonFiniteError, match='output "y" of the FP32 model holds infinity'):
        comparison.add(Bare({}), {"y": x}, {"y": np.roll(x, 1)})


def constant(x):
    return np.full_like(x, 0.01)


def passed(comparison, gate):
    metrics, outputs = comparison.metrics(), comparison.outputs()
    evaluation = Evaluation(metrics, outputs, (), None, Saturation("portable", None), Size(1, 1), None, samples=4)
    return check_gates([parse_gate(gate)], evaluation)[0].passed


@pytest.mark.parametrize(
    ("reference", "still"),
    [
        ([1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 2.0], False),
        ([1.0], False),  # one sample tells nothing
    ],
)
def test_outputs_that_never_change_are_known(reference, still):
    comparison = OutputComparison((("a", "a"), ("b", "b")))
    for index, value in enumerate(reference):
        x = {"a": np.full((1, 6), value, np.float32), "b": np.zeros((1, 2), np.float32)}
        comparison.add(Bare({}), x, {name: each + np.float32(index) for name, each in x.items()})
    assert comparison.still == still
    assert bool(one_answer(len(reference), still=comparison.still)) == still


def test_the_figures_are_those_of_the_worst_output():
    comparison = compared(good=noisy(0.001), bad=noisy(0.1), exact=same)
    metrics, outputs = comparison.metrics(), comparison.outputs()
    assert metrics.sqnr_db == outputs["bad"].sqnr_db == pytest.approx(20, abs=0.1)
    assert metrics.cosine == outputs["bad"].cosine
    assert metrics.exact_outputs == ("exact",)


def test_a_dead_output_beside_one_that_passes_through_fails_its_gate_and_is_named():
    comparison = compared(dead=constant, through=same)
    assert comparison.metrics().sqnr_db < 1
    assert not passed(comparison, "sqnr_db>=40")
    assert not passed(comparison, "outputs.dead<=0")
    (fault,) = comparison.outputs()["dead"].faults
    assert fault.startswith('output "dead": 6 of 6 channels are constant in the int8 model and not in the FP32 model')
    assert comparison.warnings() == (fault,)


def test_an_output_that_is_constant_in_both_models_is_not_dead():
    comparison = OutputComparison((("y", "y"),))
    for _ in range(3):
        comparison.add(Bare({}), {"y": np.full((1, 4), 3.0)}, {"y": np.full((1, 4), 2.9)})
    assert comparison.warnings() == ()


def test_outputs_of_other_lengths_are_not_the_same_for_all_samples():
    class Loose:
        loose = frozenset({"y"})

        def __call__(self, sample, outputs):
            return {name: (OutputGroup(name, "values"),) for name in outputs}

    comparison = OutputComparison((("y", "y"),), Loose())
    for length, other in ((5, 5), (7, 6), (4, 4)):  # the first is compared before another is of unlike lengths
        comparison.add(Bare({}), {"y": np.ones((1, length))}, {"y": np.ones((1, other))})
    assert not comparison.still
    assert comparison.warnings()[0].startswith('output "y" has another shape in the int8 model for 1 of 3 samples')
    reasons = comparison.reasons()
    assert reasons["outputs.dead"] == reasons["metrics.sqnr_db"]
    assert "another shape in the int8 model for 1 of 3 samples" in reasons["outputs.dead"]


def test_one_sample_is_enough_to_see_that_all_values_became_one():
    assert "does not change" in compared(1, dead=constant).warnings()[0]
    assert compared(1, fine=noisy(0.01)).warnings() == ()


def test_a_dead_output_is_seen_where_the_runtime_writes_into_its_arrays_again():
    comparison, rng = OutputComparison((("y", "y"),)), np.random.default_rng(0)
    x, y = np.zeros((2, 1, 6))
    for _ in range(3):
        x[:] = rng.normal(size=(1, 6))
        y[:] = np.arange(6)
        comparison.add(Bare({}), {"y": x}, {"y": y})
    assert comparison.outputs()["y"].faults


def test_the_largest_value_of_a_signal_is_no_class():
    rng = np.random.default_rng(0)
    found = []
    for kind in ("waveform", "signal", "values", "class scores"):
        groups = {"y": (OutputGroup("y", kind),)}
        comparison = OutputComparison((("y", "y"),), lambda _, __, groups=groups: groups)
        for _ in range(3):
            x = rng.normal(size=4000)
            comparison.add(Bare({}), {"y": x}, {"y": x + 1e-4})
        found.append((comparison.metrics().agreement, comparison.reasons().get("metrics.agreement", "")))
    why = 'the first float output "y" is a {}, not a row of class scores'
    assert found == [(None, why.format("waveform")), (None, why.format("signal")), (1.0, ""), (1.0, "")]


def test_an_output_that_is_mostly_noise_gets_a_warning():
    assert compared(fine=noisy(0.3)).warnings() == ()
    (warning,) = compared(fine=noisy(0.1), poor=noisy(0.5)).warnings()
    assert warning.startswith('output "poor" has an SQNR of ')


def test_a_model_is_exact_where_every_output_is():
    metrics = compared(a=same, b=same).metrics()
    assert (metrics.sqnr_db, metrics.sqnr_db_ci95) == (EXACT_DB, (EXACT_DB, EXACT_DB))
    assert metrics.exact_outputs == ("a", "b")
    assert compared(a=same, b=noisy(1e-7)).metrics().sqnr_db < 150


def test_an_output_of_zeros_in_both_models_has_no_figure_and_is_not_exact():
    comparison = OutputComparison((("zero", "zero"),))
    for _ in range(3):
        comparison.add(Bare({}), {"zero": np.zeros((1, 3))}, {"zero": np.zeros((1, 3))})
    metrics = comparison.metrics()
    assert (metrics.sqnr_db, metrics.cosine, metrics.exact_outputs) == (None, None, ())
    reason = "output zero is zero everywhere in both models"
    assert comparison.reasons()["metrics.sqnr_db"] == comparison.reasons()["outputs.zero"] == reason
    assert comparison.warnings() == (f"{reason}; nothing can be said of its error",)


def test_noise_where_there_should_be_zeros_is_not_hidden_by_a_good_output():
    comparison = OutputComparison((("y", "y"), ("zero", "zero")))
    for value in (1.0, 2.0):
        x = np.full((1, 3), value)
        comparison.add(Bare({}), {"y": x, "zero": 0 * x}, {"y": x, "zero": 0.1 * x})
    assert comparison.metrics().sqnr_db is None
    assert not passed(comparison, "sqnr_db>=40")
    assert comparison.reasons()["metrics.sqnr_db"] == (
        "output zero is zero everywhere in the FP32 model, but not in the int8 model"
    )
    assert comparison.metrics().exact_outputs == ("y",)


def test_an_int8_output_of_zeros_has_zero_decibels_and_fails_a_gate_on_cosine():
    comparison = compared(dead=np.zeros_like, through=same)
    assert comparison.metrics().sqnr_db == pytest.approx(0.0)
    assert comparison.metrics().cosine is None
    assert not passed(comparison, "cosine>=0.9")
    reasons = comparison.reasons()
    assert reasons["metrics.cosine"] == reasons["outputs.dead.cosine"]
    assert reasons["metrics.cosine"] == "output dead is zero everywhere in the int8 model"


FP32 = "net (float[N,4] x) => (float[N,3] logits, float[N,4] copy, int64[N] best) {"
LOST = f"""{FP32}
    h = Gemm(x, W)
    q = QuantizeLinear(h, S, Z)
    logits = DequantizeLinear(q, S, Z)
    copy = Identity(x)
    best = ArgMax <axis = 1, keepdims = 0> (h)
}}"""


def test_a_report_on_a_model_whose_real_output_is_dead_says_so_and_fails_its_gate(bench):
    weights = {"W": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)}
    fp32 = bench.text(
        f"{FP32} logits = Gemm(x, W) copy = Identity(x) best = ArgMax <axis = 1, keepdims = 0> (logits) }}", **weights
    )
    int8 = bench.text(LOST, **weights, S=np.float32(1e6), Z=np.uint8(128))
    data = [{"x": row} for row in np.random.default_rng(1).normal(size=(5, 1, 4)).astype(np.float32)]
    report = int8cal.evaluate(fp32, int8, data, threads=1, latency=False)
    evaluation = report.evaluation
    assert evaluation.metrics.sqnr_db == pytest.approx(0.0, abs=0.01)
    assert evaluation.metrics.exact_outputs == ("copy",)
    (gate,) = check_gates([parse_gate("sqnr_db>=40")], evaluation)
    assert not gate.passed
    assert evaluation.outputs["logits"].dead == 3
