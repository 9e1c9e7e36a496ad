"""Recipes as data: which steps are offered, in their order, and on how many samples."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Recipe:
    """What a recipe does beyond ranges and weights.

    Attributes:
        steps: Names of the steps, in their order; see `search.steps`.
        validation_samples: Samples of the holdout that steps are scored on, at most; fewer where inference takes long.
        fit_samples: Calibration samples that steps are fitted on; never those that they are scored on.
        sweep_s: Estimated seconds that looking for where eight bits are too few may take.
    """

    steps: tuple[str, ...]
    validation_samples: int
    fit_samples: int = 0
    sweep_s: float = 0.0


_FAST = Recipe(
    ("widest ranges", "equalization", "recurrent", "output error", "bias"),
    validation_samples=512,
    fit_samples=64,
    sweep_s=3.0,
)
_BALANCED = replace(
    _FAST,
    steps=("widest ranges", "equalization", "measured equalization", "recurrent", "output error", "bias"),
    sweep_s=10.0,
)
_ACCURATE = replace(
    _BALANCED,
    steps=(*_BALANCED.steps[:-1], "second-order rounding", "bias"),
    fit_samples=128,
    sweep_s=30.0,
)
PLAIN = Recipe(("recurrent",), validation_samples=0)  # ranges and weights alone
RECIPES: dict[str, Recipe] = {"fast": _FAST, "balanced": _BALANCED, "accurate": _ACCURATE}
