"""Reading the runtime's blocked tensors as they are: taps without a change of layout.

onnxruntime's CPU provider keeps images in blocks of channels, (N, C/16, H, W, 16) on AVX-512, and writes each output of
the graph in the ordinary layout, with a ReorderOutput in front. A tap on every layer pays for that with one more pass
over memory each: half of MobileNetV2's inference time. Counting does not care where a value lies. So the graph is
optimized by the runtime, written out, and opened again with the blocked tensors themselves as outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.errors import ModelError
from int8cal.graph.edit import one_node_model, refill
from int8cal.graph.index import attribute
from int8cal.graph.random_numbers import random_ops
from int8cal.graph.taps import tapped_model
from int8cal.protos import without_weights
from int8cal.runtime.scratch import scratch_folder
from int8cal.runtime.sessions import NEVER_RUN, QUIET, Session, weights_beside

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from int8cal.graph.taps import Tap
    from int8cal.protos import ModelView

_BLOCKS = (4, 8, 16, 32)


@dataclass(frozen=True)
class TapSession:
    """An open tapped model.

    Attributes:
        session: Its outputs are the taps, under the names in `outputs`.
        outputs: Tap -> output of the session.
        blocks: Tap -> channels side by side, where the blocked layout comes out; 1 elsewhere. The array's shape is
            still (N, C, H, W), over memory of (N, C / block, H, W, block).
    """

    session: Session
    outputs: dict[str, str]
    blocks: dict[str, int]


def open_taps(
    model: onnx.ModelProto, taps: Sequence[Tap], *, threads: int = 0, at_once: int = 1, plain: Sequence[str] = ()
) -> TapSession:
    """Open a model with taps as its outputs, with as many of them as possible in the runtime's own layout.

    The values are those of the ordinary outputs, bit for bit: the same kernels run.

    Args:
        model: The prepared model.
        taps: What to tap. One may come out blocked unless its channels are counted on another axis than 1.
        threads: Intra-op threads; 0 for one per CPU.
        at_once: Runs that share them.
        plain: Further tensors that come out, these in the ordinary layout.

    Raises:
        ModelError: onnxruntime cannot load the model.
    """
    tapped = tapped_model(model, [*(tap.tensor for tap in taps), *plain])
    blockable = {tap.tensor for tap in taps if not tap.channels or tap.channel_axis == 1}
    blockable -= {*plain, *(value.name for value in model.graph.input)}
    # without a convolution the runtime blocks nothing; random numbers repeat in no graph that it wrote
    open_plain = not blockable or not any(node.op_type == "Conv" for node in model.graph.node) or random_ops(model)
    block = 1 if open_plain else block_size()
    if block > 1 and not blockable <= _unfilled(model, block):
        with scratch_folder() as folder:
            optimized = _optimized(tapped, folder)
            if optimized is not None:
                exposed, outputs = expose_blocked(optimized, blockable, block)
                if outputs:
                    session = _opened(exposed, folder, threads, at_once)
                    if session is not None:
                        names = {output.name: output.name for output in optimized.graph.output}
                        blocks = {name: block if name in outputs else 1 for name in names}
                        return TapSession(session, names | outputs, blocks)
    session = Session(tapped, threads=threads, at_once=at_once, entries=QUIET)
    return TapSession(session, {name: name for name in session.outputs}, dict.fromkeys(session.outputs, 1))


def _unfilled(model: onnx.ModelProto, block: int) -> set[str]:
    """Name the tensors whose channels are known not to fill their blocks, which `expose_blocked` leaves as they are."""
    values = {value.name: value.type.tensor_type.shape.dim for value in (*model.graph.value_info, *model.graph.output)}
    return {name for name, dims in values.items() if len(dims) > 1 and dims[1].dim_value % block}


def expose_blocked(
    optimized: onnx.ModelProto, blockable: Collection[str], block: int
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Make the blocked tensors outputs, in place of what ReorderOutput makes of them.

    Args:
        optimized: The graph as the runtime optimized it.
        blockable: Outputs that may be replaced.
        block: Channels per block.

    Returns:
        The graph without the ReorderOutput nodes that nobody reads any more, and tap -> blocked tensor. A tensor whose
        channels do not fill its blocks keeps its ReorderOutput: the runtime pads it with channels that are not there.
    """
    graph = optimized.graph
    read = {name for node in graph.node for name in node.input}
    replaced = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "ReorderOutput"
        and node.output[0] in blockable
        and node.output[0] not in read
        and attribute(node, "channels", 1) % block == 0
        and not attribute(node, "channels_last", 0)
    }
    result = without_weights(optimized)
    refill(result.graph.node, (node for node in graph.node if not (node.output and node.output[0] in replaced)))
    result.graph.initializer.extend(graph.initializer)
    exposed = {name: helper.make_tensor_value_info(to, onnx.TensorProto.FLOAT, None) for name, to in replaced.items()}
    refill(result.graph.output, (exposed.get(output.name, output) for output in graph.output))
    return result, replaced


@cache
def block_size() -> int:
    """Ask the runtime how many channels it keeps side by side on this CPU; 1 when it uses no blocks."""
    channels, pixels = 64, 4
    weight = np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1)
    model = one_node_model("(float[1,64,2,2] x) => (float[1,64,2,2] y) { y = Conv(x, w) }", weight)
    with scratch_folder() as folder:
        optimized = _optimized(model, folder)
        if optimized is None:
            return 1
        exposed, outputs = expose_blocked(optimized, {"y"}, 1)
        if not outputs:
            return 1
        session = _opened(exposed, folder, threads=1)
        if session is None:
            return 1
        values = np.arange(channels * pixels, dtype=np.float32).reshape(channels, pixels)
        (seen,) = session.run({"x": values.reshape(1, channels, 2, 2)}).values()
    for block in _BLOCKS:
        if np.array_equal(seen.reshape(-1, pixels, block), values.reshape(-1, block, pixels).swapaxes(1, 2)):
            return block
    return 1


def _opened(exposed: onnx.ModelProto, folder: Path, threads: int, at_once: int = 1) -> Session | None:
    """Open the graph with blocked outputs; None where the runtime does not read what it wrote (some branches)."""
    path = folder / "tapped.onnx"
    path.write_bytes(exposed.SerializeToString())
    try:
        return Session(path, threads=threads, at_once=at_once, optimization="none", entries=QUIET)
    except ModelError:
        return None


def _optimized(model: onnx.ModelProto | ModelView, folder: Path) -> onnx.ModelProto | None:
    """Let the runtime write the graph it would run, weights beside it; None where it cannot write it."""
    path = folder / "optimized.onnx"
    try:
        Session(model, threads=1, optimized_path=path, entries=weights_beside("optimized.data", 1024) | NEVER_RUN)
    except ModelError:
        return None  # some fused nodes cannot be written; the plain session then says what is wrong, if anything is
    return onnx.load(str(path), load_external_data=False)
