"""Step: the observed minimum and maximum as the range of every tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.search.candidate import counted_over, with_ranges
from int8cal.search.scorer import LEAST_FIT
from int8cal.search.search import propose_candidate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

# By how much all ranges by max must be better than those of auto, of few samples those of auto: the widest ranges are
# best where errors of clipping come together, as in the outlier channels of a transformer, and a little worse in most
# models.
LEAST_GAIN_DB = 0.3
# Samples: up to so many, one that is left out has values beyond the others' in many tensors, and so will those to come.
# What `auto` clips then says more of the few than of the model: of 21 networks with 8 samples, 9 lost 0.2 to 20 dB by
# it on further ones.
FEW = 32


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer all ranges by max, where the job leaves the method open.

    Of few samples, both have the ranges that half of them give and are scored on the other half; there it is `auto`
    that has to be better.
    """
    wide = inputs.job.quantization.activations == "u16"  # these are the widest already
    if inputs.holdout.scorer is not None and inputs.job.calibration.method == "auto" and not wide:
        widest = with_ranges(inputs, state.candidate, "max")
        folds = tuple(_folds(state, inputs))
        least_db = -LEAST_GAIN_DB if folds else LEAST_GAIN_DB
        yield replace(propose_candidate(state, inputs, "all ranges by max", widest, least_db), folds=folds)


def _folds(state: State, inputs: Inputs) -> Iterator[tuple[range, Inputs]]:
    """Iterate over both halves of few samples, each with statistics of all but it."""
    holdout, seen = inputs.holdout, state.table.data["samples"]
    kept = len(holdout.validation) + len(holdout.fit)
    if holdout.scorer is None or not LEAST_FIT <= seen == kept <= FEW:
        return
    count = holdout.scorer.samples
    if count < len(holdout.validation) or holdout.scorer.seconds > inputs.recipe.sweep_s:
        return
    halves = range(count // 2), range(count // 2, count)
    counted = [counted_over(inputs, holdout.validation[half.start : half.stop]) for half in halves]
    rest = counted_over(inputs, holdout.fit) if holdout.fit else None
    for rows, others in zip(halves, reversed(counted), strict=True):
        yield rows, replace(inputs, statistics=others if rest is None else others + rest)
