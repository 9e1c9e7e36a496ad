"""A table with everything but numbers: which model and data it is for, and the settings it is made with."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from int8cal.calibration.table import CalibrationTable
from int8cal.data.padding import record
from int8cal.declared import declared
from int8cal.job import Preprocess
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
    return CalibrationTable(
        model={"sha256": prepared.sha256, "name": prepared.name},
        data={
            "fingerprint": f"{statistics.fingerprint:032x}",
            "samples": statistics.samples,
            **({"padding": record(statistics.padding)} if statistics.padding else {}),
        },
        settings=_recorded(job) | {"weights": weight_range(job.quantization)},
        tensors={},
        weights={},
        warnings=tuple(str(each) for each in statistics.padding if each.how == "kept"),
    )


def _recorded(job: Job) -> dict[str, Any]:
    """Take the settings that tables hold, those that are not always there at the end."""
    always, given = {}, {}
    for section in (job.calibration, job.quantization, job.data):
        kind: type = type(section)
        for setting in declared(kind):
            value, recorded = _plain(getattr(section, setting.name)), setting.option.recorded
            if recorded == "always":
                always[setting.name] = value
            elif recorded and getattr(section, recorded) is not None:
                given[setting.name] = value
    return always | given


def _plain(value: Any) -> Any:
    """Write a value as JSON has it."""
    if isinstance(value, Preprocess):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
