"""PRelus as nodes that the runtime computes several times as fast, to the same bits.

Its kernel of PRelu asks each value for its sign: behind a DQ and in front of a Q it takes 0.6 to 0.9 ns for each, where
Mul and Max take 0.15, and Relu, Sub, Mul and Add 0.2 (a core of an Intel Xeon with AVX-512). Networks of faces and
hands have one behind every convolution; in int8 all of these together took no longer than it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import instead
from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from typing import Literal

    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Index
    from int8cal.numerics import Array


def last_of_prelu(index: Index, node: onnx.NodeProto) -> Literal["Max", "Min", "Add", ""]:
    """Say how a PRelu is written.

    Returns:
        Max of x and slope * x where no slope is above 1, Min where none is below. Add of max(x, 0) and
        slope * (x - max(x, 0)) elsewhere; one of both terms is 0. "" where it is no PRelu of constant float32 slopes.
    """
    if node.op_type != "PRelu" or not is_standard(node) or not index.is_constant(node.input[1]):
        return ""
    slopes: Array = index.constant(node.input[1])
    if slopes.dtype != np.float32 or not np.isfinite(slopes).all():
        return ""
    if (slopes <= 1.0).all():
        return "Max"
    return "Min" if (slopes >= 1.0).all() else "Add"


def write_prelu(built: Builder, node: onnx.NodeProto, last: str) -> None:
    """Write a PRelu as other nodes; the last one, of which `last_of_prelu` says the op, has its name."""
    data, slopes, output = node.input[0], node.input[1], node.output[0]
    rest = data
    if last == "Add":
        above, below = built.names.tensor(f"{output}_above"), built.names.tensor(f"{output}_below")
        built.node("Relu", [data], above)
        built.node("Sub", [data, above], below)
        data, rest = below, above
    steep = built.names.tensor(f"{output}_steep")
    built.node("Mul", [data, slopes], steep)
    built.nodes.append(instead(node, last, [rest, steep], output))
