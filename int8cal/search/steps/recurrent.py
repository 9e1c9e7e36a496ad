"""Step: what of recurrent nodes becomes int8: weights that are worth it, and kernels that cost next to nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.graph.index import Index
from int8cal.graph.layers import KERNELS, KernelForm
from int8cal.quantization.build import build_model
from int8cal.quantization.recurrent import quantize_recurrent, why_no_kernel
from int8cal.search.islands import MORE_BYTES, bytes_worth_db
from int8cal.search.search import Settled

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.quantization.table import CalibrationTable
    from int8cal.search.candidate import Inputs
    from int8cal.search.scorer import Scorer
    from int8cal.search.search import Proposals, State

Forms = dict[str, KernelForm]

# What the kernels of all nodes together may cost against the same int8 model with the cells in float. Their weights may
# cost more, where they save many bytes.
LOSS_DB = 0.5
# Outputs this close to FP32 (an error of 1 % of the signal) may cost more: nobody gains from a better int8 model.
ENOUGH_DB = 40.0


def propose(state: State, inputs: Inputs) -> Proposals:
    """Settle the form of every recurrent node: what a kernel gains is time, so it may cost a little."""
    if state.plan.recurrent:
        table, notes = choose_forms(inputs.prepared, state.plan, state.table, inputs.holdout.scorer)
        built = build_model(inputs.index, state.plan, table, state.built)
        yield Settled(replace(state, table=table, built=built, score=None, notes=(*state.notes, *notes)))


def choose_forms(
    prepared: onnx.ModelProto, plan: Plan, table: CalibrationTable, scorer: Scorer | None
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Decide for each recurrent node which of its weights become int8, and whether its kernel multiplies integers.

    All weights are tried at once; where that costs LOSS_DB, W of single nodes stays float, or the node, as long as that
    gains more than its bytes are worth. All kernels are tried at once as well, and then one node after the other in
    graph order; they may cost LOSS_DB. Anything may cost more where the outputs keep ENOUGH_DB.

    Args:
        prepared: The prepared model.
        plan: Its plan, with recurrent nodes.
        table: Every tensor's entry; its settings name the target.
        scorer: Scores an int8 model on the holdout; None where it cannot.

    Returns:
        The table with its parts settings.recurrent and settings.recurrent_float, and what was decided, a line per node.
    """
    target = table.settings.target
    reasons = {layer.node: why_no_kernel(layer, target) for layer in plan.recurrent}
    forms: Forms = dict.fromkeys(reasons, "weights")
    able = [node for node, reason in reasons.items() if not reason]
    figures = weights = ""

    def score_with(tried: Forms) -> float:
        if scorer is None:
            return -math.inf
        return scorer(build_model(prepared, plan, _with_forms(table, tried)).model).db

    exact = score_with({})
    if not exact > -math.inf:
        none = "there is no validation sample" if scorer is None else "no validation sample has a signal"
        reasons |= dict.fromkeys(able, f"{none}, or no float output, to score its kernel by")
    else:
        first = score_with(forms)
        forms, plain = _worth_their_bytes(Index.of(prepared), plan, score_with, exact, first)
        weights = f"in int8 they cost too much, {first:.2f} dB at the outputs instead of {exact:.2f}"
        able = [node for node in able if forms.get(node) == "weights"]
        best, trials = plain, [able, *([node] for node in able if len(able) > 1)]
        for trial in trials:
            tried: Forms = {**forms, **dict.fromkeys(trial, "kernel")}
            score = score_with(tried) if trial else plain
            if plain - score <= LOSS_DB or score >= ENOUGH_DB:
                forms, best = tried, score
                if trial is able:
                    break
            else:
                why = f"its kernel costs too much, {score:.2f} dB at the outputs instead of {plain:.2f}"
                reasons |= dict.fromkeys(trial, why)
        figures = f"{best:.2f} dB at the outputs, {plain:.2f} dB with its cell in float, on the validation samples"
    # of the others the runtime has no integer kernel, which its graph tells
    left = {
        layer.node: reasons[layer.node] if forms.get(layer.node) == "weights" else f"its weights stay float: {weights}"
        for layer in plan.recurrent
        if layer.op_type in KERNELS and forms.get(layer.node) != "kernel"
    }
    chosen = replace(table, settings=table.settings.with_recurrent(forms, left))
    ranges = {node: each.range for node, each in quantize_recurrent(prepared, plan, chosen).items()}
    notes = []
    for layer in plan.recurrent:
        form = forms.get(layer.node)
        scales = f"weights {ranges.get(layer.node)} per direction, gate and output"
        how = {
            "kernel": f"integer: {KERNELS.get(layer.op_type)}, {scales}; {figures}",
            "weights": f"weight-only: {scales}, the cell computes in float: {reasons[layer.node]}",
            "recurrence": f"weight-only: {scales}, but for those of its input, which stay float: {weights}",
            None: f"float: its weights stay as they are: {weights}",
        }[form]
        notes.append(f"{layer.op_type} {layer.node} is {how}")
    return chosen, tuple(notes)


def _worth_their_bytes(
    index: Index, plan: Plan, score_with: Callable[[Forms], float], exact: float, score: float
) -> tuple[Forms, float]:
    """Find forms whose weights cost no more than their bytes are worth; a node without one stays float.

    Args:
        index: Of the prepared model.
        plan: Its plan.
        score_with: Scores forms.
        exact: The score without any.
        score: That with the weights of all nodes.

    Returns:
        The forms, and their score.
    """
    layers = {layer.node: layer for layer in plan.recurrent}
    forms: Forms = dict.fromkeys(layers, "weights")

    def worth(tried: Forms) -> float:
        names = {name for node, form in tried.items() for name in layers[node].quantized(form)}
        saved = MORE_BYTES * sum(math.prod(index.initializers[name].dims) for name in names)
        return bytes_worth_db(saved, index, plan)

    for form in ("recurrence", None):
        if exact - score <= LOSS_DB or score >= ENOUGH_DB:
            break
        alone = {node: score_with(_changed(forms, node, form)) for node in forms}
        for node in sorted(alone, key=lambda each: -alone[each]):
            tried = _changed(forms, node, form)
            found = score_with(tried)
            if found - score >= max(worth(forms) - worth(tried), LOSS_DB):
                forms, score = tried, found
    return forms, score


def _changed(forms: Forms, node: str, form: KernelForm | None) -> Forms:
    return {**forms, node: form} if form else {name: each for name, each in forms.items() if name != node}


def _with_forms(table: CalibrationTable, forms: Forms) -> CalibrationTable:
    return replace(table, settings=table.settings.with_recurrent(forms))
