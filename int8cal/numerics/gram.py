"""What convolutions read (im2col), and its second moments as exact integers: sum of x x^T over output positions.

A layer's error at its output is e^T G e, with e the error of one output channel's weights and G = sum x x^T. With x as
integers, code minus zero point, every sum is an integer below 2^53: neither order, nor batches, nor threads change it.
Products of blocks run in float32, where they are exact as long as no column's sum of squares passes 2^24: by
Cauchy-Schwarz no partial sum of a block is larger. Those of a few large columns run in float64.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.numerics import Float32, Float64, Int64


_EXACT = float(2**24)  # float32 holds every integer up to here
_BLOCK = 256  # rows of |x| <= 255 whose squares always stay below it
_WIDE = 1 << 23  # values of one product, at most: 32 MB
_LONG = 2  # and how many rows for each column
_LARGE_SHARE = 16  # one column of so many may be larger: its products run in float64
_SIDE = 512  # of a block of a Gram
_SMALL = 64  # columns up to which float64 is as fast, and needs no blocks


def _waiting_rows(groups: int, size: int) -> int:
    return 0 if size <= _SMALL else max(min(_LONG * size, _WIDE // (groups * size)), _BLOCK)


def moments_bytes(groups: int, size: int) -> int:
    """Return what a `MomentSums` holds at most: sums, and rows that wait."""
    return groups * size * (8 * size + 4 * _waiting_rows(groups, size))


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
    """Adds up rows of a layer's input.

    Args:
        groups: Groups of the layer.
        size: K, columns of a row.
        threads: That share a product of many columns.
    """

    def __init__(self, groups: int, size: int, threads: int = 1) -> None:
        self._threads = threads
        self._gram = np.zeros((groups, size, size))
        self._total = np.zeros((groups, size))
        self._count = 0
        self._energy = np.zeros((groups, size))
        # a product of few rows is quick beside its sum with those before
        self._waiting = np.empty((groups, _waiting_rows(groups, size), size), np.float32)
        self._rows = 0

    def add(self, rows: Float32) -> None:
        """Add rows: (groups, positions, K), integers of magnitude 255 at most."""
        self._count += rows.shape[1]
        self._total += rows.sum(axis=1, dtype=np.float64)
        if rows.shape[2] <= _SMALL:
            exact = rows.astype(np.float64)
            self._gram += exact.transpose(0, 2, 1) @ exact
            return
        wide = self._waiting.shape[1]
        whole = np.einsum("grk,grk->gk", rows, rows, dtype=np.float64)
        step = wide if _few_large(whole) else _BLOCK
        for start in range(0, rows.shape[1], step):
            part = rows[:, start : start + step]
            alone = part.shape[1] == rows.shape[1]
            energy = whole if alone else np.einsum("grk,grk->gk", part, part, dtype=np.float64)
            if self._rows + part.shape[1] > wide or not _few_large(self._energy + energy):
                self._flush()
            self._waiting[:, self._rows : self._rows + part.shape[1]] = part
            self._rows += part.shape[1]
            self._energy += energy

    def result(self) -> Moments:
        """Return the sums."""
        self._flush()
        return Moments(self._gram, self._total, self._count)

    def _flush(self) -> None:
        if not self._rows:
            return
        for rows, energy, gram in zip(self._waiting[:, : self._rows], self._energy, self._gram, strict=True):
            large = np.flatnonzero(energy > _EXACT)
            exact = gram[large]
            for start in range(0, self._rows if large.size else 0, _BLOCK):
                part = rows[start : start + _BLOCK].astype(np.float64)
                exact += part[:, large].T @ part
            _add_products(gram, rows, self._threads)
            gram[large], gram[:, large] = exact, exact.T
        self._rows = 0
        self._energy[:] = 0.0


def _add_products(gram: Float64, rows: Float32, threads: int) -> None:
    """Add rows^T rows, a block at a time: what is not yet float64 takes one megabyte, whatever the size."""
    cuts = [slice(first, first + _SIDE) for first in range(0, len(gram), _SIDE)]

    def add_block(pair: tuple[slice, slice]) -> None:
        one, other = pair
        product = rows[:, one].T @ rows[:, other]
        gram[one, other] += product
        if one != other:
            gram[other, one] += product.T

    for _ in in_parts(add_block, itertools.combinations_with_replacement(cuts, 2), threads):
        pass


def _few_large(energy: Float64) -> bool:
    """Say whether few columns of sums of squares, (groups, K), are beyond what float32 adds up exactly."""
    return int((energy > _EXACT).sum()) * _LARGE_SHARE <= energy.size


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


def convolution_rows(codes: npt.NDArray[Any], zero_point: int, reads: Int64, groups: int) -> Float32:
    """Cut what output positions read out of codes.

    Args:
        codes: uint8 or int8 (N, C, spatial...).
        zero_point: Of the codes; padding counts as it.
        reads: Of these spatial sizes, (positions, taps).
        groups: C is a multiple of it.

    Returns:
        (groups, N * positions, taps * C / groups), code - zero point.
    """
    count, channels = codes.shape[:2]
    last = np.moveaxis(codes.reshape(count, channels, -1), 1, 2).astype(np.float32)
    last -= np.float32(zero_point)
    padded = np.concatenate([last, np.zeros((count, 1, channels), np.float32)], axis=1)
    found = np.take(padded, reads, axis=1)
    if groups == 1:
        return found.reshape(1, count * len(reads), -1)
    split = found.reshape(*found.shape[:3], groups, channels // groups)
    return np.ascontiguousarray(np.moveaxis(split, 3, 0)).reshape(groups, count * len(reads), -1)


def chosen_rows(codes: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """Copy up to `limit` rows of each sample of what a matrix product reads, (N, rows, K): (N * chosen, K)."""
    return codes[:, some_of(codes.shape[1], limit)].reshape(-1, codes.shape[-1])


def matrix_rows(codes: npt.NDArray[Any], zero_point: int) -> Float32:
    """Turn what a matrix product reads into integers.

    Args:
        codes: uint8 or int8 (rows, K).
        zero_point: Of the codes.

    Returns:
        (1, rows, K), code - zero point.
    """
    rows: Float32 = codes[None].astype(np.float32)
    rows -= np.float32(zero_point)
    return rows
