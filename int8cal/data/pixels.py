"""Raw pixels behind a float input: what the declared preprocessing does to a pixel, and back from floats to pixels."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.data.images import plan_images
from int8cal.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array, Float64
    from int8cal.preprocess import Preprocess


# metadata_props of an int8 model that takes raw pixels: the Pixels of its input, as JSON
UINT8_INPUT_KEY = "int8cal.uint8_input"
# Pixels that a float feed may be away from a whole number; usual float32 preprocessing stays below 0.001
TOLERANCE = 0.01
_EPSILON = float(np.finfo(np.float32).eps)
# What a pixel is worth must leave room in float32 for weights times it, and for its inverse
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True)
class Pixels:
    """The meaning of a float image input: x = (pixel * scale - mean) / std per channel, for pixels 0..255.

    Attributes:
        input: Name of the model's input.
        axis: Axis of its channels; None for an input (N, H, W) without one.
        scale: Factor applied to pixel values.
        mean, std: One value per channel, in the model's channel order.
    """

    input: str
    axis: int | None
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def gain(self) -> Float64:
        """Float64 (C,), so that x = gain * pixel + offset."""
        return self.scale / np.array(self.std, np.float64)

    @property
    def offset(self) -> Float64:
        """See `gain`."""
        return -np.array(self.mean, np.float64) / np.array(self.std, np.float64)

    @property
    def computable(self) -> bool:
        """Whether weights and biases that these values go into stay within float32."""
        with np.errstate(all="ignore"):
            gain, offset = np.abs(self.gain), np.abs(self.offset)
        return bool(((gain >= _SMALLEST) & (gain <= _LARGEST) & (offset <= _LARGEST)).all())

    @property
    def tolerance(self) -> float:
        """Pixels that a feed may be away from a whole number: more where a large mean leaves float32 few digits."""
        largest = max(abs(value) for value in self.mean) / abs(self.scale) + 255
        return min(TOLERANCE + 4 * _EPSILON * largest, 0.25)

    def codes(self, values: Array, origin: str) -> npt.NDArray[np.uint8]:
        """Turn a float feed back into the pixels that it was made from.

        Args:
            values: The FP32 model's feed, any float type; the channels are on `axis`.
            origin: The sample, for messages.

        Returns:
            uint8, same shape.

        Raises:
            DataError: A value lies further than `tolerance` from every whole pixel 0..255, or the channels are not
                where they were.
        """
        shape = [1] * values.ndim
        if self.axis is not None:
            if values.ndim <= self.axis or values.shape[self.axis] != len(self.mean):
                raise DataError(
                    f"input {self.input!r} has shape {values.shape}, expected {len(self.mean)} channels on axis "
                    f"{self.axis}",
                    where=origin,
                    do="feed images of the shape that the FP32 model takes",
                )
            shape[self.axis] = -1
        # float32 as the preprocessing itself: twice as fast, and exact to some 1e-4 pixels
        slope = (1.0 / self.gain).astype(np.float32).reshape(shape)
        start = (-self.offset / self.gain).astype(np.float32).reshape(shape)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = values.astype(np.float32, copy=False) * slope + start
            codes = np.clip(np.rint(exact), 0, 255)
            wrong = ~(np.abs(exact - codes) <= self.tolerance)  # NaN is wrong too
        if wrong.any():
            place = int(np.argmax(wrong))
            raise DataError(
                f"input {self.input!r} holds {float(values.reshape(-1)[place]):.6g}, which stands for pixel "
                f"{float(exact.reshape(-1)[place]):.6g}, no whole number in 0..255",
                where=origin,
                do="declare how pixels became these values (--scale, --mean, --std; data.preprocess in a YAML), give "
                "images, or leave --uint8-input out",
                input=self.input,
                sample=origin,
            )
        result: npt.NDArray[np.uint8] = codes.astype(np.uint8)
        return result

    def checked(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, and stop at one that is not made of pixels (see `codes`)."""
        for sample in samples:
            self.codes(sample.feed[self.input], sample.origin)
            yield sample

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object; floats round-trip."""
        return {
            "input": self.input,
            "axis": self.axis,
            "scale": self.scale,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @staticmethod
    def from_dict(document: Any) -> Pixels:
        """Read what `to_dict` wrote; other keys are ignored.

        Raises:
            ValueError: It is no such object; the text says what is wrong.
        """
        if not isinstance(document, dict) or not isinstance(document.get("input"), str):
            raise ValueError('is not an object with an "input"')  # noqa: TRY004 - one class for all that is malformed
        axis = document.get("axis")
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool) or axis not in {1, 3}):
            raise ValueError(f'has "axis" {axis!r}, expected 1, 3 or null')
        mean, std = _numbers(document, "mean"), _numbers(document, "std")
        (scale,) = _numbers({"scale": [document.get("scale")]}, "scale")
        if len(mean) != len(std) or not mean or scale == 0 or 0 in std or (axis is None and len(mean) != 1):
            raise ValueError('expects one "mean" and one "std" per channel, and no 0 for "scale" or "std"')
        result = Pixels(document["input"], axis, scale, mean, std)
        if not result.computable:
            raise ValueError('has "scale", "mean" and "std" that float32 cannot compute with')
        return result


def pixels_of(signature: Signature, preprocess: Preprocess | None, where: str) -> Pixels:
    """Tell what the model's input is in pixels.

    Args:
        preprocess: As declared; None means pixel values as they are.

    Raises:
        ModelError: The model has not one float input of 1 or 3 channels.
        ConfigError: The preprocessing contradicts itself or the model's input.
    """
    try:
        plan = plan_images(signature, preprocess, where)
    except DataError as error:
        advice = error.do if "data.preprocess" in error.do else "leave --uint8-input out"
        raise ModelError(f"uint8_input needs a model with one image input: {error.what}", where=where, do=advice) from (
            error
        )
    if plan.spec.dtype != np.float32:
        raise ModelError(
            f'uint8_input needs a float32 input, "{plan.spec.name}" is {plan.spec.dtype.name}',
            where=where,
            do="leave --uint8-input out",
        )
    chosen = plan.preprocess
    channels = 1 if plan.color == "GRAY" else 3
    axis = {None: None, "NCHW": 1, "NHWC": 3}[plan.layout]
    pixels = Pixels(
        plan.spec.name,
        axis,
        float(chosen.scale),
        _per_channel(chosen.mean, 0.0, channels),
        _per_channel(chosen.std, 1.0, channels),
    )
    if not pixels.computable:
        raise ConfigError(
            f"uint8_input cannot fold scale {pixels.scale:.6g}, mean {pixels.mean} and std {pixels.std} within float32",
            where=where,
            do="check --scale, --mean and --std, or leave --uint8-input out",
        )
    return pixels


def _per_channel(values: tuple[float, ...], default: float, channels: int) -> tuple[float, ...]:
    given = tuple(float(value) for value in values) or (default,)
    return given * channels if len(given) == 1 else given


def _numbers(document: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = document.get(key)
    if not isinstance(values, list) or not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        for value in values
    ):
        raise ValueError(f'has "{key}" {str(values)[:40]}, expected finite numbers')
    return tuple(float(value) for value in values)
