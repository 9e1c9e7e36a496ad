"""Calibration samples that were kept: those that steps are fitted on, and the holdout that they are scored on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import onnx

    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.recipes import Recipe
    from int8cal.search.scorer import Scorer

S = TypeVar("S")

ENOUGH_FIT = 80  # samples; to fit on more than these, at most a fifth of all are taken
SCORING_S, LEAST_SCORED = 0.25, 32  # estimated seconds of one score, and samples that it takes where that is short
LEAST_FIT = 8  # samples; fewer are not worth fitting anything on


@dataclass(frozen=True)
class Holdout:
    """The kept samples.

    Attributes:
        signature: The model's inputs.
        fit: Samples to fit on; empty where there are too few to keep both apart.
        scorer: Scores an int8 model on `validation`; None where nothing can be scored, then no step is taken.
        validation: The samples that are scored on, which nothing is fitted on.
        as_int8: Turns samples into those that an int8 model takes: raw pixels, where it takes these.
        threads: Of the runtime; 0 for all CPUs.
    """

    signature: Signature
    fit: Sequence[SampleLike]
    scorer: Scorer | None
    validation: Sequence[SampleLike] = ()
    as_int8: Callable[[onnx.ModelProto, Sequence[SampleLike]], Iterable[SampleLike]] = lambda _, samples: samples
    threads: int = 0

    @property
    def can_fit(self) -> bool:
        """Whether there are enough samples to fit something on, and others to score it."""
        return self.scorer is not None and len(self.fit) >= LEAST_FIT


def split_samples(samples: Sequence[S], recipe: Recipe, run_s: float = 0.0) -> tuple[tuple[S, ...], tuple[S, ...]]:
    """Split kept samples into those to score on and those to fit on.

    The recipe's numbers; with fewer samples about half each, but no more than ENOUGH_FIT or a fifth to fit on; and with
    so few that nothing can be fitted, all are there to score on. A score of a few samples is a poor one, and by a poor
    one a recipe that fits more ends below one that fits less. So there are as many to score on as run in SCORING_S.

    Args:
        samples: The kept samples.
        recipe: How many of each at most.
        run_s: Estimated time of one inference.
    """
    judged = recipe.validation_samples
    if run_s > 0:
        judged = min(judged, max(int(SCORING_S / run_s), LEAST_SCORED))
    if recipe.fit_samples and len(samples) >= 2 * LEAST_FIT:
        fitted = min(recipe.fit_samples, max(min(ENOUGH_FIT, len(samples) // 2), len(samples) // 5))
        judged = min(judged, len(samples) - fitted)
        return tuple(samples[:judged]), tuple(samples[judged : judged + fitted])
    return tuple(samples[:judged]), tuple(samples[judged:])
