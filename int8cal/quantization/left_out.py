"""A calibrated table, cut down to a plan with fewer layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.chains import find_chains
from int8cal.quantization.corrections.equalize import scaled_tensors

if TYPE_CHECKING:
    import onnx

    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan

    Left = dict[str, str]

LEFT_KEY = "left_for_latency"


def left_of(table: CalibrationTable) -> tuple[tuple[str, str], ...]:
    """Return the nodes that a table leaves in float because measuring said so, and why."""
    return tuple(table.settings.get(LEFT_KEY, {}).items())


def without_layers(
    model: onnx.ModelProto, table: CalibrationTable, unscaled: CalibrationTable, plans: tuple[Plan, Plan], left: Left
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
    lost = {point.tensor for point in before.points} - {point.tensor for point in after.points}
    corrections = dict(table.corrections)
    if "bias" in corrections:
        corrections["bias"] = {node: delta for node, delta in corrections["bias"].items() if node not in left}
    factors = corrections.get("equalization", {})
    kept = {chain.tensor for chain in find_chains(model, after)}
    gone = {name: np.array(exponents, np.int64) for name, exponents in factors.items() if name not in kept}
    tensors = {name: entry for name, entry in table.tensors.items() if name not in lost}
    if gone:
        corrections["equalization"] = {name: exponents for name, exponents in factors.items() if name in kept}
        scaled = scaled_tensors(model, before, gone)
        tensors |= {name: unscaled.tensors[name] for name in scaled if name in tensors}
    corrections = {key: value for key, value in corrections.items() if value}
    settings = {**table.settings, LEFT_KEY: dict(left)}
    return replace(table, settings=settings, tensors=tensors, weights={}, corrections=corrections)
