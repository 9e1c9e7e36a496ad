"""The search for a table: steps propose, the holdout decides, and what is surely better is kept."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import onnx

from int8cal.calibration.ranges import clipped_by
from int8cal.graph.bodies import full_name
from int8cal.graph.prepare import require_layers
from int8cal.progress import stage, track
from int8cal.protos import weight_bytes
from int8cal.quantization.build import build_model, weight_entries, with_weights
from int8cal.quantization.table import StepResult
from int8cal.search.candidate import first_table, recounted
from int8cal.search.islands import bytes_worth_db
from int8cal.search.scorer import gain_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from int8cal.calibration.ranges import TensorEntry
    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.quantization.build import BuiltModel
    from int8cal.quantization.corrections.correction import OfNodes
    from int8cal.quantization.table import CalibrationTable
    from int8cal.runtime.batching import Arrays
    from int8cal.search.candidate import Candidate, Inputs
    from int8cal.search.scorer import Gain, Score, Scorer

# Parts of corrections of layers that are scored by themselves; fewer in a deep model, whose every score takes long.
MOST_PARTS, LEAST_PARTS, PARTS_OF = 16, 4, 8000  # layers divided by parts
PARTED_BY = 8  # samples; by fewer, parts would be chosen by chance, and judged by what they were chosen by


@dataclass(frozen=True, eq=False)
class State:
    """The best table so far.

    Attributes:
        plan: What is quantized; smaller than the first plan where nodes were left in float for accuracy.
        table: Every scale and zero point, and the corrections.
        built: The int8 model of the table.
        candidate: The model and the ranges that the table was made of.
        score: Of the int8 model on the holdout; None before it is asked for.
        notes: What was decided, in lines.
        results: What each proposal gave.
        warnings: Of building, of every table that was in force.
        last: What the last proposal gave, kept or not; None before the first.
    """

    plan: Plan
    table: CalibrationTable
    built: BuiltModel
    candidate: Candidate
    score: Score | None = None
    notes: tuple[str, ...] = ()
    results: tuple[StepResult, ...] = ()
    warnings: tuple[str, ...] = ()
    last: Gain | None = None


@dataclass(frozen=True, eq=False)
class Proposal:
    """Another table, to be built and scored.

    Attributes:
        name: For the report.
        table: With the change.
        plan: Where it is another one.
        least_db: By how much more than that the score must rise, if not for its bytes by more still.
        candidate: Where the table was made of another one; its weights' scales are then written into the table.
        notes: Lines to add where it is kept.
        unseen: With statistics of samples that nothing is scored on: the candidate has to be better with the ranges
            that these give, too. None where the ranges of all samples are to be trusted.
    """

    name: str
    table: CalibrationTable
    plan: Plan | None = None
    least_db: float = 0.0
    candidate: Candidate | None = None
    notes: tuple[str, ...] = ()
    unseen: Inputs | None = None


@dataclass(frozen=True)
class Remark:
    """Lines for the report that no proposal carries."""

    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Settled:
    """A state that a step has scored by a rule of its own; it replaces the one before."""

    state: State


Proposals = Generator[Proposal | Remark | Settled, State, None]


class Step(Protocol):
    """Something that may make a table better."""

    def __call__(self, state: State, inputs: Inputs) -> Proposals:
        """Propose tables one after the other.

        Args:
            state: The state before the first proposal.
            inputs: What stays the same.

        Yields:
            A proposal, and is sent the state after its verdict: the old one with a line more where it was dropped.
        """


@dataclass(frozen=True, eq=False)
class Result:
    """A finished table.

    Attributes:
        table: Every scale and zero point, and the corrections.
        tensors: The statistics that its ranges come from, those of tensors in bodies by their full names.
        decisions: What was decided, in lines.
        plan: What is quantized; smaller than the plan at first where nodes were left in float for accuracy.
        model: The int8 model.
        steps: What each step gave.
        known: What the search built, for building alike tables; without its model.
        outputs: That the model has given on the holdout, see `Score`.
        methods: The ranges of all methods for tensors of which they were tried, see `calibration.ranges.Ranges`.
    """

    table: CalibrationTable
    tensors: dict[str, TensorStatistics]
    decisions: tuple[str, ...]
    plan: Plan
    model: onnx.ModelProto
    steps: tuple[StepResult, ...] = ()
    known: BuiltModel | None = None
    methods: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    outputs: Mapping[int, Arrays] = field(default_factory=dict)


def first_state(inputs: Inputs, candidate: Candidate) -> State:
    """Build the table of a candidate, before any step."""
    table = first_table(inputs, candidate)
    with stage("weights"):
        built = build_model(inputs.index, inputs.plan, table)
    # scales of weights are searched for once; a step that changes weights drops their entries
    table = replace(table, weights=weight_entries(inputs.plan, built.layers))
    notes = (*candidate.notes, *inputs.notes)
    return State(inputs.plan, table, built, candidate, notes=notes, warnings=built.warnings)


def search(state: State, steps: Iterable[Step], inputs: Inputs) -> State:
    """Let every step propose, once, and keep what the holdout finds surely better.

    Args:
        state: Where to begin. Nobody else should hold it: a state has all codes of an int8 model, and is dropped here
            as soon as a better one is in force.
        steps: In their order.
        inputs: What stays the same.
    """
    steps = tuple(steps)
    for step in track(steps, len(steps), "steps"):
        with stage(step.__module__.rpartition(".")[2].replace("_", " ")):  # each has a file of its own
            proposals = step(state, inputs)
            proposal = next(proposals, None)
            while proposal is not None:
                if isinstance(proposal, Settled):
                    state = proposal.state
                elif isinstance(proposal, Remark):
                    known = set(state.notes)  # a later round may find what an earlier one did
                    news = (line for line in proposal.lines if line not in known)
                    state = replace(state, notes=(*state.notes, *news))
                else:
                    state = _decide(state, proposal, inputs)
                try:
                    proposal = proposals.send(state)
                except StopIteration:
                    break
    return state


def propose_candidate(state: State, inputs: Inputs, name: str, candidate: Candidate, least_db: float = 0.0) -> Proposal:
    """Propose the table of another candidate; what was searched for of unchanged weights is kept.

    Args:
        state: The state in force.
        inputs: What stays the same.
        name: For the report.
        candidate: With ranges.
        least_db: By how much more than that the score must rise.
    """
    rescaled = candidate.model is not state.candidate.model
    changed = candidate.rescaled | state.candidate.rescaled if rescaled else frozenset[str]()
    stale = {state.plan.weight_key(each.node, each.weight) for each in state.plan.layers if each.node in changed}
    weights = {key: entry for key, entry in state.table.weights.items() if key not in stale}
    table = replace(first_table(inputs, candidate), weights=weights)
    notes = candidate.notes if rescaled else ()
    return Proposal(name, table, least_db=least_db, candidate=candidate, notes=notes)


def propose_layers(
    state: State,
    inputs: Inputs,
    name: str,
    table: CalibrationTable,
    kinds: tuple[type[OfNodes[Any]], ...],
    *,
    small: bool = False,
) -> Proposals:
    """Offer corrections of layers: all together, and if that does not help, those that do no harm by themselves.

    What lowers the error of a layer's output may still raise that of the model's: errors of Q and K meet in one
    product, and some errors cancel others.

    Args:
        state: Without the corrections.
        inputs: What stays the same.
        name: The step.
        table: With the corrections.
        kinds: Of corrections; the table may have others too, which are not looked at.
        small: Whether each makes so little difference that parts are looked at only where all together surely do harm,
            by PARTED_BY samples and more: of 15 models where they were looked at all the same, one kept any biases,
            and there all did harm together.
    """
    layers = state.plan.weighted
    offered = [(kind.of(state.table), kind.of(table)) for kind in kinds]
    changed = [
        layer.node
        for layer in layers
        if any(old.values.get(layer.node) != new.values.get(layer.node) for old, new in offered)
    ]

    def with_only(nodes: Collection[str]) -> CalibrationTable:
        chosen = frozenset(nodes)
        mixed = []
        for old, new in offered:
            values = {
                layer.node: each.values[layer.node]
                for layer in layers
                for each in (new if layer.node in chosen else old,)
                if layer.node in each.values
            }
            mixed.append(replace(old, values=values))
        rest = tuple(each for each in state.table.corrections if not isinstance(each, kinds))
        return replace(state.table, corrections=rest).corrected(*mixed)

    if not changed:
        return
    state = yield Proposal(name, with_only(changed))
    if state.results[-1].kept or len(changed) == 1 or state.last is None:
        return
    if small and (not state.last.surely_worse or scorer_of(inputs).samples < PARTED_BY):
        return
    scorer, score = scorer_of(inputs), state.score
    size = -(-len(changed) // min(MOST_PARTS, max(LEAST_PARTS, PARTS_OF // len(changed))))
    harmless: list[str] = []
    for first in range(0, len(changed), size):
        part = changed[first : first + size]
        built = build_model(inputs.index, state.plan, with_only(part), state.built)
        score, after = scorer.compare(state.built.model, score, built.model)
        if gain_of(score.first(len(after.noise)), after).db >= 0:
            harmless += part
    state = yield Settled(replace(state, score=score))  # what was run is not run again
    if not harmless:
        return
    state = yield Proposal(f"{name} of {len(harmless)} of {len(changed)} layers", with_only(harmless))
    if state.results[-1].kept:
        kept = frozenset(harmless)
        dropped = [node for node in changed if node not in kept]
        yield Remark((f"{name} does not help by itself, and was dropped, at {', '.join(dropped)}",))


def scored(built: BuiltModel, inputs: Inputs, known: Score | None = None) -> Score:
    """Return the score of a model on the whole holdout, of which a part may be known; see `scorer_of`."""
    return scorer_of(inputs)(built.model, known)


def scorer_of(inputs: Inputs) -> Scorer:
    """Return what scores models on the holdout.

    Raises:
        ValueError: There is nothing to score on.
    """
    if inputs.holdout.scorer is None:
        raise ValueError("nothing can be scored without a holdout")
    return inputs.holdout.scorer


def _decide(state: State, proposal: Proposal, inputs: Inputs) -> State:
    """Build and score a proposal; it is kept if it is surely better, with ranges of other samples where it asks so."""
    if proposal.unseen is None or proposal.candidate is None:
        return _judge(state, proposal, inputs)
    unseen, name = proposal.unseen, _on_others(proposal)
    before, after = (
        propose_candidate(state, unseen, name, recounted(unseen, each), proposal.least_db)
        for each in (state.candidate, proposal.candidate)
    )
    built = _built(state, before, inputs)
    tried = _judge(replace(state, table=before.table, built=built, score=None), after, inputs)
    if not tried.results[-1].kept:
        return replace(state, notes=tried.notes, results=tried.results, last=tried.last)
    return _judge(state, proposal, inputs)


def _on_others(proposal: Proposal) -> str:
    return f"{proposal.name} (ranges of other samples)"


def _figures(scorer: Scorer, before: Score, after: Score) -> str:
    return f"SQNR on {scorer.told(after)} {before.db:.2f} dB without, {after.db:.2f} dB with it"


def _taken(state: State, proposal: Proposal, built: BuiltModel, score: Score | None) -> State:
    """Return the state with a proposal in force."""
    plan, table = proposal.plan or state.plan, proposal.table
    if proposal.candidate is not None:
        table = replace(table, weights=weight_entries(plan, built.layers))
    return replace(
        state,
        plan=plan,
        table=table,
        built=built,
        candidate=proposal.candidate or state.candidate,
        score=score,
        notes=(*state.notes, *proposal.notes),
        warnings=(*state.warnings, *built.warnings),
    )


def _built(state: State, proposal: Proposal, inputs: Inputs) -> BuiltModel:
    known = state.built
    if proposal.candidate is not None:
        draft = replace(known.draft, rescaled=proposal.candidate.as_rescaled(inputs))
        known = replace(known, draft=draft)
    return build_model(inputs.index, proposal.plan or state.plan, proposal.table, known)


def _judge(state: State, proposal: Proposal, inputs: Inputs) -> State:
    """Build and score a proposal; it is kept if it is surely better."""
    if proposal.plan is not None:  # it is one of the main graph's nodes; bodies are planned before
        proposal = replace(proposal, plan=replace(proposal.plan, bodies=state.plan.bodies))
    built = _built(state, proposal, inputs)
    more = weight_bytes(built.model) - weight_bytes(state.built.model)
    least_db = max(proposal.least_db, bytes_worth_db(more, inputs.index, state.plan))
    scorer = scorer_of(inputs)
    score, after = scorer.compare(state.built.model, state.score, built.model, least_db)
    before = score.first(len(after.noise))
    gain = gain_of(before, after)
    kept = gain.sure and gain.db > least_db
    verdict = "kept" if kept else "dropped"
    noise = gain.told
    noise += "" if kept or not gain.sure else f", but less than the {least_db:.2g} dB asked for"
    figures = f"{_figures(scorer, before, after)}; {noise}"
    if before.db == -math.inf:
        figures = "no validation sample has a signal to score by"
    notes = (*state.notes, f"{proposal.name} {verdict}: {figures}")
    shown = before, after
    if inputs.job.quantization.explain:  # one step after the other, all on the same samples
        shown = scorer(state.built.model, score), scorer(built.model, after)
    results = (*state.results, StepResult(proposal.name, shown[0].db, shown[1].db, kept))
    judged = replace(state, score=score, notes=notes, results=results, last=gain)
    return _taken(judged, proposal, built, after) if kept else judged


def finished(state: State, inputs: Inputs) -> Result:
    """Write the weights' scales and all warnings into the table."""
    warnings = tuple(dict.fromkeys((*state.table.warnings, *state.warnings)))
    table = with_weights(replace(state.table, warnings=warnings), state.plan, state.built)
    known = table.tensors.keys() - inputs.blank.tensors.keys()
    tensors = {name: value for name, value in state.candidate.tensors.items() if name in known}
    table = with_clipped(table, tensors)
    built = replace(state.built, model=onnx.ModelProto())
    methods = state.candidate.ranges.methods
    outputs = {} if state.score is None else state.score.outputs
    return Result(table, tensors, state.notes, state.plan, state.built.model, state.results, built, methods, outputs)


def with_clipped(table: CalibrationTable, tensors: Mapping[str, TensorStatistics]) -> CalibrationTable:
    """Return the table with the fractions of clipped values counted anew: a step may have widened ranges.

    Args:
        table: A table, of bodies too.
        tensors: The statistics that its ranges come from, those of tensors in bodies by their full names.
    """

    def counted(path: str, name: str, entry: TensorEntry) -> TensorEntry:
        found = tensors.get(full_name(path, name))
        return entry if found is None else replace(entry, clipped=clipped_by(found.histogram, entry.affine))

    return table.with_graphs(
        {
            path: replace(each, tensors={name: counted(path, name, entry) for name, entry in each.tensors.items()})
            for path, each in table.graphs.items()
        }
    )


def explained(prepared: onnx.ModelProto, result: Result, before: tuple[StepResult, ...]) -> Result:
    """Write down what each step gave, in the table and in the model.

    Args:
        prepared: The prepared model.
        result: A finished table.
        before: What was scored without the recipe; the recipe's own steps follow.
    """
    steps = (*before, *result.steps)
    table = replace(result.table, settings=result.table.settings.with_steps(steps))
    return replace(
        result, table=table, model=build_model(prepared, result.plan, table, result.known).model, steps=steps
    )


def plan_without(
    prepared: Prepared, whole: Result, left: Mapping[str, str], *, may_be_float: bool = False
) -> tuple[Plan, dict[str, dict[str, str]]]:
    """Return the plan with further layers in float, and these by path of their graph and node; see `left_in_float`."""
    inside: dict[str, dict[str, str]] = {}
    places = whole.plan.weighted_nodes
    for name, why in left.items():
        path, node = places[name]
        inside.setdefault(path, {})[node] = why
    selections = {"": whole.table.settings.selection, **whole.table.body_selections}
    for path, nodes in inside.items():
        selections[path] = replace(selections[path], left=(*selections[path].left, *nodes.items()))
    return require_layers(prepared, selections.pop(""), selections, may_be_float=may_be_float), inside


def left_in_float(
    prepared: Prepared,
    whole: Result,
    left: Mapping[str, str],
    cut_down: Callable[[str, tuple[Plan, Plan], Mapping[str, str]], CalibrationTable],
    *,
    may_be_float: bool = False,
) -> Result:
    """Return a result with further layers in float.

    Args:
        prepared: The prepared model.
        whole: The result without them.
        left: Full name of a layer -> why it stays float.
        cut_down: Makes the table of one of the graphs that hold such layers: of its path, its plans before and after,
            and its layers of `left` by node.
        may_be_float: Whether all of them may be in float.

    Raises:
        TableError: No layer is left in int8, and that may not be.
    """
    smaller, inside = plan_without(prepared, whole, left, may_be_float=may_be_float)
    plans = {path: (whole.plan.graphs[path], smaller.graphs[path]) for path in inside}
    table = whole.table.with_graphs({path: cut_down(path, plans[path], nodes) for path, nodes in inside.items()})
    built = build_model(prepared.model, smaller, table, whole.known)
    tensors = {name: value for name, value in whole.tensors.items() if name in table.every_tensor}
    table = with_weights(table, smaller, built)
    return replace(whole, table=table, tensors=tensors, plan=smaller, model=built.model, outputs={})
