"""A second code for what the first one leaves: an input in two planes of u8, both through the same integer kernel.

    x = s (q1 - z) + (s / FACTOR) (q2 - z),    q2 the code of the remainder x - s (q1 - z)

Both planes lie beside each other as channels of one tensor of scale s, and the layer's weights are [W, W / FACTOR]. So
the layer stays one u8 x s8 kernel over twice the channels, and the noise of rounding its input falls by some 17 dB. It
needs the input as float: a graph input, or what a float node wrote; not what an integer kernel rounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import TableError
from int8cal.numerics.affine import SMALLEST_SCALE, Affine, positive_scale
from int8cal.numerics.pairs import SAFE_SUM, Links, Rows
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.quantization.corrections.channel_copies import ChannelLists
from int8cal.quantization.corrections.correction import OfNodes
from int8cal.quantization.corrections.integers import Rounding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array, Bools, Float32, Float64, Int8
    from int8cal.numerics.affine import QType
    from int8cal.numerics.pairs import Reduction
    from int8cal.quantization.corrections.correction import Draft
    from int8cal.quantization.table import CalibrationTable


# Weights of the second plane have codes up to 127 / FACTOR: a larger factor rounds them too coarsely, a smaller one
# leaves more of the input's noise. 8 to 32 are alike.
FACTOR = 16
# The first plane's range, times the one that was chosen. With the second plane there is precision to spare, and inputs
# of the model may go beyond all that calibration saw: clipping those makes more noise than anything else.
HEADROOM = 2.0
_WIDER = 24  # scales that are tried where both planes' codes would be too large for one sum


class ResidualCodes(OfNodes[int]):
    """Layers whose inputs come in two planes, and by how much the second one's step is smaller; by node."""

    key = "remainder"
    lost = "residual codes of inputs are left out: the other runtime has one code per value"

    @classmethod
    def _read_value(cls, value: Any, place: str) -> int:
        del place
        factor: int = value  # whatever it is: `apply` compares it with the one that this version knows
        return factor

    def apply(self, draft: Draft) -> Draft:
        """Give layers inputs in two planes, see `Correction.apply`."""
        layers = {layer.node: layer for layer in draft.plan.layers}
        for node, factor in self.values.items():
            if node not in layers or node in draft.pixel_nodes or not can_have_residual_codes(draft.plan, layers[node]):
                raise TableError(
                    f"corrections.{self.key} names {node!r}, which is no layer with an input of its own in float",
                    do="remove it, or calibrate again",
                    node=node,
                )
            entry = draft.table.tensors.get(layers[node].input)
            if entry is not None and entry.affine.dtype.qmin < 0:
                raise TableError(
                    f"corrections.{self.key} names {node!r}, whose input has signed codes, which come in one plane "
                    "only",
                    do="remove it, or calibrate again",
                    node=node,
                )
            if factor != FACTOR or isinstance(factor, bool):
                raise TableError(
                    f"corrections.{self.key} of {node!r} is {factor}, this version knows {FACTOR}",
                    do="calibrate again",
                    node=node,
                )
        return replace(draft, residual=frozenset(self.values))


class FineChannels(ChannelLists):
    """The channels of a layer's input that come with residual codes while the others do not; by node."""

    key = "fine"
    lost = "residual codes of channels are left out: the other runtime has one code per value"

    def apply(self, draft: Draft) -> Draft:
        """Give layers residual codes of some channels, see `Correction.apply`."""
        self.require_fit(draft)
        inputs = {layer.node: layer.input for layer in draft.plan.layers}
        for node in self.values:
            entry = draft.table.tensors.get(inputs[node])
            if node in draft.residual or (entry is not None and entry.affine.dtype.name != "uint8"):
                raise TableError(
                    f"corrections.{self.key} names {node!r}, whose input has residual codes already, or no codes of u8",
                    do="remove it, or calibrate again",
                    node=node,
                )
        return replace(draft, fine=self.values)


def can_have_residual_codes(plan: Plan, layer: Layer) -> bool:
    """Whether a layer's input may come in two planes: it exists as float, and shares its scale with no other tensor.

    Its codes must be u8 as well: of s8 the runtime makes u8 only right between Q and DQ, and no kernel takes both.
    """
    tensor = plan.tensor(layer.input)
    if (
        plan.ops.symmetric
        or tensor is None
        or tensor.exclusive
        or layer.op_type == "ConvTranspose"
        or layer.group > 1
        or layer.axis is None
    ):
        return False
    return len(plan.members(tensor.group)) == 1


def with_room(affine: Affine, headroom: float = HEADROOM) -> Affine:
    """Return the affine with headroom, and a zero point that leaves codes for remainders of either sign.

    A remainder is at most half a step, FACTOR / 2 codes. The step grows where the zero point must move.

    Args:
        affine: As chosen for one plane.
        headroom: The range becomes this many times as wide.
    """
    room = FACTOR // 2
    # the second plane's scale, too, must be a normal float32
    affine = replace(affine, scale=positive_scale(max(affine.scale * headroom, SMALLEST_SCALE * FACTOR)))
    low, high = affine.zero_point - affine.dtype.qmin, affine.dtype.qmax - affine.zero_point
    if min(low, high) >= room:
        return affine
    usable = affine.dtype.levels - 1 - room
    scale = positive_scale(affine.scale * max(low, high) / usable)
    return Affine(scale, affine.dtype.qmin + room if low < room else affine.dtype.qmax - room, affine.dtype)


def fine_scale(affine: Affine) -> Float32:
    """Return the scale of the second plane's codes, of no dimension, from the affine of the first's."""
    return np.array(np.float32(affine.scale) / np.float32(FACTOR), np.float32)


def with_residual_codes(table: CalibrationTable, plan: Plan, nodes: Iterable[str]) -> CalibrationTable:
    """Return the table in which the inputs of some layers come in two planes; their weights are rounded anew.

    Ranges get HEADROOM, but for those that the user fixed.

    Args:
        table: A table.
        plan: Its plan.
        nodes: Layers for which `can_have_residual_codes` holds, all that read a tensor or none; the ranges of their
            inputs have no room yet.
    """
    inputs, nodes = {layer.node: layer.input for layer in plan.layers}, tuple(nodes)
    tensors = dict(table.tensors)
    for tensor in dict.fromkeys(inputs[node] for node in nodes):
        entry = tensors[tensor]
        tensors[tensor] = entry.with_affine(with_room(entry.affine, 1.0 if entry.source == "user" else HEADROOM))
    keys = {plan.weight_key(layer.node, layer.weight) for layer in plan.layers if layer.node in nodes}
    weights = {key: entry for key, entry in table.weights.items() if key not in keys}
    chosen = {**ResidualCodes.of(table).values, **dict.fromkeys(nodes, FACTOR)}
    result = replace(table, tensors=tensors, weights=weights)
    others = FineChannels.of(table).without(nodes)
    return result.corrected(ResidualCodes(chosen), others, Rounding.of(table).without(nodes))


def with_fine_channels(
    table: CalibrationTable, plan: Plan, channels: Mapping[str, tuple[int, ...]]
) -> CalibrationTable:
    """Return the table in which some channels of layers' inputs have residual codes; weights are rounded anew.

    Args:
        table: A table.
        plan: Its plan.
        channels: By node, of layers for which `can_have_residual_codes` and `can_have_copies` hold: all that read a
            tensor or none.
    """
    layers = [layer for layer in plan.layers if layer.node in channels]
    tensors = dict(table.tensors)
    for tensor in dict.fromkeys(layer.input for layer in layers):
        tensors[tensor] = tensors[tensor].with_affine(with_room(tensors[tensor].affine, 1.0))
    keys = {plan.weight_key(layer.node, layer.weight) for layer in layers}
    weights = {key: entry for key, entry in table.weights.items() if key not in keys}
    chosen = FineChannels({**FineChannels.of(table).values, **channels})
    return replace(table, tensors=tensors, weights=weights).corrected(chosen, Rounding.of(table).without(channels))


def fine_weights(weight: Array, channels: Sequence[int], reduction: Reduction) -> Array:
    """Return the weights of some channels' residual codes."""
    fine: Array = np.take(weight, channels, axis=reduction.input_axis) / weight.dtype.type(FACTOR)
    return fine


def widened(weight: Array, reduction: Reduction) -> Array:
    """Return [W, W / FACTOR] along the input channels."""
    return np.concatenate([weight, weight / weight.dtype.type(FACTOR)], axis=reduction.input_axis)


def first_plane(codes: Array, reduction: Reduction) -> Array:
    """Return the part of `widened` weights, or of their codes, that the first plane meets."""
    return np.split(codes, 2, axis=reduction.input_axis)[0]


def choose_plane_scales(rows: Rows, dtype: QType, links: Links) -> Float64:
    """Choose scales as `choose_scales` does, from the first plane alone: its codes are FACTOR times as large.

    Where a large code of its last channel leaves the second plane's first one too little room, a scale is taken that is
    so much wider that both fit, if that makes less noise. With one channel in all, every remainder is lost otherwise.

    Args:
        rows: `widened` weights.
        dtype: The range of the codes.
        links: Neighbours of these rows that must stay safe.
    """
    scales = choose_scales(_first(rows), dtype, _first_links(rows, links))
    last, follows = (np.abs(each).astype(np.float64) for each in _across(rows.values, rows))
    met = _meets(rows, links) & (np.multiply(*_across(np.sign(rows.values), rows)) > 0)
    most = np.where(met, last + follows, 0.0).max(axis=(1, 2), initial=0.0)
    few = np.flatnonzero(most > (SAFE_SUM - 0.5) * scales)
    if not few.size:
        return scales
    some = replace(rows, values=rows.values[few])
    wide = most[few] / (SAFE_SUM - 1)
    shares = np.linspace(0.0, 1.0, _WIDER)[:, None]
    tried = (scales[few] + shares * np.maximum(wide - scales[few], 0.0)).astype(np.float32).astype(np.float64)
    noise = np.stack([_noise(some, each, dtype, links) for each in tried])
    scales[few] = tried[noise.argmin(axis=0), np.arange(few.size)]
    return scales


def _noise(rows: Rows, scales: Float64, dtype: QType, links: Links) -> Float64:
    """Return what rounding `widened` weights with given scales adds to the output, (scales,), with codes of usual size.

    Values fill a range evenly, the first plane's apart from its headroom, and remainders their step.
    """
    codes = round_planes(rows, scales, dtype, links)
    errors = np.square(rows.values.astype(np.float64) - codes * scales[:, None, None])
    each = errors.reshape(*errors.shape[:2], rows.positions, 2, -1).sum(axis=(1, 2, 4))
    power: Float64 = each @ np.array([((dtype.levels / HEADROOM) ** 2) / 12, FACTOR**2 / 12])
    return power


def round_planes(rows: Rows, scales: Float64, dtype: QType, links: Links) -> Int8:
    """Round `widened` weights: the first plane as without a second one, the second to the nearest codes.

    Remainders have the mean 0 and nothing to do with each other, so their errors do not add up, and a small code of the
    second plane makes room where it meets a large one of the first.

    Args:
        rows, scales, dtype, links: As `round_codes`; of the widened weights.
    """
    shape = (*rows.values.shape[:2], rows.positions, rows.channels)
    half = rows.channels // 2
    codes = np.empty(shape, np.int8)
    first = round_codes(_first(rows), scales, dtype, _first_links(rows, links))
    codes[..., :half] = first.reshape(*shape[:3], half)
    exact = rows.values.reshape(shape)[..., half:] / scales[:, None, None, None]
    # with the scales that are chosen here its codes are 127 / FACTOR at most; a table may hold smaller scales
    most = SAFE_SUM // 2 if links.any() else dtype.qmax
    codes[..., half:] = np.clip(np.rint(exact), max(dtype.qmin, -most), min(dtype.qmax, most))
    # the only neighbours across the planes: the last channel of the first and the first of the second
    last, follows = (each.astype(np.int16) for each in _across(codes, rows))
    room = SAFE_SUM - np.abs(last)
    limited = np.where(last * follows > 0, np.sign(follows) * np.minimum(np.abs(follows), room), follows)
    codes[..., half] = np.where(_meets(rows, links), limited, follows)
    return codes.reshape(rows.values.shape)


def _across(values: Array, rows: Rows) -> tuple[Array, Array]:
    """Return the first plane's last channel and the second's first one, (scales, outputs per scale, positions)."""
    split, half = values.reshape(*rows.values.shape[:2], rows.positions, rows.channels), rows.channels // 2
    return split[..., half - 1], split[..., half]


def _meets(rows: Rows, links: Links) -> Bools:
    """Flag the kernel positions at which the channels of `_across` are neighbours."""
    flags: Bools = np.append(links, False).reshape(rows.positions, rows.channels)[:, rows.channels // 2 - 1]
    return flags


def _first(rows: Rows) -> Rows:
    half = rows.channels // 2
    split = rows.values.reshape(*rows.values.shape[:2], rows.positions, rows.channels)
    return Rows(split[..., :half].reshape(*rows.values.shape[:2], -1), half, rows.kernel)


def _first_links(rows: Rows, links: Links) -> Links:
    half = rows.channels // 2
    by_position = np.append(links, False).reshape(rows.positions, rows.channels)[:, :half].copy()
    by_position[:, -1] = False  # its neighbour is of the second plane
    return by_position.reshape(-1)[:-1]
