"""A calibrated table, cut down to a plan with fewer layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.table import LEFT_WITHOUT_RANGE
from int8cal.graph.chains import find_chains
from int8cal.graph.plan import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.corrections.codes_text import CORRECTION as ROUNDING
from int8cal.quantization.corrections.rescale import scaled_tensors
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.runtime.targets import table_target

if TYPE_CHECKING:
    import onnx

    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.chains import Chain
    from int8cal.graph.plan import Plan

    Left = dict[str, str]

LEFT_FOR_LATENCY, LEFT_FOR_ACCURACY, LEFT_FOR_GATES = "left_for_latency", "left_for_accuracy", "left_for_gates"
_OF_NODES = ("bias", "remainder", ROUNDING)  # corrections by node


def left_of(table: CalibrationTable) -> tuple[tuple[str, str], ...]:
    """Return the nodes that a table leaves in float because measuring said so, or for want of a range, and why."""
    keys = (LEFT_FOR_LATENCY, LEFT_FOR_ACCURACY, LEFT_FOR_GATES, LEFT_WITHOUT_RANGE)
    return tuple(item for key in keys for item in table.settings.get(key, {}).items())


def plan_of_chains(model: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> Plan:
    """Return the plan under which channels were rescaled: that from before layers were left in float for gates.

    They stay rescaled between an int8 and a float layer: the function is the same, and the int8 layers were calibrated
    so.

    Args:
        model: The prepared model.
        plan: The table's plan.
        table: The table.
    """
    if LEFT_FOR_GATES not in table.settings or "equalization" not in table.corrections:
        return plan
    before = replace(table, settings={key: value for key, value in table.settings.items() if key != LEFT_FOR_GATES})
    include, exclude = (tuple(table.settings.get(key, ())) for key in ("include", "exclude"))
    return make_plan(model, Selection(include, exclude, left_of(before), table_target(table.settings)))


def without_noise_of(table: CalibrationTable, plans: tuple[Plan, Plan], left: Left) -> CalibrationTable:
    """Take layers out of a table that stay float so that gates hold; whatever else was corrected stays as it is.

    Args:
        table: Made for the plan of all layers.
        plans: The plan of all layers, and the plan without those of `left`.
        left: Node name -> why it stays float.
    """
    before, after = plans
    kept = {each.tensor for each in after.tensors}
    corrections = {
        name: {node: value for node, value in part.items() if node not in left} if name in _OF_NODES else part
        for name, part in table.corrections.items()
    }
    weights = {}
    for layer in after.layers:
        entry = table.weights.get(before.weight_key(layer.node, layer.weight))
        if entry is not None:
            weights[after.weight_key(layer.node, layer.weight)] = entry
    lost = {each.tensor for each in before.tensors} - kept
    return replace(
        table,
        settings={**table.settings, LEFT_FOR_GATES: {**table.settings.get(LEFT_FOR_GATES, {}), **left}},
        tensors={name: entry for name, entry in table.tensors.items() if name not in lost},
        weights=weights,
        corrections={name: part for name, part in corrections.items() if part},
    )


def without_layers(
    model: onnx.ModelProto,
    table: CalibrationTable,
    unscaled: CalibrationTable,
    plans: tuple[Plan, Plan],
    left: Left,
) -> CalibrationTable:
    """Take out of a table what a smaller plan has no use for.

    Channels cannot be rescaled between two layers of which one is in float: their tensors get the ranges that they
    have without that.

    Args:
        model: The prepared model.
        table: Made for the plan of all layers.
        unscaled: Likewise, without equalization.
        plans: The plan of all layers, and the plan without those of `left`.
        left: Node name -> why it stays float.

    Returns:
        The table without weight entries, whose names depend on who else reads a weight: `with_weights` adds them.
    """
    before, after = plans
    lost = {each.tensor for each in before.tensors} - {each.tensor for each in after.tensors}
    corrections = dict(table.corrections)
    for part in _OF_NODES:
        if part in corrections:
            corrections[part] = {node: value for node, value in corrections[part].items() if node not in left}
    factors = corrections.get("equalization", {})
    kept = {chain.tensor for chain in find_chains(model, after)}
    gone = {name: np.array(exponents, np.float64) for name, exponents in factors.items() if name not in kept}
    tensors = {name: entry for name, entry in table.tensors.items() if name not in lost}
    bare: set[str] = set()
    if gone:
        corrections["equalization"] = {name: exponents for name, exponents in factors.items() if name in kept}
        scaled = scaled_tensors(model, before, gone)
        bare = {name for name in scaled if name in tensors}
        tensors |= {name: unscaled.tensors[name] for name in bare}
        # codes were rounded for weights that are other ones now
        touched = {node for chain in find_chains(model, before) if chain.tensor in gone for node in _layers(chain)}
        if ROUNDING in corrections:
            corrections[ROUNDING] = {node: text for node, text in corrections[ROUNDING].items() if node not in touched}
    corrections = {key: value for key, value in corrections.items() if value}
    settings = {**table.settings, LEFT_FOR_LATENCY: dict(left)}
    result = replace(table, settings=settings, tensors=tensors, weights={}, corrections=corrections)
    # ranges without equalization are ranges without room for a second plane, too
    doubled = corrections.get("remainder", {})
    narrow = [layer.node for layer in after.layers if layer.node in doubled and layer.input in bare]
    return with_residual_codes(result, after, narrow) if narrow else result


def _layers(chain: Chain) -> tuple[str, ...]:
    return (chain.node, *(reader.node for reader in chain.readers))
