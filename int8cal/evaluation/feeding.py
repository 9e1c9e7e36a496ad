"""Whether images and texts reach the FP32 model as it expects them.

Text is told by its tokens, images by the model's first layer and by what it gets right.
Runs a few samples of models with one image input, before the work: 8 through the first layer, with labels up to 128
small or 16 large images through the model, and again with red and blue exchanged and with another mean and std than
those declared, or each variant where it is wrong on most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.checks import Finding
from int8cal.data.sample import Sample
from int8cal.data.text import inputs_of_text, plan_text, unknown_tokens
from int8cal.graph.index import Index, attribute
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import tapped_model
from int8cal.numerics.channels import along
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import onnx

    from int8cal.data.feeds import Feeds
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.numerics import Array, Bools, Float64, Int64
    from int8cal.preprocess import Preprocess, TextPreprocess


# How many times the first layer's outputs are its biases (or the deviation that its BatchNormalization expects): real
# models fed right have 1.1 to 3.1, raw pixels in place of normalized ones give 74 to 232, pixels divided by 255 once
# too often 0.00 to 0.01.
STRONGEST, WEAKEST = 30.0, 0.02
# A model without biases decides alike whatever the scale: a digit classifier that takes 0..255 decides alike on 92 % of
# digits divided by 255, models that need it on 10 to 27 %.
_ALIKE = 0.8
# Of the way from guessing to always right: above it, only red and blue are exchanged (real models lose 13 to 22 points
# by that) and another mean and std declared, and beyond the second nothing is tried. Fed right, real models stand at
# 0.68 and more.
_RIGHT, _BEYOND = 0.5, 0.95
# What a variant must gain, and how improbable that must be by chance (sign test, Bonferroni over the variants tried).
_GAIN = 0.08
_CERTAIN = 0.01
_PIXELS = 16.0  # values beyond it are no normalized ones, which end at 2.64
_FIRST_LAYER_SAMPLES = 8
_LONGEST = 8  # nodes from the input to the first convolution
_SMALL = 3 * 64 * 64
_MOST_SMALL, _MOST_LARGE = 128, 16
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


@dataclass(frozen=True)
class _Variant:
    """Another way to feed the same image.

    Attributes:
        text: Its name.
        do: What to do about it.
        change: Makes it of the values that are fed, and of ImageNet's mean and std.
        pixels: Whether it is made of pixel values (True) or scaled ones (False); None for either.
        centred: Whether it is made of values with a mean taken off (True) or on (False); None for either.
        color: Whether it takes three channels.
    """

    text: str
    do: str
    change: Callable[[Array, Array, Array], Array]
    pixels: bool | None = None
    centred: bool | None = None
    color: bool = False


_SCALED, _KEYS = "give --scale 1/255", "(data.preprocess in a YAML)"
_NORMALIZED = f"--mean {','.join(map(str, _MEAN))} --std {','.join(map(str, _STD))}"
_VARIANTS = (
    _Variant(
        "divided by 255",
        f"{_SCALED} {_KEYS}",
        lambda x, mean, std: x / 255,  # noqa: ARG005 - one signature for all
        pixels=True,
    ),
    _Variant(
        "times 255",
        "leave --scale out, or give 1",
        lambda x, mean, std: x * 255,  # noqa: ARG005
        pixels=False,
        centred=False,
    ),
    _Variant(
        "scaled to -1..1",
        f"give --scale 2/255 --mean 1 {_KEYS}",
        lambda x, mean, std: x / 127.5 - 1,  # noqa: ARG005
        pixels=True,
        centred=False,
    ),
    _Variant(
        "with red and blue exchanged",
        f"give the other of --color RGB and BGR {_KEYS}",
        lambda x, mean, std: x,  # noqa: ARG005 - exchanged by whoever knows the axis
        color=True,
    ),
    _Variant(
        "divided by 255, with ImageNet's mean and std",
        f"{_SCALED} {_NORMALIZED} {_KEYS}",
        lambda x, mean, std: (x / 255 - mean) / std,
        pixels=True,
        centred=False,
        color=True,
    ),
    _Variant(
        "with ImageNet's mean and std",
        f"give {_NORMALIZED} {_KEYS}",
        lambda x, mean, std: (x - mean) / std,
        pixels=False,
        centred=False,
        color=True,
    ),
    _Variant(
        "without ImageNet's mean and std",
        "remove mean and std",
        lambda x, mean, std: x * std + mean,
        pixels=False,
        centred=True,
        color=True,
    ),
)
_EXCHANGED = _VARIANTS[3]


def feeding_findings(model: onnx.ModelProto, feeds: Feeds, *, threads: int = 0) -> tuple[Finding, ...]:
    """Say that rows are no samples, that images overwhelm the first layer, or vanish in it, or that no token is known.

    Args:
        model: The FP32 model, prepared or not, weights loaded.
        feeds: Its samples; some are read.
        threads: Of the runtime; 0 for all CPUs.
    """
    return (*feeds.mixed, *_values(model, feeds, threads))


def _values(model: onnx.ModelProto, feeds: Feeds, threads: int) -> tuple[Finding, ...]:
    signature = signature_of(model)
    if feeds.preprocess is not None and feeds.preprocess.text is not None:
        return _unknown(feeds, signature, feeds.preprocess.text)
    spec = _image_input(signature)
    if spec is None:
        return ()
    if feeds.images and feeds.preprocess is None:
        return _unprepared(model, spec, feeds, threads)
    samples = feeds.spread(_FIRST_LAYER_SAMPLES)
    strength = _strength(model, samples, threads)
    if strength is None or WEAKEST <= strength <= STRONGEST:
        return ()
    high = max(float(np.abs(sample.feed[spec.name]).max()) for sample in samples)
    if strength > STRONGEST and high <= _PIXELS:
        return ()  # what is centred already may leave next to nothing to the biases that a BatchNormalization becomes
    factor = 1 / 255 if strength > STRONGEST else 255.0
    if _are_alike(model, spec, samples, factor, threads):
        return ()
    side = "overwhelm" if strength > STRONGEST else "vanish in"
    return (
        Finding(
            "input-range",
            f'values of input "{spec.name}" (up to {high:.4g}) {side} the first layer: its outputs are {strength:.2g} '
            "times what its biases expect",
            "check scale, mean and std, or how the arrays were made",
        ),
    )


def _unknown(feeds: Feeds, signature: Signature, text: TextPreprocess) -> tuple[Finding, ...]:
    """Say that some texts hold no token that the tokenizer knows."""
    inputs = inputs_of_text(signature, text)
    if "input_ids" not in inputs:
        return ()
    samples = feeds.spread(_FIRST_LAYER_SAMPLES)
    tokens = unknown_tokens(plan_text(inputs, text, feeds.name), samples)
    if not tokens:
        return ()
    ids = ", ".join(map(str, tokens))
    return (
        Finding(
            "unknown-tokens",
            f"every token of {len(samples)} texts of {feeds.name} is unknown (id {ids})",
            f"is {text.tokenizer} this model's tokenizer? Give --tokenizer the model's own",
        ),
    )


def _unprepared(model: onnx.ModelProto, spec: TensorSpec, feeds: Feeds, threads: int) -> tuple[Finding, ...]:
    """Say that images are fed as pixel values 0..255, unless the model evidently takes these."""
    samples = feeds.spread(_FIRST_LAYER_SAMPLES)
    strength = _strength(model, samples, threads)
    if strength is not None and strength <= STRONGEST:
        return ()
    if _are_alike(model, spec, samples, 1 / 255, threads):
        return ()
    measured = "" if strength is None else f", which make its first layer's outputs {strength:.2g} times its biases"
    return (
        Finding(
            "no-preprocess",
            f'images go into float input "{spec.name}" as pixel values 0..255{measured}; no preprocessing is declared',
            "declare scale, mean and std as the model was trained (--scale 1/255 ... or --preprocess NAME; in the YAML "
            "data.preprocess), or --scale 1 if it takes 0..255",
        ),
    )


def better_fed(model: onnx.ModelProto, feeds: Feeds, classes: int | None, *, threads: int = 0) -> tuple[Finding, ...]:
    """Say that the FP32 model is right far more often on the same images fed otherwise, and often enough to mean that.

    What the values show to have been done is no advice: neither a second division nor a second normalization.

    Args:
        model: The FP32 model, weights loaded.
        feeds: Its samples; nothing is run where they have no labels.
        classes: How many the model has; None where that is not known, and nothing is run.
        threads: Of the runtime; 0 for all CPUs.
    """
    spec = _image_input(signature_of(model))
    if spec is None or not feeds.labelled or not classes or classes < 2:
        return ()
    elements = math.prod(size for size in (spec.shape or ())[1:] if isinstance(size, int))
    samples = feeds.spread(_MOST_SMALL if elements <= _SMALL else _MOST_LARGE)
    labels = np.array([-1 if sample.label is None else sample.label for sample in samples])
    session, signature = Session(model, threads=threads, entries=QUIET), signature_of(model)
    given = _decisions(session, signature, samples)
    if given is None:
        return ()
    hits = given == labels
    right, beyond = (1 / classes + share * (1 - 1 / classes) for share in (_RIGHT, _BEYOND))
    if hits.mean() >= beyond:
        return ()
    likely = (_EXCHANGED,) if hits.mean() >= right else _possible(samples, spec)
    variants = (*likely, *_redone(feeds.preprocess, spec))
    best: tuple[int, _Variant, Bools] | None = None
    for variant in variants:
        changed = [_changed(sample, spec, variant) for sample in samples]
        found = _decisions(session, signature, [each for each in changed if each is not None])
        if found is None or len(found) != len(labels):
            continue
        better = found == labels
        if best is None or better.sum() > best[0]:
            best = int(better.sum()), variant, better
    if best is None:
        return ()
    _, variant, better = best
    gained, lost = int((better & ~hits).sum()), int((hits & ~better).sum())
    if better.mean() < right:  # wrong on most either way: the labels are others, or the model
        return ()
    if better.mean() - hits.mean() < _GAIN or _sign_test(gained, lost) * len(variants) > _CERTAIN:
        return ()
    return (
        Finding(
            "input-variant",
            f"the FP32 model is right on {hits.sum()} of {len(labels)} images as they are fed, and on {better.sum()} "
            f"of the same images {variant.text}",
            _advice(variant, images=feeds.images),
        ),
    )


def _advice(variant: _Variant, *, images: bool) -> str:
    """Say how to feed images so; options prepare image files alone, and a better variant need not be the right one."""
    return f"{variant.do if images else 'arrays are fed as they are: make them so'}, if it was trained so"


def _possible(samples: Sequence[Sample], spec: TensorSpec) -> tuple[_Variant, ...]:
    """Return the variants that undo or add what the values do not show to have been done."""
    values = [sample.feed[spec.name] for sample in samples]
    pixels = max(float(np.abs(each).max()) for each in values) > _PIXELS
    centred = min(float(each.min()) for each in values) < 0
    return tuple(each for each in _VARIANTS if each.pixels in (None, pixels) and each.centred in (None, centred))


def _redone(preprocess: Preprocess | None, spec: TensorSpec) -> tuple[_Variant, ...]:
    """Return the usual mean and std in place of those declared, made of the pixels that the values come from."""
    if preprocess is None or (preprocess.mean is None and preprocess.std is None):
        return ()
    axis, _ = _channels(spec)
    declared = (preprocess.scale or 1.0, preprocess.mean or (0.0,), preprocess.std or (1.0,))
    scale, own_mean, own_std = (np.array(each, np.float32).reshape(along(axis, 4)) for each in declared)

    def share(x: Array) -> Array:
        return (x * own_std + own_mean) / (255 * scale)

    return (
        _Variant(
            "with ImageNet's mean and std in place of those declared",
            f"{_SCALED} {_NORMALIZED} {_KEYS}",
            lambda x, mean, std: (share(x) - mean) / std,
            color=True,
        ),
        _Variant(
            "scaled to -1..1 in place of the mean and std declared",
            f"{_SCALED} --mean 0.5 --std 0.5 {_KEYS}",
            lambda x, mean, std: share(x) * 2 - 1,  # noqa: ARG005 - one signature for all
        ),
    )


def _sign_test(gained: int, lost: int) -> float:
    """Return how probable so many more wins than losses are by chance, one-sided (exact binomial)."""
    count = gained + lost
    return float(sum(math.comb(count, wins) for wins in range(gained, count + 1)) / 2**count)


def _image_input(signature: Signature) -> TensorSpec | None:
    """Find the one float image input: four axes, one or three channels."""
    if len(signature.inputs) != 1:
        return None
    (spec,) = signature.inputs
    shape = spec.shape
    if spec.dtype != np.float32 or shape is None or len(shape) != 4:
        return None
    return spec if shape[1] in (1, 3) or shape[3] in (1, 3) else None


def _channels(spec: TensorSpec) -> tuple[int, int]:
    """Return the axis of the channels, and how many there are."""
    shape = spec.shape or ()
    axis = 1 if shape[1] in (1, 3) else 3
    count = shape[axis]
    return axis, count if isinstance(count, int) else 0


def _changed(sample: Sample, spec: TensorSpec, variant: _Variant) -> Sample | None:
    """Feed a sample otherwise; None where the variant is one of colours and the model takes grey."""
    axis, count = _channels(spec)
    if variant.color and count != 3:
        return None
    x = sample.feed[spec.name]
    shape = along(axis, x.ndim)
    mean, std = (np.array(values if count == 3 else values[:1], np.float32).reshape(shape) for values in (_MEAN, _STD))
    changed = np.flip(x, axis) if variant is _EXCHANGED else variant.change(x, mean, std)
    return Sample({**sample.feed, spec.name: np.ascontiguousarray(changed, np.float32)}, sample.origin, sample.label)


def _decisions(session: Session, signature: Signature, samples: Sequence[Sample]) -> Int64 | None:
    """Return the largest class of each sample; None where the first float output holds no class scores."""
    found = []
    for each in _decided(session, signature, samples):
        if each is None:
            return None
        found.append(each)
    return np.array(found, np.int64) if found else None


def _decided(session: Session, signature: Signature, samples: Iterable[Sample]) -> Iterator[int | None]:
    for _, outputs in run_each(session, signature, samples):
        scores = next((value for value in outputs.values() if value.dtype.kind == "f"), None)
        yield None if scores is None or np.squeeze(scores).ndim != 1 else int(np.squeeze(scores).argmax())


def _are_alike(
    model: onnx.ModelProto, spec: TensorSpec, samples: Sequence[Sample], factor: float, threads: int
) -> bool:
    """Say whether the model decides alike on more than ALIKE of samples that are multiplied; not without class scores.

    No more of them are run than tell.
    """
    session, signature = Session(model, threads=threads), signature_of(model)
    scaled = (Sample({spec.name: sample.feed[spec.name] * np.float32(factor)}, sample.origin) for sample in samples)
    differ = 0
    for first, second in zip(*(_decided(session, signature, each) for each in (samples, scaled)), strict=True):
        differ += first is None or first != second
        if len(samples) - differ <= _ALIKE * len(samples):
            return False
    return True


def _strength(model: onnx.ModelProto, samples: Sequence[Sample], threads: int) -> float | None:
    """Return how many times the first layer's outputs are what the layer expects; None where nothing says what."""
    expected = _first_layer(Index(model))
    if expected is None or not samples:
        return None
    name = expected.tensor
    if name in samples[0].feed:
        seen = [sample.feed[name] for sample in samples]
    else:
        session = Session(tapped_model(model, [name]), threads=threads)
        seen = [outputs[name] for _, outputs in run_each(session, signature_of(model), samples, [name])]
    values = [np.moveaxis(each, 1, 0) for each in seen]
    x = np.concatenate([each.reshape(each.shape[0], -1) for each in values], axis=1).astype(np.float64)
    if expected.deviation is not None:
        return float(np.median(np.sqrt(np.square(x - expected.center[:, None]).mean(axis=1)) / expected.deviation))
    typical = float(np.abs(expected.center).mean())
    return float(np.median(x.std(axis=1))) / typical if typical > 0 else None


@dataclass(frozen=True)
class _Expected:
    """What a model's first layer gives for data like those of its training.

    Attributes:
        tensor: Its output; what a BatchNormalization in front of it reads.
        center: Biases, float64 (C,); or the running mean of a BatchNormalization beside it.
        deviation: What that one has seen, float64 (C,); None for biases.
    """

    tensor: str
    center: Float64
    deviation: Float64 | None = None


def _first_layer(index: Index) -> _Expected | None:
    """Follow the input to the first convolution, and read its biases or a BatchNormalization up to behind it."""
    (name,) = index.inputs
    for _ in range(_LONGEST):
        reader = index.only_reader(name)
        if reader is None:
            return None
        normalized = _normalized(index, reader)
        if normalized is not None:
            return normalized
        name = reader.output[0]
        if reader.op_type == "Conv":
            break
    else:
        return None
    behind = index.only_reader(name)
    normalized = None if behind is None else _normalized(index, behind)
    if normalized is not None:
        return normalized
    bias = _constant(index, reader.input[2]) if len(reader.input) > 2 else None
    return None if bias is None else _Expected(name, bias)


def _normalized(index: Index, node: onnx.NodeProto) -> _Expected | None:
    """Return what a BatchNormalization has seen; None for any other node."""
    if node.op_type != "BatchNormalization":
        return None
    mean, variance = (_constant(index, each) for each in node.input[3:5])
    if mean is None or variance is None:
        return None
    return _Expected(node.input[0], mean, np.sqrt(variance + attribute(node, "epsilon", 1e-5)))


def _constant(index: Index, name: str) -> Float64 | None:
    return index.constant(name).astype(np.float64).reshape(-1) if index.is_constant(name) else None
