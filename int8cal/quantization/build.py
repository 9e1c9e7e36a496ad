"""Table x Plan -> int8 model: the one way from numbers to a QDQ graph, for `calibrate` and for `quantize`."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.calibration.table import CalibrationTable, WeightEntry
from int8cal.data.pixels import UINT8_INPUT_KEY
from int8cal.errors import TableError
from int8cal.graph.chains import find_chains
from int8cal.graph.index import Index
from int8cal.quantization.corrections.codes_text import CORRECTION as ROUNDING
from int8cal.quantization.corrections.rescale import apply_factors, as_numbers, scaled_axes, scaled_tensors
from int8cal.quantization.corrections.residual_codes import residual_codes_of
from int8cal.quantization.corrections.uint8_fold import fold_pixels
from int8cal.quantization.emit import emit
from int8cal.quantization.layers import quantize_layers
from int8cal.quantization.left_out import plan_of_chains
from int8cal.quantization.recurrent import emit_recurrent, gate_entries, quantize_recurrent
from int8cal.quantization.uint8_boundary import take_codes
from int8cal.quantization.uint8_input import CORRECTION as UINT8_INPUT
from int8cal.quantization.uint8_input import uint8_input_of, with_points
from int8cal.runtime.targets import table_range, table_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.recurrent import QuantizedRecurrent
    from int8cal.quantization.uint8_input import Uint8Input

EQUALIZATION_KEY = "int8cal.equalization"
TABLE_KEY = "int8cal.table"
STEPS_KEY = "int8cal.steps"


@dataclass(frozen=True)
class Built:
    """The int8 model, the integers of its layers and of its recurrent nodes by node, and warnings.

    Attributes:
        floats, plan: The float model that the integers stand for, corrections applied, and its plan.
        wide: Where it takes raw pixels: tensors with one more channel, of constant value -> the tensor without.
    """

    model: onnx.ModelProto
    layers: dict[str, QuantizedLayer]
    warnings: tuple[str, ...]
    recurrent: dict[str, QuantizedRecurrent]
    floats: onnx.ModelProto
    plan: Plan
    wide: Mapping[str, str]


def build_model(prepared: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> Built:
    """Build the int8 model that a table describes.

    Args:
        prepared: The prepared model.
        plan: The plan made with the table's settings.
        table: Activation entries for every planned tensor; weight entries are optional (computed where absent).

    Raises:
        TableError: An entry is missing, or tensors that share one scale were given different ones.
    """
    uint8 = uint8_input_of(prepared, plan, table.corrections)
    recurrent = quantize_recurrent(prepared, plan, table)
    entries = _entries(prepared, plan, table)
    rounding = _rounding(plan, table)
    wide: dict[str, str] = {}
    chained = plan_of_chains(prepared, plan, table)
    if uint8 is not None:
        alike, floats = chained is plan, prepared
        prepared, plan, wide = _folded(floats, plan, uint8, table)
        chained = plan if alike else _folded(floats, chained, uint8, table)[1]
        if any(table.tensors[name].source == "user" for name in (*uint8.tensors, *wide)):
            # these weights follow an edited scale of the pixels, so the table's scales for them no longer fit
            entries = {node: entry for node, entry in entries.items() if node not in uint8.nodes}
            rounding = {node: text for node, text in rounding.items() if node not in uint8.nodes}
    activations = affines_of(plan, table)
    _check_symmetric(plan, activations)
    exponents, deltas = (
        {name: np.array(values, np.float64) for name, values in table.corrections.get(part, {}).items()}
        for part in ("equalization", "bias")
    )
    _check_corrections(prepared, (plan, chained), exponents, deltas)
    planes = residual_codes_of(plan, table, () if uint8 is None else uint8.nodes)
    equalized = apply_factors(prepared, chained, exponents) if exponents else prepared
    layers = quantize_layers(
        equalized,
        plan,
        activations,
        table_range(table.settings),
        target=table_target(table.settings),
        entries=entries,
        bias_deltas=deltas,
        rounding=rounding,
        planes=planes,
    )
    warnings = _warnings(layers, entries)
    steps = table.settings.get("steps")
    metadata = {TABLE_KEY: _digest(activations, layers, recurrent, rounding)}
    if steps:
        metadata[STEPS_KEY] = json.dumps(steps)
    if exponents:
        scaled = scaled_tensors(prepared, chained, exponents)
        axes = scaled_axes(prepared, chained)
        metadata[EQUALIZATION_KEY] = json.dumps(
            {name: {"axis": axes[name], "exponents": as_numbers(values)} for name, values in sorted(scaled.items())}
        )
    if uint8 is not None:
        metadata[UINT8_INPUT_KEY] = json.dumps(uint8.pixels.to_dict())
    model = emit(equalized, plan, activations, layers, metadata, planes=planes)
    if uint8 is not None:
        model = take_codes(model, {*uint8.tensors, *wide}, dict.fromkeys(wide, uint8.ones or 0))
    return Built(emit_recurrent(model, recurrent), layers, warnings, recurrent, equalized, plan, wide)


def affines_of(plan: Plan, table: CalibrationTable) -> dict[str, Affine]:
    """Return the affine of every planned tensor; a user's edit of one tensor holds for all that share its scale.

    Raises:
        TableError: An entry is missing, or two edits contradict each other.
    """
    missing = next((each.tensor for each in plan.tensors if each.tensor not in table.tensors), None)
    if missing is not None:
        near = difflib.get_close_matches(missing, table.tensors, 1)
        hint = f" (it has {near[0]!r})" if near else ""
        raise TableError(
            f"has no entry for tensor {missing!r}{hint}", do="calibrate again with the same settings", tensor=missing
        )
    result: dict[str, Affine] = {}
    for group in plan.groups:
        members = plan.members(group)
        edited = [point for point in members if table.tensors[point.tensor].source == "user"]
        chosen = edited or list(members)
        affines = {table.tensors[point.tensor].affine for point in chosen}
        if len(affines) > 1:
            first, second = (
                chosen[0].tensor,
                next(
                    point.tensor
                    for point in chosen
                    if table.tensors[point.tensor].affine != table.tensors[chosen[0].tensor].affine
                ),
            )
            raise TableError(
                f"tensors {first!r} and {second!r} share one scale, but have different ones",
                do="edit only one of them, or both alike",
            )
        (affine,) = affines
        result |= {point.tensor: affine for point in members}
    return result


def shared_scale_warnings(plan: Plan, table: CalibrationTable) -> tuple[str, ...]:
    """Say which tensors take another's edited range, because they share its scale."""
    affines = affines_of(plan, table)
    warnings = []
    for group in plan.groups:
        members = [point.tensor for point in plan.members(group)]
        edited = [name for name in members if table.tensors[name].source == "user"]
        follow = [name for name in members if table.tensors[name].affine != affines[name]]
        if edited and follow:
            warnings.append(f"tensor {edited[0]!r} shares its scale: {', '.join(map(repr, follow))} take the edit too")
    return tuple(warnings)


def unknown_tensor_warnings(prepared: onnx.ModelProto, table: CalibrationTable) -> tuple[str, ...]:
    """Say which tensors of a table the model does not have; raw pixels come with tensors of their own."""
    index = Index(prepared)
    odd = [name for name in table.tensors if name not in index.producer.keys() | index.inputs]
    if not odd or UINT8_INPUT in table.corrections:
        return ()
    return (f"the model has no tensor {odd[0]!r}" + (f", nor {len(odd) - 1} more of the table's" if odd[1:] else ""),)


def _check_symmetric(plan: Plan, activations: Mapping[str, Affine]) -> None:
    """Refuse codes that the target does not take.

    Raises:
        TableError: Names the tensor.
    """
    if not plan.ops.symmetric:
        return
    for name, affine in activations.items():
        if affine.zero_point or affine.dtype.name != "int8":
            raise TableError(
                f"tensor {name!r} is {affine.dtype.name} with zero point {affine.zero_point}, "
                "the target takes int8 with zero point 0",
                do="calibrate again for this target; an edited table may change its scales",
                tensor=name,
            )


def weight_entries(plan: Plan, layers: dict[str, QuantizedLayer]) -> dict[str, WeightEntry]:
    """Return the table's weight entries for built layers."""
    return {
        plan.weight_key(layer.node, layer.weight): WeightEntry(
            "int8",
            layer.axis,
            layers[layer.node].range,
            tuple(float(scale) for scale in layers[layer.node].scales),
            layer.node,
            layer.input,
        )
        for layer in plan.layers
    }


def with_weights(table: CalibrationTable, plan: Plan, built: Built) -> CalibrationTable:
    """Return the table with the scales that its layers and recurrent nodes were built with."""
    return replace(table, weights=weight_entries(plan, built.layers) | gate_entries(built.recurrent))


def _warnings(layers: Mapping[str, QuantizedLayer], entries: Mapping[str, WeightEntry]) -> tuple[str, ...]:
    """Say of which layers the scales of weights are not what the weights or the table ask for."""
    raised = [
        f"node {name!r}: the weight scale of {layer.raised} output channel(s) was raised so that the s32 bias fits"
        for name, layer in layers.items()
        if layer.raised
    ]
    ended = [
        f"node {name!r}: float32 ends: {layer.ended} output channel(s) of its weight have fewer bits, as their scale "
        "times that of its input would be smaller than a float32 can be"
        for name, layer in layers.items()
        if layer.ended
    ]
    anew = [
        f"node {name!r}: the table's weight scales are for {entry.range}, but its codes are {layers[name].range} now; "
        "computed anew"
        for name, entry in entries.items()
        if entry.range != layers[name].range
    ]
    return (*raised, *ended, *anew)


def _folded(
    prepared: onnx.ModelProto, plan: Plan, uint8: Uint8Input, table: CalibrationTable
) -> tuple[onnx.ModelProto, Plan, dict[str, str]]:
    name = uint8.pixels.input
    affine = affines_of(with_points(plan, uint8), table)[name]
    folded = fold_pixels(prepared, plan, uint8, affine)
    # the entry of a tensor that only the folded model has may be the one that was edited
    edited = affines_of(folded[1], table)[name]
    return folded if edited == affine else fold_pixels(prepared, plan, uint8, edited)


def _entries(prepared: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> dict[str, WeightEntry]:
    """Return the table's weight entries by node, after a look at their shapes."""
    index = Index(prepared)
    result = {}
    for layer in plan.layers:
        key = plan.weight_key(layer.node, layer.weight)
        entry = table.weights.get(key)
        if entry is not None:
            channels = 1 if layer.axis is None else index.initializers[layer.weight].dims[layer.axis]
            entry.require_shape(key, layer.axis, channels)
            result[layer.node] = entry
    return result


def _rounding(plan: Plan, table: CalibrationTable) -> dict[str, str]:
    """Return the table's codes by node, as text, after a look at their nodes."""
    result: dict[str, str] = table.corrections.get(ROUNDING, {})
    layers = {layer.node for layer in plan.layers}
    unknown = next((node for node in result if node not in layers), None)
    if unknown is not None:
        raise TableError(
            f"corrections.{ROUNDING} names {unknown!r}, which is not a quantized layer",
            do="remove it, or calibrate again",
            node=unknown,
        )
    return result


def _check_corrections(
    prepared: onnx.ModelProto,
    plans: tuple[Plan, Plan],
    exponents: dict[str, npt.NDArray[np.float64]],
    deltas: dict[str, npt.NDArray[np.float64]],
) -> None:
    plan, chained = plans
    known = {chain.tensor: chain.channels for chain in find_chains(prepared, chained)} if exponents else {}
    for name, values in exponents.items():
        if known.get(name) != len(values):
            raise TableError(
                f"corrections.equalization of {name!r} has {len(values)} exponents, "
                f"the model expects {known.get(name, 0)}",
                do="calibrate again",
            )
    index = Index(prepared)
    layers = {layer.node: layer for layer in plan.layers}
    for node, delta in deltas.items():
        layer = layers.get(node)
        if layer is None or layer.bias is None:
            raise TableError(
                f"corrections.bias names {node!r}, which is not a quantized node with a bias", do="calibrate again"
            )
        channels = index.initializers[layer.weight].dims[layer.axis or 0]
        channels *= layer.group if layer.op_type == "ConvTranspose" else 1
        if delta.shape != (channels,):
            raise TableError(
                f"corrections.bias of {node!r} has {delta.size} values, the model expects {channels}",
                do="calibrate again",
            )


def _digest(
    activations: dict[str, Affine],
    layers: dict[str, QuantizedLayer],
    recurrent: dict[str, QuantizedRecurrent],
    rounding: Mapping[str, str],
) -> str:
    digest = hashlib.sha256()
    for name, affine in activations.items():
        digest.update(f"{name}\0{affine.scale!r}\0{affine.zero_point}\0{affine.dtype.name}\n".encode())
    for node, layer in layers.items():
        digest.update(f"{node}\n".encode() + layer.scales.tobytes() + rounding.get(node, "").encode())
    for node, each in recurrent.items():
        digest.update(f"{node}\n{each.form}\n".encode())
        for gates in each.gates.values():
            digest.update(gates.scales.tobytes())
    return digest.hexdigest()
