"""Whether an int8 model has its FP32 model's inputs and outputs; its feeds: raw pixels where it asks for these."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.fit import shape_text
from int8cal.data.pixels import UINT8_INPUT_KEY, Pixels
from int8cal.data.sample import Sample
from int8cal.errors import ModelError
from int8cal.graph.signature import signature_of
from int8cal.phrases import quoted
from int8cal.protos import metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx

    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.runtime.batching import SampleLike

_OF_ONE_MODEL = "give the FP32 model that the int8 model was made from"


def pixels_of_model(int8: onnx.ModelProto) -> Pixels | None:
    """Read from a model's metadata what its raw pixels stand for; None where its inputs are the FP32 model's.

    Args:
        int8: A quantized model, made by any tool.

    Raises:
        ModelError: The metadata is malformed.
    """
    text = metadata_of(int8, UINT8_INPUT_KEY)
    if text is None:
        return None
    try:
        return Pixels.from_dict(json.loads(text))
    except ValueError as error:  # malformed JSON too
        raise ModelError(f'its metadata "{UINT8_INPUT_KEY}" {error}', do="quantize the model again") from error


def require_same_inputs(fp32: onnx.ModelProto, int8: onnx.ModelProto) -> None:
    """Refuse an int8 model with further inputs, or whose inputs differ without saying how they relate.

    Raises:
        ModelError: Names the inputs, and both types or shapes.
    """
    known, inputs = {spec.name: spec for spec in signature_of(fp32).inputs}, signature_of(int8).inputs
    extra = [spec.name for spec in inputs if spec.name not in known]
    if extra:
        raise ModelError(
            f"the int8 model has inputs {quoted(extra)}, the FP32 model has only {quoted(known)}", do=_OF_ONE_MODEL
        )
    pixels = pixels_of_model(int8)
    for spec in inputs:
        if pixels is not None and spec.name == pixels.input:
            if spec.dtype != np.uint8:
                raise ModelError(
                    f'its metadata "{UINT8_INPUT_KEY}" says that input {spec.name!r} takes raw pixels, its type is '
                    f"{spec.dtype.name}",
                    do="quantize the model again",
                )
        elif known[spec.name].dtype != spec.dtype:
            raise ModelError(
                f"input {spec.name!r} of the int8 model is {spec.dtype.name}, that of the FP32 model "
                f"{known[spec.name].dtype.name}",
                do="give an int8 model with the FP32 model's inputs, or one made with int8cal calibrate --uint8-input",
            )
        elif not _fits(known[spec.name], spec):
            raise ModelError(
                f"input {spec.name!r} of the int8 model has shape {shape_text(spec)}, that of the FP32 model "
                f"{shape_text(known[spec.name])}",
                do=_OF_ONE_MODEL,
            )


def _fits(first: TensorSpec, second: TensorSpec) -> bool:
    """Tell whether what feeds one input can feed the other: as many axes, of the same fixed sizes but for batches."""
    if first.shape is None or second.shape is None:
        return True
    sizes = zip(first.shape[1:], second.shape[1:], strict=False)
    same = all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    return same and len(first.shape) == len(second.shape)


def match_outputs(fp32: Signature, int8: Signature) -> tuple[tuple[str, str], ...]:
    """Pair the outputs of two models: by name when int8 has all of fp32's, else by position.

    Returns:
        (fp32 name, int8 name) in the order of the FP32 model.

    Raises:
        ModelError: The names differ and so do the counts, or one of a pair holds floats and the other none.
    """
    outputs = {spec.name: spec for spec in int8.outputs}
    if {spec.name for spec in fp32.outputs} <= outputs.keys():
        pairs = [(spec, outputs[spec.name]) for spec in fp32.outputs]
    elif len(fp32.outputs) == len(int8.outputs):
        pairs = list(zip(fp32.outputs, int8.outputs, strict=True))
    else:
        names = quoted(spec.name for spec in fp32.outputs)
        raise ModelError(f"the int8 model has outputs {quoted(outputs)}, the FP32 model {names}", do=_OF_ONE_MODEL)
    for first, second in pairs:
        if (first.dtype.kind == "f") != (second.dtype.kind == "f"):
            raise ModelError(
                f'output "{first.name}" is {first.dtype.name} in the FP32 model and {second.dtype.name} in the int8 '
                "model",
                do=_OF_ONE_MODEL,
            )
    return tuple((first.name, second.name) for first, second in pairs)


def feeds_for(int8: onnx.ModelProto, samples: Iterable[SampleLike]) -> Iterator[SampleLike]:
    """Turn the FP32 model's samples into the int8 model's: the same ones, or with raw pixels in place of floats.

    Args:
        int8: The model that will be fed; its metadata says what its input is.
        samples: Feeds of the FP32 model, streamed.

    Raises:
        DataError: A sample is not made of whole pixels 0..255.
        ModelError: See `pixels_of_model`.
    """
    pixels = pixels_of_model(int8)
    for sample in samples:
        if pixels is None or pixels.input not in sample.feed:
            yield sample
        else:
            codes = pixels.codes(sample.feed[pixels.input], sample.origin)
            yield Sample({**sample.feed, pixels.input: codes}, sample.origin)
