"""Tables made of a calibrated one: cut down to a plan with fewer layers, or taken back to channels as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.errors import NonFiniteError, TableError
from int8cal.graph.chains import find_chains
from int8cal.graph.index import Index
from int8cal.numerics.affine import Affine, positive_scale
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.channel_copies import ChannelCopies
from int8cal.quantization.corrections.equalization import Equalization, rescaling_plan, scaled_tensors
from int8cal.quantization.corrections.integers import Rounding
from int8cal.quantization.corrections.residual_codes import FineChannels, ResidualCodes, with_residual_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx

    from int8cal.calibration.ranges import TensorEntry
    from int8cal.graph.layers import Layer, LayerForm
    from int8cal.graph.plan import Plan
    from int8cal.quantization.table import CalibrationTable, LeftKey, WeightEntry


def without_noise_of(
    table: CalibrationTable, plans: tuple[Plan, Plan], left: Mapping[str, str], key: LeftKey = "left_for_gates"
) -> CalibrationTable:
    """Take layers out of a table that stay float for accuracy; whatever else was corrected stays as it is.

    Args:
        table: Made for the plan of all layers.
        plans: The plan of all layers, and the plan without those of `left`.
        left: Node name -> why it stays float.
        key: Where the settings say so: for gates, or within the allowance.
    """
    _, after = plans
    weights = _weights_of(after.weighted, table, plans)
    settings = table.settings.with_left(key, table.settings.left(key) | {**left})
    return replace(_cut(table, plans, left), settings=settings, weights=weights)


def without_unused_ranges(
    table: CalibrationTable, plans: tuple[Plan, Plan], forms: Mapping[str, LayerForm]
) -> CalibrationTable:
    """Take the ranges of inputs out of a table that its layers have no use for; what channels were rescaled stays.

    Args:
        table: Made for the plan in which they have ranges.
        plans: That plan, and the one in which they have none.
        forms: Node name -> the form that the layer takes.
    """
    _, after = plans
    weights = _weights_of(after.weighted, table, plans)
    settings = table.settings.with_forms({**table.settings.forms, **forms})
    return replace(_cut(table, plans, forms), settings=settings, weights=weights)


def without_layers(
    model: onnx.ModelProto,
    table: CalibrationTable,
    plain: CalibrationTable,
    plans: tuple[Plan, Plan],
    left: Mapping[str, str],
) -> CalibrationTable:
    """Take out of a table what a smaller plan has no use for.

    Channels cannot be rescaled between two layers of which one is in float: their tensors get the ranges that they
    have without that.

    Args:
        model: The prepared model.
        table: Made for the plan of all layers.
        plain: Likewise, without equalization.
        plans: The plan of all layers, and the plan without those of `left`.
        left: Node name -> why it stays float.

    Returns:
        The table without weight entries, whose names depend on who else reads a weight: `with_weights` adds them.
    """
    before, after = plans
    result = _cut(table, plans, left)
    equalization, rounding = Equalization.of(result), Rounding.of(result)
    index = Index(model)
    kept = {chain.tensor for chain in find_chains(index, after)}
    chains = find_chains(index, before)
    gone = {name: exponents for name, exponents in equalization.exponents.items() if name not in kept}
    bare = {name for name in scaled_tensors(chains, gone) if name in result.tensors}
    tensors = result.tensors | {name: plain.tensors[name] for name in bare}
    # codes were rounded for weights that are other ones now
    changed = [chain for chain in chains if chain.tensor in gone]
    touched = {node for chain in changed for node in (chain.node, *(reader.node for reader in chain.readers))}
    lists = (ChannelCopies.of(result).without(touched), FineChannels.of(result).without(touched))
    result = result.corrected(equalization.without_names(gone), rounding.without(touched), *lists)
    settings = table.settings.with_left("left_for_latency", left)
    result = replace(result, settings=settings, tensors=tensors, weights={})
    # ranges without equalization are ranges without room for a second plane, too
    doubled = ResidualCodes.of(result).values
    narrow = [layer.node for layer in after.layers if layer.node in doubled and layer.input in bare]
    return with_residual_codes(result, after, narrow) if narrow else result


def unscaled(model: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> tuple[CalibrationTable, dict[str, float]]:
    """Take rescaled channels back.

    A tensor's range [low, high] was for x * 2**e, with an exponent for each channel; so x of a channel lies within the
    range times 2**-e, and the range times the largest of these covers them all. It may be wider than needed, since the
    table does not say how far each channel reaches. Scales of weights are computed again, for the FP32 weights.

    Args:
        model: The prepared model.
        plan: The table's plan.
        table: The table; not changed.

    Returns:
        The table without "equalization", and how many times as wide the ranges of tensors became, by tensor.

    Raises:
        TableError: The exponents are not for this model, or a range became too wide for float32.
    """
    index = Index(model)
    chains = find_chains(index, rescaling_plan(index, plan, table))
    scaled = Equalization.of(table).exponents_by_tensor(chains)
    wider: dict[str, float] = {}
    for group in plan.groups:
        members = [each.tensor for each in plan.members(group)]
        lowest = [float(scaled[name].min()) for name in members if name in scaled]
        if lowest and any(scaled[name].any() for name in members if name in scaled):
            # members share one scale, whether they were rescaled or not
            least = min(lowest) if len(lowest) == len(members) else min(*lowest, 0.0)
            wider |= dict.fromkeys(members, 2.0**-least)
    tensors = {
        name: _widened_entry(name, entry, wider[name]) if name in wider else entry
        for name, entry in table.tensors.items()
    }
    bare = replace(table, tensors=tensors, weights={}, corrections=())
    result = with_weights(bare, plan, build_model(index, plan, bare))
    kept = tuple(each for each in table.corrections if not isinstance(each, (Equalization, ChannelCopies)))
    return replace(result, corrections=kept), wider


def _widened_entry(name: str, entry: TensorEntry, factor: float) -> TensorEntry:
    try:
        affine = Affine(positive_scale(entry.scale * factor), entry.zero_point, entry.affine.dtype)
    except NonFiniteError as error:
        raise TableError(
            f"the range of tensor {name!r} without rescaled channels does not fit float32",
            do="calibrate with another recipe",
            tensor=name,
        ) from error
    return entry.with_affine(affine)


def _weights_of(layers: Iterable[Layer], table: CalibrationTable, plans: tuple[Plan, Plan]) -> dict[str, WeightEntry]:
    """Return the entries of layers, under the keys that the later plan has for them."""
    before, after = plans
    names = [(each.node, each.weight) for each in layers]
    return {
        after.weight_key(*each): table.weights[old]
        for each in names
        if (old := before.weight_key(*each)) in table.weights
    }


def _cut(table: CalibrationTable, plans: tuple[Plan, Plan], left: Mapping[str, object]) -> CalibrationTable:
    before, after = plans
    lost = {each.tensor for each in before.tensors} - {each.tensor for each in after.tensors}
    tensors = {name: entry for name, entry in table.tensors.items() if name not in lost}
    # a layer that is slower in int8 between floats falls along with its neighbours
    gone = set(left) | ({each.node for each in before.weighted} - {each.node for each in after.weighted})
    return replace(table.corrected(*(each.without(gone) for each in table.corrections)), tensors=tensors)
