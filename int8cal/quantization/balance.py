"""The model with its channels rescaled, before ranges are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.quantization.corrections.rescale import apply_factors, as_numbers, scaled_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.quantization.corrections.equalize import Equalization


@dataclass(frozen=True)
class Balanced:
    """The prepared model and its statistics after corrections that come before ranges, and what these were."""

    model: onnx.ModelProto
    tensors: dict[str, TensorStatistics]
    corrections: dict[str, Any]
    decisions: tuple[str, ...]


def unscaled(prepared: onnx.ModelProto, statistics: Statistics) -> Balanced:
    """Return the prepared model and its statistics as they are."""
    return Balanced(prepared, dict(statistics.tensors), {}, ())


def equalized(
    prepared: onnx.ModelProto, plan: Plan, statistics: Statistics, chosen: Sequence[Equalization]
) -> Balanced:
    """Rescale the channels of chains, and the statistics with them.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        chosen: What `choose_factors` or `measure_factors` found.
    """
    factors = {item.chain.tensor: item.exponents for item in chosen}
    tensors = dict(statistics.tensors)
    for name, exponents in scaled_tensors(prepared, plan, factors).items():
        if name in tensors:
            tensors[name] = tensors[name].equalized(exponents)
    decisions = tuple(item.decision for item in chosen)
    corrections = {"equalization": {name: as_numbers(values) for name, values in factors.items()}}
    return Balanced(apply_factors(prepared, plan, factors), tensors, corrections, decisions)
