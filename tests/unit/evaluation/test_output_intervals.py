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
    rng = np.random.default_rng(seed)
    comparison = OutputComparison(tuple((name, name) for name in names))
    for _ in range(count):
        x = {name: scale * rng.normal(size=(1, 6)) for name in names}
        y = {name: value + 0.2 * scale * rng.normal(size=(1, 6)) for name, value in x.items()}
        comparison.add(Bare({}), x, y)
    return comparison


def test_the_interval_of_the_mean_sqnr_takes_outputs_that_vary_together():
    energies = []
    rng = np.random.default_rng(0)
    for _ in range(12):
        x = {name: rng.normal(size=(1, 6)) for name in ("y", "z")}
        noise = {name: 0.2 * rng.normal(size=(1, 6)) for name in x}
        energies.append([[np.square(x[name]).sum(), np.square(noise[name]).sum()] for name in x])
    energies = np.array(energies)
    comparison = compared(12)
    products = np.einsum("iab,icd->abcd", energies, energies)
    assert comparison.metrics().sqnr_db_ci95 == pytest.approx(sqnr_interval(energies.sum(axis=0), products, 12))
    single = sqnr_interval(energies[:, 1:].sum(axis=0), products[1:, :, 1:], 12)
    assert comparison.outputs()["z"].sqnr_db_ci95 == pytest.approx(single)


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
    assert comparison.reasons()["outputs.zero"] == "output zero is zero everywhere"


def test_values_too_large_to_square_twice_have_no_interval_and_say_so():
    comparison = compared(3, scale=1e100)
    assert comparison.metrics().sqnr_db == pytest.approx(compared(3).metrics().sqnr_db)
    assert comparison.metrics().sqnr_db_ci95 is None
    assert "too large" in comparison.reasons()["metrics.sqnr_db_ci95"]
