"""Recipes as data: which corrections run, and when each is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RecipeRule:
    """What a recipe does beyond thresholds.

    Attributes:
        equalize_gain_db: Chains are equalized whose predicted gain is at least this; inf for never. The predictor is a
            model of uniform rounding noise, so small predicted gains are not trusted.
        bias_correction: Correct biases for the mean shift of rounded weights, if that helps on the holdout.
        judge_samples: Samples of the holdout, on which steps are scored, at most; fewer where inference takes long.
        tune_samples: Samples kept to fit corrections on; never those to judge on.
        tune_seconds: Estimated time that looking for where eight bits are too few may take; 0 for not at all.
        measured_strength: Rescale channels as far as measured errors say, not by powers of two where much is promised.
        second_order: Round weights by the second moments of what each layer reads.
    """

    equalize_gain_db: float
    bias_correction: bool
    judge_samples: int
    tune_samples: int = 0
    tune_seconds: float = 0.0
    measured_strength: bool = False
    second_order: bool = False


# By how much all ranges by max must be better than those of auto: the widest ranges are best where errors of clipping
# come together, as in the outlier channels of a transformer, and a little worse in most models.
WIDEST_GAIN_DB = 0.3
# Likewise for channels rescaled by measured strength. Where all channels are made equally large, all of them reach the
# end of the range, and unseen data is clipped more often: a small gain on samples that the ranges have seen is none.
MEASURED_GAIN_DB = 1.0

PLAIN = RecipeRule(math.inf, bias_correction=False, judge_samples=0)  # ranges and weights alone
_FAST = RecipeRule(3.0, bias_correction=True, judge_samples=512, tune_samples=64, tune_seconds=3.0)
_BALANCED = replace(_FAST, tune_seconds=10.0, measured_strength=True)
RECIPES: dict[str, RecipeRule] = {
    "fast": _FAST,
    "balanced": _BALANCED,
    "accurate": replace(_BALANCED, tune_samples=128, tune_seconds=30.0, second_order=True),
}
