"""Feeds for an int8 model that takes raw pixels, made from the float feeds of its FP32 model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.pixels import UINT8_INPUT_KEY, Pixels
from int8cal.errors import ModelError
from int8cal.graph.signature import signature_of
from int8cal.protos import metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    import onnx

    from int8cal.runtime.batching import SampleLike


@dataclass(frozen=True, eq=False)
class PixelSample:
    """A sample whose image is raw pixels."""

    feed: dict[str, npt.NDArray[Any]]
    origin: str


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


def require_same_types(fp32: onnx.ModelProto, int8: onnx.ModelProto) -> None:
    """Refuse an int8 model whose input types differ from the FP32 model's without saying how they relate.

    Raises:
        ModelError: Names the input and both types.
    """
    pixels = pixels_of_model(int8)
    types = {spec.name: spec.dtype for spec in signature_of(fp32).inputs}
    for spec in signature_of(int8).inputs:
        if pixels is not None and spec.name == pixels.input:
            if spec.dtype != np.uint8:
                raise ModelError(
                    f'its metadata "{UINT8_INPUT_KEY}" says that input {spec.name!r} takes raw pixels, its type is '
                    f"{spec.dtype.name}",
                    do="quantize the model again",
                )
        elif types.get(spec.name, spec.dtype) != spec.dtype:
            raise ModelError(
                f"input {spec.name!r} of the int8 model is {spec.dtype.name}, that of the FP32 model "
                f"{types[spec.name].name}",
                do="give an int8 model with the FP32 model's inputs, or one made with int8cal calibrate --uint8-input",
            )


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
            yield PixelSample({**sample.feed, pixels.input: codes}, sample.origin)
