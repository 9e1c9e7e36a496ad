"""Corrections of a layer's integers: what to add to its biases, and the codes of its weights.

Codes are text: how they differ from those that rounding without data gives.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import TableError
from int8cal.numerics.pairs import unsafe_pairs
from int8cal.quantization.corrections.correction import OfNodes, read_numbers

if TYPE_CHECKING:
    from int8cal.numerics import Int8
    from int8cal.numerics.affine import QType
    from int8cal.numerics.pairs import Links
    from int8cal.quantization.corrections.correction import Draft


_CHECK = 4  # bytes of the start's checksum, in front of the differences


class Bias(OfNodes[tuple[float, ...]]):
    """Deltas in real units, (output channels,) by node."""

    key = "bias"
    lost = "corrected biases are left out: the other runtime adds those of the FP32 model"

    @classmethod
    def _read_value(cls, value: Any, place: str) -> tuple[float, ...]:
        return read_numbers(value, sys.float_info.max, place)

    def apply(self, draft: Draft) -> Draft:
        """Let the biases stand for the corrected ones, see `Correction.apply`."""
        index = draft.index
        layers = {layer.node: layer for layer in draft.plan.weighted}
        for node, delta in self.values.items():
            layer = layers.get(node)
            if layer is None or layer.bias is None:
                raise TableError(
                    f"corrections.bias names {node!r}, which is not a quantized node with a bias", do="calibrate again"
                )
            channels = index.initializers[layer.weight].dims[layer.axis or 0]
            channels *= layer.group if layer.op_type == "ConvTranspose" else 1
            if len(delta) != channels:
                raise TableError(
                    f"corrections.bias of {node!r} has {len(delta)} values, the model expects {channels}",
                    do="calibrate again",
                )
        return replace(draft, bias_deltas={node: np.array(delta, np.float64) for node, delta in self.values.items()})


class Rounding(OfNodes[str]):
    """Codes of weights as text, by node; see `codes_to_text`."""

    key = "rounding"
    lost = "the codes that rounding chose are left out: the other runtime rounds weights by itself"

    @classmethod
    def _read_value(cls, value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise TableError(
                f"is {str(value)[:40]}, expected the text that calibration wrote", where=place, do="remove it"
            )
        return value

    def apply(self, draft: Draft) -> Draft:
        """Let weights have these codes, see `Correction.apply`."""
        layers = {layer.node for layer in draft.plan.layers}
        unknown = next((node for node in self.values if node not in layers), None)
        if unknown is not None:
            raise TableError(
                f"corrections.{self.key} names {unknown!r}, which is not a quantized layer",
                do="remove it, or calibrate again",
                node=unknown,
            )
        return replace(draft, rounding=self.values)


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
    # nearly all differences are -1, 0 and 1, without a pattern: looking for longer repetitions than of one byte takes a
    # hundred times as long, and saves a tenth
    packer = zlib.compressobj(strategy=zlib.Z_RLE)
    return base64.b64encode(packer.compress(content) + packer.flush()).decode("ascii")


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
    return TableError(
        f"corrections.{Rounding.key} of {node!r} {what}",
        do=f"remove it from corrections.{Rounding.key}, or calibrate again",
        node=node,
    )
