"""What convolutions read (im2col), and its second moments as exact integers: sum of x x^T over output positions.

A layer's error at its output is e^T G e, with e the error of one output channel's weights and G = sum x x^T. With x as
integers, code minus zero point, every sum is an integer below 2^53: neither order, nor batches, nor threads change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.numerics import Array, Float32, Float64, Int64


_SIDE = 512  # columns of a Gram that are added to at once


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the positions that a layer was seen at; x = code - zero point, in the order of `pairs.Rows`.

    Attributes:
        gram: (groups, K, K), sum of x x^T.
        total: (groups, K), sum of x.
        count: Number of positions.
    """

    gram: Float64
    total: Float64
    count: int

    def __add__(self, other: Moments) -> Moments:
        """Add what was seen elsewhere."""
        return Moments(self.gram + other.gram, self.total + other.total, self.count + other.count)


class MomentSums:
    """Adds up rows of a layer's input in float64: codes of 16 bits, or few columns of any. See also `CodeSums`.

    Args:
        groups: Groups of the layer.
        size: K, columns of a row.
        zero_point: Of the codes that are added.
    """

    def __init__(self, groups: int, size: int, zero_point: int = 0) -> None:
        self._zero_point = zero_point
        self._gram = np.zeros((groups, size, size))
        self._total = np.zeros((groups, size))
        self._count = 0

    def add(self, codes: Array) -> None:
        """Add rows of codes: (groups, positions, K)."""
        rows = codes.astype(np.float64) - self._zero_point
        self._count += rows.shape[1]
        self._total += rows.sum(axis=1)
        columns = rows.transpose(0, 2, 1)
        for first in range(0, rows.shape[2], _SIDE):
            strip = slice(first, first + _SIDE)
            self._gram[:, strip] += columns[:, strip] @ rows

    def result(self) -> Moments:
        """Return the sums."""
        return Moments(self._gram, self._total, self._count)


def some_of(count: int, limit: int) -> Int64:
    """Choose up to `limit` of `count` positions, evenly spread and in step with no grid; ascending.

    The same for every sample, so that what is seen does not depend on the order of samples.
    """
    places = np.arange(count, dtype=np.int64)
    if count <= limit:
        return places
    # multiples of the golden ratio modulo 1 fill the circle evenly: those in its first limit / count are spread evenly
    order = np.argsort((places * 2654435761) % 2**32, kind="stable")
    return np.sort(places[order[:limit]])


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

    def outputs(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return how many positions the window takes on each axis of an input of these spatial sizes.

        Raises:
            ModelError: the window does not fit.
        """
        found = []
        for axis, size in enumerate(sizes):
            reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
            room = size + self.pads[axis] + self.pads[axis + self.rank] - reach
            if room < 0 or len(sizes) != self.rank:
                raise ModelError(f"{self} does not fit an input of {tuple(sizes)}", do="check the shapes")
            found.append(room // self.strides[axis] + 1)
        return tuple(found)


def convolution_reads(window: Window, sizes: Sequence[int], limit: int) -> Int64:
    """Say what a convolution reads at some of its output positions.

    Args:
        window: Kernel, strides, dilations and pads.
        sizes: Spatial sizes of the input.
        limit: Largest number of positions.

    Returns:
        (positions, taps): places among the spatial positions of the input, or one past them for none (padding).

    Raises:
        ModelError: The window does not fit.
    """
    outputs = window.outputs(sizes)
    positions = some_of(int(np.prod(outputs)), limit)
    places = []
    for axis, at in enumerate(np.unravel_index(positions, outputs)):
        taps = np.arange(window.kernel[axis]) * window.dilations[axis]
        places.append(at[:, None] * window.strides[axis] + taps - window.pads[axis])
    return _flat(places, sizes)


def transposed_reads(window: Window, sizes: Sequence[int], added: Sequence[int], limit: int) -> Int64:
    """Say what a transposed convolution reads: for output o and tap k the input i with i * stride + k = o + pad.

    Args:
        window: Kernel, strides, dilations, and the pads that are cut off the output.
        sizes: Spatial sizes of the input.
        added: Output padding per axis.
        limit: Largest number of positions.

    Returns:
        As `convolution_reads`.
    """
    outputs = [
        max((size - 1) * window.strides[axis] + window.dilations[axis] * (window.kernel[axis] - 1) + 1
            - window.pads[axis] - window.pads[axis + window.rank] + added[axis], 0)
        for axis, size in enumerate(sizes)
    ]  # fmt: skip
    positions = some_of(int(np.prod(outputs)), limit)
    places = []
    for axis, at in enumerate(np.unravel_index(positions, outputs)):
        taps = np.arange(window.kernel[axis]) * window.dilations[axis]
        steps, rest = np.divmod(at[:, None] + window.pads[axis] - taps, window.strides[axis])
        places.append(np.where(rest == 0, steps, -1))
    return _flat(places, sizes)


def _flat(places: Sequence[Int64], sizes: Sequence[int]) -> Int64:
    """Combine places per axis, (positions, taps of that axis), to flat ones; outside any axis is one past the end."""
    count = len(places[0])
    flat, inside = np.zeros((count, 1), np.int64), np.ones((count, 1), np.bool_)
    for at, size in zip(places, sizes, strict=True):
        valid = (at >= 0) & (at < size)
        flat = (flat[:, :, None] * size + at[:, None, :]).reshape(count, -1)
        inside = (inside[:, :, None] & valid[:, None, :]).reshape(count, -1)
    return np.where(inside, flat, int(np.prod(sizes)))


def convolution_rows(codes: Array, zero_point: int, reads: Int64, groups: int) -> Array:
    """Cut what output positions read out of codes, or of values.

    Args:
        codes: (N, C, spatial...).
        zero_point: Of the codes, 0 of values: padding is it.
        reads: Of these spatial sizes, (positions, taps).
        groups: C is a multiple of it.

    Returns:
        (groups, N * positions, taps * C / groups), as they are.
    """
    count, channels = codes.shape[:2]
    last = np.moveaxis(codes.reshape(count, channels, -1), 1, 2)
    padded = np.concatenate([last, np.full((count, 1, channels), zero_point, codes.dtype)], axis=1)
    found = np.take(padded, reads, axis=1)
    if groups == 1:
        return found.reshape(1, count * len(reads), -1)
    split = found.reshape(*found.shape[:3], groups, channels // groups)
    return np.ascontiguousarray(np.moveaxis(split, 3, 0)).reshape(groups, count * len(reads), -1)


def chosen_rows(codes: Array, limit: int) -> Array:
    """Copy up to `limit` rows of each sample of what a matrix product reads, (N, rows, K): (N * chosen, K)."""
    return codes[:, some_of(codes.shape[1], limit)].reshape(-1, codes.shape[-1])


def centred(codes: Array, zero_point: int) -> Float32:
    """Return codes, or values where the zero point is 0, minus it as float32."""
    rows = codes.astype(np.float32)
    rows -= np.float32(zero_point)
    return rows
