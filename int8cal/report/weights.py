"""Plan x table -> the weight scales that reports show."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.result import LayerWeights

if TYPE_CHECKING:
    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan


def weights_of(plan: Plan, table: CalibrationTable) -> tuple[LayerWeights, ...]:
    """Return the scales of every weight that the int8 model was built with, layers first, then recurrent nodes."""
    named = [(layer.node, layer.op_type, layer.weight, layer.output) for layer in plan.layers]
    named += [(each.node, each.op_type, name, "") for each in plan.recurrent for name in each.tensors]
    keyed = [(row, plan.weight_key(row[0], row[2])) for row in named]
    # a recurrent node whose weights stay float has no entry
    return tuple(LayerWeights(*row, table.weights[key]) for row, key in keyed if key in table.weights)


def weights_json(weights: LayerWeights) -> dict[str, Any]:
    """Lay out one weight tensor as report.json has it: its scales are in the table, here is their spread."""
    scales = weights.entry.scales
    return {
        "node": weights.node,
        "op_type": weights.op_type,
        "weight": weights.weight,
        "tensor": weights.tensor,
        "dtype": weights.entry.dtype,
        "range": weights.entry.range,
        "axis": weights.entry.axis,
        "scales": len(scales),
        "scale_min": min(scales, default=None),
        "scale_median": statistics.median(scales) if scales else None,
        "scale_max": max(scales, default=None),
    }
