"""int8cal: calibrate and quantize ONNX models to int8.

    table = int8cal.calibrate("model.onnx", "photos/")      # statistics -> CalibrationTable
    model = int8cal.quantize("model.onnx", table)           # -> onnx.ModelProto, QDQ int8
    report = int8cal.evaluate("model.onnx", model, "photos/val")
    both = int8cal.Statistics.load("a.stats.npz") + int8cal.Statistics.load("b.stats.npz")

The names are loaded when they are first used, so that importing int8cal is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from int8cal.api import calibrate, evaluate, quantize
    from int8cal.calibration.statistics import Statistics
    from int8cal.errors import Int8calError
    from int8cal.evaluation.result import Report
    from int8cal.quantization.table import CalibrationTable

__version__ = "0.1.0"

_HOMES = {
    "calibrate": "int8cal.api",
    "quantize": "int8cal.api",
    "evaluate": "int8cal.api",
    "Statistics": "int8cal.calibration.statistics",
    "CalibrationTable": "int8cal.quantization.table",
    "Report": "int8cal.evaluation.result",
    "Int8calError": "int8cal.errors",
}

__all__ = ["CalibrationTable", "Int8calError", "Report", "Statistics", "calibrate", "evaluate", "quantize"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
