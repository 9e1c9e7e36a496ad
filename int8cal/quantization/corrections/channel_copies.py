"""Channels that a layer reads several times over: an input channel of large values without large weights.

    w x = (w / n) x + ... + (w / n) x,    n times

Equalization divides a channel that is n times as large as the others by n, and multiplies the weights that read it by
n. Every output channel has one scale for all its weights, so those few large weights would cost all others their bits.
Read n times over, the channel has weights as large as before: all that it takes is n - 1 channels more. The copies are
made of codes, so they have the same error, and the layer stays one u8 x s8 kernel.

Source: outlier channel splitting, Zhao et al., Improving Neural Network Quantization without Retraining, 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import TableError
from int8cal.numerics.channels import along
from int8cal.quantization.corrections.correction import OfNodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array, Int32, Int64
    from int8cal.numerics.pairs import Reduction
    from int8cal.quantization.corrections.correction import Draft


class ChannelLists(OfNodes[tuple[int, ...]]):
    """Channels that stand behind those of a layer's input, by node."""

    @classmethod
    def _read_value(cls, value: Any, place: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not value or not all(type(each) is int and each >= 0 for each in value):
            raise TableError(f"is {str(value)[:40]}, expected a list of channels", where=place, do="correct it")
        return tuple(value)

    def require_fit(self, draft: Draft) -> None:
        """Refuse nodes that cannot have channels behind their input's, and channels that this does not have.

        Raises:
            TableError: Names the node.
        """
        layers = {layer.node: layer for layer in draft.plan.layers}
        for node, copies in self.values.items():
            layer = layers.get(node)
            if layer is None or node in draft.pixel_nodes or not can_have_copies(draft.plan, layer):
                raise TableError(
                    f"corrections.{self.key} names {node!r}, which is no matrix product with an input of its own in "
                    "float",
                    do="remove it, or calibrate again",
                    node=node,
                )
            if max(copies) >= layer.channels:
                raise TableError(
                    f"corrections.{self.key} of {node!r} has channel {max(copies)}, its input has {layer.channels}",
                    do="calibrate again",
                    node=node,
                )


class ChannelCopies(ChannelLists):
    """The channels that stand behind those of a layer's input, each as often as it is read once more; by node."""

    key = "copies"
    lost = "copies of channels are left out: their weights are as large as rescaling made them"

    def apply(self, draft: Draft) -> Draft:
        """Let layers read channels several times, see `Correction.apply`."""
        self.require_fit(draft)
        return replace(draft, copies=self.values)


def can_have_copies(plan: Plan, layer: Layer) -> bool:
    """Whether a layer may read channels several times: a matrix product whose input exists as float."""
    tensor = plan.tensor(layer.input)
    return (
        tensor is not None
        and not tensor.exclusive
        and layer.channel_axis == -1
        and layer.axis is not None
        and len(plan.members(tensor.group)) == 1
    )


def with_copies(weight: Array, copies: Sequence[int], reduction: Reduction) -> Array:
    """Return the weights for an input with copies behind its channels; each channel's are shared out among them.

    Args:
        weight: As stored, two axes.
        copies: Channels, each as often as it is read once more.
        reduction: Tells which axis is that of the input channels.
    """
    axis = reduction.input_axis
    times = _times(weight.shape[axis], copies).astype(weight.dtype)
    shared = weight / times.reshape(along(axis, weight.ndim))
    return np.concatenate([shared, np.take(shared, copies, axis=axis)], axis=axis)


def merged(codes: Array, copies: Sequence[int], layer: Layer) -> Int32:
    """Return what the codes of weights with copies add up to for each channel of the input; int32.

    Args:
        codes: Of `with_copies` weights; what is behind the copies, for residual codes, is left out.
        copies: As there.
        layer: The layer.
    """
    axis, channels = layer.reduction.input_axis, layer.channels
    if codes.shape[axis] <= channels:
        return codes.astype(np.int32)
    own, more, _ = np.split(np.moveaxis(codes.astype(np.int32), axis, 0), [channels, channels + len(copies)])
    whole = own.copy()
    np.add.at(whole, np.asarray(copies, np.int64), more)
    return np.moveaxis(whole, 0, axis)


def _times(channels: int, copies: Sequence[int]) -> Int64:
    return 1 + np.bincount(np.asarray(copies, np.int64), minlength=channels)
