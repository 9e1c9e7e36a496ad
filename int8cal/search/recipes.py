"""Recipes as data: which steps are offered, in their order, and on how many samples; how the search of one runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.calibration.ranges import without_values
from int8cal.graph.costs import inference_us
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.uint8_input import with_raw_pixels
from int8cal.quantization.table import StepResult, blank_table
from int8cal.search.candidate import Inputs, plain_candidate
from int8cal.search.scorer import Holdout, Scorer, split_samples
from int8cal.search.search import finished, first_state, search
from int8cal.search.steps import (
    bias,
    channel_copies,
    dynamic,
    embeddings,
    equalization,
    measured_equalization,
    output_error,
    recurrent,
    second_order,
    widest_ranges,
)

if TYPE_CHECKING:
    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.calibration.engines.local import Collected
    from int8cal.graph.plan import Plan
    from int8cal.job import Job
    from int8cal.progress import Clock
    from int8cal.search.candidate import Planned
    from int8cal.search.search import Result, Step


@dataclass(frozen=True)
class Recipe:
    """What a recipe does beyond ranges and weights.

    Attributes:
        steps: In their order; one file each in `search.steps`.
        validation_samples: Samples of the holdout that steps are scored on, at most; fewer where inference takes long.
        fit_samples: Calibration samples that steps are fitted on; never those that they are scored on.
        sweep_s: Estimated seconds that looking for where eight bits are too few may take.
        least_worth: Share of the noise that more precision has to take away for each share of the int8 model's
            estimated time that it takes. Above 0, what is beyond the allowance by itself is measured only where that
            is quick.
    """

    steps: tuple[Step, ...]
    validation_samples: int
    fit_samples: int = 0
    sweep_s: float = 0.0
    least_worth: float = 0.0


# Copies come before measured rescaling, which moves what they would take care of into the weights.
_RESCALED = (widest_ranges.propose, equalization.propose, channel_copies.propose)
_FORMS = (recurrent.propose, dynamic.propose, embeddings.propose)
# Rounding costs the int8 model nothing, so it comes before what costs time.
_END = (output_error.propose, bias.propose)
_FAST = Recipe(
    (*_RESCALED, *_FORMS, second_order.propose_where_weights_matter, *_END),
    validation_samples=512,
    fit_samples=64,
    sweep_s=1.5,
    least_worth=2.0,
)
_BALANCED = replace(
    _FAST,
    steps=(*_RESCALED, measured_equalization.propose, *_FORMS, second_order.propose_where_weights_matter, *_END),
    sweep_s=10.0,
    least_worth=0.0,
)
_ACCURATE = replace(
    _BALANCED,
    steps=(*_RESCALED, measured_equalization.propose, *_FORMS, second_order.propose, *_END),
    fit_samples=128,
    sweep_s=30.0,
)
PLAIN = Recipe((recurrent.propose, embeddings.propose), validation_samples=0)  # ranges and weights alone
RECIPES: dict[str, Recipe] = {"fast": _FAST, "balanced": _BALANCED, "accurate": _ACCURATE}


def run_recipe(inputs: Inputs, clock: Clock) -> Result:
    """Choose ranges, build the table that they give, and let the recipe's steps propose better ones.

    Args:
        inputs: What the search starts from.
        clock: Gets the seconds of the stations "thresholds" and "quantize".

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    with clock.station("thresholds"):
        candidate = plain_candidate(inputs)
    with clock.station("quantize"):
        return finished(search(first_state(inputs, candidate), inputs.recipe.steps, inputs), inputs)


def without_equalization(result: Result, inputs: Inputs, clock: Clock) -> Result:
    """Return what there is without equalization, for layers that latency leaves in float."""
    return run_recipe(replace(inputs, recipe=PLAIN), clock) if Equalization.of(result.table) else result


def plain_steps(inputs: Inputs, clock: Clock) -> tuple[StepResult, ...]:
    """Score what there would be without the recipe: ranges alone, first the widest."""
    scorer = inputs.holdout.scorer
    if scorer is None:
        return ()
    jobs = [inputs.job, replace(inputs.job, calibration=replace(inputs.job.calibration, method="max"))]
    plain = [replace(inputs, job=job, recipe=PLAIN) for job in reversed(jobs)]
    named = {f"nothing but {each.ranges_by(each.job.calibration.method)}": each for each in plain}
    scores = [scorer(run_recipe(each, clock).model).db for each in named.values()]
    return tuple(
        StepResult(name, before, score, kept=True)
        for name, before, score in zip(named, (None, *scores), scores, strict=False)
    )


def search_inputs(job: Job, planned: Planned, collected: Collected, checkpoint: Checkpoint | None) -> Inputs:
    """Bring together what a search starts from: the kept samples are split into those to fit and those to score on."""
    statistics, threads, recipe = collected.statistics, job.calibration.threads, RECIPES[job.quantization.recipe]
    prepared, plan = planned.prepared, planned.plan
    run_s = inference_us(prepared.model, plan, statistics.elements, integer=False) * 1e-6
    validation, fit = split_samples(collected.kept, recipe, run_s)
    graph = prepared.model, prepared.signature, validation
    scorer = Scorer(*graph, threads=threads, run_s=run_s, checkpoint=checkpoint, outputs=collected.outputs)
    holdout = Holdout(prepared.signature, fit, scorer if scorer.able else None, validation)
    blank = blank_table(job, prepared, statistics)
    blank, notes = with_raw_pixels(blank, planned.uint8, prepared.model, plan, statistics.tensors)
    # a range for a tensor of a body is that body's; one for a tensor of no graph is told when ranges are chosen
    others = {name for each in plan.bodies.values() for name in ranges_in(each.plan, job)}
    ranges = {name: ends for name, ends in job.quantization.ranges.items() if name not in others}
    job = replace(job, quantization=replace(job.quantization, ranges=ranges_in(plan, job) | ranges))
    inputs = Inputs(prepared.model, plan, statistics, job, blank, holdout, recipe, notes)
    left = without_values(inputs.ranged_plan, statistics.tensors, job.quantization.ranges)
    if not left:
        return inputs
    lines = (
        f"{node} stays float: {why}; give samples that do, or name it with --weights-only" for node, why in left.items()
    )
    settings = blank.settings.with_left("left_without_range", left)
    blank = replace(blank, settings=settings, warnings=(*blank.warnings, *lines))
    return replace(inputs, plan=replace(inputs.plan_for(settings), bodies=plan.bodies), blank=blank)


def ranges_in(plan: Plan, job: Job) -> dict[str, tuple[float, float]]:
    """Return the user's ranges that are about tensors of one graph."""
    known = {each.tensor for each in plan.tensors}
    return {name: ends for name, ends in job.quantization.ranges.items() if name in known}
