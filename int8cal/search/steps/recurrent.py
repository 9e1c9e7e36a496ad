"""Step: which recurrent nodes multiply integers: those whose kernel costs next to nothing at the model's outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.graph.layers import KERNELS
from int8cal.quantization.build import build_model
from int8cal.quantization.recurrent import quantize_recurrent, why_no_kernel
from int8cal.search.search import Settled

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

    from int8cal.graph.layers import KernelForm
    from int8cal.graph.plan import Plan
    from int8cal.quantization.table import CalibrationTable
    from int8cal.search.candidate import Inputs
    from int8cal.search.scorer import Scorer
    from int8cal.search.search import Proposals, State

# What the kernels of all nodes together may cost against the same int8 model with the cells in float.
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
    """Decide for each recurrent node whether its kernel multiplies integers, or only its weights become int8.

    All kernels are tried at once; where that costs too much, one node after the other in graph order. Too much is more
    than LOSS_DB, unless the outputs keep ENOUGH_DB.

    Args:
        prepared: The prepared model.
        plan: Its plan, with recurrent nodes.
        table: Every tensor's entry; its settings name the target.
        scorer: Scores an int8 model on the holdout; None where it cannot.

    Returns:
        The table with its part settings.recurrent, and what was decided, a line per node.
    """
    target = table.settings.target
    reasons = {layer.node: why_no_kernel(layer, target) for layer in plan.recurrent}
    able = [node for node, reason in reasons.items() if not reason]
    kernels: list[str] = []
    figures = ""
    if able and scorer is None:
        reasons |= dict.fromkeys(able, "there is no validation sample, or no float output, to score its kernel by")
    elif able and scorer is not None:

        def score_with(nodes: Iterable[str]) -> float:
            return scorer(build_model(prepared, plan, _with_forms(table, plan, nodes)).model).db

        plain, score = score_with(()), score_with(able)
        best = plain
        if _is_good(score, plain):
            kernels, best = able, score
        else:
            for node in able:
                score = score_with((*kernels, node))
                if _is_good(score, plain):
                    kernels, best = [*kernels, node], score
                else:
                    reasons[node] = f"its kernel costs too much, {score:.2f} dB at the outputs instead of {plain:.2f}"
        figures = f"{best:.2f} dB at the outputs, {plain:.2f} dB with its cell in float, on the validation samples"
    chosen = _with_forms(table, plan, kernels)
    ranges = {node: each.range for node, each in quantize_recurrent(prepared, plan, chosen).items()}
    notes = []
    for layer in plan.recurrent:
        weights = f"weights {ranges[layer.node]} per direction, gate and output"
        if layer.node in kernels:
            how = f"integer: {KERNELS[layer.op_type]}, {weights}; {figures}"
        else:
            how = f"weight-only: {weights}, the cell computes in float: {reasons[layer.node]}"
        notes.append(f"{layer.op_type} {layer.node} is {how}")
    return chosen, tuple(notes)


def _is_good(score: float, plain: float) -> bool:
    return plain - score <= LOSS_DB or score >= ENOUGH_DB


def _with_forms(table: CalibrationTable, plan: Plan, kernels: Iterable[str]) -> CalibrationTable:
    chosen = set(kernels)
    forms: dict[str, KernelForm] = {
        layer.node: "kernel" if layer.node in chosen else "weights" for layer in plan.recurrent
    }
    return replace(table, settings=table.settings.with_recurrent(forms))
