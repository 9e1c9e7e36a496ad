"""The integers of each layer: weight codes within the range in force, and the s32 bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import xxhash

from int8cal.errors import NonFiniteError
from int8cal.graph.bodies import full_name
from int8cal.graph.edit import constant
from int8cal.graph.index import Index
from int8cal.numerics.affine import U8, U16
from int8cal.numerics.pairs import link
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.numerics.weights import WEIGHT_TYPES, QuantizedLayer, guard_bias, guard_products, quantize_bias
from int8cal.quantization.corrections.channel_copies import with_copies
from int8cal.quantization.corrections.integers import codes_from_text
from int8cal.quantization.corrections.residual_codes import choose_plane_scales, fine_weights, round_planes, widened
from int8cal.quantization.image_channels import is_padded, with_zeros
from int8cal.runtime.sessions import cpu_count
from int8cal.runtime.targets import any_two_meet, links_of
from int8cal.stored import LEAST, is_stored, values_of
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    import numpy.typing as npt

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.job import TargetName, WeightRange
    from int8cal.numerics import Array, Float64, Int8
    from int8cal.numerics.affine import Affine, QType
    from int8cal.numerics.pairs import Links, Reduction, Rows
    from int8cal.quantization.corrections.correction import Draft

_WORTH_THREADS = 1000  # weights of a layer, on average

FloatT = TypeVar("FloatT", np.float32, np.float64)


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights to round, and what their codes must keep to.

    Attributes:
        rows: Float values in the order of reduction.
        reduction: How they are stored.
        shape: As stored.
        span: "s8", "s7" or "paired".
        links: Neighbours that must stay safe.
    """

    rows: Rows
    reduction: Reduction
    shape: tuple[int, ...]
    span: WeightRange
    links: Links

    @property
    def dtype(self) -> QType:
        """Range of the codes."""
        return WEIGHT_TYPES[self.span]


def quantize_layers(
    draft: Draft,
    activations: Mapping[str, Affine],
    known: Mapping[str, QuantizedLayer],
    searched: MutableMapping[str, Float64] | None,
) -> dict[str, QuantizedLayer]:
    """Quantize the weights and biases of all planned layers, on all CPUs; a layer without a range keeps a float bias.

    Args:
        draft: Its table names the range of the codes, and the target, which decides what weights meet in one
            instruction. Scales of the table's weights win over computed ones where they are for the range that the
            codes have now; codes that the table does not have are rounded without data. With residual codes, weights'
            codes have twice the channels, with copies of channels or residual codes of some as many more; images of
            three channels have a fourth one.
        activations: Affine per planned tensor: a bias has scale input scale x weight scale.
        known: Integers of an earlier draft by node name: codes are taken from there where they would be the same.
        searched: Scales that were found before, by the digest of what they were searched for; gets those found now.

    Returns:
        Integers by node name.

    Raises:
        TableError: Codes of the table do not fit.
        NonFiniteError: A weight holds NaN or infinity; names it and its node.
    """
    index = draft.index
    found_before = {} if searched is None else searched

    def quantized(layer: Layer) -> QuantizedLayer:
        before = known.get(layer.node)
        if layer.form is not None:
            return _unranged(index, layer, draft, before, found_before)
        return _quantized(index, layer, draft, activations[layer.input], before, found_before)

    layers = draft.plan.weighted
    # threads that do little but wait for the interpreter take more time than one
    held = sum(math.prod(index.initializers[layer.weight].dims) for layer in layers)
    threads = cpu_count() if held >= _WORTH_THREADS * len(layers) else 1
    found = map(_apart, in_parts(quantized, layers, threads))
    return dict(zip((layer.node for layer in layers), found, strict=True))


def _apart(layer: QuantizedLayer) -> QuantizedLayer:
    """Let large codes lie in a file, which the int8 model has as well, see `int8cal.stored`."""
    if layer.weight.nbytes < LEAST:
        return layer
    tensor = constant("", layer.weight)
    return replace(layer, weight=values_of(tensor)) if is_stored(tensor) else layer


def _unranged(
    index: Index,
    layer: Layer,
    draft: Draft,
    known: QuantizedLayer | None,
    searched: MutableMapping[str, Float64],
) -> QuantizedLayer:
    """Quantize the weights of a layer whose input has no calibrated range."""
    source = layer_weights(index, layer, draft)
    entry = draft.entries.get(layer.node)
    given = None if entry is None else entry.scales_for(source.span)
    chosen = _searched(source, searched) if given is None else given
    weight, mark = _codes(source, chosen, layer.node, known)
    return QuantizedLayer(weight, chosen, None, 0, source.span, mark=mark)


def _quantized(
    index: Index,
    layer: Layer,
    draft: Draft,
    read: Affine,
    known: QuantizedLayer | None,
    searched: MutableMapping[str, Float64],
) -> QuantizedLayer:
    input_scale = read.scale
    double = layer.node in draft.residual
    entry, delta = draft.entries.get(layer.node), draft.bias_deltas.get(layer.node)
    text = draft.rounding.get(layer.node)
    source = layer_weights(index, layer, draft)
    rows, span, dtype = source.rows, source.span, source.dtype
    given = None if entry is None else entry.scales_for(span)
    chosen = _searched(source, searched, double=double) if given is None else given
    zero = np.logical_not(rows.values.any(axis=(1, 2)))
    chosen, ended = guard_products(chosen, input_scale, zero)
    _check_products(chosen, input_scale, layer)
    bias_codes = None
    raised = np.zeros(len(chosen), np.bool_)
    if layer.bias is not None:
        bias = index.constant(layer.bias).astype(np.float64).reshape(-1)
        if delta is not None:
            bias = bias + delta
        # the runtime adds bias and products in one s32 sum: both must fit at once; those of 16 bits it adds in float
        reserve = 0 if read.dtype is U16 else 255 * dtype.qmax * rows.values.shape[-1]
        try:
            chosen, raised = guard_bias(chosen, bias, input_scale, reserve=reserve)
        except NonFiniteError as error:
            raise NonFiniteError(
                f"bias {layer.bias!r} of node {layer.node!r} is NaN, infinite, or too large for an input of scale "
                f"{input_scale:.4g}",
                do="export the model again, or calibrate again if the table corrects this bias",
                tensor=layer.bias,
                node=layer.node,
            ) from error
        bias_codes = quantize_bias(bias, input_scale, scales_per_output(chosen, layer))
    weight, mark = _codes(source, chosen, layer.node, known, text=text, double=double)
    return QuantizedLayer(weight, chosen, bias_codes, int((raised & ~zero).sum()), span, int(ended.sum()), mark)


def _searched(source: LayerWeights, searched: MutableMapping[str, Float64], *, double: bool = False) -> Float64:
    """Search for the scales of weights, unless that was done: proposals of one search differ in few layers."""
    mark = _mark_of(source, double)
    mark.update(np.ascontiguousarray(source.links).data)
    mark.update(np.ascontiguousarray(source.rows.values).data)
    found = searched.get(mark.hexdigest())
    if found is None:
        choose = choose_plane_scales if double else choose_scales
        found = searched[mark.hexdigest()] = choose(source.rows, source.dtype, source.links)
    return found


def _mark_of(source: LayerWeights, *how: object) -> xxhash.xxh3_128:
    """Begin the digest of what is rounded: its form, and how that is done; values follow."""
    rows = source.rows
    kind = (rows.values.shape, rows.values.dtype.str, rows.positions, source.shape, source.reduction)
    return xxhash.xxh3_128(repr((*kind, source.dtype.name, *how)).encode())


def _codes(
    source: LayerWeights,
    scales: Float64,
    node: str,
    known: QuantizedLayer | None,
    *,
    text: str | None = None,
    double: bool = False,
) -> tuple[Int8, str]:
    """Round weights, unless known codes were rounded from the same.

    Args:
        source: The weights.
        scales: Of their channels.
        node: For messages.
        known: The layer in an earlier draft, if it was in one.
        text: Codes of the table, "" and None for none.
        double: Whether there are residual codes.

    Returns:
        Codes, shaped as stored, and the mark of what they were rounded from.
    """
    rows, links, dtype = source.rows, source.links, source.dtype
    mark = _mark_of(source, double, text)
    for array in (rows.values, scales, links):
        mark.update(np.ascontiguousarray(array).data)
    if known is not None and known.mark == mark.hexdigest():
        return known.weight, known.mark
    codes = (round_planes if double else round_codes)(rows, scales, dtype, links)
    if text is not None:
        codes = codes_from_text(text, codes, links, dtype, node)
    return source.reduction.restore(codes, source.shape), mark.hexdigest()


def layer_weights(index: Index, layer: Layer, draft: Draft) -> LayerWeights:
    """Lay out a layer's weights, and say what their codes must keep to."""
    given = weight = index.constant(layer.weight).astype(np.float32)
    if layer.node in draft.copies:
        weight = with_copies(weight, draft.copies[layer.node], layer.reduction)
    if is_padded(draft, layer):
        weight = with_zeros(weight)
    if layer.node in draft.residual:
        weight = widened(weight, layer.reduction)
    if layer.node in draft.fine:
        fine = fine_weights(given, draft.fine[layer.node], layer.reduction)
        weight = np.concatenate([weight, fine], axis=layer.reduction.input_axis)
    return lay_out(weight, layer, draft.table.settings.weights, draft.table.settings.target)


def lay_out(weight: Array, layer: Layer, weights: WeightRange, target: TargetName) -> LayerWeights:
    """Lay out values in place of a layer's weight.

    Args:
        weight: Finite values, float32 or float64, as the weight is stored.
        layer: The layer.
        weights: Range of the codes.
        target: Decides which weights meet in one instruction, for the range "paired".
    """
    rows = layer.reduction.rows(weight)
    span, links = code_range(layer, rows, weights, target)
    return LayerWeights(rows, layer.reduction, weight.shape, span, links)


def require_finite(prepared: Prepared, plan: Plan) -> None:
    """Refuse weights and biases of planned layers that are no numbers, before any work.

    Raises:
        NonFiniteError: Names the file, the constant and its node.
    """
    for path, each in plan.graphs.items():
        index = Index(prepared.graphs[path])
        read = [(name, layer.node) for layer in each.weighted for name in (layer.weight, layer.bias) if name]
        for name, node in (*read, *((name, found.node) for found in each.recurrent for name in found.tensors)):
            require_finite_weight(index.constant(name), name, full_name(path, node), prepared.where)


def require_finite_weight(values: Array, name: str, node: str, where: str = "") -> None:
    """Refuse a weight with NaN or infinity by its name and its node."""
    if not np.isfinite(values).all():
        what, do = "holds NaN or infinity", "export the model again, or leave the node out with --exclude"
        raise NonFiniteError(f"weight {name!r} of node {node!r} {what}", where=where, do=do, tensor=name, node=node)


def _check_products(scales: Float64, input_scale: float, layer: Layer) -> None:
    # the runtime multiplies both in float32
    if scales.max(initial=0.0) * input_scale > np.finfo(np.float32).max:
        raise NonFiniteError(
            f"node {layer.node!r}: the scales of weight {layer.weight!r} (up to {scales.max():.4g}) times that of its "
            f"input {layer.input!r} ({input_scale:.4g}, for values to {input_scale * U8.qmax:.3g}) do not fit float32",
            do="look for such values in the samples, give smaller scales, or leave the node out with --exclude",
            tensor=layer.weight,
            node=layer.node,
        )


def code_range(layer: Layer, rows: Rows, weights: WeightRange, target: TargetName) -> tuple[WeightRange, Links]:
    """Say what a layer's codes must keep to.

    Returns:
        The range, and the neighbours to keep safe within it. "paired" comes down to "s8" where no weights meet, and to
        "s7" where any two may.
    """
    none = link((), rows.positions, rows.channels)
    if layer.form == "weights":
        return "s8", none  # their products are of floats, or summed exactly
    if weights != "paired":
        return weights, none
    per_group = rows.values.shape[0] * rows.values.shape[1] // layer.group
    depthwise = layer.group > 1 and rows.channels == per_group == 1
    if any_two_meet(target, rows.kernel, rows.channels, depthwise=depthwise):
        return "s7", none
    links = links_of(target, rows.positions, rows.channels, depthwise=depthwise)
    return ("paired" if links.any() else "s8"), links


def scales_per_output(scales: npt.NDArray[FloatT], layer: Layer) -> npt.NDArray[FloatT]:
    """Return the weight scale of each output channel, (OC,).

    Args:
        scales: (channels of the weight's axis,). A ConvTranspose with groups stores OC / group channels, and output
            channel g * (OC / group) + k has scale k.
        layer: The layer.
    """
    return np.tile(scales, layer.group) if layer.op_type == "ConvTranspose" else scales
