"""Step: the observed minimum and maximum as the range of every tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.search.candidate import VERY_FEW, counted_over, with_ranges
from int8cal.search.scorer import LEAST_FIT
from int8cal.search.search import Remark, propose_candidate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

# By how much all ranges by max must be better than those of auto, of very few samples those of auto: the widest ranges
# are best where errors of clipping come together, as in the outlier channels of a transformer, and a little worse in
# most models.
LEAST_GAIN_DB = 0.3


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer all ranges by max, where the job leaves the method open; of few samples with room for those to come.

    Then both have the ranges that half of them give and are scored on the other half; with very few it is `auto` that
    has to be better.
    """
    wide = inputs.job.quantization.activations == "u16"  # these are the widest already
    if inputs.job.calibration.method != "auto" or wide:
        return
    name = f"all {inputs.ranges_by('max')}"
    if inputs.method == "max":
        yield Remark((f"{name}, unjudged: {inputs.statistics.samples} samples are too few",))
    elif inputs.holdout.scorer is not None:
        widest = with_ranges(inputs, state.candidate, "max")
        folds = tuple(_folds(state, inputs))
        least_db = -LEAST_GAIN_DB if folds and inputs.statistics.samples <= VERY_FEW else LEAST_GAIN_DB
        yield replace(propose_candidate(state, inputs, name, widest, least_db), folds=folds)


def _folds(state: State, inputs: Inputs) -> Iterator[tuple[range, Inputs]]:
    """Iterate over both halves of few samples, each with statistics of all but it."""
    holdout, seen = inputs.holdout, state.table.data["samples"]
    kept = len(holdout.validation) + len(holdout.fit)
    if holdout.scorer is None or not inputs.few or not LEAST_FIT <= seen == kept:
        return
    count = holdout.scorer.samples
    if count < len(holdout.validation) or holdout.scorer.seconds > inputs.recipe.sweep_s:
        return
    halves = range(count // 2), range(count // 2, count)
    counted = [counted_over(inputs, holdout.validation[half.start : half.stop]) for half in halves]
    rest = counted_over(inputs, holdout.fit) if holdout.fit else None
    for rows, others in zip(halves, reversed(counted), strict=True):
        yield rows, replace(inputs, statistics=others if rest is None else others + rest)
