"""Leaving padding out of samples: positions of a sequence at which a mask input is 0, which nobody reads.

What a model computes there is noise: it would widen ranges, and count in scores and figures. A sample is trimmed to the
positions that its mask keeps where the model itself shows, on the first padded sample, that its outputs at these are
the same without the others. Everything behind then sees samples of their own length. Where the length is fixed, or the
padding stands elsewhere, positions are left out of each tensor instead (see data.padding): again only where the
outputs at kept positions do not depend on the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from int8cal.data.padding import FIXED, How, Padding, Positions, Side, axes_of_positions, with_other_padding
from int8cal.errors import Int8calError
from int8cal.numerics import Array

if TYPE_CHECKING:
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.numerics import Bools

NamedArrays = Mapping[str, Array]
RunFeed = Callable[[NamedArrays], NamedArrays]
Way = tuple[tuple[str, int], ...]  # inputs and axes to trim along
# Power of the difference, of the outputs' power. Kernels for other shapes differ by 1e-12 or less; padding that a model
# reads makes 1e-4 and more.
_NOISE = 1e-8


@dataclass(frozen=True)
class Opened:
    """A model that can be run.

    Attributes:
        signature: Its inputs and outputs.
        run: Feed -> outputs.
        open_tensors: Opens what gives whatever else will be counted or compared too; None for outputs alone.
    """

    signature: Signature
    run: RunFeed
    open_tensors: Callable[[], RunFeed] | None = None


@dataclass(frozen=True, eq=False)
class _Verdict:
    """What becomes of padding: why it is not trimmed, what is trimmed along, or the axes of positions of tensors."""

    how: How
    why: str = ""
    way: Way = ()
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    digest: str = ""


class UndecidedError(Exception):
    """Padding that a `Trimmer` which opens no model meets for the first time.

    Attributes:
        place: Of the sample in the data, for whoever decides.
    """

    place: int = 0


class Trimmer:
    """Trims samples to the positions that their masks keep, or notes which positions these are.

    An input of shape (N, L) is a mask where it holds 0 and 1 alone and is called one. Under another name it is one if
    it decides whether outputs follow what stands at its zeros. Either way the outputs at its ones must not.

    Args:
        signature: Of the FP32 model.
        open_models: Opens what is run on the first padded sample: the FP32 model, and others that must take trimmed
            samples too, whatever their outputs; None to raise UndecidedError there, as one that is `sent` does.
    """

    def __init__(self, signature: Signature, open_models: Callable[[], Sequence[Opened]] | None) -> None:
        self._signature, self._open = signature, open_models
        masks = [spec for spec in signature.inputs if len(spec.shape or ()) == 2 and spec.dtype.kind in "biuf"]
        masks = [spec for spec in masks if _named(spec) or not isinstance((spec.shape or ())[1], int)]
        self._masks = sorted(masks, key=lambda spec: not _named(spec))
        self._verdicts: dict[tuple[str, Side], _Verdict] = {}

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample without its padding, or as it is where that must stay."""
        trimmed = sample
        for spec in self._masks:
            trimmed = self._without(trimmed, spec)
        return trimmed if trimmed.feed is sample.feed else replace(trimmed, mark=sample.fingerprint)

    def sent(self) -> Trimmer:
        """Return one for another process, which knows what was decided so far and decides nothing itself."""
        known = Trimmer(self._signature, None)
        known._verdicts |= self._verdicts
        return known

    def _without(self, sample: Sample, spec: TensorSpec) -> Sample:
        mask = sample.feed[spec.name]
        ones = _ones(mask)
        if ones is None:
            return sample
        kept, side = ones
        verdict = self._verdicts.get((spec.name, side))
        if verdict is None:
            verdict = self._verdicts[spec.name, side] = self._decide(sample, spec, kept, side)
        if verdict.how == "kept" and not _named(spec):
            return sample
        is_kept = mask.reshape(-1) == 1
        zeros = int((~is_kept).sum())
        padding = Padding(spec.name, side, verdict.how, verdict.why, 1, mask.size, zeros, verdict.digest)
        noted = replace(sample, padding=(*sample.padding, padding))
        if verdict.how == "trimmed":
            return replace(noted, feed=_cut(sample.feed, verdict.way, kept, mask.size))
        return replace(noted, positions=Positions(is_kept, verdict.axes)) if verdict.how == "masked" else noted

    def _decide(self, sample: Sample, spec: TensorSpec, kept: slice, side: Side) -> _Verdict:
        """Find out what becomes of padding: trimmed where that is sound, or else masked, or else kept."""
        if self._open is None:
            raise UndecidedError
        if not self._ways(sample, spec):
            return _Verdict("kept", "no other input has its length")
        try:
            models = self._open()
        except Int8calError:  # whoever runs it next says why
            return _Verdict("kept", "the model cannot be run")
        found = self._trimmed(models, sample, spec, kept, side)
        if not isinstance(found, str):
            return _Verdict("trimmed", way=found)
        if _named(spec) and sample.positions is None:
            is_kept = sample.feed[spec.name].reshape(-1) == 1
            for way in self._ways(sample, spec):
                axes = _masked(models[0], sample.feed, [place for place in way if place[0] != spec.name], is_kept)
                if axes is not None:
                    return _Verdict("masked", found, axes=axes, digest=_digest(axes))
        return _Verdict("kept", found)

    def _trimmed(
        self, models: Sequence[Opened], sample: Sample, spec: TensorSpec, kept: slice, side: Side
    ) -> Way | str:
        """Return what samples can be trimmed along, or why they cannot be."""
        size = self._signature.batch
        if isinstance(size, int) and size > 1:
            return f"the model takes {size} samples at once"
        if side == "inside":
            return "some lies between what is kept"
        ways = [way for way in self._ways(sample, spec) if not any(_fixed(each.signature, way) for each in models)]
        if not ways:
            return FIXED
        runs = [each.run for each in models]
        proven = (way for way in ways if _proven(runs[0], runs[1:], sample.feed, way, kept, spec))
        return next(proven, "the outputs are not the same without it")

    def _ways(self, sample: Sample, spec: TensorSpec) -> list[Way]:
        """List what may be positions: axes of the mask's own dimension, else the free ones of its length, else all."""
        dim, length = (spec.shape or ())[1], sample.feed[spec.name].size
        axes = [
            (each.name, axis, size)
            for each in self._signature.inputs
            for axis, size in enumerate(each.shape or ())
            if sample.feed[each.name].shape[axis] == length
        ]
        ways = [
            tuple((name, axis) for name, axis, size in axes if dim is not None and size == dim),
            tuple((name, axis) for name, axis, size in axes if axis and not isinstance(size, int)),
            tuple((name, axis) for name, axis, _ in axes if axis),
        ]
        return [way for way in dict.fromkeys(ways) if (spec.name, 1) in way and len(way) > 1]


def _fixed(signature: Signature, way: Way) -> bool:
    """Whether a model has a fixed size on one of these axes."""
    shapes = {spec.name: spec.shape or () for spec in signature.inputs}
    return any(isinstance(dim, int) for name, axis in way for dim in shapes.get(name, ())[axis : axis + 1])


def _named(spec: TensorSpec) -> bool:
    return "mask" in spec.name.lower()


def _ones(mask: Array) -> tuple[slice, Side] | None:
    """Return what a mask of one sample keeps, and where its zeros lie; None where it is no mask, or without zeros."""
    values = mask.reshape(-1)
    if mask.ndim != 2 or len(mask) != 1 or not ((values == 0) | (values == 1)).all():
        return None
    ones = np.flatnonzero(values)
    if len(ones) in (0, len(values)):
        return None
    first, last = int(ones[0]), int(ones[-1]) + 1
    if last - first != len(ones):
        return slice(first, last), "inside"
    return slice(first, last), "end" if first == 0 else "start" if last == len(values) else "both ends"


def _cut(feed: NamedArrays, way: Iterable[tuple[str, int]], kept: slice, length: int) -> dict[str, Array]:
    """Cut a feed's arrays along some axes, where these have the mask's length."""
    result = dict(feed)
    for name, axis in way:
        if result[name].shape[axis] == length:
            result[name] = np.ascontiguousarray(result[name][(slice(None),) * axis + (kept,)])
    return result


def _proven(
    strict: RunFeed, others: Sequence[RunFeed], feed: NamedArrays, way: Way, kept: slice, spec: TensorSpec
) -> bool:
    """Whether a sample's outputs are the same without padding, and its mask is what makes them so."""
    length = feed[spec.name].size
    trimmed = _cut(feed, way, kept, length)
    try:
        short = strict(trimmed)
        if not _same(_at(strict(feed), short, kept, length), short):
            return False
        for run in others:
            _at(run(feed), run(trimmed), kept, length)
        if _named(spec):
            return True
        read = {**feed, spec.name: np.ones_like(feed[spec.name])}
        other = _filled(read, [place for place in way if place[0] != spec.name], kept, length)
        return not _same(*(_at(strict(each), short, kept, length) for each in (read, other)))
    except (Int8calError, ValueError):  # a model that cannot take it, or outputs of other shapes
        return False


def _masked(
    model: Opened, feed: NamedArrays, way: Sequence[tuple[str, int]], is_kept: Bools
) -> dict[str, tuple[int, ...]] | None:
    """Find the axes of positions of a model's tensors; None where outputs elsewhere depend on padding."""
    try:
        run = model.run if model.open_tensors is None else model.open_tensors()
        values, others = run(feed), run(with_other_padding(feed, way, is_kept))
        axes = {name: axes_of_positions(value, others[name], is_kept) for name, value in values.items()}
    except Int8calError:
        return None
    outputs = [axes.get(spec.name, ()) for spec in model.signature.outputs]
    if None in outputs or not any(axes.values()):
        return None
    return {name: each for name, each in axes.items() if each}


def _digest(axes: Mapping[str, tuple[int, ...]]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(sorted(axes.items())).encode())


def _filled(feed: NamedArrays, way: Iterable[tuple[str, int]], kept: slice, length: int) -> dict[str, Array]:
    """Write what stands at the kept positions to the others as well."""
    result = dict(feed)
    order = kept.start + (np.arange(length) - kept.start) % (kept.stop - kept.start)
    for name, axis in way:
        result[name] = np.take(feed[name], order, axis)
    return result


def _at(outputs: NamedArrays, short: NamedArrays, kept: slice, length: int) -> dict[str, Array]:
    """Cut outputs to the kept positions, along the axes along which those of the trimmed sample are shorter.

    Raises:
        ValueError: They differ in more than that.
    """
    result = {}
    for name, value in outputs.items():
        shape = short[name].shape if name in short else ()
        axes = [
            axis for axis, size in enumerate(shape) if value.ndim == len(shape) and size != value.shape[axis] == length
        ]
        result[name] = _cut({name: value}, [(name, axis) for axis in axes], kept, length)[name]
        if name not in short or result[name].shape != shape:
            raise ValueError(name)
    return result


def _same(first: NamedArrays, second: NamedArrays) -> bool:
    """Whether outputs are the same, up to the rounding of other kernels."""
    for name, x in first.items():
        y = second[name]
        if x.dtype.kind != "f":
            if not np.array_equal(x, y):
                return False
            continue
        with np.errstate(invalid="ignore"):  # infinities make NaN, which is not the same
            wide = x.astype(np.float64)
            noise, signal = np.square(wide - y).sum(), np.square(wide).sum()
        if not noise <= _NOISE * signal:
            return False
    return True
