"""Second-order rounding: codes and biases that fit what each layer really reads, kept where unseen samples agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.graph.index import Index
from int8cal.numerics.second_order import error_power, grouped, mixed, round_second_order, ungrouped
from int8cal.quantization.corrections.codes_text import CORRECTION, codes_to_text
from int8cal.quantization.corrections.residual_codes import residual_codes_of
from int8cal.quantization.layers import layer_weights
from int8cal.quantization.moments import layer_inputs, take_moments
from int8cal.runtime.targets import table_range, table_target
from int8cal.search.holdout import LEAST_SCORED
from int8cal.search.search import Remark
from int8cal.search.steps.layers import propose_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Layer
    from int8cal.numerics.gram import Moments
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.build import Built
    from int8cal.quantization.layers import LayerWeights
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]

# A bias may not come near the limit of s32, where the guard of the bias would change scales and with them codes.
_BIAS_ROOM = 2.0**29


@dataclass(frozen=True)
class Refined:
    """One layer's outcome.

    Attributes:
        text: Codes for the table; None where those without data stay.
        delta: For the bias, (output channels,) in real units; None for none.
        gain_db: What the codes gain on the validation samples; negative where they were dropped.
    """

    text: str | None
    delta: Float64 | None
    gain_db: float


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer weights rounded by the second moments of what the layers of the int8 model read."""
    holdout = inputs.holdout
    if not holdout.can_fit:
        return
    held_out = holdout.validation[:LEAST_SCORED]  # a layer's own error needs fewer samples than the outputs' does
    samples = (list(holdout.as_int8(state.built.model, each)) for each in (holdout.fit, held_out))
    table, lines = refine_layers(state.built, state.table, *samples, threads=holdout.threads)
    state = yield Remark(lines)
    yield from propose_layers(state, inputs, "second-order rounding", table, (CORRECTION, "bias"))


def refine_layers(
    built: Built,
    table: CalibrationTable,
    fit: Sequence[SampleLike],
    validation: Sequence[SampleLike],
    *,
    threads: int = 0,
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Round the weights of all layers anew, by the moments of their inputs in the int8 model, and correct the biases.

    Args:
        built: `build_model`'s result for this very table.
        table: Without second-order rounding; a bias correction in it is replaced for the layers that are refined.
        fit: Samples to fit on, as the int8 model takes them (raw pixels where it takes these).
        validation: Samples to score on, never fitted on, likewise.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        The table with corrections "rounding" and "bias", for `build_model`; and a line for every decision.

    Raises:
        StatisticsError: A kernel failed on a sample.
    """
    layers = {layer.node: layer for layer in built.plan.layers}
    inputs, without = layer_inputs(built.model, list(layers))
    index = Index(built.floats)
    weights, target = table_range(table.settings), table_target(table.settings)
    planes = residual_codes_of(built.plan, table)
    found: dict[str, Refined] = {}
    for entry, (tuned, judged) in take_moments(built.model, list(inputs.values()), [fit, validation], threads=threads):
        layer = layers[entry.node]
        source = layer_weights(index, layer, weights, target, double=entry.node in planes)
        scale = table.tensors[layer.input].scale
        found[entry.node] = _refined(layer, source, built.layers[entry.node], index, scale, tuned, judged)
    return _with(table, found), _lines(found, without)


def _refined(
    layer: Layer,
    source: LayerWeights,
    integers: QuantizedLayer,
    index: Index,
    input_scale: float,
    tuned: Moments,
    judged: Moments,
) -> Refined:
    rows, scales = source.rows, integers.scales
    start = source.reduction.rows(integers.weight).values
    if not tuned.count or not judged.count:
        return Refined(None, None, 0.0)
    moments = mixed(tuned.gram, tuned.count, rows.channels, overwrite=True)
    codes = round_second_order(rows, scales, source.dtype, source.links, moments, start)
    before, after = (float(error_power(rows, scales, each, judged.gram).sum()) for each in (start, codes))
    gain = 10.0 * float(np.log10(before / after)) if before > 0.0 and after > 0.0 else 0.0
    kept = after < before
    final = codes if kept else start
    delta = _bias_delta(layer, source, final, integers, index, input_scale, tuned, judged)
    return Refined(codes_to_text(start, codes) if kept else None, delta, gain)


def _bias_delta(
    layer: Layer,
    source: LayerWeights,
    codes: Int8,
    integers: QuantizedLayer,
    index: Index,
    input_scale: float,
    tuned: Moments,
    judged: Moments,
) -> Float64 | None:
    """Return what takes the mean shift of rounded weights back, where it does so on the validation samples too."""
    if layer.bias is None:
        return None
    errors = codes * integers.scales[:, None, None] - source.rows.values.astype(np.float64)
    shifts = [mean_output(errors, each) * input_scale for each in (tuned, judged)]
    bias = index.constant(layer.bias).astype(np.float64).reshape(-1)
    if bias.size != shifts[0].size:
        return None
    delta = -shifts[0]
    steps = np.tile(integers.scales, bias.size // len(integers.scales)) * input_scale
    fits = bool((np.abs(bias + delta) < _BIAS_ROOM * steps).all())
    better = float(((shifts[1] + delta) ** 2).sum()) < float((shifts[1] ** 2).sum())
    return delta if fits and better else None


def mean_output(values: Float64, moments: Moments) -> Float64:
    """Return the mean of values @ x per output channel, in the order of the output's channels."""
    mean = moments.total / moments.count
    sums = (grouped(values, len(mean)) * mean[:, None, :]).sum(axis=-1, keepdims=True)
    by_row = ungrouped(sums, values.shape)[:, :, 0]
    # a ConvTranspose has one row of outputs per group, and its output channels run group by group
    return np.ascontiguousarray(by_row.T).reshape(-1)


def _with(table: CalibrationTable, found: dict[str, Refined]) -> CalibrationTable:
    bias: dict[str, Any] = dict(table.corrections.get("bias", {}))
    bias = {node: value for node, value in bias.items() if node not in found}
    bias |= {node: each.delta.tolist() for node, each in found.items() if each.delta is not None}
    rounding = {node: each.text for node, each in found.items() if each.text is not None}
    parts = {name: value for name, value in table.corrections.items() if name not in ("bias", CORRECTION)}
    parts |= {name: part for name, part in (("bias", bias), (CORRECTION, rounding)) if part}
    return replace(table, corrections=parts)


def _lines(found: dict[str, Refined], without: dict[str, str]) -> tuple[str, ...]:
    kept = [each.gain_db for each in found.values() if each.text is not None]
    biases = sum(each.delta is not None for each in found.values())
    median = f", median gain {np.median(kept):.1f} dB on samples that it was not fitted on" if kept else ""
    lines = [f"second-order rounding kept for {len(kept)} of {len(found) + len(without)} layers{median}"]
    if biases:
        lines.append(f"bias correction kept for {biases} layers")
    lines += [
        f"second-order rounding of {node} dropped: {each.gain_db:.2f} dB on samples that it was not fitted on"
        for node, each in found.items()
        if each.text is None
    ]
    lines += [f"second-order rounding of {node} left out: {why}" for node, why in without.items()]
    return tuple(lines)
