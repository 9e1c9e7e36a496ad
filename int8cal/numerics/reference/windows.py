"""Windows that slide over N-d tensors, and the patches they cut out (im2col)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.reference.dot import Byte, check_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A window over N spatial axes; each field but `pads` has N entries.

    Attributes:
        kernel: Taps per axis.
        strides: Steps of the window.
        dilations: Distance of neighbouring taps.
        pads: 2N: what is added before each axis, then what is added behind each (ONNX's order).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
    ) -> Window:
        """Fill in ONNX's defaults: strides and dilations 1, pads 0.

        Raises:
            ModelError: the lists have lengths that do not fit, or values that mean nothing.
        """
        ones = (1,) * len(kernel)
        window = cls(
            tuple(kernel),
            tuple(strides or ones),
            tuple(dilations or ones),
            tuple(pads) if pads else (0,) * (2 * len(kernel)),
        )
        if not len(window.kernel) == len(window.strides) == len(window.dilations) == len(window.pads) / 2:
            raise ModelError(f"the lists of {window} differ in length", do="one entry per spatial axis, two in pads")
        if min((*window.kernel, *window.strides, *window.dilations), default=1) < 1 or min(window.pads, default=0) < 0:
            raise ModelError(f"{window} has a size below 1 or a pad below 0", do="check the node's attributes")
        return window

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def before(self) -> tuple[int, ...]:
        """Return what is added before each axis."""
        return self.pads[: self.rank]

    def behind(self) -> tuple[int, ...]:
        """Return what is added behind each axis."""
        return self.pads[self.rank :]

    def outputs(self, sizes: Sequence[int], *, ceil: bool = False) -> tuple[int, ...]:
        """Return how many positions the window takes on each axis.

        Args:
            sizes: Spatial sizes of the input.
            ceil: A last window that begins inside the input or the pad before it counts though it ends outside.

        Raises:
            ModelError: the window does not fit.
        """
        found = []
        for axis, size in enumerate(sizes):
            before, stride = self.pads[axis], self.strides[axis]
            room = size + before + self.pads[axis + self.rank] - self.dilations[axis] * (self.kernel[axis] - 1) - 1
            if room < 0 or len(sizes) != self.rank:
                raise ModelError(f"{self} does not fit an input of {tuple(sizes)}", do="check the shapes")
            count = (-(-room // stride) if ceil else room // stride) + 1
            found.append(count - 1 if ceil and (count - 1) * stride >= size + before else count)
        return tuple(found)

    def taps(self) -> list[tuple[int, ...]]:
        """Return the taps in order, the last axis fastest."""
        return list(product(*map(range, self.kernel)))


def patches(x: Byte, window: Window, zero_point: int = 0, group: int = 1) -> Byte:
    """Cut out what each output position reads (im2col).

    Args:
        x: uint8 or int8 (N, C, spatial...).
        window: Kernel, strides, dilations, pads.
        zero_point: What the pads are filled with.
        group: Number of groups; C is a multiple of it.

    Returns:
        (group, N * positions, taps * C / group), x's type: the reduction runs over [k1, k2, ..., channel], the order of
        onnxruntime's convolution ("OHWI"); see `convolution.weight_rows`. The whole of it at once: layers use blocks.

    Raises:
        ModelError: shapes do not fit.
    """
    check_bytes(x, "x", window.rank + 2)
    positions = int(np.prod(window.outputs(x.shape[2:])))
    found = [columns(pad(image, window, zero_point), x.shape[2:], window, group, (0, positions)) for image in x]
    whole = np.concatenate(found, axis=2) if found else np.zeros((group, 0, 0), x.dtype)
    return np.ascontiguousarray(whole.transpose(0, 2, 1))


def pad(image: npt.NDArray[Any], window: Window, value: int) -> npt.NDArray[Any]:
    """Put pads of one value around the spatial axes of an image (C, spatial...)."""
    widths = [(0, 0), *zip(window.before(), window.behind(), strict=True)]
    return np.pad(image, widths, constant_values=image.dtype.type(value))


def columns(padded: Byte, sizes: Sequence[int], window: Window, group: int, span: tuple[int, int]) -> Byte:
    """Cut patches out of one padded image.

    Args:
        padded: (C, padded spatial...), as `pad` returns it.
        sizes: Spatial sizes without pads.
        window: As in `patches`.
        group: Number of groups.
        span: First and past-the-last output position, counted with the last axis fastest.

    Returns:
        (group, taps * C / group, positions): one column per patch, reduction order as in `patches`.

    Raises:
        ModelError: C is no multiple of group, or the window does not fit.
    """
    channels = padded.shape[0]
    if channels % group:
        raise ModelError(f"{channels} channels are not divisible into {group} groups", do="check the node's group")
    outputs = window.outputs(sizes)
    where = np.unravel_index(np.arange(*span), outputs)
    steps = [at * stride for at, stride in zip(where, window.strides, strict=True)]
    taps = window.taps()
    found = np.empty((group, len(taps), channels // group, span[1] - span[0]), padded.dtype)
    flat = padded.reshape(group, channels // group, -1)
    base = _flatten(steps, padded.shape[1:])
    for index, tap in enumerate(taps):
        offset = _flatten([np.int64(t * d) for t, d in zip(tap, window.dilations, strict=True)], padded.shape[1:])
        found[:, index] = flat[:, :, base + offset]
    return found.reshape(group, -1, span[1] - span[0])


def _flatten(coordinates: Sequence[Any], sizes: Sequence[int]) -> Any:
    flat: Any = np.int64(0)
    for at, size in zip(coordinates, sizes, strict=True):
        flat = flat * size + at
    return flat
