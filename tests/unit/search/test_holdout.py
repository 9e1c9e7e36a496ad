"""How kept samples are shared between what is fitted and what scores it."""

import pytest

from int8cal.search.holdout import split_samples
from int8cal.search.recipes import PLAIN, RECIPES, Recipe


@pytest.mark.parametrize(
    ("count", "validation", "fit"),
    [(0, 0, 0), (1, 1, 0), (3, 3, 0), (15, 15, 0), (16, 8, 8), (17, 9, 8), (64, 32, 32), (80, 32, 32)],
)
def test_kept_samples_are_split_and_none_is_used_twice(count, validation, fit):
    recipe = Recipe((), validation_samples=32, fit_samples=32)
    scored, fitted = split_samples(range(count), recipe)
    assert (len(scored), len(fitted)) == (validation, fit)
    assert [*scored, *fitted] == list(range(validation + fit))


@pytest.mark.parametrize(("run_s", "validation"), [(1e-5, 128), (0.25 / 50, 50), (0.1, 32)])
def test_where_inference_takes_long_fewer_are_scored_on(run_s, validation):
    recipe = Recipe((), validation_samples=128, fit_samples=32)
    scored, fitted = split_samples(range(200), recipe, run_s)
    assert (len(scored), len(fitted)) == (validation, 32)
    assert not {*scored} & {*fitted}


def test_without_samples_to_fit_on_all_are_scored_on():
    recipe = Recipe((), validation_samples=32)
    assert split_samples(range(10), recipe) == (tuple(range(10)), ())
    assert split_samples((), PLAIN) == ((), ())


@pytest.mark.parametrize(("count", "fit"), [(100, 50), (200, 80), (337, 80), (640, 128), (2000, 128)])
def test_a_recipe_that_fits_more_leaves_about_as_many_to_score_on(count, fit):
    """Else what the one recipe is sure of is lost in the noise of the other's smaller holdout."""
    scored, fitted = split_samples(range(count), RECIPES["accurate"])
    assert len(fitted) == fit
    assert len(scored) >= 0.85 * len(split_samples(range(count), RECIPES["fast"])[0])
