"""Table x Plan -> int8 model: the one way from numbers to a QDQ graph, for `calibrate` and for `quantize`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx

from int8cal.errors import TableError
from int8cal.graph.bodies import put_back
from int8cal.graph.index import Index
from int8cal.graph.layers import KERNEL_TARGETS
from int8cal.graph.passes.computed import computed_again
from int8cal.graph.passes.float32 import in_their_types, told
from int8cal.protos import metadata_of, set_metadata
from int8cal.quantization.corrections import CORRECTIONS
from int8cal.quantization.corrections.correction import Draft
from int8cal.quantization.corrections.equalization import EQUALIZATION_KEY, rescaling_plan
from int8cal.quantization.corrections.uint8_fold import take_codes
from int8cal.quantization.corrections.uint8_input import Uint8Input
from int8cal.quantization.embeddings import embedding_entries, emit_embeddings, quantize_embeddings
from int8cal.quantization.emit import emit
from int8cal.quantization.layers import quantize_layers
from int8cal.quantization.recurrent import emit_recurrent, gate_entries, quantize_recurrent
from int8cal.quantization.table import CalibrationTable, WeightEntry
from int8cal.quantization.unranged import emit_unranged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.plan import Plan
    from int8cal.numerics import Float64
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.embeddings import QuantizedEmbedding
    from int8cal.quantization.recurrent import QuantizedRecurrent

TABLE_KEY = "int8cal.table"
STEPS_KEY = "int8cal.steps"


@dataclass(frozen=True)
class BuiltModel:
    """An int8 model, and what it was made of.

    Attributes:
        model: The QDQ model.
        draft: The float model that its integers stand for, corrections applied, and its plan.
        layers, recurrent, embeddings: The integers of its layers (those without a range included), recurrent nodes and
            embeddings, by node.
        warnings: What the user should know.
        inside: Likewise of bodies of If, Loop and Scan, by path; their models are in `model` and empty here.
        searched: Scales of weights that were searched for, by digest; models that are built of each other share it.
    """

    model: onnx.ModelProto
    draft: Draft
    layers: dict[str, QuantizedLayer]
    recurrent: dict[str, QuantizedRecurrent]
    embeddings: dict[str, QuantizedEmbedding]
    warnings: tuple[str, ...]
    inside: dict[str, BuiltModel] = field(default_factory=dict)
    searched: dict[str, Float64] = field(default_factory=dict)


def build_model(
    prepared: onnx.ModelProto | Index, plan: Plan, table: CalibrationTable, known: BuiltModel | None = None
) -> BuiltModel:
    """Build the int8 model that a table describes.

    Args:
        prepared: The prepared model, or its index.
        plan: The plan made with the table's settings.
        table: Activation entries for every planned tensor; weight entries are optional (computed where absent). A body
            of the plan that it has no part for stays float.
        known: A model of another table or plan: what is the same in both is not rounded again.

    Raises:
        TableError: An entry is missing, or tensors that share one scale were given different ones.
    """
    built = _build_graph(Index.of(prepared), plan, table, known)
    others = {} if known is None else known.inside
    inside = [
        (each.body, _build_graph(Index(each.body.model), each.plan, table.bodies[path], others.get(path)))
        for path, each in plan.bodies.items()
        if path in table.bodies and (not each.body.parent or each.body.parent in table.bodies)
    ]
    in_their_types(built.model)  # before bodies come back, so that what several graphs hold is alike, and shared
    if not inside:
        return built
    put_back(built.model, [(body, in_their_types(each.model)) for body, each in inside])
    digests = [str(metadata_of(each.model, TABLE_KEY)) for each in (built, *(each for _, each in inside))]
    factors = {
        f"{place}{name}": entry
        for place, each in (("", built), *((f"{body.path}/", each) for body, each in inside))
        for name, entry in json.loads(metadata_of(each.model, EQUALIZATION_KEY) or "{}").items()
    }
    if factors:
        set_metadata(built.model, EQUALIZATION_KEY, json.dumps(factors))
    set_metadata(built.model, TABLE_KEY, hashlib.sha256("\n".join(digests).encode()).hexdigest())
    warnings = list(built.warnings)
    for body, each in inside:
        warnings += (f"{body.path}: {warning}" for warning in each.warnings if warning not in built.warnings)
    bodies = {body.path: replace(each, model=onnx.ModelProto()) for body, each in inside}
    return replace(built, warnings=tuple(warnings), inside=bodies)


def _build_graph(prepared: Index, plan: Plan, table: CalibrationTable, known: BuiltModel | None) -> BuiltModel:
    """Build one graph, the bodies inside it as they are; see `build_model`."""
    _check_forms(plan, table)
    recurrent = quantize_recurrent(prepared, plan, table)
    embeddings = quantize_embeddings(prepared, plan, table)
    chained = rescaling_plan(prepared, plan, table)
    rescaled = None if known is None else known.draft.rescaled
    draft = Draft(prepared, plan, chained, table, _entries(prepared, plan, table), rescaled=rescaled)
    for kind in CORRECTIONS:
        correction = kind.of(draft.table)
        if correction:
            draft = correction.apply(draft)
    activations = draft.table.affines(draft.plan)
    _check_symmetric(draft.plan, activations)
    searched = {} if known is None else known.searched
    layers = quantize_layers(draft, activations, {} if known is None else known.layers, searched)
    metadata = {**draft.metadata, TABLE_KEY: _digest(draft, activations, layers, recurrent, embeddings)}
    if table.settings.steps:
        metadata[STEPS_KEY] = json.dumps(table.settings.steps)
    model = emit(draft, activations, layers, metadata)
    model = emit_recurrent(take_codes(model, draft.pixels), recurrent)
    model = emit_embeddings(emit_unranged(model, draft, layers), embeddings)
    warnings = (*told(prepared.model), *_warnings(layers))
    return BuiltModel(computed_again(model), draft, layers, recurrent, embeddings, warnings, searched=searched)


def shared_scale_warnings(plan: Plan, table: CalibrationTable) -> tuple[str, ...]:
    """Say which tensors take another's edited range, because they share its scale."""
    affines = table.affines(plan)
    warnings = []
    for group in plan.groups:
        members = [each.tensor for each in plan.members(group)]
        edited = [name for name in members if table.tensors[name].source == "user"]
        follow = [name for name in members if table.tensors[name].affine != affines[name]]
        if edited and follow:
            warnings.append(f"tensor {edited[0]!r} shares its scale: {', '.join(map(repr, follow))} take the edit too")
    return tuple(warnings)


def renewed_scale_warnings(built: BuiltModel) -> tuple[str, ...]:
    """Say of which layers the table's scales of weights were not taken, since edits changed what codes they have."""
    graphs = {"": built} | built.inside
    return tuple(
        f"{path}{': ' if path else ''}node {name!r}: the table's weight scales are for {entry.range}, but its codes "
        f"are {graph.layers[name].range} now; computed anew"
        for path, graph in graphs.items()
        for name, entry in graph.draft.entries.items()
        if entry.range != graph.layers[name].range
    )


def unknown_tensor_warnings(prepared: onnx.ModelProto, table: CalibrationTable) -> tuple[str, ...]:
    """Say which tensors and weights of a table the model does not have; raw pixels come with tensors of their own."""
    if Uint8Input.of(table):
        return ()
    index = Index(prepared)
    held = index.initializers.keys() | index.producer.keys() | index.inputs
    computed = held - index.initializers.keys()
    odd = {
        "tensor": [name for name in table.tensors if name not in computed],
        "weight": [name for name in table.weights if not {name, name.rpartition("@")[0]} & held],
    }
    return tuple(
        f"the model has no {kind} {names[0]!r}" + (f", nor {len(names) - 1} more of the table's" if names[1:] else "")
        for kind, names in odd.items()
        if names
    )


def _check_forms(plan: Plan, table: CalibrationTable) -> None:
    """Refuse a form that a layer cannot have.

    Raises:
        TableError: Names the node, and says why.
    """
    reasons = {each.node: each.reason for each in plan.unquantized}
    given = {layer.node for layer in plan.unranged}
    for node, form in table.settings.forms.items():
        if form == "dynamic" and table.settings.target not in KERNEL_TARGETS:
            why = f"the target {table.settings.target} has no kernel for it"
        elif node in given:
            continue
        else:
            why = reasons.get(node, "it has no weights")
        raise TableError(f"is {form} for node {node!r}, but {why}", where="settings.forms", do="remove the node")


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
    entries = {}
    for layer in plan.weighted:
        integers = layers[layer.node]
        scales = tuple(integers.scales.tolist())
        key = plan.weight_key(layer.node, layer.weight)
        entries[key] = WeightEntry("int8", layer.axis, integers.range, scales, layer.node, layer.input)
    return entries


def with_weights(table: CalibrationTable, plan: Plan, built: BuiltModel) -> CalibrationTable:
    """Return the table with the scales that its layers, recurrent nodes and embeddings were built with."""
    graphs = {"": built} | built.inside
    return table.with_graphs(
        {path: _with_weights(table.graphs[path], plan.graphs[path], each) for path, each in graphs.items()}
    )


def _with_weights(table: CalibrationTable, plan: Plan, built: BuiltModel) -> CalibrationTable:
    """Return the table of one graph with its scales; see `with_weights`."""
    entries = weight_entries(plan, built.layers) | gate_entries(plan, built.recurrent)
    return replace(table, weights=entries | embedding_entries(plan, built.embeddings))


def _warnings(layers: Mapping[str, QuantizedLayer]) -> tuple[str, ...]:
    """Say of which layers the scales of weights are not what the weights ask for."""
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
    return (*raised, *ended)


def _entries(index: Index, plan: Plan, table: CalibrationTable) -> dict[str, WeightEntry]:
    """Return the table's weight entries by node, after a look at their shapes."""
    result = {}
    for layer in plan.weighted:
        key = plan.weight_key(layer.node, layer.weight)
        entry = table.weights.get(key)
        if entry is not None:
            channels = 1 if layer.axis is None else index.initializers[layer.weight].dims[layer.axis]
            entry.require_shape(key, layer.axis, channels)
            result[layer.node] = entry
    return result


def _digest(
    draft: Draft,
    activations: dict[str, Affine],
    layers: dict[str, QuantizedLayer],
    recurrent: dict[str, QuantizedRecurrent],
    embeddings: dict[str, QuantizedEmbedding],
) -> str:
    digest = hashlib.sha256()
    rounding = draft.rounding
    for name, affine in activations.items():
        digest.update(f"{name}\0{affine.scale!r}\0{affine.zero_point}\0{affine.dtype.name}\n".encode())
    for node, layer in layers.items():
        digest.update(f"{node}\n".encode() + layer.scales.tobytes() + rounding.get(node, "").encode())
    for unranged in draft.plan.unranged:
        digest.update(f"{unranged.node}\n{unranged.form}\n".encode())
    for node, each in recurrent.items():
        digest.update(f"{node}\n{each.form}\n".encode())
        for gates in each.gates.values():
            digest.update(gates.scales.tobytes())
    for node, table in embeddings.items():
        digest.update(f"{node}\n{table.form}\n".encode() + table.scales.tobytes())
    return digest.hexdigest()
