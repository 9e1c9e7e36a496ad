"""Second-order rounding: codes and biases that fit what each layer really reads, kept where unseen samples agree."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.graph.recognize import norms
from int8cal.graph.scopes import scopes
from int8cal.numerics.second_order import error_power, factor, grouped, mixed, round_second_order, ungrouped
from int8cal.phrases import counted
from int8cal.probe.layer_inputs import layer_inputs, take_moments
from int8cal.progress import track
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.integers import Bias, Rounding, codes_to_text
from int8cal.quantization.layers import layer_weights
from int8cal.runtime.sessions import cpu_count
from int8cal.search.scorer import LEAST_SCORED
from int8cal.search.search import Remark, propose_layers
from int8cal.threads import in_order, in_parts, one_thread_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from int8cal.graph.layers import Layer
    from int8cal.numerics import Float64, Int8
    from int8cal.numerics.gram import Moments
    from int8cal.probe.layer_inputs import LayerInput
    from int8cal.quantization.build import BuiltModel
    from int8cal.quantization.layers import LayerWeights
    from int8cal.quantization.table import CalibrationTable
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State


# A bias may not come near the limit of s32, where the guard of the bias would change scales and with them codes.
_BIAS_ROOM = 2.0**29
MOST_WEIGHTS = 30_000_000  # that `fast` rounds anew
# Of the noise of convolutions, that their weights make: it is below a half for networks as they are trained, and about
# 0.9 where a BatchNorm beside each convolution was folded into it.
MOST_OF_NOISE = 2 / 3
_WIDE = 1 << 21  # values of a Gram; of larger ones, which take 50 MB and more to work on, there is one at a time


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
    yield from _propose(state, inputs, [layer.node for layer in state.built.draft.plan.layers])


def propose_where_weights_matter(state: State, inputs: Inputs) -> Proposals:
    """Offer the same for the layers whose weights make most of the noise, as far as that is told without measuring.

    Products in a model with LayerNorm or RMSNorm: behind these a few channels are much larger than the others.
    Convolutions where the steps of their weights are too coarse, see `_coarse_convolutions`; of others there is less to
    gain, and they have many more positions to sum the moments over. None where they are too many weights.
    """
    found = _coarse_convolutions(state)
    if any(norms(next(scopes(inputs.prepared)))):
        found += [layer for layer in state.built.draft.plan.layers if layer.channel_axis == -1]
    if found and sum(math.prod(layer.dims) for layer in found) <= MOST_WEIGHTS:
        yield from _propose(state, inputs, [layer.node for layer in found])


def _coarse_convolutions(state: State) -> list[Layer]:
    """Return the convolutions whose weights make most of their noise, where weights make most of that of all.

    A BatchNorm beside a convolution, folded into it, is a weight much larger than the others of its output channel: its
    scale leaves these a few codes (Ding et al., RepVGG, 2021). No rescaling of channels changes that.

    Numerics: a rounding error has variance step**2 / 12, and both noises are held against what the layer gives. What
    the mean of the input makes of errors of weights is left out: it is a constant that the bias takes back.
    """
    index, convolutions, noise = state.built.draft.index, [], []
    for layer in state.built.draft.plan.layers:
        seen = state.candidate.tensors.get(layer.input)
        if layer.op_type != "Conv" or seen is None:
            continue
        weight, scales = index.constant(layer.weight), state.built.layers[layer.node].scales
        histogram = seen.histogram  # which is made anew each time
        spread = histogram.mean_square - histogram.mean**2
        energy = float(np.square(weight, dtype=np.float64).sum())
        if energy > 0 and spread > 0:
            step = state.table.tensors[layer.input].scale
            convolutions.append(layer)
            noise.append((float(np.square(scales).mean()) * weight.size / energy, step**2 / spread))
    weights, inputs = (math.fsum(each) for each in zip(*noise, strict=True)) if noise else (0.0, 0.0)
    if weights < MOST_OF_NOISE * (weights + inputs):
        return []
    return [layer for layer, (own, read) in zip(convolutions, noise, strict=True) if own > read]


def _propose(state: State, inputs: Inputs, nodes: Collection[str]) -> Proposals:
    holdout = inputs.holdout
    if not holdout.can_fit:
        return
    table, lines = _refined(state.built, state.table, inputs, nodes)
    state = yield Remark(lines)
    yield from propose_layers(state, inputs, "second-order rounding", table, (Rounding, Bias))


def rounded_again(state: State, inputs: Inputs, table: CalibrationTable) -> CalibrationTable:
    """Return a table with second-order rounding of the layers that had it in a state and lost it by a change."""
    nodes = Rounding.of(state.table).values.keys() - Rounding.of(table).values.keys()
    if not nodes:
        return table
    return _refined(build_model(inputs.index, state.plan, table, state.built), table, inputs, nodes)[0]


def _refined(
    built: BuiltModel, table: CalibrationTable, inputs: Inputs, nodes: Collection[str]
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Refine layers on the samples of the holdout that nothing is scored on, see `refine_layers`."""
    held_out = inputs.holdout.validation[:LEAST_SCORED]  # a layer's own error needs fewer samples than the outputs'
    fit, unseen = (list(feeds_for(built.model, each)) for each in (inputs.holdout.fit, held_out))
    return refine_layers(built, table, fit, unseen, nodes, threads=inputs.job.calibration.threads)


def refine_layers(
    built: BuiltModel,
    table: CalibrationTable,
    fit: Sequence[SampleLike],
    validation: Sequence[SampleLike],
    nodes: Collection[str] | None = None,
    *,
    threads: int = 0,
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Round the weights of layers anew, by the moments of their inputs in the int8 model, and correct the biases.

    Args:
        built: `build_model`'s result for this very table.
        table: Without second-order rounding; a bias correction in it is replaced for the layers that are refined.
        fit: Samples to fit on, as the int8 model takes them (raw pixels where it takes these).
        validation: Samples to score on, never fitted on, likewise.
        nodes: The layers; None for all.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        The table with corrections "rounding" and "bias", for `build_model`; and a line for every decision.

    Raises:
        DataError: A kernel failed on a sample.
    """
    layers = {layer.node: layer for layer in built.draft.plan.layers if nodes is None or layer.node in nodes}
    inputs, without = layer_inputs(built.model, list(layers.values()))
    threads = threads or cpu_count()
    # those of which there is one at a time come last
    ordered = sorted(inputs.values(), key=_is_wide)
    moments = take_moments(built.model, ordered, [fit, validation], threads=threads)
    refined = (
        _refined_each(built, table, layers, some, threads, at_once=not is_wide)
        for is_wide, some in itertools.groupby(moments, lambda part: _is_wide(part[0][0]))
    )
    with one_thread_each():
        each = itertools.chain.from_iterable(refined)
        by_node = dict(track(each, len(inputs), "second-order rounding"))
    found = {node: by_node[node] for node in inputs}
    return _with(table, found), _lines(found, without)


def _is_wide(entry: LayerInput) -> bool:
    return entry.groups * entry.size**2 > _WIDE


def _refined_each(
    built: BuiltModel,
    table: CalibrationTable,
    layers: Mapping[str, Layer],
    moments: Iterable[tuple[list[LayerInput], Callable[[], tuple[Moments, ...]]]],
    threads: int,
    *,
    at_once: bool,
) -> Iterator[tuple[str, Refined]]:
    """Refine layers, those that read the same together; the first moments are to fit on, the second unseen ones.

    Args:
        built, table: Of the int8 model.
        layers: By node.
        moments: Of what they read.
        threads: To use.
        at_once: Whether each of these takes layers of its own; otherwise they share the rows of one layer.
    """

    def refine(part: tuple[list[LayerInput], Callable[[], tuple[Moments, ...]]]) -> list[tuple[str, Refined]]:
        entries, found = part
        fit, unseen = found()
        return list(_refined_together(built, table, layers, entries, fit, unseen, 1 if at_once else threads))

    return itertools.chain.from_iterable(in_order(refine, moments, threads if at_once else 1))


def _refined_together(
    built: BuiltModel,
    table: CalibrationTable,
    layers: Mapping[str, Layer],
    entries: Iterable[LayerInput],
    fit: Moments,
    unseen: Moments,
    threads: int,
) -> Iterator[tuple[str, Refined]]:
    """Refine layers that read the same; overwrites the moments to fit on."""
    index = built.draft.index
    lower: Float64 | None = None
    for entry in entries:
        layer, integers = layers[entry.node], built.layers[entry.node]
        if not (fit.count and unseen.count):
            yield entry.node, Refined(None, None, 0.0)
            continue
        source = layer_weights(index, layer, built.draft)
        before = source.reduction.rows(integers.weight).values
        if lower is None:
            # in the place of the sums, which nothing reads any more
            mixed(fit.gram, fit.count, source.rows.channels, overwrite=True)
            lower = factor(fit.gram, threads)
        codes, gain = _rounded(source, integers.scales, before, fit.gram, lower, unseen.gram, threads)
        delta = None
        if layer.bias is not None:
            bias = index.constant(layer.bias).astype(np.float64).reshape(-1)
            final = before if codes is None else codes
            errors = final * integers.scales[:, None, None] - source.rows.values.astype(np.float64)
            delta = _bias_delta(errors, integers.scales, bias, table.tensors[layer.input].scale, fit, unseen)
        yield entry.node, Refined(None if codes is None else codes_to_text(before, codes), delta, gain)


def _rounded(
    source: LayerWeights,
    scales: Float64,
    before: Int8,
    moments: Float64,
    lower: Float64,
    unseen: Float64,
    threads: int,
) -> tuple[Int8 | None, float]:
    """Round anew.

    Args:
        source: Weights.
        scales: (scales,).
        before: Codes without data.
        moments: `mixed`, with its Cholesky factor `lower`.
        lower: Likewise (groups, K, K).
        unseen: The Gram of the validation samples.
        threads: To use.

    Returns:
        Codes, None where those before make less error on the validation samples, and what they gain in dB.
    """
    rows = source.rows
    codes = round_second_order(rows, scales, source.dtype, source.links, moments, before, lower, threads)
    old, new = in_parts(partial(error_power, rows, scales, gram=unseen), (before, codes), threads)
    gain = 10.0 * float(np.log10(old / new)) if old > 0.0 and new > 0.0 else 0.0
    return codes if new < old else None, gain


def _bias_delta(
    errors: Float64, scales: Float64, bias: Float64, input_scale: float, fit: Moments, validation: Moments
) -> Float64 | None:
    """Return what takes the mean shift of rounded weights back, where it does so on the validation samples too."""
    shift, unseen = (mean_output(errors, each) * input_scale for each in (fit, validation))
    if bias.size != shift.size:
        return None
    steps = np.tile(scales, bias.size // len(scales)) * input_scale
    fits = bool((np.abs(bias - shift) < _BIAS_ROOM * steps).all())
    better = float(((unseen - shift) ** 2).sum()) < float((unseen**2).sum())
    return -shift if fits and better else None


def mean_output(values: Float64, moments: Moments) -> Float64:
    """Return the mean of values @ x per output channel, in the order of the output's channels."""
    mean = moments.total / moments.count
    sums = (grouped(values, len(mean)) * mean[:, None, :]).sum(axis=-1, keepdims=True)
    by_row = ungrouped(sums, values.shape)[:, :, 0]
    # a ConvTranspose has one row of outputs per group, and its output channels run group by group
    return np.ascontiguousarray(by_row.T).reshape(-1)


def _with(table: CalibrationTable, found: dict[str, Refined]) -> CalibrationTable:
    bias = dict(Bias.of(table).without(found).values)
    bias |= {node: tuple(each.delta.tolist()) for node, each in found.items() if each.delta is not None}
    rounding = dict(Rounding.of(table).without(found).values)
    rounding |= {node: each.text for node, each in found.items() if each.text is not None}
    return table.corrected(Bias(bias), Rounding(rounding))


def _lines(found: dict[str, Refined], without: dict[str, str]) -> tuple[str, ...]:
    kept = [each.gain_db for each in found.values() if each.text is not None]
    biases = sum(each.delta is not None for each in found.values())
    median = f", median gain {np.median(kept):.1f} dB on samples that it was not fitted on" if kept else ""
    of = counted(len(found) + len(without), "layer")
    lines = [f"second-order rounding fitted to {len(kept)} of {of}{median}"]  # what the model makes of it comes then
    if biases:
        lines.append(f"bias correction fitted to {counted(biases, 'layer')} along with it")
    lines += [
        f"second-order rounding of {node} dropped: {each.gain_db:.2f} dB on samples that it was not fitted on"
        for node, each in found.items()
        if each.text is None
    ]
    lines += [f"second-order rounding of {node} left out: {why}" for node, why in without.items()]
    return tuple(lines)
