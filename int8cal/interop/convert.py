"""The conversion of one table, from its file to the file of another runtime and back: behind `int8cal table`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.errors import TableError, UsageError
from int8cal.graph.planner import make_plan
from int8cal.graph.prepare import prepare
from int8cal.graph.select import Selection
from int8cal.interop.foreign import Conversion, Foreign, named, read_bytes, require_unscaled, rescaled_tensors
from int8cal.interop.ncnn import NcnnLayer, layers_of_model, layers_of_table, read_ncnn, renamed, to_ncnn
from int8cal.interop.onnxruntime import FORMS, read_onnxruntime, to_onnxruntime
from int8cal.interop.openvino import foreign_model, read_openvino, to_openvino, weight_operations
from int8cal.interop.tables import table_of
from int8cal.interop.tensorrt import HEADER, is_header, read_tensorrt, to_tensorrt
from int8cal.io.atomic import atomic_write
from int8cal.io.paths import require_apart, require_free
from int8cal.job import DEFAULT_TARGET
from int8cal.numerics.fakequantize import fakequantize_of
from int8cal.phrases import counted
from int8cal.quantization.derived_tables import unscaled
from int8cal.quantization.layers import require_finite
from int8cal.quantization.table_file import load_table
from int8cal.runtime.openvino import Operations, operations_of, with_fake_quantize
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.interop import Choices
    from int8cal.quantization.table import CalibrationTable


@weights_folder()
def export_table(source: Path, form: str, output: Path, choices: Choices, *, overwrite: bool = False) -> Conversion:
    """Write a table of int8cal's in the format of another runtime.

    Args:
        source: The table.
        form: One of FORMATS.
        output: The file; for onnxruntime its suffix says which of three forms, for openvino .xml means a model.
        choices: Options.
        overwrite: Replace the output if it exists.

    Raises:
        TableError: The table is malformed, is for another model, or cannot be said in the format.
        OutputError: The output cannot be written.
    """
    _check(source, output, choices, overwrite=overwrite)
    if form == "onnxruntime" and output.suffix not in FORMS:
        raise UsageError(
            f"has suffix {output.suffix!r}, which form of onnxruntime's table is that?",
            where=str(output),
            do=f"end the output's name in {', '.join(FORMS)}; its TensorRT provider reads .flatbuffers",
        )
    if choices.header is not None and not is_header(choices.header):
        raise UsageError(
            f"is {choices.header!r}, expected TRT-<version>-<calibrator>", where="--header", do=f"such as {HEADER}"
        )
    where = str(source)
    table = load_table(source)
    wide = next((name for name, entry in table.tensors.items() if entry.dtype == "uint16"), None)
    if wide is not None:
        raise TableError(
            f"has activations of 16 bits ({wide!r}), and there is no place for them in the format {form}",
            where=where,
            do="calibrate with --activations u8",
        )
    planned = None if choices.model is None else _planned(table, choices.model, where, force=choices.force)
    data = output.with_suffix(".bin") if form == "openvino" and output.suffix == ".xml" else None
    if data is not None:
        if planned is None:
            raise UsageError("is a model, and a table alone is none", where=str(output), do="give --model MODEL.onnx")
        require_free(data, overwrite=overwrite)
        require_apart((data,), _inputs(choices))
    if form == "ncnn" and planned is None and choices.param is not None:
        raise UsageError(
            "has layers that only the model tells apart", where=str(choices.param), do="give --model MODEL.onnx"
        )
    widened: tuple[str, ...] = ()
    if planned is not None and rescaled_tensors(table):
        table, widened = _without_rescaling(table, *planned)
    require_unscaled(table, where)
    if data is not None and planned is not None:
        converted, weights = _model(table, *planned, str(choices.model))
        atomic_write(data, weights)
    else:
        converted = _written(table, form, output, choices, where, planned)
    atomic_write(output, converted.content)
    inside = sum(len(each.tensors) for each in table.bodies.values())
    apart = (f"{counted(inside, 'tensor')} inside If, Loop and Scan are left out",) if inside else ()
    return replace(converted, losses=(*widened, *apart, *converted.losses))


@weights_folder()
def import_table(source: Path, form: str, output: Path, choices: Choices, *, overwrite: bool = False) -> Conversion:
    """Write a calibration table from a file of another runtime.

    Args:
        source: The file.
        form: One of FORMATS.
        output: The table.
        choices: Options.
        overwrite: Replace the output if it exists.

    Raises:
        TableError: The file is malformed, or has no range for a tensor of the model.
        OutputError: The output cannot be written.
    """
    _check(source, output, choices, overwrite=overwrite)
    where = str(source)
    content = read_bytes(source)
    prepared = None if choices.model is None else prepare(choices.model, simplify)
    foreign = _foreign(content, form, where, choices, prepared)
    converted = table_of(foreign, form, where, choices, prepared)
    atomic_write(output, converted.content)
    return converted


def _check(source: Path, output: Path, choices: Choices, *, overwrite: bool) -> None:
    require_free(output, overwrite=overwrite)
    require_apart((output,), [source, *_inputs(choices)])


def _inputs(choices: Choices) -> list[Path]:
    return [path for path in (choices.model, choices.param) if path is not None]


def _planned(table: CalibrationTable, model: Path, where: str, *, force: bool) -> tuple[Prepared, Plan]:
    prepared = prepare(model, simplify)
    if table.model.get("sha256") != prepared.sha256 and not force:
        raise TableError(
            f"was made for another model (sha256 {str(table.model.get('sha256'))[:12]}…, this one is "
            f"{prepared.sha256[:12]}…)",
            where=where,
            do="give the model that it was made for, or --force if only its bytes differ",
        )
    plan = make_plan(prepared.model, table.settings.selection)
    unknown = [each.tensor for each in plan.tensors if each.tensor not in table.tensors]
    if unknown:
        raise TableError(
            f"has no entry for {counted(len(unknown), 'tensor')} of the model: {named(unknown)}",
            where=where,
            do="give the model that it was made for",
        )
    require_finite(prepared, plan)
    return prepared, plan


def _without_rescaling(
    table: CalibrationTable, prepared: Prepared, plan: Plan
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Return the table for the FP32 model, and what that widened."""
    result, wider = unscaled(prepared.model, plan, table)
    worst = max(wider, key=lambda name: wider[name])
    factor = f", up to {wider[worst]:.3g} times ({worst!r})" if wider[worst] > 1 else ""
    text = (
        f"the recipe rescaled channels of {counted(len(wider), 'tensor')}, which the FP32 model does not have: ranges "
        f"were widened where they must cover its channels{factor}, and its accuracy in int8 may be far below that of "
        "int8cal's own model"
    )
    return result, (text,)


def _written(
    table: CalibrationTable,
    form: str,
    output: Path,
    choices: Choices,
    where: str,
    planned: tuple[Prepared, Plan] | None,
) -> Conversion:
    if form == "tensorrt":
        return to_tensorrt(table, where, choices.header or HEADER)
    if form == "onnxruntime":
        return to_onnxruntime(table, FORMS[output.suffix], where)
    if form == "openvino":
        return to_openvino(table)
    if planned is None:
        layers = layers_of_table(table, where)
        unseen = (
            "without --model nothing is known of strides and groups: 3x3 convolutions of stride 1, which ncnn wants "
            "with codes up to 31, and grouped ones got the table's scales as they are"
        )
        converted = to_ncnn(table, _renamed(layers, choices), where)
        return replace(converted, losses=(unseen, *converted.losses))
    prepared, plan = planned
    return to_ncnn(table, _renamed(layers_of_model(prepared.model, plan), choices), where)


def _model(table: CalibrationTable, prepared: Prepared, plan: Plan, model: str) -> tuple[Conversion, bytes]:
    """Return the model with FakeQuantize operations, and the content of its .bin."""
    losses = [*to_openvino(table).losses]
    weights = {}
    shared = []
    for layer in plan.layers:
        entry = table.weights.get(plan.weight_key(layer.node, layer.weight))
        if entry is None or plan.weight_key(layer.node, layer.weight) != layer.weight:
            shared.append(layer.weight)
        else:
            weights[layer.weight] = entry.axis, weight_operations(entry)
    if shared:
        losses.append(
            f"{counted(len(set(shared)), 'weight')} read by several layers, or without scales, stay float: "
            f"{named(sorted(set(shared)))}"
        )
    if plan.recurrent:
        losses.append(f"{counted(len(plan.recurrent), 'recurrent layer stays', 'recurrent layers stay')} float")
    if table.settings.embeddings:
        losses.append(f"{counted(len(table.settings.embeddings), 'embedding stays', 'embeddings stay')} float")
    tensors = {each.tensor: fakequantize_of(table.tensors[each.tensor].affine) for each in plan.tensors}
    written = with_fake_quantize(prepared.model, Operations(tensors, weights), model)
    if written.absent:
        losses.append(
            f"OpenVINO's model does not have {counted(len(written.absent), 'tensor')}: {named(written.absent)}"
        )
    return Conversion(written.xml, tuple(losses)), written.data


def _foreign(content: bytes, form: str, where: str, choices: Choices, prepared: Prepared | None) -> Foreign:
    if form == "tensorrt":
        return read_tensorrt(content, where)
    if form == "onnxruntime":
        return read_onnxruntime(content, where, FORMS.get(Path(where).suffix))
    if form == "openvino":
        return (
            foreign_model(*operations_of(Path(where)), where)
            if where.endswith(".xml")
            else read_openvino(content, where)
        )
    if prepared is None:
        raise UsageError(
            "names layers, not tensors: only the model says what they read", where=where, do="give --model MODEL.onnx"
        )
    plan = make_plan(prepared.model, Selection(target=choices.target or DEFAULT_TARGET))
    return read_ncnn(content, where, _renamed(layers_of_model(prepared.model, plan), choices))


def _renamed(layers: list[NcnnLayer], choices: Choices) -> list[NcnnLayer]:
    if choices.param is None:
        return layers
    return renamed(layers, read_bytes(choices.param), str(choices.param))
