"""Taps: the prepared model with its planned tensors as outputs, and what is to be counted at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from int8cal.protos import ModelView, view_of

if TYPE_CHECKING:
    from int8cal.graph.chains import Chain
    from int8cal.graph.plan import Plan


@dataclass(frozen=True)
class Tap:
    """One tensor to observe.

    Attributes:
        channel_axis, channels: Where channels are, for per-channel figures; None and 0 for none.
        equalizable: A per-channel histogram is wanted, because the tensor's channels may be rescaled.
    """

    tensor: str
    channel_axis: int | None = None
    channels: int = 0
    equalizable: bool = False


def make_taps(plan: Plan, chains: tuple[Chain, ...] = ()) -> tuple[Tap, ...]:
    """Return one tap per planned tensor, in graph order.

    Args:
        plan: The plan.
        chains: Chains whose channels a correction may rescale; their planned tensors get per-channel histograms.
    """
    layouts = {
        tensor: (axis, chain.channels)
        for chain in chains
        for tensor, axis in zip(chain.tensors, chain.axes, strict=True)
    }
    taps = []
    for point in plan.tensors:
        axis, channels = layouts.get(point.tensor, (point.channel_axis, point.channels))
        taps.append(Tap(point.tensor, axis, channels, point.tensor in layouts))
    return tuple(taps)


def tapped_model(model: onnx.ModelProto, taps: tuple[Tap, ...]) -> ModelView:
    """Return the model with the taps as its only outputs; what they do not need, the runtime drops.

    Args:
        model: The prepared model; its weights are shared, not copied.
        taps: Taps; those on graph inputs are left out, their values are the feeds.
    """
    inputs = {value.name for value in model.graph.input}
    result = view_of(model)
    outputs = result.shell.graph.output
    del outputs[:]
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    for tap in taps:
        if tap.tensor in inputs:
            continue
        value = known.get(tap.tensor)
        outputs.append(
            value if value is not None else helper.make_tensor_value_info(tap.tensor, onnx.TensorProto.FLOAT, None)
        )
    if not outputs:  # every tap is a graph input: nothing has to be computed, but a model needs an output
        outputs.extend(model.graph.output)
    return result
