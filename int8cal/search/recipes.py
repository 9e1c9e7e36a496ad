"""Recipes as data: which steps are offered, in their order, and on how many samples; and one recipe run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.search.candidate import plain_candidate
from int8cal.search.search import finished, first_state, search
from int8cal.search.steps import (
    bias,
    channel_copies,
    dynamic,
    embeddings,
    equalization,
    measured_equalization,
    output_error,
    recurrent,
    second_order,
    widest_ranges,
)

if TYPE_CHECKING:
    from int8cal.progress import Clock
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Result, Step


@dataclass(frozen=True)
class Recipe:
    """What a recipe does beyond ranges and weights.

    Attributes:
        steps: In their order; one file each in `search.steps`.
        validation_samples: Samples of the holdout that steps are scored on, at most; fewer where inference takes long.
        fit_samples: Calibration samples that steps are fitted on; never those that they are scored on.
        sweep_s: Estimated seconds that looking for where eight bits are too few may take.
        least_worth: Share of the noise that more precision has to take away for each share of the int8 model's
            estimated time that it takes. Above 0, what is beyond the allowance by itself is measured only where that
            is quick.
    """

    steps: tuple[Step, ...]
    validation_samples: int
    fit_samples: int = 0
    sweep_s: float = 0.0
    least_worth: float = 0.0


# Copies come before measured rescaling, which moves what they would take care of into the weights.
_RESCALED = (widest_ranges.propose, equalization.propose, channel_copies.propose)
_FORMS = (recurrent.propose, dynamic.propose, embeddings.propose)
# Rounding costs the int8 model nothing, so it comes before what costs time.
_END = (output_error.propose, bias.propose)
_FAST = Recipe(
    (*_RESCALED, *_FORMS, second_order.propose_products, *_END),
    validation_samples=512,
    fit_samples=64,
    sweep_s=1.5,
    least_worth=2.0,
)
_BALANCED = replace(
    _FAST,
    steps=(*_RESCALED, measured_equalization.propose, *_FORMS, second_order.propose_products, *_END),
    sweep_s=10.0,
    least_worth=0.0,
)
_ACCURATE = replace(
    _BALANCED,
    steps=(*_RESCALED, measured_equalization.propose, *_FORMS, second_order.propose, *_END),
    fit_samples=128,
    sweep_s=30.0,
)
PLAIN = Recipe((recurrent.propose, embeddings.propose), validation_samples=0)  # ranges and weights alone
RECIPES: dict[str, Recipe] = {"fast": _FAST, "balanced": _BALANCED, "accurate": _ACCURATE}


def run_recipe(inputs: Inputs, clock: Clock) -> Result:
    """Choose ranges, build the table that they give, and let the recipe's steps propose better ones.

    Args:
        inputs: What the search starts from.
        clock: Gets the seconds of the stations "thresholds" and "quantize".

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    with clock.station("thresholds"):
        candidate = plain_candidate(inputs)
    with clock.station("quantize"):
        return finished(search(first_state(inputs, candidate), inputs.recipe.steps, inputs), inputs)
