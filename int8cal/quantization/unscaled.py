"""A table whose recipe rescaled channels, taken back to the FP32 model: for runtimes that run that model as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import NonFiniteError, TableError
from int8cal.graph.chains import find_chains
from int8cal.numerics.affine import Affine, positive_scale
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.rescale import scaled_tensors
from int8cal.quantization.left_out import plan_of_chains

if TYPE_CHECKING:
    import onnx

    from int8cal.calibration.table import CalibrationTable, TensorEntry
    from int8cal.graph.plan import Plan


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
    factors = {
        name: np.array(exponents, np.float64) for name, exponents in table.corrections.get("equalization", {}).items()
    }
    chained = plan_of_chains(model, plan, table)
    channels = {chain.tensor: chain.channels for chain in find_chains(model, chained)}
    for name, exponents in factors.items():
        if channels.get(name) != len(exponents):
            raise TableError(
                f"corrections.equalization of {name!r} has {len(exponents)} exponents, "
                f"the model expects {channels.get(name, 0)}",
                do="calibrate again",
                tensor=name,
            )
    scaled = scaled_tensors(model, chained, factors)
    wider: dict[str, float] = {}
    for group in plan.groups:
        members = [point.tensor for point in plan.members(group)]
        lowest = [float(scaled[name].min()) for name in members if name in scaled]
        if lowest and any(scaled[name].any() for name in members if name in scaled):
            # members share one scale, whether they were rescaled or not
            least = min(lowest) if len(lowest) == len(members) else min(*lowest, 0.0)
            wider |= dict.fromkeys(members, 2.0**-least)
    tensors = {
        name: _widened(name, entry, wider[name]) if name in wider else entry for name, entry in table.tensors.items()
    }
    bare = replace(table, tensors=tensors, weights={}, corrections={})
    result = with_weights(bare, plan, build_model(model, plan, bare))
    kept = {part: value for part, value in table.corrections.items() if part != "equalization"}
    return replace(result, corrections=kept), wider


def _widened(name: str, entry: TensorEntry, factor: float) -> TensorEntry:
    try:
        affine = Affine(positive_scale(entry.scale * factor), entry.zero_point, entry.affine.dtype)
    except NonFiniteError as error:
        raise TableError(
            f"the range of tensor {name!r} without rescaled channels does not fit float32",
            do="calibrate with another recipe",
            tensor=name,
        ) from error
    return replace(entry, scale=affine.scale, low=affine.low, high=affine.high)
