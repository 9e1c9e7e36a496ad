"""From a calibrated table to one that leaves layers in float where int8 is slower here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.graph.prepared import require_layers
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.left_out import left_of, without_layers
from int8cal.search.goals.optimize import optimize_latency

if TYPE_CHECKING:
    from int8cal.calibration.table import CalibrationTable
    from int8cal.evaluation.result import Optimization
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepared import Prepared
    from int8cal.graph.select import Selection
    from int8cal.quantization.build import Built
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.search import Result


@dataclass(frozen=True)
class Faster:
    """What calibration gives when layers stay float, and what was measured."""

    result: Result
    found: Optimization


def leave_slow_layers(
    prepared: Prepared,
    selection: Selection,
    tables: tuple[Result, Result],
    sample: SampleLike,
    *,
    threads: int = 0,
) -> Faster:
    """Measure, choose the layers that stay float, and write down in the table which and why.

    Args:
        prepared: The prepared model.
        selection: What the user allows.
        tables: The plan's table as calibrated, and without equalization.
        sample: What to run.
        threads: Threads of the runtime; 0 for all CPUs.

    Raises:
        ModelError: onnxruntime cannot load a model.
    """
    whole, unscaled = tables
    plan = whole.plan

    def rebuilt(left: dict[str, str]) -> tuple[Plan, CalibrationTable, Built]:
        if not left:
            return plan, whole.table, build_model(prepared.model, plan, whole.table)
        smaller = require_layers(prepared, replace(selection, left=(*left_of(whole.table), *left.items())))
        table = without_layers(prepared.model, whole.table, unscaled.table, (plan, smaller), left)
        built = build_model(prepared.model, smaller, table)
        return smaller, with_weights(table, smaller, built), built

    found = optimize_latency(prepared.model, plan, lambda left: rebuilt(left)[2].model, sample, threads=threads)
    smaller, table, built = rebuilt(found.left)
    if found.int8_us > found.fp32_us:
        times = f"{found.int8_us:.1f} µs against {found.fp32_us:.1f} µs"
        slow = f"optimize found the int8 model slower than the FP32 model on this machine: {times}"
        table = replace(table, warnings=(*table.warnings, slow))
    changed = {name for name, entry in table.tensors.items() if entry != whole.table.tensors[name]}
    statistics = {
        name: unscaled.tensors[name] if name in changed else value
        for name, value in whole.tensors.items()
        if name in table.tensors
    }
    return Faster(replace(whole, table=table, tensors=statistics, plan=smaller, model=built.model), found)
