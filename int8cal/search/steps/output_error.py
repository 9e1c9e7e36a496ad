"""Step: other ranges, residual codes and float between layers, by the error that each makes at the outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.graph.chains import find_chains
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.search.precision import Precision
from int8cal.search.search import Proposal, Remark

if TYPE_CHECKING:
    from int8cal.graph.plan import Plan
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer ranges with less error at the outputs, then what the allowance of time buys most of it for.

    Ranges are chosen on samples that they are not scored on. More precision is chosen on a few samples too: that less
    noise is made there is no matter of which samples they are.
    """
    job, holdout = inputs.job, inputs.holdout
    samples = holdout.fit or holdout.validation
    # nothing is sure by the score of one sample
    if not inputs.recipe.sweep_s or len(samples) < 2 or holdout.scorer is None or job.quantization.activations == "u16":
        return
    plan = inputs.ranged(state.plan)
    precision = Precision(
        state.candidate.model,
        plan,
        holdout.signature,
        state.candidate.tensors,
        samples,
        seen=state.table.data["samples"],
        seconds=inputs.recipe.sweep_s,
        threads=job.calibration.threads,
    )
    sweep = precision.sweep(state.table.affines(plan))
    ranges = state.candidate.ranges
    better, lines = (
        precision.better_ranges(sweep, ranges, job.calibration, job.quantization) if holdout.can_fit else (ranges, ())
    )
    if lines:
        state = yield Remark(lines)
        precision.probe.close()  # scoring opens models of its own
        entries = {name: better.entries.get(name, entry) for name, entry in state.table.tensors.items()}
        state = yield Proposal("ranges by output error", replace(state.table, tensors=entries))
        if state.results[-1].kept:
            sweep = precision.sweep(state.table.affines(plan))
    precision.probe.close()
    allowance, unsigned = job.quantization.latency_allowance / 100, job.quantization.activations in ("u8", "auto")
    taken, lines = precision.upgrades(sweep, allowance, residual=unsigned)
    state = yield Remark(lines)
    residual = [node for each in taken for node in each.residual]
    if residual:
        state = yield Proposal("second planes of inputs", with_residual_codes(state.table, state.plan, residual))
    left = {node: f"{each.what} takes away {each.gain:.0%} of the noise" for each in taken for node in each.floats}
    if left and (proposal := _floats(state, inputs, left)) is not None:
        yield proposal


def _floats(state: State, inputs: Inputs, left: dict[str, str]) -> Proposal | None:
    """Propose to leave nodes between layers in float; None where that would take away what the table relies on.

    Args:
        state: The state in force.
        inputs: What stays the same.
        left: Node -> why.
    """
    settings = state.table.settings.with_left("left_for_accuracy", left)
    smaller = inputs.plan_for(settings)
    # without factors on either side: no chain of the smaller plan may have lost one
    lost = {chain.tensor for chain in find_chains(inputs.prepared, state.plan)}
    lost -= {chain.tensor for chain in find_chains(inputs.prepared, smaller)}
    known, needed = (_tensors(plan) for plan in (state.plan, smaller))
    if lost & Equalization.of(state.table).values.keys() or not known >= needed:
        return None
    # raw pixels have entries that no plan of the prepared model knows, and lack some that it has
    tensors = {name: entry for name, entry in state.table.tensors.items() if name not in known - needed}
    return Proposal("float between layers", replace(state.table, settings=settings, tensors=tensors), smaller)


def _tensors(plan: Plan) -> set[str]:
    return {each.tensor for each in plan.tensors}
