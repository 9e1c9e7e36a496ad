"""Rescaling channels before ranges are chosen: by a recipe's promise, or as far as measured errors say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.quantization.corrections.equalize import choose_factors
from int8cal.quantization.corrections.rescale import apply_factors, as_numbers, scaled_tensors
from int8cal.quantization.corrections.strength import measure_factors

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import Job
    from int8cal.quantization.corrections.equalize import Equalization
    from int8cal.quantization.recipes import RecipeRule
    from int8cal.runtime.batching import SampleLike


@dataclass(frozen=True)
class Balanced:
    """The prepared model and its statistics after corrections that come before ranges, and what these were."""

    model: onnx.ModelProto
    tensors: dict[str, TensorStatistics]
    corrections: dict[str, Any]
    decisions: tuple[str, ...]


def balance(
    prepared: onnx.ModelProto, plan: Plan, statistics: Statistics, rule: RecipeRule, fixed: Collection[str] = ()
) -> Balanced:
    """Equalize channels where the recipe's gain is promised.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        rule: The recipe.
        fixed: Tensors whose range the user gives; they are not rescaled.
    """
    chosen = choose_factors(prepared, plan, statistics, least_gain_db=rule.equalize_gain_db, fixed=fixed)
    return equalized(prepared, plan, statistics, chosen)


def balance_measured(
    prepared: onnx.ModelProto,
    plan: Plan,
    statistics: Statistics,
    signature: Signature,
    samples: Sequence[SampleLike],
    job: Job,
) -> Balanced:
    """Rescale channels as far as errors measured on samples say; see corrections.strength.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        signature: Its inputs.
        samples: To measure on.
        job: Its settings.
    """
    chosen = measure_factors(prepared, plan, statistics, signature, samples, job.calibration, job.quantization)
    return equalized(prepared, plan, statistics, chosen)


def equalized(
    prepared: onnx.ModelProto, plan: Plan, statistics: Statistics, chosen: tuple[Equalization, ...]
) -> Balanced:
    """Rescale the channels of chains, and the statistics with them.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        chosen: What `choose_factors` or `measure_factors` found.
    """
    if not chosen:
        return Balanced(prepared, dict(statistics.tensors), {}, ())
    factors = {item.chain.tensor: item.exponents for item in chosen}
    tensors = dict(statistics.tensors)
    for name, exponents in scaled_tensors(prepared, plan, factors).items():
        if name in tensors:
            tensors[name] = tensors[name].equalized(exponents)
    decisions = tuple(item.decision for item in chosen)
    corrections = {"equalization": {name: as_numbers(values) for name, values in factors.items()}}
    return Balanced(apply_factors(prepared, plan, factors), tensors, corrections, decisions)
