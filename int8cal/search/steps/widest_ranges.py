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
    """Offer all ranges by max, where the job leaves the method open and any range is another one then."""
    wide = inputs.job.quantization.activations == "u16"  # these are the widest already
    if inputs.holdout.scorer is None or inputs.job.calibration.method != "auto" or wide:
        return
    widest = with_ranges(inputs, state.candidate, "max")
    now, then = ([each.affine for each in of.ranges.entries.values()] for of in (state.candidate, widest))
    if now != then:
        yield propose_candidate(state, inputs, f"all {inputs.ranges_by('max')}", widest, LEAST_GAIN_DB)
