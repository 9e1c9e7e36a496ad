"""Which samples are the holdout, how good an int8 model is on it, and whether another one is surely better."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from int8cal.calibration.engines.local import RECORDED_BYTES
from int8cal.data.sample import fingerprint_of
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.recalled import Recalled
from int8cal.graph.load import model_digest
from int8cal.graph.taps import tapped_model
from int8cal.numerics.intervals import student_t95
from int8cal.numerics.metrics import sqnr_db
from int8cal.probe.noise import ReferenceOutputs, relative
from int8cal.probe.score_points import score_points, scored_int8, split_points, tensors_of
from int8cal.runtime.batching import batch_size, run_each
from int8cal.runtime.sessions import SIDE_BY_SIDE, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import Arrays, SampleLike
    from int8cal.search.recipes import Recipe

Float64 = npt.NDArray[np.float64]
S = TypeVar("S")

HELD_BYTES = 128_000_000  # of what the FP32 model gives; the holdout is cut to it
# Points with less noise than this share of the worst point's are left out of the mean over points: what is seen there,
# as behind a saturated Softmax, is chance.
LEAST_SEEN = 1e-3
ENOUGH_FIT = 80  # samples; to fit on more than these, at most a fifth of all are taken
SCORING_S, LEAST_SCORED = 0.25, 32  # estimated seconds of one score, and samples that it takes where that is short
_LEAST_SHOWN = 0.01  # dB, of two decimals
LEAST_FIT = 8  # samples; fewer are not worth fitting anything on


@dataclass(frozen=True, eq=False)
class Score:
    """What an int8 model does on the holdout.

    Attributes:
        noise: Squared errors, (samples, points); see probe.score_points.
        signal: Squared values of the FP32 model, likewise; over the points' weights.
        outputs: Of the int8 model by the fingerprint of what it was fed, where the points are its outputs; of the first
            samples, whose outputs take RECORDED_BYTES.
    """

    noise: Float64
    signal: Float64
    outputs: Mapping[int, Arrays] = field(default_factory=dict)

    @property
    def db(self) -> float:
        """Signal to noise in dB: the mean of noise over signal, so the worst point decides; -inf without signal."""
        return _db(self.noise.sum(axis=0), self.signal.sum(axis=0))

    def first(self, samples: int) -> Score:
        """Return the score on the first samples alone."""
        return self if samples >= len(self.noise) else Score(self.noise[:samples], self.signal[:samples])


@dataclass(frozen=True)
class Gain:
    """By how much one model scores better than another, with what samples drawn anew would change it by.

    Attributes:
        db: Difference of the scores, which the worst point decides.
        margin_db: From it down to its one-sided 90 % bound.
        mean_db, mean_margin_db: Likewise the mean of the differences where noise is seen; all these points count alike.
        none: Whether the noise is the same to the last bit, at every point of every sample.
    """

    db: float
    margin_db: float
    mean_db: float
    mean_margin_db: float
    none: bool = False

    @property
    def mean(self) -> tuple[float, float]:
        """The mean of the differences, and its margin."""
        return self.mean_db, self.mean_margin_db

    @property
    def sure(self) -> bool:
        """Whether it is outside the noise of the samples: one of the two surely rises, and the other does not fall."""
        least = min(self.db, self.mean_db)
        return least >= 0 and (self.db > self.margin_db or self.mean_db > self.mean_margin_db)

    @property
    def surely_worse(self) -> bool:
        """Whether one of the two falls, by more than the noise of the samples."""
        return self.db < -self.margin_db or self.mean_db < -self.mean_margin_db

    @property
    def told(self) -> str:
        """What it comes to in words: at the worst point, and in the mean where that is another figure."""
        if self.margin_db == math.inf:
            return "one validation sample cannot tell a gain from noise"
        worst, mean = (_difference(*each) for each in ((self.db, self.margin_db), self.mean))
        return worst if worst == mean else f"at the worst output {worst}; in the mean of all {mean}"


def _difference(db: float, margin: float) -> str:
    """Tell a difference of scores, and whether it is more than other samples may change it by, which is the margin."""
    if db == 0:
        return "no difference"
    size = f"of {abs(db):.2f} ± {margin:.2f} dB" if abs(db) >= _LEAST_SHOWN else f"below {_LEAST_SHOWN:g} dB"
    return f"a {'gain' if db > 0 else 'loss'} {size}, {'more' if abs(db) > margin else 'no more'} than chance"


class Scorer:
    """Scores int8 models of one FP32 model on the same samples.

    Args:
        fp32: The prepared model; run once, on the first call.
        signature: Its inputs.
        samples: The holdout, as the FP32 model takes it; as many are used as give HELD_BYTES.
        threads: Of the runtime; 0 for all CPUs.
        checkpoint: Remembers the scores of a run that is killed; None for nothing.
        outputs: Of the FP32 model, by the sample's fingerprint, as far as the pass over the data recorded them.
    """

    def __init__(
        self,
        fp32: onnx.ModelProto,
        signature: Signature,
        samples: Sequence[SampleLike],
        *,
        threads: int = 0,
        checkpoint: Checkpoint | None = None,
        outputs: Mapping[int, Arrays] | None = None,
    ) -> None:
        self.points = score_points(fp32)
        self._fp32, self._signature, self._samples, self._threads = fp32, signature, samples, threads
        self._reference: list[ReferenceOutputs] = []
        self._checkpoint, self._outputs = checkpoint, outputs or {}

    @property
    def able(self) -> bool:
        """Whether there is anything to score on."""
        return bool(self.points) and bool(self._samples)

    def __call__(self, int8: onnx.ModelProto, against: Score | None = None) -> Score:
        """Run an int8 model over the holdout.

        Args:
            int8: Built of the prepared model.
            against: The score that it has to beat: where it is surely worse on the first half, the second one, which
                would have to gain more than three of its standard errors, is not run. None to run all.

        Raises:
            DataError: A kernel failed on a sample.
        """
        if self._checkpoint is None:
            return self._score(int8, against)
        key = f"score/{self._identity}/{model_digest(int8)}{'' if against is None else '/first'}"
        known = self._checkpoint.recall(key)
        if known is not None:
            return Score(known["noise"], known["signal"])
        score = self._score(int8, against)
        self._checkpoint.note(key, noise=score.noise, signal=score.signal)
        return score

    @cached_property
    def _identity(self) -> str:
        """What scores depend on besides the int8 model: the graph, and the samples in their order."""
        digest = hashlib.sha256(model_digest(self._fp32).encode())
        for sample in self._samples:
            digest.update(fingerprint_of(sample.feed).to_bytes(16, "big"))
        return digest.hexdigest()[:32]

    def _score(self, int8: onnx.ModelProto, against: Score | None) -> Score:
        if not self._reference:
            self._take_reference()
        model, names = scored_int8(int8, self.points)
        session = Session(model, threads=self._threads, at_once=SIDE_BY_SIDE)
        feeds = feeds_for(int8, self._samples[: len(self._reference)])
        signal = np.array([exact.signal for exact in self._reference])
        noise = np.zeros((len(signal), len(self.points)))
        half = -(-len(signal) // 2)
        # a sample of a batch is not fed by itself
        whole = {value.name for value in int8.graph.output} == {*names.values()} and batch_size(self._signature) == 1
        recorded: dict[int, Arrays] = {}
        room = RECORDED_BYTES if whole else -1
        for some in (range(half), range(half, len(signal))):
            for row, (sample, outputs) in zip(
                some, run_each(session, self._signature, islice(feeds, len(some))), strict=True
            ):
                room -= sum(value.nbytes for value in outputs.values())
                if room >= 0:
                    recorded[fingerprint_of(sample.feed)] = outputs
                noise[row] = self._reference[row].noise({tensor: outputs[name] for tensor, name in names.items()})
            if against is not None and some.stop == half > 1:
                so_far = Score(noise, signal).first(half)
                if gain_of(against.first(half), so_far).surely_worse:
                    return so_far
        return Score(noise, signal, recorded)

    def _take_reference(self) -> None:
        tensors = tensors_of(self.points)

        def open_model() -> Session:
            return Session(tapped_model(self._fp32, tensors), threads=self._threads, at_once=SIDE_BY_SIDE)

        known = {mark: values for mark, values in self._outputs.items() if values.keys() >= set(tensors)}
        session = Recalled(open_model, known, SIDE_BY_SIDE, checked=0)
        held = 0
        for sample, outputs in run_each(session, self._signature, self._samples):
            if not self._reference:
                self.points = split_points(self.points, outputs)
            self._reference.append(ReferenceOutputs.of(self.points, outputs, sample))
            held += sum(value.nbytes for value in self._reference[-1].values)
            if held > HELD_BYTES:
                break


@dataclass(frozen=True)
class Holdout:
    """The kept samples.

    Attributes:
        signature: The model's inputs.
        fit: Samples to fit on; empty where there are too few to keep both apart.
        scorer: Scores an int8 model on `validation`; None where nothing can be scored, then no step is taken.
        validation: The samples that are scored on, which nothing is fitted on.
    """

    signature: Signature
    fit: Sequence[SampleLike]
    scorer: Scorer | None
    validation: Sequence[SampleLike] = ()

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
    scored = recipe.validation_samples
    if run_s > 0:
        scored = min(scored, max(int(SCORING_S / run_s), LEAST_SCORED))
    if recipe.fit_samples and len(samples) >= 2 * LEAST_FIT:
        fitted = min(recipe.fit_samples, max(min(ENOUGH_FIT, len(samples) // 2), len(samples) // 5))
        scored = min(scored, len(samples) - fitted)
        return tuple(samples[:scored]), tuple(samples[scored : scored + fitted])
    return tuple(samples[:scored]), tuple(samples[scored:])


def gain_of(before: Score, after: Score) -> Gain:
    """Compare two models on the same samples.

    Args:
        before, after: Of the same points and samples.

    Returns:
        How much better the second is. One sample gives no margin: both are infinite.

    Numerics: jackknife over samples, and Student's t. Both models see the same samples, so what makes a sample hard for
    both drops out.
    """
    signal = before.signal.sum(axis=0)
    totals = before.noise.sum(axis=0), after.noise.sum(axis=0)
    samples = len(before.noise)
    watched = _watched(before)
    gains = np.array(_gains(*totals, signal, watched))
    margins = np.full(2, math.inf)
    if samples > 1:
        # what is left when a sample is taken away from a sum may be below zero by a rounding
        left = (np.maximum(total - each.noise, 0.0) for total, each in zip(totals, (before, after), strict=True))
        rows = zip(*left, signal - before.signal, strict=True)
        without = np.array([_gains(first, second, rest, watched) for first, second, rest in rows])
        spread = np.square(without - without.mean(axis=0)).sum(axis=0)
        margins = student_t95(samples - 1, tail=0.10) * np.sqrt((samples - 1) / samples * spread)
    none = np.array_equal(before.noise, after.noise)
    return Gain(float(gains[0]), float(margins[0]), float(gains[1]), float(margins[1]), none)


def _watched(score: Score) -> npt.NDArray[np.bool_]:
    """Flag the points whose noise is more than chance, (points,)."""
    noise, signal = score.noise.sum(axis=0), score.signal.sum(axis=0)
    ratios = np.divide(noise, signal, out=np.zeros_like(signal), where=signal > 0)
    flags: npt.NDArray[np.bool_] = (ratios > 0) & (ratios >= LEAST_SEEN * ratios.max(initial=0.0))
    return flags


def _gains(before: Float64, after: Float64, signal: Float64, watched: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return what the score and the mean over points gain, from squared errors and values of the points."""
    noisy = watched & (before > 0) & (after > 0)
    mean = 10.0 * np.log10(before[noisy] / after[noisy]).mean() if noisy.any() else 0.0
    if not (signal > 0).any():
        return 0.0, 0.0
    return _db(after, signal) - _db(before, signal), float(mean)


def _db(noise: Float64, signal: Float64) -> float:
    """Return the dB of squared errors and values of the points, (points,); -inf where no point has a signal."""
    ratio = sqnr_db(float((signal > 0).any()), float(relative(noise, signal)))
    return -math.inf if ratio is None else ratio
