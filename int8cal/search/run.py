"""One recipe from ranges to a finished table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.search.candidate import plain_candidate
from int8cal.search.search import finished, first_state, search
from int8cal.search.steps import STEPS

if TYPE_CHECKING:
    from int8cal.progress import Clock
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Result


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
        steps = (STEPS[name] for name in inputs.recipe.steps)
        return finished(search(first_state(inputs, candidate), steps, inputs), inputs)
