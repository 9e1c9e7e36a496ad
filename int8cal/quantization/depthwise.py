"""AveragePools and BatchNormalizations of codes, written as depthwise convolutions.

onnxruntime's AveragePool of codes takes 1 ns per value that it reads, and more with every tap: ten to forty times as
long as an integer depthwise convolution whose weights are all 1, with 1 / taps as their scale. That is the same sum,
rounded once. Where windows at a border have fewer taps than others, a float pool between DQ and Q is the faster one.

For a BatchNormalization it has no integer kernel. A depthwise convolution with one tap is the same factor and shift per
channel: a channel's one weight is its scale's largest code, so that its factor is exact. The figures:
docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.graph.edit import instead
from int8cal.graph.index import attribute
from int8cal.graph.passes.steps import channel_step
from int8cal.numerics.affine import S8, U16
from int8cal.quantization.pools import stop_codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Index
    from int8cal.graph.passes.steps import AffineStep
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine

_AXES = 2  # of a depthwise convolution of integers that the runtime has a kernel for
_MOST_TAPS = 256  # of a pool: as many ones for each channel
_LARGEST_SHIFT = 2.0**29  # in steps of the sum, which has 32 bits
_LEAST_SCALE = 2.0**-64  # of a weight: its product with the input's scale is no denormal number


def depthwise_of_codes(index: Index, plan: Plan, activations: Mapping[str, Affine]) -> frozenset[str]:
    """Name the nodes that a plan has on integers of 8 bits, and whose kernel is that of a depthwise convolution."""
    nodes = (index.nodes[name] for name in plan.integer_nodes)
    found = (node for node in nodes if node.op_type in ("AveragePool", "BatchNormalization"))
    return frozenset(node.name for node in found if activations[node.input[0]].dtype is not U16)


def write_depthwise(built: Builder, index: Index, copy: onnx.NodeProto, node: onnx.NodeProto, before: Affine) -> None:
    """Write an AveragePool or BatchNormalization of codes as a convolution.

    A pool that is none is written so that the runtime leaves it in float.

    Args:
        built: Gets the nodes.
        index: Of the float model.
        copy: The node, which reads what a DQ gives.
        node: The same in the float model.
        before: Of what it reads.
    """
    step = channel_step(index, node)
    if step is not None:
        _write_step(built, copy, step, before, rank=index.rank(node.input[0]) or 0)
        return
    attributes = average_as_convolution(index, node)
    if attributes is None:
        built.nodes.append(copy)
        stop_codes(built, index, node)
        return
    taps = attributes["kernel_shape"]
    codes, scale = np.ones((attributes["group"], 1, *taps), np.int8), np.array(1.0 / math.prod(taps), np.float32)
    weight = built.integers(f"{node.output[0]}_ones", codes, scale)
    built.nodes.append(instead(copy, "Conv", [copy.input[0], weight], copy.output[0], **attributes))


def _write_step(built: Builder, copy: onnx.NodeProto, step: AffineStep, before: Affine, rank: int) -> None:
    factor, shift = (each.reshape(-1) for each in (step.factor, step.shift))
    # of a factor near zero, the shift decides
    least = np.maximum(np.abs(shift) / (before.scale * _LARGEST_SHIFT), _LEAST_SCALE)
    scales = np.maximum(np.abs(factor) / S8.qmax, least).astype(np.float32)
    taps = (1,) * (rank - 2)
    codes = np.rint(factor / scales).astype(np.int8).reshape(-1, 1, *taps)
    shift_scales = np.float32(before.scale) * scales
    shifts = np.rint(shift / shift_scales).astype(np.int32)
    weight = built.integers(f"{step.output}_factors", codes, scales)
    bias = built.integers(f"{step.output}_shifts", shifts, shift_scales)
    inputs = [copy.input[0], weight, bias]
    built.nodes.append(instead(copy, "Conv", inputs, copy.output[0], group=len(codes), kernel_shape=taps))


def average_as_convolution(index: Index, node: onnx.NodeProto) -> dict[str, Any] | None:
    """Return the attributes of the depthwise convolution that an AveragePool is, times its taps.

    Returns:
        None where its channels are not known, where windows at a border may have fewer taps than others, or where they
        have very many.
    """
    dims, kernel = index.dims(node.input[0]), tuple(attribute(node, "kernel_shape", ()))
    rank = len(kernel)
    if dims is None or len(dims) != rank + 2 or dims[1] is None or rank > _AXES or math.prod(kernel) > _MOST_TAPS:
        return None
    strides, dilations = (tuple(attribute(node, name, ())) or (1,) * rank for name in ("strides", "dilations"))
    pads = tuple(attribute(node, "pads", ())) or (0,) * 2 * rank
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    if auto != "NOTSET":
        pads = (0,) * 2 * rank
    elif any(pads) and not attribute(node, "count_include_pad", 0):
        return None
    for axis, size in enumerate(dims[2:]):
        step, wide = strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
        if auto.startswith("SAME"):
            # no pad where the windows fit; where they leave some out, the runtime begins behind the first value
            if size is None or (-(-size // step) - 1) * step + wide != size:
                return None
        elif attribute(node, "ceil_mode", 0) and (
            size is None or (size + pads[axis] + pads[rank + axis] - wide) % step
        ):
            return None
    return {"group": dims[1], "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
