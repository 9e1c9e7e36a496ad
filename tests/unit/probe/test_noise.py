"""Noise at outputs: what counts, and how large it is."""

import numpy as np
import pytest

from int8cal.probe.noise import ReferenceOutputs, relative, sample_count
from int8cal.probe.score_points import ScorePoint


def test_noise_is_told_relative_to_the_outputs_that_have_a_signal():
    signal = np.array([4.0, 2.0, 0.0])
    assert relative(np.array([1.0, 1.0, 7.0]), signal) == 0.375
    np.testing.assert_array_equal(relative(np.array([[4.0, 0.0, 1.0], [0.0, 0.0, 9.0]]), signal), [0.5, 0.0])
    assert relative(np.array([1.0, 3.0, 0.0]), np.zeros(3)) == 0.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_noise_is_the_squared_error_of_each_output(dtype):
    without = {"y": np.array([[1.0, -2.0]], dtype), "z": np.array(3.0, dtype)}
    exact = ReferenceOutputs.of([ScorePoint("z"), ScorePoint("y")], without)
    np.testing.assert_array_equal(exact.power, [9.0, 5.0])
    noise = exact.noise({"y": np.array([[1.5, -2.0]], dtype), "z": np.array(1.0, dtype)})
    np.testing.assert_array_equal(noise, [4.0, 0.25])


def test_only_what_is_finite_without_errors_counts():
    exact = ReferenceOutputs.of([ScorePoint("y")], {"y": np.array([np.inf, 2.0, np.nan], np.float32)})
    np.testing.assert_array_equal(exact.power, [4.0])
    np.testing.assert_array_equal(exact.noise({"y": np.array([0.0, 5.0, 7.0], np.float32)}), [9.0])


def test_of_many_values_every_so_many_count_which_meet_all_rows_and_columns(monkeypatch):
    monkeypatch.setattr("int8cal.probe.noise.MOST_VALUES", 60)
    rng = np.random.default_rng(0)
    points = [ScorePoint("few"), ScorePoint("many")]
    without = {"few": rng.normal(size=10), "many": rng.normal(size=(1, 3, 32, 16))}
    exact = ReferenceOutputs.of(points, without)
    step = 31  # 1,536 / 50 is 30.7
    np.testing.assert_array_equal(exact.power[0], np.square(without["few"]).sum())
    np.testing.assert_array_equal(exact.power[1], np.square(without["many"].ravel()[::step]).sum())
    assert sum(value.nbytes for value in exact.values) <= 8 * 60
    met = np.arange(1536).reshape(3, 32, 16).ravel()[::step]
    assert {len(set(met % 16)), len(set(met // 16 % 32)), len(set(met // 512))} == {16, 32, 3}
    noisy = {"few": without["few"] + 1, "many": without["many"].copy()}
    noisy["many"][0, 0, 0, 1] = 1e9  # not among them
    np.testing.assert_allclose(exact.noise(noisy), [10, 0])
    noisy["many"] = without["many"].reshape(1, 32, 3, 16)  # of another shape
    np.testing.assert_allclose(exact.noise(noisy), [10, exact.power[1]])


@pytest.mark.parametrize("noisy", [[np.inf, 2.0], [np.nan, 2.0], [1.0, 2.0, 3.0]], ids=str)
def test_an_error_that_cannot_be_told_counts_as_one_as_large_as_the_output(noisy):
    exact = ReferenceOutputs.of([ScorePoint("y")], {"y": np.array([1.0, 2.0], np.float32)})
    np.testing.assert_array_equal(exact.noise({"y": np.array(noisy, np.float32)}), [5.0])


def test_samples_are_as_many_as_the_time_allows_and_one_at_least():
    assert sample_count(20.0, 10, 0.5, 8) == 4
    assert sample_count(20.0, 10, 0.5, 3) == 3
    assert sample_count(20.0, 10, 5.0, 8) == 1
    assert sample_count(20.0, 10, 0.0, 8) == 8
