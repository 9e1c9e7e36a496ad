"""What an opened source, and then an evaluation, tell of data that cannot be right: findings, see `data.checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.data.checks import Finding, classes_of, label_findings, strict_error
from int8cal.numerics.intervals import proportion_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from int8cal.data.feeds import Feeds
    from int8cal.evaluation.result import Drop
    from int8cal.graph.signature import Signature

# Of the way from guessing (0) to always right (1). Real models fed right stand at 0.68 and more, the same ones without
# their preprocessing, or with labels of other classes, at 0.15 and less.
CHANCE = 0.2
# What the 95 % interval must exclude as well, so that few samples are not a verdict.
_ORDINARY = 0.5


class Findings:
    """What is found while a job goes on: told as it is found, and an error with `strict`.

    Args:
        tell: Gets each finding as it comes; None for nobody.
        strict: Whether findings are errors.
    """

    def __init__(self, tell: Callable[[str], object] | None = None, *, strict: bool = False) -> None:
        self._tell, self._strict = tell, strict
        self.found: tuple[Finding, ...] = ()

    def add(self, found: Iterable[Finding], *, told: bool = False) -> None:
        """Keep what is new, and tell it unless a report does so at once (`told`)."""
        for finding in found:
            if finding not in self.found:
                self.found = (*self.found, finding)
                if self._tell is not None and not told:
                    self._tell(f"warning: {finding}")

    def require_none(self) -> None:
        """Stop before the work.

        Raises:
            DataError: There are findings, and they are errors.
        """
        if self._strict and self.found:
            raise strict_error(self.found)


def opened(feeds: Feeds, signature: Signature) -> tuple[Finding, ...]:
    """Say what is known of evaluation data before any sample is read.

    Raises:
        DataError: A label beyond the classes.
    """
    labels = feeds.labels
    return () if labels is None else label_findings(labels.values, labels.names, classes_of(signature))


def one_sample(samples: int | None) -> tuple[Finding, ...]:
    """Say that one calibration sample is none to check anything on."""
    if samples != 1:
        return ()
    return (
        Finding(
            "one-sample",
            "one calibration sample: ranges and corrections could not be checked on any other, and figures on that "
            "very sample say nothing of new ones",
            "calibrate on 64 samples or more",
        ),
    )


def near_chance(drop: Drop | None, classes: int) -> tuple[Finding, ...]:
    """Say that the FP32 model hardly does better than guessing.

    Args:
        drop: Top-1 accuracy; None without labels.
        classes: How many there are.
    """
    if drop is None or drop.fp32 is None or not drop.samples or classes < 2:
        return ()
    guess = 1 / classes
    line, ordinary = (guess + share * (1 - guess) for share in (CHANCE, _ORDINARY))
    low, high = proportion_interval(round(drop.fp32 * drop.samples), drop.samples)
    if drop.fp32 >= line or high >= ordinary:
        return ()
    return (
        Finding(
            "chance",
            f"the FP32 model is right on {100 * drop.fp32:.1f} % of {drop.samples} samples (95 % interval "
            f"{100 * low:.1f} to {100 * high:.1f} %), guessing among {classes} classes on {100 * guess:.3g} %: a drop "
            "from there says nothing",
            "check the preprocessing, the order of colours and classes, and the labels",
        ),
    )
