"""What tests of passes and of what is written look at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]
