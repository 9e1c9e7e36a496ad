"""Step: range equalization by powers of two: channels of very different size in one tensor are brought together.

With factors 2**e the float function stays the same to the last bit, and a log-linear histogram only shifts by octaves,
so the statistics already collected stay exact: no second pass over the data. What a choice is worth is predicted here,
which orders the tries; the holdout decides. `measured_equalization` measures it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.chains import Chain, find_chains
from int8cal.graph.index import Index
from int8cal.quantization.corrections.equalization import by_input_channel, scale_inputs, scale_outputs
from int8cal.search.candidate import rescaled_candidate, with_ranges
from int8cal.search.search import PARTED_BY, propose_candidate
from int8cal.search.steps import widest_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array, Float64, Int64
    from int8cal.search.candidate import Inputs
    from int8cal.search.scorer import Gain
    from int8cal.search.search import Proposal, Proposals, State


STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # how far towards equal activations (1) rather than equal weights (0)
MAX_EXPONENT = 30
# A chain is offered whose predicted gain is at least this: the predictor is a model of uniform rounding noise, so small
# predicted gains are not trusted.
LEAST_PROMISED_DB = 3.0
PARTS = 4  # in which rescaled chains are offered, where all together do not help


@dataclass(frozen=True)
class RescaledChain:
    """Factors of one chain: exponents (C,), and the gain at its readers' outputs in dB.

    Attributes:
        chain: What is rescaled.
        exponents: float64 (C,), whole or multiples of 1 / 16.
        gain_db: Predicted, or measured on samples.
        how: "predicted" or "measured", and what else a report should say of the choice.
    """

    chain: Chain
    exponents: Float64
    gain_db: float
    how: str = "predicted"

    @property
    def decision(self) -> str:
        """Say in one line what was decided."""
        chain = self.chain
        readers = ", ".join(layer.node for layer in chain.readers)
        kind = "powers of two" if (self.exponents == np.rint(self.exponents)).all() else "factors"
        where = "a Mul in front of" if chain.inserted else f"{chain.node} and"
        return f"equalized {where} {readers}: {kind} per channel, {self.how} gain {self.gain_db:.1f} dB"


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer the channels rescaled where much is promised; where that surely does harm, part by part.

    What promises most comes first. Where all together do no harm that is more than chance, parts would be chosen by
    chance: of seven models where they were looked at all the same three kept one, by as much as its margin.
    """
    if inputs.holdout.scorer is None:
        return
    promised = choose_factors(inputs.index, inputs.plan, inputs.statistics, inputs.job.quantization.ranges)
    name = "channels rescaled where much is promised"
    state, whole = yield from propose_rescaled(state, inputs, name, promised)
    if whole is None or not whole.surely_worse or state.results[-1].kept or len(promised) < 2:
        return
    if inputs.holdout.scorer.samples < PARTED_BY:
        return
    place = {each.chain.tensor: position for position, each in enumerate(promised)}
    promising = sorted(promised, key=lambda each: -each.gain_db)
    size = -(-len(promising) // PARTS)
    held: list[RescaledChain] = []
    for first in range(0, len(promising), size):
        tried = sorted([*held, *promising[first : first + size]], key=lambda each: place[each.chain.tensor])
        name = f"channels rescaled in {len(tried)} of {len(promised)} places"
        state = yield propose_candidate(state, inputs, name, rescaled_candidate(inputs, tried))
        if state.results[-1].kept:
            held = tried


def propose_rescaled(
    state: State, inputs: Inputs, name: str, chosen: Sequence[RescaledChain], unseen: Inputs | None = None
) -> Generator[Proposal, State, tuple[State, Gain | None]]:
    """Offer rescaled channels, with the job's ranges and, where it leaves the method open, with the widest.

    Args:
        state: The state in force.
        inputs: What stays the same.
        name: For the report.
        chosen: The chains.
        unseen: As for `Proposal`.

    Returns:
        The state, and what they gain with the job's ranges; None where there are none.
    """
    if not chosen:
        return state, None
    candidate = rescaled_candidate(inputs, chosen)
    state = yield replace(propose_candidate(state, inputs, name, candidate), unseen=unseen)
    first = state.last
    if inputs.job.calibration.method == "auto" and not (first is not None and first.none):
        candidate, name = with_ranges(inputs, candidate, "max"), f"{name}, all ranges by max"
        proposal = propose_candidate(state, inputs, name, candidate, widest_ranges.LEAST_GAIN_DB)
        state = yield replace(proposal, unseen=unseen)
    return state, first


def choose_factors(
    model: onnx.ModelProto | Index, plan: Plan, statistics: Statistics, fixed: Collection[str] = ()
) -> tuple[RescaledChain, ...]:
    """Choose powers of two per channel for each chain where they pay.

    Args:
        model: The prepared model, or its index.
        plan: Its plan.
        statistics: With per-channel figures of every chain's tensor.
        fixed: Tensors whose range the user gives; their chains are left alone.

    Returns:
        Accepted chains, in graph order.
    """
    index = Index.of(model)
    chains = usable_chains(index, plan, statistics, fixed)
    # float64 weights of a whole model are twice its size: only those are held that a further chain asks for
    asked = Counter(layer.node for chain in chains for layer in _layers(chain))
    rescaled: dict[str, Float64] = {}

    def weight(layer: Layer) -> Array:
        return rescaled[layer.node] if layer.node in rescaled else index.constant(layer.weight)

    accepted = []
    for chain in chains:
        readers = [WeightSizes.of(weight(layer), layer) for layer in chain.readers]
        exponents, gain = best_exponents(statistics.tensors[chain.tensor], readers)
        asked.subtract(layer.node for layer in _layers(chain))
        if gain >= LEAST_PROMISED_DB:
            accepted.append(RescaledChain(chain, exponents, gain))
            factors = np.exp2(exponents)
            if chain.layer is not None:
                rescaled[chain.node] = scale_outputs(weight(chain.layer).astype(np.float64), chain.layer, factors)
            for layer in chain.readers:
                rescaled[layer.node] = scale_inputs(weight(layer).astype(np.float64), layer, 1 / factors)
        for layer in _layers(chain):
            if not asked[layer.node]:
                rescaled.pop(layer.node, None)
    return tuple(accepted)


def _layers(chain: Chain) -> tuple[Layer, ...]:
    """Return the layers whose weights a chain's factors change."""
    return chain.readers if chain.layer is None else (chain.layer, *chain.readers)


def usable_chains(
    model: onnx.ModelProto | Index, plan: Plan, statistics: Statistics, fixed: Collection[str]
) -> tuple[Chain, ...]:
    """Return the chains with two channels or more, all of whose planned tensors have per-channel histograms.

    Args:
        model: The prepared model, or its index.
        plan: Its plan.
        statistics: Those collected before these chains were known are without histograms.
        fixed: Tensors that must stay as they are.
    """

    def seen(name: str) -> bool:
        tensor = statistics.tensors.get(name)
        return tensor is not None and tensor.count > 0 and tensor.by_channel

    return tuple(
        chain
        for chain in find_chains(model, plan)
        if chain.channels > 1
        and not set(fixed) & set(chain.tensors)
        and all(seen(name) for name in chain.tensors if plan.tensor(name) is not None)
    )


def wishes(size: Float64, strength: Float64, alpha: float) -> Float64:
    """Return the exponents that a strength asks for, before rounding.

    Args:
        size: Of each channel of the activations, (C,), at least 0.
        strength: Largest weight that reads each channel, (C,).
        alpha: 1 makes the activations equal, 0 the weights.

    Returns:
        log2 of the factors, (C,). The largest channel stays where it is; dead channels are not moved.
    """
    alive = (size > 0) & (strength > 0)
    wish = np.zeros(len(size))
    if alive.any():
        wish[alive] = (1 - alpha) * np.log2(strength[alive]) - alpha * np.log2(size[alive])
        wish[alive] -= wish[alive][np.argmax(size[alive])]
    return np.clip(wish, -MAX_EXPONENT, MAX_EXPONENT)


@dataclass(frozen=True, eq=False)
class WeightSizes:
    """What is asked of the weights with which a layer reads its input.

    Attributes:
        energy: Sum of the squares by which each input channel is read, float64 (C,).
        largest: Largest magnitude with which each output reads each channel, (groups, C / groups, outputs / groups).
        count: Number of weights other than 0, as `largest`, or (1, 1, 1) where it is the same everywhere.
    """

    energy: Float64
    largest: Array
    count: Int64

    @classmethod
    def of(cls, weight: Array, layer: Layer) -> WeightSizes:
        """Take them of a layer's weight as it is stored."""
        sizes = by_input_channel(np.abs(weight), layer)
        energy = np.square(sizes, dtype=np.float64).sum(axis=(2, 3)).reshape(-1)
        largest = sizes[..., 0] if sizes.shape[-1] == 1 else sizes.max(axis=3)
        dense = sizes.min(initial=np.inf) > 0
        count = np.full((1, 1, 1), sizes.shape[-1]) if dense else np.count_nonzero(sizes, axis=3)
        return cls(energy, largest, np.asarray(count, np.int64))


def readers_of(index: Index, chain: Chain) -> list[WeightSizes]:
    """Return the weights of a chain's readers, as the model has them."""
    return [WeightSizes.of(index.constant(layer.weight), layer) for layer in chain.readers]


def largest_weights(readers: Sequence[WeightSizes]) -> Float64:
    """Return the largest magnitude with which any reader weighs each channel, (C,)."""
    sizes = [each.largest.max(axis=2, initial=0.0).reshape(-1) for each in readers]
    return np.max(sizes, axis=0).astype(np.float64)  # type: ignore[no-any-return]


def best_exponents(tensor: TensorStatistics, readers: Sequence[WeightSizes]) -> tuple[Float64, float]:
    """Choose powers of two for a tensor.

    Args:
        tensor: Its statistics; without per-channel figures nothing is gained.
        readers: Their weights.

    Returns:
        Exponents (C,), all 0 where nothing is gained, and the predicted gain in dB.
    """
    channels = tensor.channels
    if channels is None:
        return np.zeros(0), 0.0
    amax = channels.amax
    strength = largest_weights(readers)
    none = np.zeros(len(amax))
    ratio = predicted_ratio(tensor, readers, none)
    if ratio is None or ((amax > 0) & (strength > 0)).sum() < 2:
        return none, 0.0
    best, least = none, 1.0
    for alpha in STRENGTHS:
        exponents = np.rint(wishes(amax, strength, alpha))
        noise = ratio(exponents)
        if noise < least:
            best, least = exponents, noise
    return best, decibels_gained(least)


def predicted_ratio(
    tensor: TensorStatistics, readers: Sequence[WeightSizes], exponents: Float64
) -> Callable[..., float] | None:
    """Return what predicts, of exponents (and halvings), the noise as a share of that of the exponents given here.

    None where nothing is known of the channels, or a reader has no noise; see `predicted_noise`.
    """
    channels = tensor.channels
    if channels is None:
        return None
    of_channels = channels.amax, channels.mean_square, channels.count
    predicted = partial(predicted_noise, *of_channels, signed=tensor.minimum < 0)
    before = [predicted(reader, exponents) for reader in readers]
    if min(before) <= 0:
        return None
    return lambda *wanted: mean_ratio([predicted(reader, *wanted) for reader in readers], before)


def mean_ratio(after: Sequence[float], before: Sequence[float]) -> float:
    """Return what is left of the readers' noise; each counts alike, whatever the size of its output."""
    return float(np.mean([new / old for new, old in zip(after, before, strict=True)]))


def decibels_gained(ratio: float) -> float:
    """Return the gain of what leaves so much of the noise; 0 where it leaves none, which nobody can tell."""
    return float(-10 * np.log10(ratio)) if ratio > 0 else 0.0


def predicted_noise(
    amax: Float64,
    power: Float64,
    count: int,
    reader: WeightSizes,
    exponents: Float64,
    halvings: Int64 | float = 0.0,
    *,
    signed: bool,
) -> float:
    """Predict the squared error at a reader's output per position: input and weights rounded, unseen values clipped.

    A channel's largest value is that of the few that it was seen with. Where all channels reach the end of the range,
    each is clipped by the next value beyond its own; where one is far larger than the others, hardly any is.

    Args:
        amax, power: Largest magnitude and mean square of each channel before rescaling, (C,).
        count: Values that each channel was seen with, at least 1.
        reader: Its weights before rescaling.
        exponents: Of the factors, (C,).
        halvings: Each channel is read 2**halvings times, with weights so many times smaller; (C,).
        signed: The tensor has negative values (its step is twice as wide).

    Numerics: a uniform rounding error has variance step**2 / 12. Beyond what was seen, magnitudes are taken to fall off
    as exp(-x / s), with the s whose largest of count values is expected near s * ln(count + 1), the channel's own: then
    clipping at a makes an error of 2 * s**2 * exp(-a / s) on average.
    """
    factor = np.exp2(exponents)
    top = (amax * factor).max()
    step = top * (2 if signed else 1) / 255
    fall = amax / np.log(count + 1)
    alive = fall > 0
    clipped = np.zeros(len(amax))
    clipped[alive] = 2 * fall[alive] ** 2 * np.exp(-top / factor[alive] / fall[alive])
    from_input = ((step**2 / 12 / factor**2 + clipped) * reader.energy).sum()
    factor = factor * np.exp2(halvings)  # copies have the same weights, so their errors add up
    by_group = (*reader.largest.shape[:2], 1)
    largest = (reader.largest / factor.astype(reader.largest.dtype).reshape(by_group)).max(axis=1, initial=0.0)
    spread = ((power * factor**2).reshape(by_group) * reader.count).sum(axis=1)
    from_weights = ((largest.astype(np.float64) / 127) ** 2 / 12 * spread).sum()
    return float(from_input + from_weights)
