"""What an opened source, and then an evaluation, tell of data that cannot be right: findings, see `data.checks`."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from int8cal.data.checks import Finding, classes_of, label_findings, strict_error
from int8cal.data.preprocessing import differing, noted
from int8cal.data.shards import told_missing
from int8cal.numerics.intervals import proportion_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from int8cal.calibration.statistics import Statistics
    from int8cal.data.feeds import Feeds
    from int8cal.evaluation.result import Drop, LayerMetrics
    from int8cal.graph.signature import Signature
    from int8cal.job import Job

# Of the way from guessing (0) to always right (1). Real models fed right stand at 0.68 and more, the same ones without
# their preprocessing, or with labels of other classes, at 0.15 and less.
CHANCE = 0.2
# What the 95 % interval must exclude as well, so that few samples are not a verdict.
_ORDINARY = 0.5
# Samples of each label, in the mean, that other numbers of classes are told from; and so many of these are named.
_EACH, _NUMBERS = 4, 4
# Uncertainty of ranges, see `calibration.statistics.Widths`. At 0.1 sets stand that have 8 samples of photographs for a
# ResNet-20, 16 words, or 64 frames of speech; MobileNetV2's and a sentence encoder's ranges never differ as much.
UNCERTAIN = 0.1
# A share of samples, such as agreement or top-1, is as uncertain as that where all of them are alike and the 95 %
# interval (Clopper and Pearson) is (1 - UNCERTAIN, 1]; and of one point with the second number of samples.
FEWEST_JUDGED, OF_A_POINT = (math.ceil(math.log(0.025) / math.log(1 - width)) for width in (UNCERTAIN, 0.01))

# Values of evaluation samples outside the calibrated range. Fed right, real models have 0.11 % at most in the median
# over tensors and 0.44 % at the input, calibrated on four samples already; an attention layer of the tests with random
# weights and few samples 0.5 % in the median. Inputs three times as large have 16 to 67 % at the input (half as large
# again 34 % or, where residual codes give the input a wider range, none), and up to 0.5 % in the median, which is there
# for drifts that only tensors inside show.
MOST_OUTSIDE = 0.02
MOST_OUTSIDE_INPUT = 0.03
# Of the input's calibrated range: fed right all of it, with residual codes half; without the normalization 21 %, at a
# tenth of the size 5 to 10 %.
LEAST_USED = 0.25


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
    labels, refused = feeds.labels, feeds.no_classes
    if refused is not None:
        do = "give --labels none if they are none, or --labels folders to take them in the order of their names"
        return (Finding("class-count", refused.why, do),)
    return () if labels is None else label_findings(labels.values, labels.names, classes_of(signature), feeds.name)


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


def unlike_data(statistics: Statistics, where: str, feeds: Feeds) -> tuple[Finding, ...]:
    """Say in what statistics of a file are not those that the calibration samples would give.

    Args:
        statistics: Of which ranges are made.
        where: The file.
        feeds: The calibration samples.
    """
    found, given = [], noted(feeds)
    if statistics.shards:
        of = f"{told_missing(statistics.shards)}: ranges follow the other{'s' * (len(statistics.shards) > 1)} alone"
        found.append(Finding("shards", f"{where}: {of}", "merge the statistics of all shards"))
    told = "" if given is None or statistics.preprocess is None else differing(given, statistics.preprocess)
    if told:
        what = f"samples are preprocessed otherwise than those of {where}, whose ranges are taken: {told}"
        do = "declare what the statistics were made with, or leave --stats out"
        found.append(Finding("other-preprocess", what, do))
    return tuple(found)


def few_samples(samples: int, uncertainty: float | None, *, judged: bool = False) -> tuple[Finding, ...]:
    """Say that other samples would have given other ranges, or other figures.

    Args:
        samples: That were calibrated on.
        uncertainty: See `Statistics`.
        judged: Whether shares of them, such as agreement, judge the model as well.
    """
    few = few_judged(samples) if judged and samples > 1 else ()  # one is told as such
    if uncertainty is None or uncertainty < UNCERTAIN:
        return few
    ranges = (
        f"with {samples} samples ranges are uncertain by {100 * uncertainty:.0f} %, since single samples differ that "
        "much in theirs"
    )
    do = f"calibrate on more: {3 * samples} further ones would halve it"
    return (Finding("few-samples", "; ".join([ranges, *(each.text for each in few)]), do),)


def judged_apart(job: Job) -> bool:
    """Whether the samples that a model is judged on are others than those that are counted for its ranges."""
    return job.evaluation.data is not None or job.calibration.statistics is not None


def few_judged(samples: int, *, shares: bool = True) -> tuple[Finding, ...]:
    """Say that shares of so many samples decide little; `shares`: there are such figures."""
    if not (shares and 0 < samples < FEWEST_JUDGED):
        return ()
    low, _ = proportion_interval(samples, samples)
    return (
        Finding(
            "few-samples",
            f"a share of {samples} samples, such as agreement or top-1, is known to {100 * (1 - low):.0f} points at "
            "best (its 95 % interval where all are alike)",
            f"judge on more: {FEWEST_JUDGED} for {100 * UNCERTAIN:.0f} points, {OF_A_POINT} for one",
        ),
    )


def one_answer(samples: int, *, still: bool) -> tuple[Finding, ...]:
    """Say that the FP32 model gives the same outputs for all samples, if it does (`still`)."""
    if not still:
        return ()
    return (
        Finding(
            "one-answer",
            f"the FP32 model gives the same outputs for all {samples} samples: no figure tells how good the int8 model "
            "is on others",
            "check what the samples hold, and their preprocessing",
        ),
    )


def drift(layers: Sequence[LayerMetrics]) -> tuple[Finding, ...]:
    """Say that the evaluation's values do not lie where those of the calibration did.

    Args:
        layers: Compared on evaluation samples.
    """
    told = [layer for layer in layers if layer.outside is not None and layer.used is not None]
    if not told:
        return ()
    outside = statistics.median(_beyond(layer) for layer in told)
    inputs = [layer for layer in told if layer.op_type == "Input"]
    beyond = max(inputs, key=_beyond, default=None)
    # zeros alone use nothing of any range, not of one of zeros either
    within = min((layer for layer in inputs if layer.used), key=lambda layer: layer.used or 0.0, default=None)
    if beyond is not None and _beyond(beyond) > MOST_OUTSIDE_INPUT:
        what = f'{100 * _beyond(beyond):.1f} % of the values of input "{beyond.tensor}" lie outside its'
    elif outside > MOST_OUTSIDE:
        what = f"in half of the tensors {100 * outside:.1f} % of the values or more lie outside the"
    elif within is not None and (within.used or 0.0) < LEAST_USED:
        what = f'input "{within.tensor}" uses only {100 * (within.used or 0.0):.0f} % of its'
    else:
        return ()
    return (
        Finding(
            "drift",
            f"evaluation data are unlike calibration data: {what} calibrated range",
            "calibrate on data like those that the model will see, preprocessed alike",
        ),
    )


def _beyond(layer: LayerMetrics) -> float:
    """Return the share of values outside, less that of the calibration's own that its range cut off, where known."""
    return max((layer.outside or 0.0) - (layer.clipped or 0.0), 0.0)


def near_chance(
    drop: Drop | None, classes: int, answers: Mapping[tuple[int, int], int] | None = None
) -> tuple[Finding, ...]:
    """Say that the FP32 model hardly does better than guessing, or which classes it knows by other numbers.

    Args:
        drop: Top-1 accuracy; None without labels.
        classes: How many there are.
        answers: Label, and the class that the FP32 model gives -> samples.
    """
    if drop is None or drop.fp32 is None or not drop.samples or classes < 2:
        return ()
    guess = 1 / classes
    line, ordinary = (guess + share * (1 - guess) for share in (CHANCE, _ORDINARY))
    low, high = proportion_interval(round(drop.fp32 * drop.samples), drop.samples)
    renamed = _renumbered(answers or {})
    number = (
        "number the labels in the order of the classes that the model was trained with: --labels FILE, "
        "or numbers as the folders' names"
    )
    if drop.fp32 >= line or high >= ordinary:
        told = f"the FP32 model gives some labels another class for most of their samples{renamed}"
        return (Finding("class-order", told, number),) if renamed else ()
    look = "check the preprocessing (of images the order of colours too), the order of classes, and the labels"
    return (
        Finding(
            "chance",
            f"the FP32 model is right on {100 * drop.fp32:.1f} % of {drop.samples} samples (95 % interval "
            f"{100 * low:.1f} to {100 * high:.1f} %), guessing among {classes} classes on {100 * guess:.3g} %: a drop "
            f"from there says nothing{renamed}",
            number if renamed else look,
        ),
    )


def _renumbered(answers: Mapping[tuple[int, int], int]) -> str:
    """Say by which other numbers of classes the labels are what the model gives; "" where by none.

    Each label's most frequent answer has to be another one's, and surely be given for most samples: for those of the
    labels that would change their number, too.
    """
    best: dict[int, tuple[int, int]] = {}
    for (label, answer), count in sorted(answers.items()):
        best[label] = max(best.get(label, (0, 0)), (count, -answer))
    hits, samples = sum(count for count, _ in best.values()), sum(answers.values())
    given = [-answer for _, answer in best.values()]
    if samples < _EACH * len(best) or len(set(given)) < len(given) or len(given) < 2:
        return ""
    moved = {label for label, (_, answer) in best.items() if label != -answer}
    of_moved = sum(count for (label, _), count in answers.items() if label in moved)
    if not moved or proportion_interval(hits, samples)[0] < _ORDINARY:
        return ""
    if proportion_interval(sum(best[label][0] for label in moved), of_moved)[0] < _ORDINARY:
        return ""
    pairs = [f"label {label} is its class {-answer}" for label, (_, answer) in best.items() if label != -answer]
    more = ", ..." if len(pairs) > _NUMBERS else ""
    return f"; with other numbers it is right on {100 * hits / samples:.1f} %: {', '.join(pairs[:_NUMBERS])}{more}"
