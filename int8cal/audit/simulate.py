"""What one layer loses on one input where VPMADDUBSW saturates (docs/saturation.md).

The instruction multiplies two u8 by two s8 and adds the two products into s16 with saturation. Most pairs of weights
cannot leave s16 whatever they are multiplied with, so only those that can are computed: a sum as the hardware leaves it
is the exact one plus what is lost here. s8 data goes through X·W = (X + 128)·W - 128·ΣW: the shifted u8 saturate.

Where onnxruntime's AVX2 kernels saturate: u8 activations by s8 weights, positions (2k, 2k + 1) of a row, in Conv
(grouped, too) and matrix products; the s8 activations of a QDQ model, which it turns into u8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.graph.index import attribute
from int8cal.graph.layers import window_of
from int8cal.numerics import Array, Float32, Int8, Int32, Int64
from int8cal.numerics.compiled import compiled
from int8cal.numerics.gram import convolution_reads, transposed_reads
from int8cal.numerics.pairs import SAFE_SUM, one_sign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.audit.layer import KernelLibrary, Linear

UInt8 = npt.NDArray[np.uint8]
_Block = tuple[UInt8, Int8]  # columns (groups, K, outputs), rows (groups, channels per group, K)

BUDGET = 48 << 20  # bytes of columns that are worked on at a time
_ALL = 1 << 62  # output positions, whatever their number


@dataclass(frozen=True)
class Lost:
    """What saturation takes from the sums of a layer.

    Attributes:
        sums: int32 (channels, outputs of each, image by image): the saturated s32 sum less the exact one.
        saturated: int64 (channels,): how many sums of two products s16 could not hold.
    """

    sums: Int32
    saturated: Int64


def lost_sums(layer: Linear, x: Array, second: Array | None, starts: Int64, runtime: KernelLibrary) -> Lost:
    """Simulate a layer.

    Args:
        layer: Any but a recurrent one, with int8 weights or an int8 second operand.
        x: What it reads: codes, or floats where it quantizes by itself.
        second: Codes of a second operand that is an activation.
        starts: Positions k along a row of its weights such that k and k + 1 meet in one instruction; disjoint.
        runtime: onnxruntime fills pads with the zero point, oneDNN with zeros.
    """
    codes = quantize_dynamically(x)[0] if layer.form.quantizes else x
    if layer.form.kind in {"Conv", "ConvTranspose"}:
        blocks = _convolution(layer, codes, runtime)
    else:
        blocks = _product(layer, codes, layer.weight.values if second is None and layer.weight is not None else second)
    lost = [lost_in_block(columns, rows, starts) for columns, rows in blocks]
    return Lost(np.concatenate([each.sums for each in lost], axis=1), np.sum([each.saturated for each in lost], axis=0))


def zero_point(layer: Linear) -> int:
    """Return the zero point of a layer's data; 0 where it is not constant."""
    value = layer.constants.value(layer.data.zero_point)
    return 0 if value is None else int(value.reshape(-1)[0])


def quantize_dynamically(values: Float32) -> tuple[UInt8, np.float32, int]:
    """Quantize to u8 by the values' own range, in float32, as DynamicQuantizeLinear does.

    Args:
        values: float32, finite.

    Returns:
        Codes, their scale (1 where all values are 0) and their zero point.
    """
    low, high = np.float32(min(values.min(initial=0), 0)), np.float32(max(values.max(initial=0), 0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def _unsigned(codes: Array) -> UInt8:
    """Return u8 as it is, and s8 plus 128."""
    return codes if codes.dtype == np.uint8 else codes.view(np.uint8) ^ np.uint8(128)


def _convolution(layer: Linear, codes: Array, runtime: KernelLibrary) -> Iterator[_Block]:
    """Cut out what the outputs read, a column each (im2col), image by image in blocks that fit into BUDGET."""
    if attribute(layer.proto, "channels_last", 0):
        codes = np.moveaxis(codes, -1, 1)
    rows = layer.rows()
    sizes, group = codes.shape[2:], layer.group
    window = window_of(layer.proto, rows.kernel, sizes)
    if layer.form.kind == "Conv":
        reads = convolution_reads(window, sizes, _ALL)
        outside = np.array(0 if runtime == "onednn" else zero_point(layer), codes.dtype)
    else:  # a tap without an input adds no product: as if it met u8 zeros
        added = attribute(layer.proto, "output_padding", None) or (0,) * len(sizes)
        reads = transposed_reads(window, sizes, added, _ALL)
        outside = np.array(np.iinfo(codes.dtype).min, codes.dtype)
    weights = np.ascontiguousarray(rows.values.swapaxes(0, 1)).reshape(group, -1, rows.values.shape[2])
    images, channels = codes.shape[:2]
    flat = codes.reshape(images, channels, -1)
    padded = _unsigned(np.concatenate([flat, np.broadcast_to(outside, (images, channels, 1))], axis=2))
    step = max(1, BUDGET // max(channels * reads.shape[1], 1))
    for image in padded:
        for begin in range(0, len(reads), step):
            part = image[:, reads[begin : begin + step].T].reshape(group, channels // group, rows.positions, -1)
            yield part.swapaxes(1, 2).reshape(group, -1, part.shape[3]), weights


def _product(layer: Linear, left: Array, right: Any) -> Iterator[_Block]:
    """Yield each matrix product of a MatMul or Gemm: (..., M, K) by (..., K, N), stacks broadcast."""
    if layer.form.kind == "Gemm":
        left = left.T if attribute(layer.proto, "transA", 0) else left
        right = right.T if attribute(layer.proto, "transB", 0) else right
    left = np.atleast_2d(left)
    right = right.reshape(-1, 1) if right.ndim == 1 else right
    if right.ndim == 2:  # one long matrix instead of many
        left = left.reshape(-1, left.shape[-1])
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    for at in np.ndindex(*stack):
        one = np.broadcast_to(left, (*stack, *left.shape[-2:]))[at]
        other = np.broadcast_to(right, (*stack, *right.shape[-2:]))[at]
        yield _unsigned(np.ascontiguousarray(one.T))[None], other.T[None]


def lost_in_block(columns: UInt8, rows: Int8, starts: Int64) -> Lost:
    """Return what is lost in the products of each group's rows by its columns.

    Args:
        columns: uint8 (groups, K, M).
        rows: int8 (groups, channels per group, K); channels count group by group.
        starts: As for `lost_sums`, the same in every group.
    """
    groups, length, count = columns.shape
    channels = rows.shape[1]
    first, second = (rows.reshape(groups * channels, length)[:, starts + step].astype(np.int32) for step in (0, 1))
    row, index = np.nonzero(one_sign(first, second) > SAFE_SUM)
    at = row // channels * length + starts[index]
    lost = Lost(np.zeros((groups * channels, count), np.int32), np.zeros(groups * channels, np.int64))
    lines = np.ascontiguousarray(columns).reshape(groups * length, count)
    excess(lines, at, row.astype(np.int64), first[row, index], second[row, index], lost.sums, lost.saturated)
    return lost


def _excess_loop(columns: Any, at: Any, row: Any, first: Any, second: Any, lost: Any, saturated: Any) -> None:
    width = columns.shape[1]
    # every step is cast back to 32 bits: Python's integers would become 64 bits wide, half as many per instruction
    for begin in range(0, width, 512):  # columns that stay in the first-level cache with their sums
        end = min(begin + 512, width)
        for r in range(row.size):
            a = columns[at[r], begin:end]
            b = columns[at[r] + 1, begin:end]
            into = lost[row[r], begin:end]
            v = np.int32(first[r])
            w = np.int32(second[r])
            hits = np.int32(0)
            for j in range(end - begin):
                total = np.int32(np.int32(np.int32(a[j]) * v) + np.int32(np.int32(b[j]) * w))
                held = np.int32(max(np.int32(-32768), min(np.int32(32767), total)))
                into[j] += np.int32(held - total)
                hits += np.int32(held != total)
            saturated[row[r]] += hits


def excess_twin(columns: UInt8, at: Int64, row: Int64, first: Int32, second: Int32, lost: Int32, hits: Int64) -> None:
    """Add up what s16 cannot hold; the definition that the compiled loop must match.

    Args:
        columns: uint8 (K, M), C-contiguous: one column per output.
        at: int64 (R,), the line of `columns` that the first weight of each pair meets; the second meets the next line.
        row: int64 (R,), the line of `lost` that the pair adds to.
        first, second: int32 (R,), the weights.
        lost: int32 (channels, M), added to: saturate(pair sum) - (pair sum), over the pairs of a row. Wraps around.
        hits: int64 (channels,), added to: how many pair sums left s16.
    """
    for line, target, v, w in zip(at.tolist(), row.tolist(), first.tolist(), second.tolist(), strict=True):
        pair = columns[line : line + 2].astype(np.int32)
        total = pair[0] * np.int32(v) + pair[1] * np.int32(w)
        held = np.clip(total, -32768, 32767)
        lost[target] += held - total
        hits[target] += np.count_nonzero(held != total)


excess = compiled(_excess_loop, excess_twin)
