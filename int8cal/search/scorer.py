"""Which samples are the holdout, how good an int8 model is on it, and whether another one is surely better."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from int8cal.calibration.engines.local import RECORDED_BYTES
from int8cal.data.sample import fingerprint_of
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.recalled import Recalled
from int8cal.graph.load import model_digest
from int8cal.graph.taps import tapped_model
from int8cal.numerics.intervals import student_t95
from int8cal.numerics.metrics import sqnr_db
from int8cal.probe.noise import ReferenceOutputs, relative
from int8cal.probe.score_points import ScorePoint, score_points, scored_int8, split_points, tensors_of
from int8cal.runtime.batching import batch_size, run_each
from int8cal.runtime.sessions import SIDE_BY_SIDE, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Bools, Float64
    from int8cal.runtime.batching import Arrays, SampleLike
    from int8cal.search.recipes import Recipe

S = TypeVar("S")

HELD_BYTES = 128_000_000  # of what the FP32 model gives; the holdout is cut to it
# Points with less noise than this share of the worst point's are left out of the mean over points: what is seen there,
# as behind a saturated Softmax, is chance.
LEAST_SEEN = 1e-3
ENOUGH_FIT = 80  # samples; to fit on more than these, at most a fifth of all are taken
MOST_FIT = 256  # samples, where scoring leaves so many
SCORING_S, LEAST_SCORED = 0.25, 32  # estimated seconds of one score, and samples that it takes where that is short
# Models are compared on half of the samples first; where a score takes long on a quarter, if that is LEAST_QUARTER. By
# margins twice as wide as on all samples a difference is clear: one model of 75 is taken for a better one by chance.
LEAST_QUARTER, CLEAR = 8, 2.0
TRIFLE_DB = 0.05  # no further sample is run to tell whether that much is gained
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

    def __add__(self, more: Score) -> Score:
        """Return the score with that of further samples."""
        if not len(self.noise):
            return more
        noise, signal = (np.concatenate(pair) for pair in ((self.noise, more.noise), (self.signal, more.signal)))
        return Score(noise, signal, {**self.outputs, **more.outputs})


@dataclass(frozen=True)
class Gain:
    """By how much one model scores better than another, with what samples drawn anew would change it by.

    Attributes:
        db: Difference of the scores, which the worst point decides.
        margin_db: From it down to its one-sided 90 % bound.
        mean_db, mean_margin_db: Likewise the mean of the differences where noise is seen; all these points count alike.
        none: Whether the noise is the same to the last bit, at every point of every sample.
        weakest_db: The difference at the point where it is least, less CLEAR times its margin.
    """

    db: float
    margin_db: float
    mean_db: float
    mean_margin_db: float
    none: bool = False
    weakest_db: float = -math.inf

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
    def most_db(self) -> float:
        """What it clearly does not exceed."""
        return self.db + CLEAR * self.margin_db

    def decided(self, least_db: float = 0.0) -> bool:
        """Whether more samples would hardly change the verdict: with margins CLEAR times as wide it is the same.

        What is better has to be so at every point: a few samples decide the noise of one that is nearly saturated. That
        no more than TRIFLE_DB can be gained is a verdict too.

        Args:
            least_db: By how much more than that the score has to rise; below zero for what it may fall by.
        """
        low, high = self.db - CLEAR * self.margin_db, self.most_db
        mean_high = self.mean_db + CLEAR * self.mean_margin_db
        better = low > least_db and self.weakest_db > min(least_db, 0.0)
        worse = high < least_db or (least_db >= 0 and mean_high < 0)
        return better or worse or (least_db >= 0 and max(high, mean_high) < TRIFLE_DB)

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
        run_s: Estimated time of one inference.
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
        run_s: float = 0.0,
        checkpoint: Checkpoint | None = None,
        outputs: Mapping[int, Arrays] | None = None,
    ) -> None:
        self.points = score_points(fp32)
        self._fp32, self._signature, self._samples, self._threads = fp32, signature, samples, threads
        self._run_s, self._checkpoint, self._outputs = run_s, checkpoint, outputs or {}

    @property
    def able(self) -> bool:
        """Whether there is anything to score on."""
        return bool(self.points) and bool(self._samples)

    @property
    def samples(self) -> int:
        """On how many samples of the holdout a whole score is."""
        return len(self._exact)

    def told(self, score: Score) -> str:
        """Say in words what samples a score is of."""
        rows = len(score.noise)
        return "the validation samples" if rows == self.samples else f"the first {rows} validation samples"

    def __call__(self, int8: onnx.ModelProto, known: Score | None = None) -> Score:
        """Run an int8 model over the holdout.

        Args:
            int8: Built of the prepared model.
            known: Its score on the first samples, which are not run again.

        Raises:
            DataError: A kernel failed on a sample.
        """
        return self._up_to(self.samples, known, _Opened(int8))

    def compare(
        self, before: onnx.ModelProto, known: Score | None, after: onnx.ModelProto, least_db: float = 0.0
    ) -> tuple[Score, Score]:
        """Run two int8 models over as much of the holdout as tells which is better: a quarter, half, or all of it.

        Args:
            before, after: Built of the prepared model.
            known: What is known of the score of `before`; these samples are not run again.
            least_db: By how much more than that `after` has to be better.

        Returns:
            The score of `before`, on as many samples as that of `after`, or more where they were known.

        Raises:
            DataError: A kernel failed on a sample.
        """
        first, second = known, None
        opened = _Opened(after)
        long, batch = self.samples * self._run_s > SCORING_S, batch_size(self._signature)
        for count in _looks(self.samples, long=long, batch=batch):
            if first is None or len(first.noise) < count:
                opened.close()  # large models are not held twice
                # where few samples are run, opening takes longer: what is in force is needed again, and is opened once
                first = self._up_to(count if long else self.samples, first, _Opened(before))
            second = self._up_to(count, second, opened)
            if gain_of(first.first(count), second).decided(least_db):
                break
        return first or self._nothing, second or self._nothing

    @cached_property
    def _identity(self) -> str:
        """What scores depend on besides the int8 model: the graph, and the samples in their order."""
        digest = hashlib.sha256(model_digest(self._fp32).encode())
        for sample in self._samples:
            digest.update(fingerprint_of(sample.feed).to_bytes(16, "big"))
        return digest.hexdigest()[:32]

    @property
    def _nothing(self) -> Score:
        empty = np.zeros((0, len(self.points)))
        return Score(empty, empty)

    def _up_to(self, count: int, known: Score | None, int8: _Opened) -> Score:
        """Return the score on the first samples: what is known of it, and the rest, recalled or run."""
        score = known or self._nothing
        rows = range(len(score.noise), count)
        return score + self._recalled(int8, rows) if rows else score

    def _recalled(self, int8: _Opened, rows: range) -> Score:
        """Return the score on some samples, run, or recalled from before the run was killed."""
        if self._checkpoint is None:
            return self._score(int8, rows)
        key = f"score/{self._identity}/{int8.digest}/{rows.start}-{rows.stop}"
        noted = self._checkpoint.recall(key)
        if noted is not None:
            return Score(noted["noise"], noted["signal"])
        score = self._score(int8, rows)
        self._checkpoint.note(key, noise=score.noise, signal=score.signal)
        return score

    def _score(self, int8: _Opened, rows: range) -> Score:
        session, names = int8.run(self.points, self._threads)
        signal = np.array([self._exact[row].signal for row in rows])
        noise = np.zeros(signal.shape)
        # a sample of a batch is not fed by itself
        whole = {value.name for value in int8.model.graph.output} == {*names.values()}
        recorded: dict[int, Arrays] = {}
        room = RECORDED_BYTES // self.samples * len(rows) if whole and batch_size(self._signature) == 1 else -1
        feeds = feeds_for(int8.model, self._samples[rows.start : rows.stop])
        for number, (sample, outputs) in enumerate(run_each(session, self._signature, feeds)):
            room -= sum(value.nbytes for value in outputs.values())
            if room >= 0:
                recorded[fingerprint_of(sample.feed)] = outputs
            exact = self._exact[rows[number]]
            noise[number] = exact.noise({tensor: outputs[name] for tensor, name in names.items()})
        return Score(noise, signal, recorded)

    @cached_property
    def _exact(self) -> Sequence[ReferenceOutputs]:
        """What the FP32 model gives, of as many samples as are scored on; the points are split by the first one."""
        tensors = tensors_of(self.points)

        def open_model() -> Session:
            return Session(tapped_model(self._fp32, tensors), threads=self._threads, at_once=SIDE_BY_SIDE)

        known = {mark: values for mark, values in self._outputs.items() if values.keys() >= set(tensors)}
        session = Recalled(open_model, known, SIDE_BY_SIDE, checked=0)
        found: list[ReferenceOutputs] = []
        held = 0
        for sample, outputs in run_each(session, self._signature, self._samples):
            if not found:
                self.points = split_points(self.points, outputs)
            found.append(ReferenceOutputs.of(self.points, outputs, sample))
            held += sum(value.nbytes for value in found[-1].values)
            if held > HELD_BYTES:
                break
        return found


class _Opened:
    """An int8 model that is scored, opened when it is first run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._opened: tuple[Session, dict[str, str]] | None = None

    @cached_property
    def digest(self) -> str:
        return model_digest(self.model)

    def run(self, points: Sequence[ScorePoint], threads: int) -> tuple[Session, dict[str, str]]:
        """Return a session that gives the tensors of the points, and their names there."""
        if self._opened is None:
            model, names = scored_int8(self.model, points)
            self._opened = Session(model, threads=threads, at_once=SIDE_BY_SIDE), names
        return self._opened

    def close(self) -> None:
        self._opened = None


def _looks(samples: int, *, long: bool, batch: int = 1) -> tuple[int, ...]:
    """Return after how many samples two models are compared: whole batches, where these are fixed."""
    quarter, half = (-(-samples // (parts * batch)) * batch for parts in (4, 2))
    looks = ([quarter] if long and quarter >= LEAST_QUARTER else []) + ([half] if half > 1 else [])
    return (*(each for each in dict.fromkeys(looks) if each < samples), samples)


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
    fit: Sequence[Sample]
    scorer: Scorer | None
    validation: Sequence[Sample] = ()

    @property
    def can_fit(self) -> bool:
        """Whether there are enough samples to fit something on, and others to score it."""
        return self.scorer is not None and len(self.fit) >= LEAST_FIT


def split_samples(samples: Sequence[S], recipe: Recipe, run_s: float = 0.0) -> tuple[tuple[S, ...], tuple[S, ...]]:
    """Split kept samples into those to score on and those to fit on.

    The recipe's numbers; with fewer samples about half each, but no more than ENOUGH_FIT or a fifth to fit on; and with
    so few that nothing can be fitted, all are there to score on. A score of a few samples is a poor one, and by a poor
    one a recipe that fits more ends below one that fits less. So there are as many to score on as run in SCORING_S, and
    what these leave is there to fit on.

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
        fitted = max(fitted, min(MOST_FIT, len(samples) - scored))
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
    margins = np.full(3, math.inf)
    if samples > 1:
        # what is left when a sample is taken away from a sum may be below zero by a rounding
        left = (np.maximum(total - each.noise, 0.0) for total, each in zip(totals, (before, after), strict=True))
        rows = zip(*left, signal - before.signal, strict=True)
        without = np.array([_gains(first, second, rest, watched) for first, second, rest in rows])
        spread = np.square(without - without.mean(axis=0)).sum(axis=0)
        margins = student_t95(samples - 1, tail=0.10) * np.sqrt((samples - 1) / samples * spread)
    none = np.array_equal(before.noise, after.noise)
    (worst, mean, least), (margin, mean_margin, least_margin) = gains.tolist(), margins.tolist()
    return Gain(worst, margin, mean, mean_margin, none, least - CLEAR * least_margin)


def _watched(score: Score) -> Bools:
    """Flag the points whose noise is more than chance, (points,)."""
    noise, signal = score.noise.sum(axis=0), score.signal.sum(axis=0)
    ratios = np.divide(noise, signal, out=np.zeros_like(signal), where=signal > 0)
    flags: Bools = (ratios > 0) & (ratios >= LEAST_SEEN * ratios.max(initial=0.0))
    return flags


def _gains(before: Float64, after: Float64, signal: Float64, watched: Bools) -> tuple[float, float, float]:
    """Return what the score, the mean over points and the least of them gain, from the points' squares."""
    noisy = watched & (before > 0) & (after > 0)
    each = 10.0 * np.log10(before[noisy] / after[noisy]) if noisy.any() else np.zeros(1)
    if not (signal > 0).any():
        return 0.0, 0.0, 0.0
    return _db(after, signal) - _db(before, signal), float(each.mean()), float(each.min())


def _db(noise: Float64, signal: Float64) -> float:
    """Return the dB of squared errors and values of the points, (points,); -inf where no point has a signal."""
    ratio = sqnr_db(float((signal > 0).any()), float(relative(noise, signal)))
    return -math.inf if ratio is None else ratio
