"""A table with everything but numbers: which model and data it is for, and the settings it is made with."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from int8cal.calibration.table import CalibrationTable
from int8cal.data.padding import record
from int8cal.runtime.targets import weight_range

if TYPE_CHECKING:
    from int8cal.calibration.statistics import Statistics
    from int8cal.graph.prepared import Prepared
    from int8cal.job import Job


def blank_table(job: Job, prepared: Prepared, statistics: Statistics) -> CalibrationTable:
    """Start the table of a job.

    Args:
        job: Its settings.
        prepared: The prepared model.
        statistics: What it is made from.
    """
    settings: dict[str, Any] = {
        "method": job.calibration.method,
        "percentile": job.calibration.percentile,
        "recipe": job.quantization.recipe,
        "target": job.quantization.target,
        "activations": job.quantization.activations,
        "weights": weight_range(job.quantization),
        "include": list(job.quantization.include),
        "exclude": list(job.quantization.exclude),
        "uint8_input": job.quantization.uint8_input,
        "latency_allowance": job.quantization.latency_allowance,
        "ranges": {name: list(ends) for name, ends in job.quantization.ranges.items()},
        "preprocess": asdict(job.data.preprocess) if job.data.preprocess is not None else None,
    }
    if job.quantization.optimize is not None:
        settings["optimize"] = job.quantization.optimize
    if job.quantization.budget is not None:
        settings |= {"budget": job.quantization.budget, "fallback": job.quantization.fallback}
    return CalibrationTable(
        model={"sha256": prepared.sha256, "name": prepared.name},
        data={
            "fingerprint": f"{statistics.fingerprint:032x}",
            "samples": statistics.samples,
            **({"padding": record(statistics.padding)} if statistics.padding else {}),
        },
        settings=settings,
        tensors={},
        weights={},
        warnings=tuple(str(each) for each in statistics.padding if each.how == "kept"),
    )
