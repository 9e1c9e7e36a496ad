"""A hard swish or hard sigmoid that an exporter wrote as Add, Clip, Mul and Div becomes HardSigmoid.

x·clip(x + 3, 0, 6) / 6 = (x / 6)·clip(x + 3, 0, 6) = x·HardSigmoid(x)        clip(x + 3, 0, 6) / 6 = HardSigmoid(x)

So one op is left where four round and four kernels run, and it is known as what it is. A factor remains where a product
is divided by something else than the bound, and where a gate is by nearly the bound: what was float16 once has 0.1666.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.layers import STEEPEST, clip_bounds
from int8cal.graph.ops import is_standard
from int8cal.graph.passes.steps import scaled, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.graph.passes.steps import AffineStep

SAME = 1e-6  # relative, of the bound and the divisor: 0.16666667 is a sixth
_HALF = 2.0**-10  # the same in float16


def hard_sigmoids(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find lines between 0 and a bound that are divided by the bound, or that multiply what they are lines of.

    Must not touch a sum, a clipped line or a divided tensor that anything else reads or that is given out, nor
    constants of more than one value. A product that nothing divides stays.
    """
    for clip in index.graph.node:
        line = _line(index, clip)
        reader = None if line is None else index.only_reader(clip.output[0])
        if line is None or reader is None:
            continue
        bound = clip_bounds(index, clip)[1]
        gate = scaled(index, reader)
        scaling = gate or _swish_scaled(index, reader, line.data, str(clip.output[0]))
        factor = 0.0 if scaling is None else scaling.factor.item() * bound
        exact = abs(factor - 1.0) <= SAME
        if scaling is None or (gate is not None and abs(factor - 1.0) > _HALF):
            continue
        # the node that gives the result: a tensor may have been divided before it was multiplied
        last = reader if scaling.data == line.data else scaling.node
        made, output = names.beside(line.data, "gate"), str(last.output[0])
        steps = [instead(clip, "HardSigmoid", [line.data], made, alpha=1 / bound, beta=line.shift.item() / bound)]
        if gate is None:
            steps.append(instead(reader, "Mul", [line.data, made], names.beside(line.data, "swish")))
        constants = {}
        if not exact:
            constant = names.beside(output, "constant")
            constants[constant] = np.array(factor, np.float32)
            steps.append(instead(scaling.node, "Mul", [steps[-1].output[0], constant]))
        steps[-1].output[0] = output
        gone = dict.fromkeys((line.node.name, clip.name, reader.name, scaling.node.name), ())
        like = {str(step.output[0]): line.data for step in steps[:-1]}
        yield Rewrite({**gone, last.name: tuple(steps)}, constants, like)


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


def _swish_scaled(index: Index, product: onnx.NodeProto, data: str, line: str) -> AffineStep | None:
    """Return what scales the product of a tensor and its clipped line, behind it or the tensor in front of it."""
    if product.op_type != "Mul" or not is_standard(product) or line not in product.input:
        return None
    other = str(product.input[product.input[0] == line])
    node = index.only_reader(product.output[0]) if other == data else index.producer.get(other)
    step = None if node is None or (other != data and index.only_reader(other) is None) else scaled(index, node)
    return step if other == data or (step is not None and step.data == data) else None
