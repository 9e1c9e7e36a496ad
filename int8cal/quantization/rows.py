"""Reshapes around a product: a Gemm takes two dimensions, so that a tensor of more becomes rows and gets them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from int8cal.graph.index import Dims


@dataclass(frozen=True)
class Names:
    """How to get names that nobody has, from the name one would like."""

    tensor: Callable[[str], str]
    node: Callable[[str], str]


@dataclass(frozen=True)
class Piece:
    """Nodes to append, the constants that they read, and the tensor that they give."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: dict[str, npt.NDArray[np.int64]]
    output: str


def to_rows(tensor: str, width: int, names: Names) -> Piece:
    """Reshape (..., width) to (rows, width).

    Args:
        tensor: Its name; codes or values.
        width: The last dimension.
        names: For what is added.
    """
    shape, output = names.tensor(f"{tensor}_rows_shape"), names.tensor(f"{tensor}_rows")
    node = helper.make_node("Reshape", [tensor, shape], [output], name=names.node(f"{output}_Reshape"))
    return Piece((node,), {shape: np.array([-1, width], np.int64)}, output)


def from_rows(rows: str, output: str, *, width: int, like: tuple[str, Dims], names: Names) -> Piece:
    """Reshape (rows, width) to the leading dimensions of another tensor and width.

    Args:
        rows: The product.
        output: The name of the result.
        width: The last dimension.
        like: The tensor whose dimensions but the last the result has, and these dimensions, None where only the feed
            decides one. With one such the Reshape finds it; with more it is told by the tensor's shape.
        names: For what is added.
    """
    source, dims = like
    leading = dims[:-1]
    shape = names.tensor(f"{output}_shape")
    reshape = helper.make_node("Reshape", [rows, shape], [output], name=names.node(f"{output}_Reshape"))
    if leading.count(None) <= 1:
        known = np.array([*(-1 if dim is None else dim for dim in leading), width], np.int64)
        return Piece((reshape,), {shape: known}, output)
    whole, kept = names.tensor(f"{output}_like"), names.tensor(f"{output}_leading")
    start, end, last = (names.tensor(f"{output}_{part}") for part in ("start", "end", "width"))
    nodes = (
        helper.make_node("Shape", [source], [whole], name=names.node(f"{whole}_Shape")),
        helper.make_node("Slice", [whole, start, end], [kept], name=names.node(f"{kept}_Slice")),
        helper.make_node("Concat", [kept, last], [shape], name=names.node(f"{shape}_Concat"), axis=0),
        reshape,
    )
    constants = {start: np.array([0]), end: np.array([-1]), last: np.array([width])}
    return Piece(nodes, {name: value.astype(np.int64) for name, value in constants.items()}, output)
