"""The int8 model of an existing table: no data, no inference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.errors import NonFiniteError, TableError
from int8cal.graph.load import Watched, save_model
from int8cal.graph.prepare import Prepared, prepare, require_layers
from int8cal.identity import mixed_with, stamp
from int8cal.io.paths import require_apart, require_free
from int8cal.quantization.build import (
    build_model,
    renewed_scale_warnings,
    shared_scale_warnings,
    unknown_tensor_warnings,
)
from int8cal.quantization.laid_out import laid_out
from int8cal.quantization.layers import require_finite
from int8cal.quantization.table_file import load_table
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.quantization.build import BuiltModel
    from int8cal.quantization.table import CalibrationTable


def quantize_file(model: Path, table: Path, output: Path, *, force: bool, overwrite: bool) -> tuple[str, ...]:
    """Write the int8 model of an existing table: no data, no inference.

    Returns:
        Warnings.

    Raises:
        TableError: The table is malformed, or made for another model and not `force`.
        ModelError: The model cannot be loaded, or changed meanwhile.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), (model, table))
    loaded = load_table(table)
    watched = Watched(model)
    with weights_folder():
        prepared = prepare(model, simplify, loaded.settings.activations)
        built = quantize_prepared(prepared, loaded, str(table), force=force)
        watched.require_same(prepared.sha256)
        save_model(built.model, output)
    return (*mixed_with(table), *built.warnings)


def quantize_prepared(prepared: Prepared, table: CalibrationTable, where: str, *, force: bool = False) -> BuiltModel:
    """Build the int8 model of a table, after checking that the table is this model's."""
    made_for, warnings = str(table.model.get("sha256") or ""), list[str]()
    if not made_for and not force:
        what, do = "is for no model: it was converted without one", "convert it with --model, or give --force"
        raise TableError(what, where=where, do=do)
    if made_for and made_for != prepared.sha256:
        known = f"was made for another model (sha256 {made_for[:12]}…, this one is {prepared.sha256[:12]}…)"
        if not force:
            raise TableError(known, where=where, do="calibrate this model, or give --force if only its bytes differ")
        warnings.append(
            f"{where} {known}; ranges and scales of weights are those of that model, and clip what is larger in this "
            "one: compare both with int8cal evaluate"
        )
    measured = any(graph.settings.left("left_for_latency") for graph in table.graphs.values())
    plan = require_layers(prepared, table.settings.selection, table.body_selections, may_be_float=measured)
    require_finite(prepared, plan)
    try:
        built = build_model(prepared.model, plan, table)
    except (TableError, NonFiniteError) as error:
        error.where = error.where or where
        raise
    stamp(built.model, table)
    return replace(
        built,
        model=laid_out(built.model, table.settings.target),
        warnings=(
            *warnings,
            *built.warnings,
            *renewed_scale_warnings(built),
            *shared_scale_warnings(plan, table),
            *unknown_tensor_warnings(prepared.model, table),
        ),
    )
