"""A hard swish or hard sigmoid that an exporter wrote as Add, Clip, Mul and Div becomes HardSigmoid.

x·clip(x + 3, 0, 6) / 6 = x·HardSigmoid(x)        clip(x + 3, 0, 6) / 6 = HardSigmoid(x)

So one op is left where four round and four kernels run, and it is known as what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.layers import STEEPEST, clip_bounds
from int8cal.graph.ops import is_standard
from int8cal.graph.passes.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.graph.passes.steps import AffineStep

SAME = 1e-6  # relative, of the bound and the divisor: 0.16666667 is a sixth


def hard_sigmoids(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find lines between 0 and a bound that are divided by the bound, or that multiply what they are lines of.

    Must not touch a sum or a clipped line that anything else reads or that is given out, nor constants of more than one
    value. A product of both that nothing divides stays.

    Args:
        index: Of the graph.
        names: Of the model.
    """
    for clip in index.graph.node:
        line = _line(index, clip)
        reader = None if line is None else index.only_reader(clip.output[0])
        if line is None or reader is None:
            continue
        bound = clip_bounds(index, clip)[1]
        alpha, beta = 1.0 / bound, float(line.shift.item()) / bound
        gone: dict[str, tuple[onnx.NodeProto, ...]] = {line.node.name: (), clip.name: ()}
        divided = _scaled(index, reader)
        if divided is not None and abs(divided * bound - 1.0) <= SAME:
            yield Rewrite(gone | {reader.name: (instead(reader, "HardSigmoid", [line.data], alpha=alpha, beta=beta),)})
            continue
        behind = index.only_reader(reader.output[0])
        factor = None if behind is None else _scaled(index, behind)
        if behind is None or factor is None or not _multiplies(reader, line.data, str(clip.output[0])):
            continue
        factor *= bound
        made = names.beside(line.data, "gate")
        new = gone | {clip.name: (instead(clip, "HardSigmoid", [line.data], made, alpha=alpha, beta=beta),)}
        if abs(factor - 1.0) <= SAME:
            product = instead(reader, "Mul", [line.data, made], str(behind.output[0]))
            yield Rewrite(new | {reader.name: (product,), behind.name: ()}, like={made: line.data})
            continue
        swish, constant = names.changed(str(reader.output[0])), names.beside(str(behind.output[0]), "constant")
        product = instead(reader, "Mul", [line.data, made], swish)
        scaled = instead(behind, "Mul", [swish, constant])
        yield Rewrite(
            new | {reader.name: (product,), behind.name: (scaled,)},
            {constant: np.array(factor, np.float32)},
            {made: line.data, swish: str(reader.output[0])},
        )


def _line(index: Index, clip: onnx.NodeProto) -> AffineStep | None:
    """Return the sum in front of a Clip, of a constant above 0, where the Clip begins at 0 and ends."""
    if clip.op_type != "Clip" or not is_standard(clip):
        return None
    low, high = clip_bounds(index, clip)
    node = index.producer.get(clip.input[0])
    step = None if node is None or index.only_reader(clip.input[0]) is None else step_of(index, node)
    if step is None or low != 0.0 or not step.scalar or step.factor.item() != 1.0:
        return None
    if not 1.0 / STEEPEST <= high <= STEEPEST:
        return None
    return step if 0.0 < step.shift.item() < high else None


def _scaled(index: Index, node: onnx.NodeProto) -> float | None:
    """Return the factor of a node that multiplies by one constant, or divides by it."""
    step = step_of(index, node)
    if step is None or not step.scalar or step.shift.item() != 0.0 or step.factor.item() <= 0.0:
        return None
    return float(step.factor.item())


def _multiplies(node: onnx.NodeProto, tensor: str, line: str) -> bool:
    return node.op_type == "Mul" and is_standard(node) and {*node.input} == {tensor, line}
