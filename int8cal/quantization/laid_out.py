"""How an int8 model is laid out in its file for what runs it: nothing of it changes an output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import op_table
from int8cal.quantization.channels_last import with_channels_last
from int8cal.quantization.whole_blocks import in_whole_blocks

if TYPE_CHECKING:
    import onnx


def laid_out(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    """Return an int8 model as it is written.

    Args:
        model: As it was built, which stays as it is.
        target: Name of the runtime that it was built for.
    """
    table = op_table(target)
    conv = table.rules.get("Conv")
    if not table.looks_behind or conv is None:
        return model
    return in_whole_blocks(with_channels_last(model), conv.channel_block)
