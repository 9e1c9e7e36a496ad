"""Runs a recipe's corrections over the same plan and statistics, and keeps what helps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from int8cal.calibration.ranges import Ranges, choose_ranges
from int8cal.quantization.build import build_model, weight_entries, with_weights
from int8cal.quantization.corrections.bias import bias_deltas
from int8cal.quantization.corrections.equalize import apply_factors, choose_factors, scaled_tensors
from int8cal.quantization.corrections.uint8_fold import fold_pixels
from int8cal.quantization.recurrent_choice import choose_forms
from int8cal.quantization.uint8_input import CORRECTION, describe, pixel_affine, without_points
from int8cal.quantization.uint8_table import pixel_entries, pixel_statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan
    from int8cal.job import CalibrationSettings, QuantizationSettings
    from int8cal.quantization.recipes import RecipeRule
    from int8cal.quantization.uint8_input import Uint8Input

    Judge = Callable[[onnx.ModelProto], float]


@dataclass(frozen=True)
class Corrected:
    """The finished table, the statistics its ranges come from (none for raw pixels), and what was decided."""

    table: CalibrationTable
    tensors: dict[str, TensorStatistics]
    decisions: tuple[str, ...]


@dataclass(frozen=True)
class Balanced:
    """The prepared model and its statistics after corrections that come before ranges, and what these were."""

    model: onnx.ModelProto
    tensors: dict[str, TensorStatistics]
    corrections: dict[str, Any]
    decisions: tuple[str, ...]


def balance(prepared: onnx.ModelProto, plan: Plan, statistics: Statistics, rule: RecipeRule) -> Balanced:
    """Equalize channels where the recipe's gain is promised.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        rule: The recipe.
    """
    chosen = choose_factors(prepared, plan, statistics, least_gain_db=rule.equalize_gain_db)
    if not chosen:
        return Balanced(prepared, dict(statistics.tensors), {}, ())
    factors = {item.chain.tensor: item.exponents for item in chosen}
    tensors = dict(statistics.tensors)
    for name, exponents in scaled_tensors(prepared, plan, factors).items():
        if name in tensors:
            tensors[name] = tensors[name].equalized(exponents)
    decisions = tuple(
        f"equalized {item.chain.first.node} and {item.chain.second.node}: powers of two per channel, "
        f"predicted gain {item.gain_db:.1f} dB"
        for item in chosen
    )
    corrections = {"equalization": {name: values.tolist() for name, values in factors.items()}}
    return Balanced(apply_factors(prepared, plan, factors), tensors, corrections, decisions)


def find_ranges(
    plan: Plan,
    balanced: Balanced,
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
    uint8: Uint8Input | None = None,
) -> Ranges:
    """Choose the range of every tensor that is not made of raw pixels.

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    ranged = plan if uint8 is None else without_points(plan, uint8)
    return choose_ranges(ranged, balanced.tensors, calibration, quantization)


def make_table(
    prepared: onnx.ModelProto,
    plan: Plan,
    balanced: Balanced,
    ranges: Ranges,
    rule: RecipeRule,
    blank: CalibrationTable,
    judge: Judge | None,
    *,
    uint8: Uint8Input | None = None,
) -> tuple[Corrected, onnx.ModelProto]:
    """Turn ranges into a table and its model.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        balanced: What `balance` made of it.
        ranges: What `find_ranges` chose.
        rule: The recipe.
        blank: A table with model, data and settings filled in.
        judge: Returns the SQNR in dB of an int8 model's outputs on kept samples; None when there are none, then
            corrections that need judging are left out.
        uint8: How the int8 model takes raw pixels; None where it takes floats.
    """
    decisions = list(balanced.decisions)
    corrections = dict(balanced.corrections)
    equalized, tensors = balanced.model, balanced.tensors
    entries = ranges.entries
    layers, figures = plan, tensors
    if uint8 is not None:
        affine = pixel_affine(uint8.layers)
        equalized, layers, wide = fold_pixels(equalized, plan, uint8, affine)
        entries |= pixel_entries(uint8, affine, tensors, wide)
        entries = {point.tensor: entries[point.tensor] for point in layers.points}
        figures = tensors | pixel_statistics(uint8, affine, tensors, wide)
        tensors = {name: value for name, value in tensors.items() if name not in uint8.tensors}
        corrections[CORRECTION] = uint8.record()
        decisions.append(describe(uint8, affine))
    table = replace(blank, tensors=entries, corrections=corrections, warnings=(*blank.warnings, *ranges.warnings))
    built = build_model(prepared, plan, table)
    warnings = built.warnings
    # what follows changes no weight: their scales are searched for once
    table = replace(table, weights=weight_entries(plan, built.layers))
    if plan.recurrent:
        table, chosen = choose_forms(prepared, plan, table, judge)
        decisions.extend(chosen)
        built = build_model(prepared, plan, table)
    if rule.bias_correction and judge is not None:
        deltas = bias_deltas(equalized, layers, figures, built.layers)
        if deltas:
            candidate = replace(
                table, corrections={**corrections, "bias": {node: delta.tolist() for node, delta in deltas.items()}}
            )
            rebuilt = build_model(prepared, plan, candidate)
            before, after = judge(built.model), judge(rebuilt.model)
            kept = after > before
            decisions.append(
                f"bias correction {'kept' if kept else 'dropped'}: "
                f"{before:.2f} dB without, {after:.2f} dB with, on kept samples"
            )
            if kept:
                table, built = candidate, rebuilt
    table = replace(table, warnings=tuple(dict.fromkeys((*table.warnings, *warnings, *built.warnings))))
    return Corrected(with_weights(table, plan, built), tensors, tuple(decisions)), built.model
