"""Products of 8-bit codes with themselves, summed over rows by the runtime's integer kernel: exact, and of no order.

Codes take a quarter of the memory of float32, and two products of them an instruction where one of float32 takes one.
Where the CPU sums unsigned times signed codes exactly (VNNI, AMX), one factor is made signed: 5 to 7 times as fast.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.numerics.gram import Moments
from int8cal.runtime.machine import measured_product
from int8cal.runtime.sessions import Session
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float64

_MOST_ROWS = 1 << 15  # whose products of 255 times 255 add up within s32
_STRIP = 512  # columns whose products with all behind them are one call
_SIGN = 0x80  # turns int8 codes into uint8 codes of a zero point 128 above, and back
_WAITING, _LONG = 1 << 25, 4  # bytes of rows that wait for others, and how many rows for each column
_LIMITS = ((255, 127), (255, -128), (0, -128))  # codes whose products some CPU gets wrong


class CodeSums:
    """Adds up second moments of rows of 8-bit codes.

    Args:
        groups: Groups of the layer that reads them.
        size: K, columns of a row.
        zero_point: Of the codes.
        threads: That share a product.
    """

    def __init__(self, groups: int, size: int, zero_point: int, threads: int = 1) -> None:
        self._zero_point, self._threads = zero_point, threads
        self._gram = np.zeros((groups, size, size))
        self._total = np.zeros((groups, size))
        self._count = 0
        self._waiting: list[Array] = []
        self._bytes = 0  # of these
        self._most = min(_WAITING, _LONG * groups * size * size)

    def add(self, codes: Array) -> None:
        """Add rows: uint8 or int8 (groups, positions, K)."""
        self._count += codes.shape[1]
        self._waiting.append(codes)
        self._bytes += codes.nbytes
        if self._bytes >= self._most:
            self._flush()

    def result(self) -> Moments:
        """Return the sums."""
        self._flush()
        return Moments(self._gram, self._total, self._count)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting, axis=1)
        self._waiting.clear()
        self._bytes = 0
        for own, gram, total in zip(rows, self._gram, self._total, strict=True):
            code_gram(own, self._zero_point, self._threads, gram, total)


def moments_bytes(groups: int, size: int) -> int:
    """Return what a `CodeSums` holds at most: sums, rows that wait, and these in one piece."""
    square = groups * size * size
    return 8 * square + 2 * min(_WAITING, _LONG * square)


def code_gram(codes: Array, zero_point: int, threads: int, gram: Float64, total: Float64) -> None:
    """Add x x^T over rows, and x, with x = code - zero point.

    Args:
        codes: uint8 or int8 (rows, K).
        zero_point: Of the codes.
        threads: Each takes some columns at a time.
        gram: float64 (K, K) of integers, symmetric; gets the sums.
        total: float64 (K,) of integers, likewise.
    """
    if codes.dtype == np.int8:
        codes, zero_point = codes.view(np.uint8) ^ _SIGN, zero_point + _SIGN
    size, point = codes.shape[1], np.array(zero_point, np.uint8)
    others, others_point = codes, point
    signed = _sums_signed_exactly()
    if signed:
        others, others_point = (codes ^ _SIGN).view(np.int8), np.array(zero_point - _SIGN, np.int8)
    product = _product(signed)

    def add_strip(begin: int) -> None:
        own = slice(begin, begin + _STRIP)
        for first in range(0, len(codes), _MOST_ROWS):
            rows = slice(first, first + _MOST_ROWS)
            feed = {
                "a": np.ascontiguousarray(codes[rows, own].T),
                "b": np.ascontiguousarray(others[rows, begin:]),
                "z": point,
                "w": others_point,
            }
            sums: Array = product.run(feed)["y"]
            gram[own, begin:] += sums
        for other in range(begin + _STRIP, size, _STRIP):
            gram[other : other + _STRIP, own] = gram[own, other : other + _STRIP].T

    for _ in in_parts(add_strip, range(0, size, _STRIP), threads):
        pass
    for first in range(0, len(codes), _MOST_ROWS):
        rows = others[first : first + _MOST_ROWS]
        ones = np.ones((1, len(rows)), np.uint8)
        total += product.run({"a": ones, "b": rows, "z": np.array(0, np.uint8), "w": others_point})["y"][0]


@cache
def _sums_signed_exactly() -> bool:
    found = (measured_product(*each) for each in _LIMITS)
    return all(given == exact for given, exact in found)


@cache
def _product(signed: bool) -> Session:
    # both unsigned where the kernel for unsigned times signed codes saturates, see `numerics.pairs`
    text = (
        f"(uint8[K,N] a, {'int8' if signed else 'uint8'}[N,M] b, uint8 z, {'int8' if signed else 'uint8'} w) "
        "=> (int32[K,M] y) { y = MatMulInteger(a, b, z, w) }"
    )
    return Session(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> products {text}'), threads=1)
