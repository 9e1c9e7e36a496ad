"""Intervals of what OutputComparison measures; their statistics are tested in numerics."""

from dataclasses import dataclass

import numpy as np
import pytest

from int8cal.evaluation.outputs import OutputComparison
from int8cal.numerics.intervals import proportion_interval, sqnr_interval


@dataclass(frozen=True)
class Bare:
    feed: dict
    origin: str = "sample"
    label: int | None = None


def compared(count, names=("y", "z"), scale=1.0, seed=0):
    """Compare random outputs; every further one has twice the error of the one before it."""
    rng = np.random.default_rng(seed)
    comparison = OutputComparison(tuple((name, name) for name in names))
    for _ in range(count):
        x = {name: scale * rng.normal(size=(1, 6)) for name in names}
        errors = {name: 0.1 * 2**place * scale for place, name in enumerate(names)}
        y = {name: value + errors[name] * rng.normal(size=(1, 6)) for name, value in x.items()}
        comparison.add(Bare({}), x, y)
    return comparison


def test_the_interval_of_the_sqnr_is_that_of_the_worst_output():
    rng = np.random.default_rng(0)
    energies = []
    for _ in range(12):
        x = {name: rng.normal(size=(1, 6)) for name in ("y", "z")}
        noise = {name: error * rng.normal(size=(1, 6)) for name, error in zip(x, (0.1, 0.2), strict=True)}
        energies.append([np.square(x["z"]).sum(), np.square(noise["z"]).sum()])
    energies = np.array(energies)
    (of_signal, of_both), (_, of_noise) = energies.T @ energies
    expected = sqnr_interval(*energies.sum(axis=0), (of_signal, of_both, of_noise), 12)
    comparison = compared(12)
    assert comparison.metrics().sqnr_db_ci95 == pytest.approx(expected)
    assert comparison.outputs()["z"].sqnr_db_ci95 == comparison.metrics().sqnr_db_ci95
    assert comparison.outputs()["y"].sqnr_db_ci95 != comparison.metrics().sqnr_db_ci95


def test_agreement_has_its_interval():
    metrics = compared(40).metrics()
    assert metrics.agreement < 1
    assert metrics.agreement_ci95 == proportion_interval(round(40 * metrics.agreement), 40)


def test_every_missing_interval_has_a_reason():
    comparison = compared(1)
    assert comparison.metrics().sqnr_db_ci95 is None
    reasons = comparison.reasons()
    for path in ("metrics.sqnr_db_ci95", "outputs.y.sqnr_db_ci95", "outputs.z.sqnr_db_ci95"):
        assert reasons[path] == "one sample gives no interval"
    assert not [path for path in compared(2).reasons() if "ci95" in path]


def test_an_output_that_is_zero_everywhere_is_left_out_of_the_interval():
    comparison = OutputComparison((("y", "y"), ("zero", "zero")))
    plain = OutputComparison((("y", "y"),))
    rng = np.random.default_rng(2)
    for _ in range(5):
        x, y = rng.normal(size=(2, 1, 6))
        nothing = np.zeros((1, 3))
        comparison.add(Bare({}), {"y": x, "zero": nothing}, {"y": y, "zero": nothing})
        plain.add(Bare({}), {"y": x}, {"y": y})
    assert comparison.metrics().sqnr_db_ci95 == plain.metrics().sqnr_db_ci95
    assert comparison.outputs()["zero"].sqnr_db_ci95 is None


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-30, 1e30, 1e160, 1e300])
def test_figures_and_intervals_do_not_depend_on_the_unit(scale):
    plain, scaled = compared(3).metrics(), compared(3, scale=scale).metrics()
    assert scaled.sqnr_db == pytest.approx(plain.sqnr_db)
    assert scaled.cosine == pytest.approx(plain.cosine)
    assert scaled.sqnr_db_ci95 == pytest.approx(plain.sqnr_db_ci95)
    assert scaled.max_abs_error == pytest.approx(scale * plain.max_abs_error)
