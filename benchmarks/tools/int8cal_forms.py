"""int8cal's forms of a layer, each asked for by name, and its SQNR."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from int8cal import calibrate, quantize
from int8cal.numerics.metrics import error_sums
from int8cal.quantization.table import TableSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx

    from benchmarks.models import Feed


def int8_model(
    model: onnx.ModelProto,
    feeds: Sequence[Feed],
    forms: Mapping[str, Mapping[str, str]] | None = None,
    **settings: Any,
) -> onnx.ModelProto:
    """Calibrate a model and write it with given forms.

    Args:
        model: Float32.
        feeds: Calibration samples.
        forms: Entries of the table's settings that take the place of those that int8cal chose: "forms", "recurrent" or
            "embeddings" -> {node: form}.
        settings: Of `int8cal.calibrate`.
    """
    table = calibrate(model, feeds, threads=1, **settings)
    if forms:  # scales of weights are those of a form: without them they are computed anew
        table = replace(table, settings=TableSettings({**table.settings.recorded, **forms}), weights={})
    return quantize(model, table)


def sqnr_db(reference: npt.NDArray[Any], output: npt.NDArray[Any]) -> float | None:
    """Return the SQNR of one output in dB; None where the reference is zero everywhere."""
    return error_sums(reference, output).sqnr_db
