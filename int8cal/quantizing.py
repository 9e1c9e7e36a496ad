"""The int8 model of an existing table: no data, no inference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.calibration.table_file import load_table
from int8cal.errors import TableError
from int8cal.graph.load import Watched, save_model
from int8cal.graph.prepared import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.identity import mixed_with, stamp
from int8cal.output_paths import require_apart, require_free
from int8cal.quantization.build import build_model, shared_scale_warnings, unknown_tensor_warnings
from int8cal.quantization.left_out import left_of
from int8cal.runtime.simplify import simplify
from int8cal.runtime.targets import table_target

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.calibration.table import CalibrationTable
    from int8cal.quantization.build import Built


@dataclass(frozen=True)
class QuantizeOutcome:
    """The model that was written, and warnings."""

    output: Path
    warnings: tuple[str, ...]


def quantize_file(
    model: Path, table: Path, output: Path, *, force: bool = False, overwrite: bool = False
) -> QuantizeOutcome:
    """Write the int8 model of an existing table: no data, no inference.

    Raises:
        TableError: The table is malformed, or made for another model and not `force`.
        ModelError: The model cannot be loaded, or changed meanwhile.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), (model, table))
    loaded = load_table(table)
    watched = Watched(model)
    prepared = prepare(model, simplify)
    built = quantize_prepared(prepared, loaded, str(table), force=force)
    watched.require_same(prepared.sha256)
    save_model(built.model, output)
    return QuantizeOutcome(output, (*mixed_with(table), *built.warnings))


def quantize_prepared(prepared: Prepared, table: CalibrationTable, where: str, *, force: bool = False) -> Built:
    """Build the int8 model of a table, after checking that the table is this model's."""
    made_for = table.model.get("sha256")
    if made_for != prepared.sha256 and not force:
        raise TableError(
            f"was made for another model (sha256 {str(made_for)[:12]}…, this one is {prepared.sha256[:12]}…)",
            where=where,
            do="calibrate this model, or give --force if only its bytes differ",
        )
    include, exclude = (tuple(table.settings.get(key, ())) for key in ("include", "exclude"))
    selection = Selection(include, exclude, left_of(table), table_target(table.settings))
    plan = require_layers(prepared, selection)
    try:
        built = build_model(prepared.model, plan, table)
    except TableError as error:
        error.where = error.where or where
        raise
    stamp(built.model, table)
    return replace(
        built,
        warnings=(
            *built.warnings,
            *shared_scale_warnings(plan, table),
            *unknown_tensor_warnings(prepared.model, table),
        ),
    )
