"""Recipes as data: which corrections run, and when each is kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeRule:
    """What a recipe does beyond thresholds.

    Attributes:
        equalize_gain_db: Chains are equalized whose predicted gain is at least this; inf for never. The predictor is a
            model of uniform rounding noise, so small predicted gains are not trusted.
        bias_correction: Correct biases for the mean shift of rounded weights, if that helps on kept samples.
        judge_samples: Samples kept aside to judge corrections on.
    """

    equalize_gain_db: float
    bias_correction: bool
    judge_samples: int


RECIPES: dict[str, RecipeRule] = {"fast": RecipeRule(equalize_gain_db=3.0, bias_correction=True, judge_samples=32)}
