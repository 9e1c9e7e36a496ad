"""Step: channels of large values are made small, and read several times, so that no weight has to grow for it.

Transformers have a few channels, of LayerNorms above all, that are ten times as large as the others. Rescaling alone
moves them into the weights, where they take bits from all others of their output channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.costs import copies_us
from int8cal.phrases import counted
from int8cal.quantization.corrections.channel_copies import ChannelCopies, can_have_copies
from int8cal.search.candidate import rescaled_candidate
from int8cal.search.search import propose_candidate
from int8cal.search.steps.equalization import (
    MAX_EXPONENT,
    RescaledChain,
    WeightSizes,
    decibels_gained,
    predicted_ratio,
    readers_of,
    usable_chains,
)

if TYPE_CHECKING:
    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.chains import Chain
    from int8cal.numerics import Float64, Int64
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State


SHARE = 1 / 16  # of the channels of an input, that copies may add
LEAST_PROMISED_DB = 0.5  # by which a chain's noise has to fall, as predicted
FEWEST = 64  # channels of an input; with fewer, the copying takes longer than the layer
# Channels that the readers of an input write together. Rescaling and copying take 0.23 to 0.36 ns per channel of the
# input, its product with one output channel 0.003: a third of the layer's time and more, where it writes fewer.
FEWEST_OUTPUTS = 256


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer copies of channels wherever they promise less noise than the rescaling that is in force."""
    quantization = inputs.job.quantization
    if (
        inputs.holdout.scorer is None
        or not quantization.latency_allowance
        or quantization.activations not in ("u8", "auto")
    ):
        return
    before = state.candidate.equalization.exponents
    index, elements = inputs.index, inputs.statistics.elements
    chosen: list[RescaledChain] = []
    copies: dict[str, tuple[int, ...]] = {}
    us = 0.0
    for chain in usable_chains(index, inputs.plan, inputs.statistics, quantization.ranges):
        exponents = before.get(chain.tensor, np.zeros(chain.channels))
        found = RescaledChain(chain, exponents, 0.0, "as before, predicted")
        if chain.channels >= FEWEST and _may_be_split(inputs, chain):
            split = best_split(inputs.statistics.tensors[chain.tensor], readers_of(index, chain), exponents)
            if split.gain_db >= LEAST_PROMISED_DB:
                extra = tuple(np.repeat(np.arange(chain.channels), 2**split.halvings - 1).tolist())
                copies |= {layer.node: extra for layer in chain.readers}
                us += copies_us(chain.readers, elements[chain.tensor], len(extra) / chain.channels)
                copied = counted(int(np.count_nonzero(split.halvings)), "channel")
                how = f"{counted(len(extra), 'copy', 'copies')} of {copied}, predicted"
                found = RescaledChain(chain, split.exponents, split.gain_db, how)
        if found.exponents.any():
            chosen.append(found)
    if copies:
        candidate = replace(rescaled_candidate(inputs, chosen), copies=ChannelCopies(copies))
        yield propose_candidate(state, inputs, "copies of channels", candidate, inputs.worth_db(us))


@dataclass(frozen=True)
class Split:
    """How the channels of a tensor are rescaled, and how often they are read.

    Attributes:
        exponents: Of the factors, float64 (C,).
        halvings: int64 (C,): a channel is read 2**halvings times.
        gain_db: Predicted, against the rescaling that is in force.
    """

    exponents: Float64
    halvings: Int64
    gain_db: float


def best_split(tensor: TensorStatistics, readers: list[WeightSizes], exponents: Float64) -> Split:
    """Choose how a tensor is rescaled and which channels are read several times.

    Either the largest channels alone become smaller, each as often as it is read; or all are rescaled as they are, and
    those are read several times whose weights grew most.

    Args:
        tensor: Statistics of the tensor, without rescaling.
        readers: Their weights.
        exponents: Of the rescaling that is in force, (C,).
    """
    best = Split(exponents, np.zeros(len(exponents), np.int64), 0.0)
    channels, ratio = tensor.channels, predicted_ratio(tensor, readers, exponents)
    if channels is None or ratio is None:
        return best
    most = int(SHARE * len(channels.amax))
    largest, grown = halvings_within(channels.amax, most), halvings_within(np.exp2(-exponents), most)
    for wanted, halvings in ((-largest.astype(np.float64), largest), (exponents, grown)):
        if halvings.any():
            gain = decibels_gained(ratio(wanted, halvings))
            best = Split(wanted, halvings, gain) if gain > best.gain_db else best
    return best


def halvings_within(sizes: Float64, most: int) -> Int64:
    """Return the halvings that bring all sizes to the lowest bound that takes `most` copies or fewer.

    Args:
        sizes: Of the channels, at least 0, (C,); the bound is one of them.
        most: Copies in all; a channel that is halved k times has 2**k - 1.
    """
    best = np.zeros(len(sizes), np.int64)
    bounds = np.unique(sizes[sizes > 0])[::-1]
    for bound in bounds[: most + 1]:  # every step down brings one copy or more
        over = sizes > bound
        halvings = np.zeros(len(sizes), np.int64)
        halvings[over] = np.ceil(np.log2(sizes[over] / bound))
        if halvings.max(initial=0) > MAX_EXPONENT or (2**halvings - 1).sum() > most:
            break
        best = halvings
    return best


def _may_be_split(inputs: Inputs, chain: Chain) -> bool:
    outputs = sum(layer.dims[-1 if layer.axis is None else layer.axis] for layer in chain.readers)
    if chain.channels < FEWEST or outputs < FEWEST_OUTPUTS:
        return False
    return all(layer.input == chain.tensor and can_have_copies(inputs.plan, layer) for layer in chain.readers)
