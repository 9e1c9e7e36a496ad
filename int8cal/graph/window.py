"""The window of a convolution, from its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.index import attribute
from int8cal.numerics.reference.windows import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


def window_of(node: onnx.NodeProto, kernel: Sequence[int], sizes: Sequence[int]) -> Window:
    """Read strides, dilations and pads; auto_pad is that of a Conv.

    Args:
        node: A Conv or ConvTranspose, or a form of them.
        kernel: Sizes of the kernel.
        sizes: Spatial sizes of the input.

    Raises:
        ModelError: The attributes do not fit each other.
    """
    strides, dilations = attribute(node, "strides", None), attribute(node, "dilations", None)
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    if auto not in {"SAME_UPPER", "SAME_LOWER"}:
        return Window.of(kernel, strides, dilations, None if auto == "VALID" else attribute(node, "pads", None))
    before, behind = [], []
    for axis, size in enumerate(sizes):
        stride = strides[axis] if strides else 1
        reach = (kernel[axis] - 1) * (dilations[axis] if dilations else 1) + 1
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        small = total // 2
        before.append(small if auto == "SAME_UPPER" else total - small)
        behind.append(total - before[-1])
    return Window.of(kernel, strides, dilations, [*before, *behind])
