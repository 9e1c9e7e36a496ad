"""How far to equalize each chain, decided by what it does on samples.

Moving range trouble from activations into weights nearly always pays, but how much is a matter of the data: so several
strengths are tried, the input is quantized with the range that the threshold method chooses for the scaled tensor, the
weights are rounded as they will be, and what comes out at the readers is compared with float. The best of these are
followed on to the outputs of the model, all else exact: channels of a reader's output do not matter alike.

Weights have one scale per output channel, so the factors of a chain do not change the error of its own layer, and
chains can be decided one by one: nothing has to settle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.ranges import choose, group_histogram
from int8cal.graph.index import Index
from int8cal.numerics.affine import fake_quantized
from int8cal.numerics.gram import some_of
from int8cal.numerics.pairs import Rows
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.probe.injection import ErrorSite
from int8cal.probe.layer_inputs import read_rows
from int8cal.probe.noise import run_seconds, sample_count
from int8cal.probe.probe import LayerProducts, Probe
from int8cal.quantization.corrections.equalization import STEPS, scale_inputs
from int8cal.quantization.layers import lay_out
from int8cal.runtime.sessions import cpu_count
from int8cal.runtime.targets import weight_range
from int8cal.search.candidate import counted_over
from int8cal.search.steps.equalization import (
    RescaledChain,
    best_exponents,
    largest_weights,
    mean_ratio,
    propose_rescaled,
    readers_of,
    usable_chains,
    wishes,
)
from int8cal.threads import in_parts, one_thread_each, require_wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.graph.chains import Chain
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import CalibrationSettings, QuantizationSettings
    from int8cal.numerics import Array, Float32, Float64
    from int8cal.numerics.affine import Affine
    from int8cal.probe.layer_inputs import LayerRows
    from int8cal.probe.probe import Run
    from int8cal.quantization.layers import LayerWeights
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State
    from int8cal.search.steps.equalization import WeightSizes


ALPHAS = (0.25, 0.5, 0.75, 1.0)  # 1 leaves all range trouble to the weights
SAMPLES = 8  # whose rows are enough to tell candidates apart
FINALISTS = 2  # candidates whose error is followed to the model's outputs
RUNS, FEWEST_RUNS = 8, 2  # with which it is, at most and at least
SECONDS = 8.0  # estimated, that it may take; fewer runs where more would take longer
LEAST_GAIN_DB = 0.1  # a chain is left alone below it
INSERTED_GAIN_DB = 1.0  # likewise, where a Mul is inserted: that takes time
_OUTPUTS, _FEWEST = 64, 16  # output channels that stand for all
_WEIGHTS = 1 << 17  # and how many weights they may have


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer the channels rescaled as far as measured errors say.

    Where all channels are made equally large, all of them reach the end of the range, and samples that have not given
    it are clipped more often than those that have: on one detector factors gained 3.8 dB on what the ranges were of,
    and 0.2 dB on other samples. So factors are measured on a few samples with the ranges of the rest of those to fit
    on, and scored with the ranges of all of these.
    """
    holdout = inputs.holdout
    several = len(holdout.fit) > 1 and holdout.scorer is not None
    if not several or not usable_chains(inputs.index, inputs.plan, inputs.statistics, inputs.job.quantization.ranges):
        return
    shown = min(SAMPLES, len(holdout.fit) // 2)
    rest = counted_over(inputs, holdout.fit[shown:])
    measured = measure_factors(
        inputs.prepared,
        inputs.plan,
        rest,
        holdout.signature,
        holdout.fit[:shown],
        inputs.job.calibration,
        inputs.job.quantization,
    )
    if measured:
        unseen = replace(inputs, statistics=rest + counted_over(inputs, holdout.fit[:shown]))
        yield from propose_rescaled(state, inputs, "channels rescaled by measured strength", measured, unseen)


def measure_factors(
    model: onnx.ModelProto,
    plan: Plan,
    statistics: Statistics,
    signature: Signature,
    samples: Sequence[SampleLike],
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
) -> tuple[RescaledChain, ...]:
    """Choose factors per channel for each chain where they lower the measured error.

    Args:
        model: The prepared model.
        plan: Its plan.
        statistics: With per-channel histograms of every chain's tensors.
        signature: Of the model's inputs.
        samples: To fit on; the first few are used.
        calibration: Threshold method and threads.
        quantization: Type of activations, range of weights, target; a tensor with a user's range is left alone.

    Returns:
        Accepted chains, in graph order.

    Raises:
        DataError: A kernel failed.
        NonFiniteError: A weight holds NaN or infinity.
    """
    chains = list(usable_chains(model, plan, statistics, quantization.ranges))
    if not chains:
        return ()
    layers = [layer for chain in chains for layer in chain.readers]
    rows = read_rows(model, signature, layers, samples[:SAMPLES], threads=calibration.threads)
    behind = {chain.layer.node: chain for chain in chains if chain.layer is not None}
    search = _Search(Index(model), plan, statistics.tensors, behind, rows, calibration, quantization)
    chains = [chain for chain in chains if all(layer.node in rows for layer in chain.readers)]
    with one_thread_each():
        finalists = list(in_parts(search.finalists, chains, calibration.threads or cpu_count()))
    probe = Probe(
        model, plan, signature, calibration.threads, behind_layers=True, shown=[layer.input for layer in layers]
    )
    trials = sum(len(candidates) + 1 for candidates in finalists if candidates)
    run_s = run_seconds(model, plan, statistics.elements)
    runs = probe.runs(samples[: max(sample_count(SECONDS, trials, run_s, RUNS), FEWEST_RUNS)])
    found = []
    for chain, candidates in zip(chains, finalists, strict=True):
        best = _least_added_error(search, probe, runs, chain, candidates)
        if best is not None and best.gain_db >= (INSERTED_GAIN_DB if chain.inserted else LEAST_GAIN_DB):
            found.append(best)
    probe.close()
    return tuple(found)


def _least_added_error(
    search: _Search, probe: Probe, runs: Sequence[Run], chain: Chain, candidates: list[tuple[str, Float64]]
) -> RescaledChain | None:
    """Return the candidate with which a chain's rounding disturbs the model's outputs least."""
    if not candidates:
        return None
    products = LayerProducts(probe.model, threads=probe.threads)
    exact = search.products_of(products, runs, chain)
    tried = (np.zeros(chain.channels), *(exponents for _, exponents in candidates))
    before, *after = (
        probe.relative_noise(runs, search.errors_of(products, runs, chain, exponents, exact)) for exponents in tried
    )
    least = int(np.argmin(after))
    if not 0 < after[least] < before:
        return None
    name, exponents = candidates[least]
    return RescaledChain(chain, exponents, float(10 * np.log10(before / after[least])), f"{name}, measured")


@dataclass(frozen=True)
class _Reader:
    """One layer, ready to be measured: some of its outputs, and what they should be."""

    rows: LayerRows
    weights: Float64  # (groups, outputs per group, K)
    expected: Float32  # (groups, rows, outputs per group)
    importance: Float64  # (groups, 1, outputs per group)
    source: LayerWeights  # as stored

    def error(self, factor: Float64, affine: Affine) -> float:
        """Squared error of the outputs with input and weights quantized, channels times factor in between."""
        columns = factor[self.rows.channels]
        values = fake_quantized(self.rows.values * columns[:, None].astype(np.float32), affine)
        weights = self.weights / columns[:, None]
        rounded = _rounded(weights.reshape(-1, 1, weights.shape[-1]), self.source).reshape(weights.shape)
        actual = values @ rounded.transpose(0, 2, 1)
        return float((np.square(actual - self.expected, dtype=np.float64).sum(axis=1) * self.importance[:, 0]).sum())


def _rounded(values: Float64, source: LayerWeights) -> Float32:
    """Return rows of a weight as their codes will stand for them.

    Args:
        values: (rows, 1, K).
        source: The weight that they stand in for.
    """
    rows = Rows(values, source.rows.channels, source.rows.kernel)
    scales = choose_scales(rows, source.dtype, source.links)
    codes = round_codes(rows, scales, source.dtype, source.links)
    return (codes * scales[:, None, None]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Search:
    """What the candidates of every chain are measured with.

    Attributes:
        behind: By node, the chain that begins at the layer.
    """

    index: Index
    plan: Plan
    tensors: Mapping[str, TensorStatistics]
    behind: Mapping[str, Chain]
    rows: Mapping[str, LayerRows]
    calibration: CalibrationSettings
    quantization: QuantizationSettings

    def finalists(self, chain: Chain) -> list[tuple[str, Float64]]:
        """Return the candidates that make the least error at the readers, and the one that recipe fast would take."""
        readers, sizes = [self._reader(layer) for layer in chain.readers], readers_of(self.index, chain)
        before = self._errors(chain, np.zeros(chain.channels), readers)
        if min(before) <= 0:
            return []
        ranked = []
        for number, (name, exponents) in enumerate(self._candidates(chain, sizes)):
            require_wanted()
            after = self._errors(chain, exponents, readers)
            ranked.append((mean_ratio(after, before), number, name, exponents))
        # the numbers tell equal ratios apart: exponents have no order
        best = [(name, exponents) for ratio, _, name, exponents in sorted(ranked)[:FINALISTS] if ratio < 1]
        if best:
            exponents, gain = best_exponents(self.tensors[chain.tensor], sizes)
            best += [("as predicted", exponents)] if gain > 0 else []
        return best

    def products_of(self, products: LayerProducts, runs: Sequence[Run], chain: Chain) -> dict[str, list[Array]]:
        """Return what a chain's readers compute in float, by node, per run."""
        found = {}
        for layer in chain.readers:
            weight = self.index.constant(layer.weight)
            found[layer.node] = [products.product(layer, run.values[layer.input], weight) for run in runs]
        return found

    def errors_of(
        self,
        products: LayerProducts,
        runs: Sequence[Run],
        chain: Chain,
        exponents: Float64,
        exact: Mapping[str, Sequence[Array]],
    ) -> list[dict[ErrorSite, Float32]]:
        """Return per run what a chain's quantized input and weights add to what its readers compute in float."""
        affines, factor = self._affines(chain, exponents), np.exp2(exponents)
        errors: list[dict[ErrorSite, Float32]] = [{} for _ in runs]
        for layer in chain.readers:
            weight = self.index.constant(layer.weight)
            rounded = self._rounded(layer, scale_inputs(weight.astype(np.float64), layer, 1 / factor))
            shape = (-1, *[1] * (weight.ndim - 2)) if layer.op_type == "Conv" else (-1,)
            columns = factor.astype(np.float32).reshape(shape)
            for run, added, expected in zip(runs, errors, exact[layer.node], strict=True):
                near = fake_quantized(run.values[layer.input] * columns, affines[layer.input])
                added[ErrorSite(layer.node, "output")] = products.product(layer, near, rounded) - expected
        return errors

    def _rounded(self, layer: Layer, weight: Float64) -> Float32:
        """Return a layer's weight as its codes will stand for it."""
        source = self._laid_out(layer, weight)
        threads = self.calibration.threads or cpu_count()
        # rows do not depend on each other
        parts = [part for part in np.array_split(source.rows.values, threads) if len(part)]
        rounded = in_parts(partial(_rounded, source=source), parts, threads)
        return source.reduction.restore(np.concatenate(list(rounded)), source.shape)

    def _laid_out(self, layer: Layer, weight: Float32 | Float64) -> LayerWeights:
        return lay_out(weight, layer, weight_range(self.quantization), self.quantization.target)

    def _candidates(self, chain: Chain, readers: Sequence[WeightSizes]) -> list[tuple[str, Float64]]:
        channels = self.tensors[chain.tensor].channels
        if channels is None:
            return []
        strength = largest_weights(readers)
        sizes = {"range": channels.amax, "power": np.sqrt(channels.mean_square)}
        found: dict[bytes, tuple[str, Float64]] = {}
        for kind, size in sizes.items():
            for alpha in ALPHAS:
                exponents = np.rint(wishes(size, strength, alpha) * STEPS) / STEPS
                if exponents.any():
                    found.setdefault(exponents.tobytes(), (f"{kind} {alpha:g}", exponents))
        return list(found.values())

    def _affines(self, chain: Chain, exponents: Float64) -> dict[str, Affine]:
        """Return what the threshold method chooses for each reader's input once the channels are scaled."""
        groups = {each.tensor: each.group for each in self.plan.tensors}
        scaled = {name: self.tensors[name].equalized(exponents) for name in chain.tensors if name in groups}
        activations, percentile = self.quantization.activations, self.calibration.percentile
        by_group: dict[str, Affine] = {}
        for group in dict.fromkeys(groups[layer.input] for layer in chain.readers):
            # only what passes values on shares a scale with a chain's tensor, and is one of its tensors too
            seen = group_histogram(self.plan, {**self.tensors, **scaled}, group)
            by_group[group] = choose(seen, self.calibration.method, activations, percentile).affine
        return {layer.input: by_group[groups[layer.input]] for layer in chain.readers}

    def _errors(self, chain: Chain, exponents: Float64, readers: list[_Reader]) -> list[float]:
        affines, factor = self._affines(chain, exponents), np.exp2(exponents)
        return [
            reader.error(factor, affines[layer.input]) for layer, reader in zip(chain.readers, readers, strict=True)
        ]

    def _reader(self, layer: Layer) -> _Reader:
        source = self._laid_out(layer, self.index.constant(layer.weight).astype(np.float32))
        outputs = len(source.rows.values)
        per_group = outputs // layer.group
        grouped = source.rows.values.astype(np.float64).reshape(layer.group, per_group, -1)
        enough = int(np.clip(_WEIGHTS // grouped.shape[-1], _FEWEST, _OUTPUTS))
        some = some_of(per_group, max(enough // layer.group, 1))
        weights = grouped[:, some]
        seen = self.rows[layer.node]
        importance = self._importance(layer, outputs).reshape(layer.group, 1, per_group)[:, :, some]
        expected = seen.values @ weights.astype(np.float32).transpose(0, 2, 1)
        return _Reader(seen, weights, expected, importance, source)

    def _importance(self, layer: Layer, outputs: int) -> Float64:
        """How much an error of each output channel matters: as much as the next layers weigh it, where they are known.

        That keeps the choice the same for any scaling of the outputs that the next layers undo.
        """
        chain, energy = self.behind.get(layer.node), np.zeros(outputs)
        for reader in () if chain is None else readers_of(self.index, chain):
            energy += reader.energy
        return energy if energy.any() else np.ones(outputs)
