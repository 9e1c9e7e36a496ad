"""What residual codes of inputs are to be had, and what time they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.costs import fine_channels_us, residual_codes_us
from int8cal.phrases import counted
from int8cal.quantization.corrections.channel_copies import can_have_copies
from int8cal.quantization.corrections.residual_codes import can_have_residual_codes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan

RESIDUAL_LEAVES = 0.03  # of a tensor's noise, with residual codes
# Channels that get residual codes by themselves: those of so many times the mean's noise, and no more than this share.
OUTLYING, FINE_SHARE = 4.0, 1 / 16
FEWEST = 64  # channels of an input; with fewer, picking some takes longer than the layer


@dataclass(frozen=True)
class Upgrade:
    """Something that makes less noise and takes more time.

    Attributes:
        what: For the report.
        residual: Layers whose input gets residual codes.
        floats: Optional nodes that stay float.
        gain: Share of the noise that it takes away, at the outputs; of its tensor's own before that is measured.
        us: Estimated microseconds.
        tensor: Whose residual codes it is about: of all channels, or of `fine` alone. "" for none.
        fine: Layers that get residual codes of some channels of their input, and which.
        bytes: That the model grows by: weights of the second plane.
    """

    what: str
    residual: tuple[str, ...]
    floats: tuple[str, ...]
    gain: float
    us: float
    tensor: str = ""
    fine: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True)
class ResidualGroup:
    """Layers that read one tensor, which may have residual codes.

    Attributes:
        nodes: The layers.
        us: Estimated microseconds that it adds.
    """

    nodes: tuple[str, ...]
    us: float


def residual_groups(plan: Plan, elements: Mapping[str, float]) -> dict[str, ResidualGroup]:
    """Return the tensors that may have residual codes, with the layers that read them.

    Args:
        plan: The plan of the model.
        elements: Values per inference of every planned tensor.
    """
    return {
        tensor: ResidualGroup(
            tuple(layer.node for layer in layers), sum(residual_codes_us(layer, elements[tensor]) for layer in layers)
        )
        for tensor, layers in _readers(plan).items()
        if all(can_have_residual_codes(plan, layer) for layer in layers)
    }


def residual_upgrades(index: Index, plan: Plan, elements: Mapping[str, float]) -> list[Upgrade]:
    """Return what residual codes there can be, of all channels of a tensor or of those that outlie.

    Args:
        index: Of the model.
        plan: Its plan.
        elements: Values per inference of every planned tensor.

    Returns:
        With a gain that is a share of the noise of each one's own tensor.
    """
    found, readers = [], _readers(plan)
    for tensor, each in residual_groups(plan, elements).items():
        whole, layers = 1 - RESIDUAL_LEAVES, readers[tensor]
        weights = sum(math.prod(layer.dims) for layer in layers)
        found.append(Upgrade(f"residual codes for {tensor}", each.nodes, (), whole, each.us, tensor, bytes=weights))
        channels, part = _outlying(index, plan, layers)
        us = sum(fine_channels_us(layer, elements[tensor], len(channels) / layers[0].channels) for layer in layers)
        if channels and us < each.us:
            what = f"residual codes for {counted(len(channels), 'channel')} of {tensor}"
            fine, more = dict.fromkeys(each.nodes, channels), weights * len(channels) // layers[0].channels
            found.append(Upgrade(what, (), (), whole * part, us, tensor, fine, more))
    return found


def _readers(plan: Plan) -> dict[str, list[Layer]]:
    """Return the layers that read each tensor."""
    found: dict[str, list[Layer]] = {}
    for layer in plan.layers:
        found.setdefault(layer.input, []).append(layer)
    return found


def _outlying(index: Index, plan: Plan, layers: Sequence[Layer]) -> tuple[tuple[int, ...], float]:
    """Return the channels of an input whose codes make most noise by far, and their share of its noise.

    All codes have the same step, so the noise of a channel is as the squares of the weights that read it.

    Args:
        index: Of the model.
        plan: Its plan.
        layers: All that read it.
    """
    count = layers[0].channels
    if count < FEWEST or not all(can_have_copies(plan, layer) for layer in layers):
        return (), 0.0
    noise = np.zeros(count)
    for layer in layers:
        noise += np.square(index.constant(layer.weight).astype(np.float64)).sum(axis=layer.axis)
    largest = np.argsort(-noise, kind="stable")[: int(FINE_SHARE * count)]
    chosen = np.sort(largest[noise[largest] > OUTLYING * noise.mean()])
    return tuple(chosen.tolist()), float(noise[chosen].sum() / max(noise.sum(), np.finfo(np.float64).tiny))
