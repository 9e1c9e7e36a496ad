"""Step: the observed minimum and maximum as the range of every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.search.candidate import with_ranges
from int8cal.search.search import propose_candidate

if TYPE_CHECKING:
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

# By how much all ranges by max must be better than those of auto: they are best where errors of clipping come together,
# as in the outlier channels of a transformer, and a little worse in most models.
LEAST_GAIN_DB = 0.3


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer all ranges by max, where the job leaves the method open."""
    wide = inputs.job.quantization.activations == "u16"  # these are the widest already
    if inputs.holdout.scorer is not None and inputs.job.calibration.method == "auto" and not wide:
        name = f"all {inputs.ranges_by('max')}"
        yield propose_candidate(state, inputs, name, with_ranges(inputs, state.candidate, "max"), LEAST_GAIN_DB)
