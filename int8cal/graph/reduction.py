"""Over what a linear op sums: how its stored weight becomes rows in the order of reduction."""

from __future__ import annotations

from int8cal.numerics.pairs import Reduction


def reduction_of(op_type: str, axis: int | None, group: int = 1) -> Reduction:
    """Tell where output and input channels of a weight are.

    Args:
        op_type: "Conv" (M, C / group, kernel), "ConvTranspose" (C, M / group, kernel), "Gemm" or "MatMul".
        axis: Output-channel axis; None for a stack of matrices (..., K, N) under MatMul.
        group: Of a convolution.
    """
    if op_type == "Conv":
        return Reduction(0, 1)
    if op_type == "ConvTranspose":
        return Reduction(1, 0, group)
    return Reduction(None, -2) if axis is None else Reduction(axis, 1 - axis)
