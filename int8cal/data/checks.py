"""What data alone tell of being wrong: labels that cannot be these classes, constant, repeated and grey samples.

A `Finding` is told first of all warnings, before the work where it is known then; with `strict` it is an error. Every
threshold stands beside what was measured for it; docs/explanation/data-checks.md lists them all.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from int8cal.data.sample import Fit, Sample
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.numerics import Array

Check = Literal[
    "no-preprocess",  # images into a float model, nothing declared
    "other-preprocess",  # not the preprocessing that the int8 model or the statistics were made with
    "shards",  # statistics of some parts of the data
    "mixed-rows",  # rows taken for samples that the model does not keep apart
    "input-range",  # values that overwhelm the first layer, or vanish in it
    "input-variant",  # fed another way, the FP32 model is clearly better
    "chance",  # FP32 accuracy near chance
    "class-order",  # some classes by the numbers of others
    "one-label",
    "class-count",  # class folders or names that are not as many as the classes
    "unknown-tokens",  # texts without a token that the tokenizer knows
    "constant",
    "duplicates",
    "redrawn",  # other samples from one reading of the same data to the next
    "overlap",  # samples that are in the calibration and in the evaluation data
    "all-padding",
    "cut",  # text or sound that is longer than its sample
    "grey",
    "one-sample",
    "few-samples",  # ranges that would differ with other samples
    "one-answer",
    "drift",  # evaluation values outside the calibrated ranges, or far inside
]

# Of the samples. Nine real sets of 48 to 1,000 samples (photographs, digits, speech, sentences) hold no constant one,
# and up to 2.2 % that repeat others (short words).
MOST_CONSTANT = 0.05
MOST_REPEATED = 0.1
# Texts and sounds that are cut: nobody judges what lies beyond. As many may be cut as may repeat others.
MOST_CUT = MOST_REPEATED
# Evaluation samples that were calibrated on: none in the same sets.
MOST_SHARED = 0.05
# Fewer samples of one class, or grey ones, may be chance.
FEWEST_ALIKE = 8
# Correlation of two channels, whatever their mean and scale. JPEG images in grey decode to equal channels (1 up to
# float32 rounding, 1e-7). Of 1,512 CIFAR images 10 are as grey as this, of 96 photographs one, so all of a set must be.
GREY = 0.99999
_PIXELS = 4096


class DataWarning(UserWarning):
    """A finding as the Python API tells it; reports and commands have places of their own for findings."""


@dataclass(frozen=True)
class Finding:
    """Something about data that makes figures untrustworthy.

    Attributes:
        check: Which one.
        text: What was found, one clause.
        do: What to do about it.
    """

    check: Check
    text: str
    do: str

    def __str__(self) -> str:
        return f"{self.text}; {self.do}"


def strict_error(findings: Sequence[Finding], *, written: bool = False) -> DataError:
    """Make the error that findings are with --strict.

    Args:
        findings: At least one.
        written: Whether all files were written before.
    """
    first, *more = findings
    others = f" (and {len(more)} more: {', '.join(each.check for each in more)})" if more else ""
    kept = "the results are kept; " if written else ""
    return DataError(
        f"{first.check}: {first.text}{others}",
        do=f"{kept}{first.do}, or leave --strict out",
        checks=tuple(each.check for each in findings),
    )


def classes_of(signature: Signature) -> int | None:
    """Tell how many classes a model scores, by the shape of its first float output; None where that does not say."""
    spec = next((each for each in signature.outputs if each.dtype.kind == "f"), None)
    if spec is None or not spec.shape:
        return None
    inner = spec.shape[1:] if signature.batch is not None else spec.shape
    sizes = [size for size in inner if size != 1]
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], int) else None


def label_findings(
    labels: Sequence[int] | None, names: Sequence[str], classes: int | None, where: str
) -> tuple[Finding, ...]:
    """Hold labels against the number of classes, before anything is run.

    Args:
        labels: One per sample; None without.
        names: Class names that were numbered by their sorted order; none where labels are numbers.
        classes: How many the model has; None where it does not say.
        where: The source, for messages.

    Raises:
        DataError: A label beyond the classes.
    """
    if not labels or classes is None:
        return ()
    found = []
    if names and len(names) != classes:
        missing = "a subset of the classes gets other numbers than the whole set" if len(names) < classes else ""
        many = missing or "the model may know fewer, or the folders hold something else"
        found.append(
            Finding(
                "class-count",
                f'{len(names)} classes by name ("{names[0]}" is 0, "{names[-1]}" is {len(names) - 1}), the model has '
                f"{classes}: {many}",
                "name folders or labels by the model's class index, add the missing classes as empty folders, or give "
                "--labels none to do without",
            )
        )
    elif max(labels) >= classes:
        raise DataError(
            f"label {max(labels)} is not a class: the model's output has {classes}, so labels are 0 to {classes - 1}",
            where=where,
            do="check the label file or the class folders, or give --labels none to do without",
            label=max(labels),
        )
    if len(labels) >= FEWEST_ALIKE and len(set(labels)) == 1:
        found.append(
            Finding(
                "one-label",
                f"all {len(labels)} samples have label {labels[0]}: accuracy on one class says little of a model of "
                f"{classes}",
                "give samples of all classes, or check the labels",
            )
        )
    return tuple(found)


@dataclass
class SampleWatch:
    """Looks at each sample of a pass, and says afterwards what is wrong with them as a set.

    Those of parts of the data add, whatever their order.

    Args:
        role: What messages call the set: "calibration" or "evaluation".
        signature: Of the FP32 model.
        first: Place of its first sample in the data.
    """

    role: str
    signature: Signature
    first: int = 0
    marks: array[int] = field(default_factory=lambda: array("Q"))
    constant: int = 0
    padded: int = 0
    colour: int = 0  # samples with three channels that differ
    fits: Counter[Fit] = field(default_factory=Counter)  # samples that were made to fit
    _examples: dict[Check, tuple[int, str]] = field(default_factory=dict)  # the first of its kind, and its place

    def __post_init__(self) -> None:
        self._images = [spec for spec in self.signature.inputs if _channel_axis(spec) is not None]
        # a mask of scores (4-D, or float) may well be 0 everywhere: that takes nothing away
        self._masks = [
            spec.name
            for spec in self.signature.inputs
            if "mask" in spec.name.lower() and spec.dtype.kind in "biu" and len(spec.shape or ()) == 2
        ]

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on."""
        for sample in samples:
            self.add(sample)
            yield sample

    def add(self, sample: Sample) -> None:
        """Look at one sample."""
        here = self.first + self.samples, sample.origin
        self.marks.append(sample.fingerprint & (1 << 64) - 1)
        if sample.fit is not None:
            self.fits[sample.fit] += 1
        large = [plane for name, value in sample.feed.items() for plane in self._planes(name, value) if plane.size > 1]
        if large and all(_is_constant(plane) for plane in large):
            self.constant += 1
            self._examples.setdefault("constant", here)
        if any(name in sample.feed and not sample.feed[name].any() for name in self._masks):
            self.padded += 1
            self._examples.setdefault("all-padding", here)
        if (
            self._images
            and not self.colour
            and not all(_is_grey(sample.feed[spec.name], spec) for spec in self._images)
        ):
            self.colour += 1

    def __add__(self, other: SampleWatch) -> SampleWatch:
        both = SampleWatch(self.role, self.signature, min(self.first, other.first), self.marks + other.marks)
        both.constant, both.padded = self.constant + other.constant, self.padded + other.padded
        both.colour, both.fits = self.colour + other.colour, self.fits + other.fits
        every = (*self._examples.items(), *other._examples.items())
        both._examples = {check: min(each for name, each in every if name == check) for check, _ in every}
        return both

    def _planes(self, name: str, values: Array) -> Iterable[Array]:
        """Return the channels of an image, whose mean and scale may differ, or any other input as it is."""
        axis = next((_channel_axis(spec) for spec in self._images if spec.name == name), None)
        return [values] if axis is None or values.ndim <= axis else np.moveaxis(values, axis, 0)

    @property
    def samples(self) -> int:
        """How many there were."""
        return len(self.marks)

    def findings(self) -> tuple[Finding, ...]:
        """Say what is wrong with the samples seen so far."""
        found = (self._all_padding(), self._constant(), self._repeated(), self._cut(), self._grey())
        return tuple(filter(None, found))

    def lines(self) -> tuple[str, ...]:
        """Say how many samples of text and sound were made to fit the model, and how."""
        words: dict[Fit, str] = {
            "cut": "are longer than a sample may be, and cut",
            "end": "are followed by an end of their sound that is no whole sample, and left out",
            "padded": "are filled up with zeros",
        }
        counts = ((self.fits[fit], text) for fit, text in words.items())
        return tuple(f"{count} of {self.samples} {self.role} samples {text}" for count, text in counts if count)

    def against(self, calibration: SampleWatch, *, same: bool) -> tuple[Finding, ...]:
        """Say what is wrong with evaluation samples, given those that were calibrated on; `same`: of the same data."""
        return self.redrawn(calibration) if same else (*self.overlap(calibration), *self.findings())

    def overlap(self, calibration: SampleWatch) -> tuple[Finding, ...]:
        """Say whether samples of this set were calibrated on."""
        shared = int(np.isin(_marks(self), _marks(calibration)).sum())
        if not self.samples or shared <= MOST_SHARED * self.samples:
            return ()
        return (
            Finding(
                "overlap",
                f"{shared} of {self.samples} evaluation samples are calibration samples too: figures on them are "
                "better than on new data",
                "evaluate on samples that were not calibrated on",
            ),
        )

    def redrawn(self, calibration: SampleWatch) -> tuple[Finding, ...]:
        """Say whether this pass over the data that were calibrated on gave other samples."""
        fresh = int((~np.isin(_marks(self), _marks(calibration))).sum())
        if self.samples != calibration.samples or not fresh:  # of statistics in a file none were read
            return ()
        return (
            Finding(
                "redrawn",
                f"{fresh} of {self.samples} evaluation samples are none of those that were calibrated on, though the "
                "data are the same: they give others each time that they are read",
                "let what makes them give the same ones each time, as with a seed of its own for what it draws",
            ),
        )

    def _all_padding(self) -> Finding | None:
        if not self.padded:
            return None
        return Finding(
            "all-padding",
            f"{self.padded} of {self.samples} {self.role} samples are padding only, the first is "
            f"{self._examples['all-padding'][1]}: their mask is 0 everywhere",
            "check how masks are made, or leave such samples out",
        )

    def _constant(self) -> Finding | None:
        if self.constant <= MOST_CONSTANT * self.samples:
            return None
        tokens = all(spec.dtype.kind in "biu" and len(spec.shape or ()) <= 2 for spec in self.signature.inputs)
        what, causes = (
            ("token", "another tokenizer") if tokens else ("value or colour", "blank images, silence, a scale of 0")
        )
        return Finding(
            "constant",
            f"{self.constant} of {self.samples} {self.role} samples hold one single {what}, the first is "
            f"{self._examples['constant'][1]}",
            f"check how samples are made ({causes}), or leave them out",
        )

    def _repeated(self) -> Finding | None:
        different = np.unique(_marks(self)).size
        repeated = self.samples - different
        # silence is alike, and told as constant
        if not self.samples or repeated - max(self.constant - 1, 0) <= MOST_REPEATED * self.samples:
            return None
        return Finding(
            "duplicates",
            f"{repeated} of {self.samples} {self.role} samples repeat others: {different} are different",
            "give more different samples",
        )

    def _cut(self) -> Finding | None:
        if self.fits["cut"] <= MOST_CUT * self.samples:
            return None
        return Finding(
            "cut",
            f"{self.fits['cut']} of {self.samples} {self.role} samples are longer than a sample may be, and cut: what "
            "lies beyond counts for nothing",
            "give --max-length (or audio.length) as in use, or split what is longer",
        )

    def _grey(self) -> Finding | None:
        # blank ones are told as constant
        if not self._images or self.colour or self.samples - self.constant < FEWEST_ALIKE:
            return None
        return Finding(
            "grey",
            f"all {self.samples} {self.role} images are grey, and the model takes three channels",
            "give colour images, if the model was trained on such",
        )


def _marks(watch: SampleWatch) -> Array:
    """View the fingerprints as an array: sets of millions of them would take ten times the memory."""
    return np.frombuffer(watch.marks, np.uint64)


def _channel_axis(spec: TensorSpec) -> int | None:
    """Find the axis of an image's three channels; None for other inputs."""
    shape = spec.shape
    if shape is None or len(shape) != 4 or spec.dtype.kind not in "fu" or (shape[1] == 3) == (shape[3] == 3):
        return None
    return 1 if shape[1] == 3 else 3


def _is_constant(values: Array) -> bool:
    first = values.reshape(-1)[:1]
    # most samples show it by one value in their middle
    return bool(values.reshape(-1)[values.size // 2] == first[0]) and bool((values == first).all())


def _is_grey(values: Array, spec: TensorSpec) -> bool:
    """Tell whether the three channels are the same up to mean and scale, as normalization may have changed these."""
    axis = _channel_axis(spec)
    if axis is None or values.ndim != 4 or values.shape[axis] != 3:
        return False
    channels = np.moveaxis(values, axis, 0).reshape(3, -1)
    step = max(channels.shape[1] // _PIXELS, 1)
    channels = channels[:, ::step].astype(np.float64)
    if not np.isfinite(channels).all():
        return False  # no image, and told as such by the pass over the samples
    channels -= channels.mean(axis=1, keepdims=True)
    power = np.sqrt(np.square(channels).sum(axis=1))
    if not power.all():
        return not power.any()  # one colour everywhere: grey as far as one can see
    products = (channels[0] @ channels[1], channels[1] @ channels[2])
    return bool(products[0] >= GREY * power[0] * power[1] and products[1] >= GREY * power[1] * power[2])
