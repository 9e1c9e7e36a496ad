"""Step: other ranges, residual codes and float, by the error that each makes at the outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.graph.chains import find_chains
from int8cal.graph.index import Index
from int8cal.quantization.corrections.equalization import Equalization, rescaling_plan
from int8cal.quantization.corrections.residual_codes import (
    FineChannels,
    ResidualCodes,
    with_fine_channels,
    with_residual_codes,
)
from int8cal.quantization.derived_tables import without_noise_of
from int8cal.runtime.targets import TARGETS
from int8cal.search.candidate import plain_candidate, with_ranges
from int8cal.search.islands import LEAST_DB, MOST_BYTES, USELESS_DB, choose_islands, groups_of_islands
from int8cal.search.precision import Precision
from int8cal.search.search import Proposal, Remark, Settled, scored
from int8cal.search.steps.second_order import rounded_again

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from int8cal.graph.plan import Plan
    from int8cal.quantization.table import CalibrationTable, LeftKey, StepResult
    from int8cal.search.candidate import Candidate, Inputs
    from int8cal.search.islands import Chosen
    from int8cal.search.precision import Sweep
    from int8cal.search.residual import Upgrade
    from int8cal.search.scorer import Gain
    from int8cal.search.search import Proposals, State

HALF_DB = 3.0  # that a round has gained, for another one
ENOUGH_DB = 60.0  # of the score, with a thousandth of the signal as noise: no further round is worth its time
QUICK_S = 0.25  # estimated, of an inference for each tensor: in so little time the noise of all is measured, and told


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer ranges with less error at the outputs, then what the allowance of time buys most of it for, then float.

    Ranges are chosen on samples that they are not scored on. More precision is chosen on a few samples too: that less
    noise is made there is no matter of which samples they are. Where half of the noise is gone after that, all is
    measured again, unless what is left is next to nothing: what made it has drowned the others.
    """
    holdout = inputs.holdout
    samples = holdout.fit or holdout.validation
    u16 = inputs.job.quantization.activations == "u16"
    # nothing is sure by the score of one sample
    if not inputs.recipe.sweep_s or len(samples) < 2 or holdout.scorer is None or u16:
        return
    if state.score is None:  # no step before was scored with the ranges of all samples
        state = yield Settled(replace(state, score=scored(state.built, inputs)))
    spent, rounds, gained = _Spent(), len(state.results), math.inf
    precision: Precision | None = None
    while gained >= HALF_DB and (precision is None or state.score is None or state.score.db < ENOUGH_DB):
        plan = inputs.ranged(state.plan)
        # what was measured of the same nodes is not measured again
        if precision is None or precision.plan != plan:
            precision = precision_of(state, inputs, plan)
        state, spent = yield from _round(state, inputs, precision, spent)
        gained = math.fsum(_gain_db(each) for each in state.results[rounds:] if each.kept)
        rounds = len(state.results)


def precision_of(state: State, inputs: Inputs, plan: Plan) -> Precision:
    """Return what measures the noise of a state's tensors, on samples that their ranges are not scored on."""
    return Precision(
        state.candidate.model,
        plan,
        inputs.holdout.signature,
        state.candidate.tensors,
        inputs.holdout.fit or inputs.holdout.validation,
        seen=state.table.data["samples"],
        seconds=inputs.recipe.sweep_s,
        others_us=inputs.others_us,
        threads=inputs.job.calibration.threads,
        cluster=inputs.cluster,
        fixed=inputs.looked_up,
    )


def _gain_db(step: StepResult) -> float:
    if step.before_db is None or step.after_db is None:
        return 0.0
    gain = step.after_db - step.before_db
    return gain if math.isfinite(gain) else 0.0


@dataclass(frozen=True)
class _Spent:
    """What more precision takes already.

    Attributes:
        float_us: Estimated microseconds of what was left in float.
        codes: Residual codes in force: layers, and the microseconds that theirs take.
        bytes: Fraction of the float model's bytes.
    """

    float_us: float = 0.0
    codes: tuple[tuple[frozenset[str], float], ...] = ()
    bytes: float = 0.0

    @property
    def us(self) -> float:
        """Estimated microseconds of all."""
        return math.fsum((self.float_us, *(us for _, us in self.codes)))

    def left(self, chosen: Chosen) -> _Spent:
        """Return what is spent where layers are left in float, which have no residual codes then."""
        codes = tuple((nodes, us) for nodes, us in self.codes if not nodes <= chosen.left.keys())
        return _Spent(self.float_us + chosen.us, codes, self.bytes + max(chosen.bytes, 0.0))


def _round(
    state: State, inputs: Inputs, precision: Precision, spent: _Spent
) -> Generator[Proposal | Remark | Settled, State, tuple[State, _Spent]]:
    """Measure once, and offer what the noise asks for.

    Args:
        state: The state in force.
        inputs: What stays the same.
        precision: Of its plan.
        spent: Of the allowances of time and bytes.

    Returns:
        The state after it, and what is spent then.
    """
    job, holdout, plan = inputs.job, inputs.holdout, precision.plan
    allowance = max(job.quantization.latency_allowance / 100 - spent.us / precision.whole_us, 0.0)
    unsigned = job.quantization.activations in ("u8", "auto")
    worth = inputs.least_worth
    quick = len(plan.groups) * precision.run_s < QUICK_S
    within = allowance if worth and not quick else math.inf
    # those where something can be done about the noise, other than by another range
    wanted = precision.open_to_residual_codes(within) if unsigned else set()
    if _islands_may_be_float(inputs):
        stored, fixed = _is_useless(state, inputs), _fixed(state, inputs)
        wanted |= groups_of_islands(precision.index, plan, precision.elements, fixed, stored=stored)
    fit_ranges = holdout.can_fit and job.calibration.method == "auto" and precision.has_time_for_ranges
    settled = _with_residual_codes(state)
    noise = 0.0 if state.score is None else 10 ** (-state.score.db / 10)
    affines = state.table.affines(plan)
    sweep = precision.sweep(affines, None if fit_ranges else wanted, within, noise).without(settled)
    entries = state.candidate.ranges.entries
    ranges = replace(
        state.candidate.ranges, entries={name: state.table.tensors.get(name, entries[name]) for name in entries}
    )
    better, lines = (
        precision.better_ranges(sweep, ranges, job.calibration, job.quantization) if fit_ranges else (ranges, ())
    )
    if lines:
        state = yield Remark(lines)
        precision.probe.close()  # scoring opens models of its own
        entries = {name: better.entries.get(name, entry) for name, entry in state.table.tensors.items()}
        state = yield Proposal("ranges by output error", replace(state.table, tensors=entries))
    if fit_ranges:
        # now of what something else can be done about: what was measured already is not measured again
        sweep = precision.sweep(state.table.affines(plan), wanted, within, noise).without(settled)
    precision.probe.close()
    taken, lines = precision.upgrades(sweep, allowance, residual=unsigned, least_worth=worth)
    state = yield Remark(lines)
    state, spent = yield from _residual_codes(state, inputs, [each for each in taken if each.tensor], spent)
    left = {
        node: f"{each.what} takes away {100 * each.gain:.0f} % of the noise" for each in taken for node in each.floats
    }
    us = math.fsum(each.us for each in taken if each.floats)
    if left and (proposal := _floats(state, inputs, left)) is not None:
        state = yield replace(proposal, least_db=inputs.worth_db(us))
        if state.results[-1].kept:
            spent = replace(spent, float_us=spent.float_us + us)
    state, chosen = yield from _islands(state, inputs, precision.elements, sweep, spent)
    return state, spent if chosen is None else spent.left(chosen)


def _residual_codes(
    state: State, inputs: Inputs, wanted: Iterable[Upgrade], spent: _Spent
) -> Generator[Proposal | Remark | Settled, State, tuple[State, _Spent]]:
    """Offer residual codes of all tensors that want them, and if that is not worth its time, of half of these.

    Together they may be worth less than their time, since what each takes away was measured by itself. Half of them is
    not tried where all did no harm, and gained less than half would have to.
    """
    tensors = sorted(wanted, key=lambda each: -each.gain / each.us)
    tried: Gain | None = None
    for count in dict.fromkeys((len(tensors), (len(tensors) + 1) // 2) if tensors else ()):
        some = tensors[:count]
        us = math.fsum(each.us for each in some)
        least_db = inputs.worth_db(us)
        if tried is not None and 0 <= tried.db <= tried.most_db < least_db:
            asked = f"all gain no more than {tried.most_db:.2f} dB, half of them have to gain {least_db:.2g} dB"
            state = yield Remark((f"residual codes of some inputs dropped: {asked}",))
            break
        table = with_residual_codes(state.table, state.plan, [node for each in some for node in each.residual])
        fine = {node: channels for each in some for node, channels in each.fine.items()}
        table = rounded_again(state, inputs, with_fine_channels(table, state.plan, fine))
        name = "residual codes of inputs" if count == len(tensors) else "residual codes of some inputs"
        state = yield Proposal(name, table, least_db=least_db)
        if state.results[-1].kept:
            codes = ((frozenset((*each.residual, *each.fine)), each.us) for each in some)
            spent = replace(spent, codes=(*spent.codes, *codes))
            break
        tried = state.last
    return state, spent


def _with_residual_codes(state: State) -> set[str]:
    """Return the groups of tensors that have residual codes already."""
    groups = {each.tensor: each.group for each in state.plan.tensors}
    nodes = ResidualCodes.of(state.table).values.keys() | FineChannels.of(state.table).values.keys()
    return {groups[layer.input] for layer in state.plan.layers if layer.node in nodes}


def _islands(
    state: State, inputs: Inputs, elements: Mapping[str, float], sweep: Sweep, spent: _Spent
) -> Generator[Proposal | Remark | Settled, State, tuple[State, Chosen | None]]:
    """Offer to leave layers between float nodes in float where they hold most of the noise, whatever was done for them.

    Where the model is of no use otherwise, that may take any time, and weights stay int8 as far as they can: a
    spectrogram in front of a logarithm may hold most weights of a small model.

    Args:
        state: The state in force.
        inputs: What stays the same.
        elements: Values per inference of every planned tensor.
        sweep: What the codes of each tensor do to the outputs.
        spent: Of the allowances of time and bytes.

    Returns:
        The state after it, and what was left in float; None for nothing.
    """
    allowance = inputs.job.quantization.latency_allowance / 100
    if not _islands_may_be_float(inputs):
        return state, None
    index, before, useless = Index(state.candidate.model), None, _is_useless(state, inputs)
    most = MOST_BYTES - spent.bytes
    tries = [(allowance, most), (allowance, min(allowance, most))]
    for most_time, most_bytes in [(math.inf, most)] * useless + tries:
        chosen = choose_islands(
            index,
            inputs.ranged(state.plan),
            elements,
            sweep.groups,
            most_time,
            most_bytes,
            others_us=inputs.others_us,
            spent_us=spent.us,
            codes=spent.codes,
            fixed=_fixed(state, inputs),
        )
        if chosen.left == before:
            break
        before = chosen.left
        state = yield Remark(chosen.lines)
        proposal = _left(state, inputs, chosen, any_time=most_time == math.inf)
        if proposal is not None:
            state = yield proposal
            if state.results[-1].kept:
                return state, chosen
    return state, None


def _is_useless(state: State, inputs: Inputs) -> bool:
    # who allows no time at all means it
    return state.score is not None and state.score.db < USELESS_DB and inputs.job.quantization.latency_allowance > 0


def _left(state: State, inputs: Inputs, chosen: Chosen, *, any_time: bool) -> Proposal | None:
    """Propose to leave layers between float nodes in float; None where the others would lose what they rely on."""
    key: LeftKey = "left_for_accuracy"
    settings = state.table.settings
    left = {node: why for node, why in chosen.left.items() if node not in chosen.stored}
    settings = settings.with_left(key, settings.left(key) | left)
    if chosen.stored:
        settings = settings.with_forms({**settings.forms, **dict.fromkeys(sorted(chosen.stored), "weights")})
    smaller = inputs.plan_for(settings)
    known, needed = (_tensors(plan) for plan in (state.plan, smaller))
    if not (chosen.left and smaller.layers and known >= needed):
        return None

    def cut(table: CalibrationTable) -> CalibrationTable:
        return replace(without_noise_of(table, (state.plan, smaller), chosen.left, key), settings=settings)

    table, candidate = cut(state.table), None
    factors = _factors_left(state, inputs, table, smaller)
    if factors is not None:
        table = table.corrected(factors)
    elif any_time:  # what rescaled channels gave is nothing beside that
        candidate = with_ranges(inputs, plain_candidate(inputs), state.candidate.method)
        table = cut(_taken_back(state, candidate))
    else:
        return None
    name = "float for layers between float nodes"
    least_db = max(chosen.least_db, LEAST_DB if any_time else inputs.worth_db(chosen.us))
    return Proposal(name, table, smaller, least_db=least_db, candidate=candidate)


def _taken_back(state: State, plain: Candidate) -> CalibrationTable:
    """Return the table with the ranges of channels as they were, without what was chosen for layers in it."""
    layers = {layer.node for layer in state.plan.weighted}
    corrections = (each.without(layers) for each in state.table.corrections if not isinstance(each, Equalization))
    tensors = {name: plain.ranges.entries.get(name, entry) for name, entry in state.table.tensors.items()}
    return replace(state.table, tensors=tensors, weights={}, corrections=()).corrected(*corrections)


def _islands_may_be_float(inputs: Inputs) -> bool:
    # times are of onnxruntime's kernels; and who names what is to be int8 means it
    settings = inputs.job.quantization
    return TARGETS[settings.target].onnxruntime and not settings.include


def _fixed(state: State, inputs: Inputs) -> set[str]:
    """Return the layers and tensors that must not leave int8."""
    return {*inputs.job.quantization.ranges, *state.built.draft.pixel_nodes}


def _factors_left(state: State, inputs: Inputs, table: CalibrationTable, smaller: Plan) -> Equalization | None:
    """Return the channel factors of chains that do not end in a layer which became float.

    Args:
        state: With all layers.
        inputs: What stays the same.
        table: Without those that became float.
        smaller: Its plan.

    Returns:
        The factors; None where an int8 layer would lose some that it was calibrated with.
    """
    factors = Equalization.of(table)
    if not factors:
        return factors
    index = inputs.index
    before, after = (
        {chain.tensor: chain for chain in find_chains(index, rescaling_plan(index, *each))}
        for each in ((state.plan, state.table), (smaller, table))
    )
    staying = {layer.node for layer in smaller.weighted}
    gone = {name for name in factors.values if after.get(name) != before[name]}
    touched = {
        layer.node for name in gone for layer in (*before[name].readers, before[name].layer) if layer is not None
    }
    return factors.without_names(gone) if touched.isdisjoint(staying) else None


def _floats(state: State, inputs: Inputs, left: dict[str, str]) -> Proposal | None:
    """Propose to leave nodes between layers in float; None where that would take away what the table relies on.

    Args:
        state: The state in force.
        inputs: What stays the same.
        left: Node -> why.
    """
    key: LeftKey = "left_for_accuracy"
    smaller = inputs.plan_for(state.table.settings.with_left(key, {**state.table.settings.left(key), **left}))
    # without factors on either side: no chain of the smaller plan may have lost one
    lost = {chain.tensor for chain in find_chains(inputs.index, state.plan)}
    lost -= {chain.tensor for chain in find_chains(inputs.index, smaller)}
    known, needed = (_tensors(plan) for plan in (state.plan, smaller))
    if lost & Equalization.of(state.table).values.keys() or not known >= needed:
        return None
    # layers that then stand between float nodes leave int8 along with these, and what was corrected in them
    return Proposal("float between layers", without_noise_of(state.table, (state.plan, smaller), left, key), smaller)


def _tensors(plan: Plan) -> set[str]:
    return {each.tensor for each in plan.tensors}
