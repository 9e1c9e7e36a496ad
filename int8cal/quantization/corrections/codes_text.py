"""Codes in a table: how they differ from those that rounding without data gives, as text."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.errors import TableError
from int8cal.numerics.pairs import unsafe_pairs

if TYPE_CHECKING:
    from int8cal.numerics.affine import QType
    from int8cal.numerics.pairs import Links

Int8 = npt.NDArray[np.int8]

CORRECTION = "rounding"
_CHECK = 4  # bytes of the start's checksum, in front of the differences
_ADVICE = f"remove it from corrections.{CORRECTION}, or calibrate again"


def codes_to_text(start: Int8, codes: Int8) -> str:
    """Write codes as their differences from others.

    Args:
        start: int8, those without data, in the order of reduction.
        codes: int8, likewise.

    Returns:
        base64 of zlib of a checksum of the start and the differences modulo 256.
    """
    differences = (codes.astype(np.int16) - start).astype(np.int8)
    content = _checksum(start) + np.ascontiguousarray(differences).tobytes()
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def codes_from_text(text: str, start: Int8, links: Links, dtype: QType, node: str) -> Int8:
    """Read codes that `codes_to_text` wrote.

    Args:
        text: From a table.
        start: int8 (scales, outputs per scale, K), those without data.
        links: Neighbours that must be safe, (K - 1,).
        dtype: The range of the codes.
        node: For messages.

    Raises:
        TableError: The text is damaged, for another weight or other scales, or its codes are not allowed.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        unpack = zlib.decompressobj()
        content = unpack.decompress(packed, start.size + _CHECK + 1)  # never more than a weight should take
    except (binascii.Error, ValueError, zlib.error) as error:
        raise _refused(node, "cannot be decoded") from error
    if not unpack.eof or len(content) != start.size + _CHECK:
        raise _refused(node, f"is not for a weight of {start.size} values")
    if content[:_CHECK] != _checksum(start):
        raise _refused(node, "is for other weights or scales than the model and the table have now")
    differences = np.frombuffer(content, np.int8, offset=_CHECK).reshape(start.shape)
    codes = start.astype(np.int16) + differences
    if codes.min(initial=0) < dtype.qmin or codes.max(initial=0) > dtype.qmax:
        raise _refused(node, f"gives codes outside {dtype.qmin}..{dtype.qmax}")
    result = codes.astype(np.int8)
    if unsafe_pairs(result, links).any():
        raise _refused(node, "gives neighbours that can saturate")
    return result


def _checksum(start: Int8) -> bytes:
    return zlib.crc32(np.ascontiguousarray(start).tobytes()).to_bytes(_CHECK, "big")


def _refused(node: str, what: str) -> TableError:
    return TableError(f"corrections.{CORRECTION} of {node!r} {what}", do=_ADVICE, node=node)
