"""What a file of another runtime says, as a calibration table of a model."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from int8cal.calibration.ranges import TensorEntry
from int8cal.errors import TableError
from int8cal.graph.index import Index
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.interop.foreign import Conversion, Foreign, named, symmetric, symmetric_losses
from int8cal.phrases import counted
from int8cal.quantization.table import CalibrationTable, TableSettings
from int8cal.quantization.table_file import table_to_json
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.interop import Choices
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.table import WeightEntry

_UNSAID = (
    "what was observed is not in the file: the table repeats the range and says that nothing was clipped; "
    "`int8cal calibrate` measures both"
)
_ADVICE = "give --missing float to leave their layers in float, or calibrate with int8cal calibrate"


def table_of(foreign: Foreign, form: str, where: str, choices: Choices, prepared: Prepared | None) -> Conversion:
    """Make a table.

    Args:
        foreign: What the file says.
        form: Its format, which the table gives as method.
        where: The file, for messages.
        choices: Options.
        prepared: The model that it is for; None makes a table of no model, with the file's names as they are.

    Returns:
        The table, in JSON too. Its warnings are the losses.

    Raises:
        TableError: Planned tensors have no range and not `missing_float`, or no tensor is the model's.
    """
    losses = list(foreign.losses)
    if foreign.unusable:
        losses.append(
            f"{counted(len(foreign.unusable), 'tensor has', 'tensors have')} no usable range (NaN, infinite or "
            f"negative): {named(foreign.unusable)}"
        )
    target = choices.target or TableSettings(foreign.settings).target
    if "u8" not in TARGETS[target].activations:
        foreign = _signed(foreign, target, losses)
    weights = choices.weights or foreign.settings.get("weights") or TARGETS[target].weights
    settings: dict[str, Any] = {
        "method": form,
        "recipe": "fast",
        "target": target,
        "activations": "u8" if any(each.dtype.name == "uint8" for each in foreign.tensors.values()) else "s8",
        "weights": weights,
        "include": [],
        "exclude": [],
        "preprocess": None,
    }
    if prepared is None:
        entries = {name: _entry(affine, form, "calibrated") for name, affine in foreign.tensors.items()}
        model = {"sha256": "", "name": ""}
        losses.append(
            "without --model the table is for no model: quantize takes it with --force only, and nothing says which "
            "tensors it lacks"
        )
    else:
        plan, left = _plan(prepared.model, foreign, form, where, choices, target, losses)
        if left:
            settings["left_without_range"] = left
        entries = _entries(plan, foreign.tensors, form, losses)
        model = {"sha256": prepared.sha256, "name": prepared.name}
    fitting = foreign.settings.get("weights") == weights
    kept = {key: entry for key, entry in foreign.weights.items() if fitting or entry.range == weights}
    if len(kept) < len(foreign.weights):
        losses.append(
            f"scales of {counted(len(foreign.weights) - len(kept), 'weight')} are left out, they are not for codes of "
            f"{weights}; quantize computes its own (--weights {foreign.settings.get('weights', 's8')} keeps them)"
        )
    elif not foreign.weights:
        losses.append(f"the file has no scales of weights: quantize computes them, for {target}")
    if prepared is not None:
        kept = _known_weights(plan, kept, losses)
    losses.append(_UNSAID)
    table = CalibrationTable(
        model, {"fingerprint": "", "samples": 0}, TableSettings(settings), entries, kept, warnings=tuple(losses)
    )
    return Conversion(table_to_json(table).encode(), tuple(losses), table)


def _plan(
    model: onnx.ModelProto, foreign: Foreign, form: str, where: str, choices: Choices, target: str, losses: list[str]
) -> tuple[Plan, dict[str, str]]:
    """Return the plan that the file's ranges are enough for, and the nodes left in float for that."""
    left: dict[str, str] = {}
    index = Index(model)
    plan = make_plan(index, Selection(target=target))
    known = {each.tensor for each in plan.tensors}
    unknown = [name for name in foreign.tensors if name not in known]
    there = [*unknown, *foreign.unusable]
    if known and len(unknown) == len(foreign.tensors) and not known & {*foreign.unusable}:
        raise TableError(
            f"has no tensor that is quantized in the model: it names {named(there) or 'none'}, "
            f"the model has {named(each.tensor for each in plan.tensors)}",
            where=where,
            do="give the model that the file was made for",
        )
    if unknown:
        losses.append(
            f"{counted(len(unknown), 'tensor')} of the file are not quantized in the model, and are left out: "
            f"{named(unknown)}"
        )
    missing = _missing(plan, foreign.tensors)
    if missing and not choices.missing_float:
        raise TableError(_lacking(missing, there, foreign), where=where, do=_ADVICE)
    lacking = list(missing)
    while missing:
        nodes = _touching(plan, missing)
        left |= {node: f"no range for {tensor!r} in the {form} table" for node, tensor in nodes.items()}
        plan = make_plan(index, Selection(left=tuple(left.items()), target=target))
        missing = _missing(plan, foreign.tensors)
    if not plan.layers:
        what = f"{_lacking(lacking, there, foreign)}; without these no layer would be int8"
        raise TableError(what, where=where, do="calibrate with int8cal calibrate")
    if left:
        losses.append(
            f"{counted(len(left), 'node stays', 'nodes stay')} in float, since the file has no range for "
            f"{counted(len(lacking), 'tensor')}: {named(lacking)}"
        )
    return plan, left


def _signed(foreign: Foreign, target: str, losses: list[str]) -> Foreign:
    """Make the ranges of a file symmetric int8, for a target that knows nothing else."""
    entries = {name: _entry(affine, "", "") for name, affine in foreign.tensors.items()}
    losses += [f"target {target}: {loss}" for loss in symmetric_losses(entries)]
    return replace(foreign, tensors={name: symmetric(entry) for name, entry in entries.items()})


def _missing(plan: Plan, ranges: Mapping[str, Affine]) -> list[str]:
    """Return the first tensor of each group that has no range at all."""
    return [group for group in plan.groups if not any(point.tensor in ranges for point in plan.members(group))]


def _touching(plan: Plan, missing: list[str]) -> dict[str, str]:
    """Return the nodes that would read or write a tensor without a range, and that tensor."""
    lacking = {point.tensor: group for group in missing for point in plan.members(group)}
    nodes = {}
    for layer in plan.layers:
        tensor = next((name for name in (layer.input, layer.output) if name in lacking), None)
        if tensor is not None:
            nodes[layer.node] = tensor
    producers = {each.tensor: each.node for each in plan.tensors}
    for tensor in lacking:
        if producers[tensor] in plan.integer_nodes:
            nodes.setdefault(producers[tensor], tensor)
    return nodes


def _lacking(missing: list[str], there: list[str], foreign: Foreign) -> str:
    text = f"has no range for {counted(len(missing), 'tensor')} of the model: {named(missing)}"
    bad = next((name for name in missing if name in foreign.unusable), None)
    if bad is not None:
        return f"{text}; what it says of {bad!r} is NaN, infinite or negative"
    near = difflib.get_close_matches(missing[0], there, 1)
    return f"{text} (it has {near[0]!r})" if near else text


def _entries(plan: Plan, ranges: Mapping[str, Affine], source: str, losses: list[str]) -> dict[str, TensorEntry]:
    """Return an entry for each planned tensor; tensors of one group share the widest range that the file has of it."""
    entries = {}
    widened = []
    for group in plan.groups:
        members = [point.tensor for point in plan.members(group)]
        given = [ranges[name] for name in members if name in ranges]
        widest = max(given, key=lambda affine: affine.high - affine.low)
        if any(affine != widest for affine in given):
            widened.append(group)
        for name in members:
            entries[name] = _entry(widest, source, "calibrated" if name == group else "shared")
    if widened:
        losses.append(
            f"{counted(len(widened), 'group')} of tensors share one scale in int8cal, and got the widest range that "
            f"the file has of them: {named(widened)}"
        )
    return {each.tensor: entries[each.tensor] for each in plan.tensors}


def _known_weights(plan: Plan, weights: dict[str, WeightEntry], losses: list[str]) -> dict[str, WeightEntry]:
    layers = {plan.weight_key(layer.node, layer.weight): layer for layer in plan.layers}
    others = {plan.weight_key(each.node, name) for each in plan.recurrent for name in each.tensors}
    others |= {plan.weight_key(each.node, each.weight) for each in plan.embeddings}
    unknown = [key for key in weights if key not in layers and key not in others]
    if unknown:
        losses.append(
            f"scales of {counted(len(unknown), 'weight')} are left out, the model has no such layer in int8: "
            f"{named(unknown)}"
        )
    return {
        key: replace(entry, node=layers[key].node, input=layers[key].input) if key in layers else entry
        for key, entry in weights.items()
        if key not in unknown
    }


def _entry(affine: Affine, method: str, source: str) -> TensorEntry:
    ends = affine.low, affine.high
    return TensorEntry.of(affine, method, amax=max(map(abs, ends)), observed=ends, clipped=0.0, source=source)
