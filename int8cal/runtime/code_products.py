"""Products of 8-bit codes with themselves, summed over rows by the runtime's integer kernel: exact, and of no order.

Codes take a quarter of the memory of float32, and two products of them an instruction where one of float32 takes one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx

from int8cal.runtime.sessions import Session
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from int8cal.numerics import Float64

_MOST_ROWS = 1 << 15  # whose products of 255 times 255 add up within s32
_STRIP = 512  # columns whose products with all behind them are one call
_SIGN = 0x80  # turns int8 codes into uint8 codes of a zero point 128 above


def code_gram(codes: npt.NDArray[Any], zero_point: int, threads: int = 1) -> Float64:
    """Sum x x^T over rows, x = code - zero point.

    Args:
        codes: uint8 or int8 (rows, K).
        zero_point: Of the codes.
        threads: Each takes some columns at a time.

    Returns:
        float64 (K, K) of integers.
    """
    if codes.dtype == np.int8:
        codes, zero_point = codes.view(np.uint8) ^ _SIGN, zero_point + _SIGN
    point, size = np.array(zero_point, np.uint8), codes.shape[1]
    gram = np.zeros((size, size))

    def add_strip(begin: int) -> None:
        own = slice(begin, begin + _STRIP)
        for first in range(0, len(codes), _MOST_ROWS):
            rows = codes[first : first + _MOST_ROWS]
            feed = {"a": np.ascontiguousarray(rows[:, own].T), "b": np.ascontiguousarray(rows[:, begin:]), "z": point}
            sums: npt.NDArray[Any] = _product().run(feed)["y"]
            gram[own, begin:] += sums
        for other in range(begin + _STRIP, size, _STRIP):
            gram[other : other + _STRIP, own] = gram[own, other : other + _STRIP].T

    for _ in in_parts(add_strip, range(0, size, _STRIP), threads):
        pass
    return gram


@cache
def _product() -> Session:
    # both unsigned: the kernel for unsigned times signed codes saturates on some CPUs, see `numerics.pairs`
    text = "(uint8[K,N] a, uint8[N,M] b, uint8 z) => (int32[K,M] y) { y = MatMulInteger(a, b, z, z) }"
    return Session(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> products {text}'), threads=1)
