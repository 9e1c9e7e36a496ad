"""Where eight bits are too few: what the codes of each tensor do to the outputs, and what it costs to do better.

Three ways are open here, none of which takes a layer out of int8: another range, residual codes for an input that
exists as float, and float in optional nodes between the layers. (A fourth one does: see `search.islands`.) Each is
chosen by the noise that single errors really make at the outputs (see `probe.probe`), and the last two within an
allowance of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.calibration.ranges import choose, clipped_by, group_histogram
from int8cal.graph.costs import fine_channels_us, float_us, inference_us, residual_codes_us
from int8cal.graph.index import Index, connected
from int8cal.graph.islands import owner_of
from int8cal.numerics.affine import affine_from_range
from int8cal.probe.injection import ErrorSite, sites_among
from int8cal.probe.noise import relative, run_seconds, sample_count
from int8cal.probe.probe import Probe
from int8cal.progress import track
from int8cal.quantization.corrections.channel_copies import can_have_copies
from int8cal.quantization.corrections.residual_codes import can_have_residual_codes
from int8cal.search.islands import BEYOND, TRIED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx

    from int8cal.calibration.ranges import Ranges
    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import CalibrationSettings, Method, QuantizationSettings
    from int8cal.numerics.affine import Affine
    from int8cal.runtime.batching import SampleLike

Float64 = npt.NDArray[np.float64]

CANDIDATES: tuple[tuple[Method, float], ...] = (
    ("max", 100.0),
    ("percentile", 99.999),
    ("percentile", 99.99),
    ("percentile", 99.9),
)
# Factors of the lower and the upper end of a range, tried together; the best is the start of the next round.
MOVES = ((0.5, 1.0), (0.7, 1.0), (0.85, 1.0), (1.2, 1.0), (1.0, 0.5), (1.0, 0.7), (1.0, 0.85), (1.0, 1.2))
ROUNDS = 4
LEAST_SHARE = 0.03  # of the noise at the outputs: tensors below it are left alone
MOVED_SHARE = 0.1  # likewise: below it no ends are moved, which takes many inferences
LEAST_GAIN = 0.03  # of the noise: what an upgrade has to take away
SURE, LEAST_RATIO = 3.0, 0.1  # standard errors, and log ratio, by which another range must be better
LEAST_MOVED = 0.02  # log ratio, by which moving an end must be better
SHARE_SAMPLES, FIRST_SAMPLES, RANGE_SAMPLES = 16, 8, 64
LEAST_SAMPLES = 8  # fewer say nothing sure about ranges
PART_BYTES = 16_000_000  # of errors that are added in one inference
RESIDUAL_LEAVES = 0.03  # of a tensor's noise, with residual codes
# Channels that get residual codes by themselves: those of so many times the mean's noise, and no more than this share.
OUTLYING, FINE_SHARE = 4.0, 1 / 16
FEWEST = 64  # channels of an input; with fewer, picking some takes longer than the layer


@dataclass(frozen=True)
class Upgrade:
    """Something that makes less noise and takes more time.

    Attributes:
        what: For the report.
        residual: Layers whose input gets residual codes.
        floats: Optional nodes that stay float.
        gain: Share of the noise at the outputs that it takes away.
        us: Estimated microseconds.
        tensor: Whose residual codes it is about: of all channels, or of `fine` alone. "" for none.
        fine: Layers that get residual codes of some channels of their input, and which.
    """

    what: str
    residual: tuple[str, ...]
    floats: tuple[str, ...]
    gain: float
    us: float
    tensor: str = ""
    fine: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """Shares of the noise at the outputs, of activations alone.

    Attributes:
        groups: By group of tensors that share a scale.
        floats: By the optional nodes, joined by what they hand on, that could stay float: what that takes away.
        total: Noise over signal of all; see noise.relative.
        signal: Squared values where the model is scored, the mean over samples, (points,).
        samples: Number that was measured on.
    """

    groups: Mapping[str, float]
    floats: Mapping[tuple[str, ...], float]
    total: float
    signal: Float64
    samples: int


@dataclass(frozen=True)
class ResidualGroup:
    """Layers that read one tensor, which may have residual codes.

    Attributes:
        nodes: The layers.
        us: Estimated microseconds that it adds.
    """

    nodes: tuple[str, ...]
    us: float


class Precision:
    """Measures and decides for one model.

    Args:
        model: The prepared (and equalized) model.
        plan: Its plan.
        signature: Its inputs.
        tensors: Statistics of the planned tensors, equalized likewise.
        samples: What errors are measured on, the more the better.
        seconds: Estimated time that measuring may take; decides how many samples are used.
        threads: Of the runtime; 0 for all CPUs.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Plan,
        signature: Signature,
        tensors: Mapping[str, TensorStatistics],
        samples: Sequence[SampleLike],
        *,
        seen: int,
        seconds: float,
        threads: int = 0,
    ) -> None:
        self.model, self.plan, self.tensors, self.samples = model, plan, tensors, samples
        self.index = Index(model)
        self.probe = Probe(model, plan, signature, threads)
        self.elements = {name: value.count / max(seen, 1) for name, value in tensors.items()}
        self.seconds = seconds
        self.run_s = run_seconds(model, plan, self.elements)
        self.regions = optional_regions(self.index, plan)

    def sweep(self, affines: Mapping[str, Affine], wanted: Collection[str] | None = None) -> Sweep:
        """Measure what each tensor's codes and each optional region add to the noise.

        Every one takes an inference. So only those are measured that something can be done for, and where the time is
        not enough for these, even with one sample, those that promise most; the others count as if they added nothing.
        What all add together is the sum over groups where each is measured, and is measured in a few parts where not.

        Args:
            affines: Of the planned tensors.
            wanted: Groups whose part is of interest; None for all.
        """
        most = max(int(self.seconds / max(self.run_s, 1e-9)), 1)
        groups = list(self.plan.groups)
        asked = groups if wanted is None else [group for group in groups if group in wanted]
        avoidable = {region: sites for region in self.regions if (sites := self._avoidable(region))}
        if not asked and not avoidable:
            return Sweep(dict.fromkeys(groups, 0.0), {}, 0.0, np.zeros(len(self.probe.points)), 0)
        parts = [] if asked == groups and len(groups) <= most else self._parts(affines)
        measured = self._promising(affines, asked, max(most - len(parts), 1))
        floats = list(avoidable)[: max(most - len(parts) - len(measured), 0)]
        roundings = [self._rounding(group, affines[group]) for group in measured]
        roundings += [{site: affines[site.tensor] for site in avoidable[region]} for region in floats]
        # of as many samples as there is time for with everything, so that less is less work
        count = self._count(max(len(groups) + len(avoidable), len(roundings) + len(parts)), SHARE_SAMPLES)
        roundings += parts
        errors, signals = self.probe.rounding_noise(self.samples[:count], roundings)
        signal = signals.mean(axis=0)
        noise = relative(errors.mean(axis=1), signal)
        total = float((noise[len(measured) + len(floats) :] if parts else noise[: len(measured)]).sum())
        shares = [float(each) / total if total > 0 else 0.0 for each in noise]
        return Sweep(
            dict.fromkeys(groups, 0.0) | dict(zip(measured, shares, strict=False)),
            dict(zip(floats, shares[len(measured) :], strict=False)),
            total,
            signal,
            count,
        )

    @property
    def open_to_residual_codes(self) -> set[str]:
        """Groups of the tensors that may have residual codes."""
        groups = {each.tensor: each.group for each in self.plan.tensors}
        return {groups[tensor] for tensor in self._residual_groups()}

    def _residual_groups(self) -> dict[str, ResidualGroup]:
        # other nodes would read the first codes alone, with their wider range
        found = residual_groups(self.plan, self.elements)
        return {name: each for name, each in found.items() if ErrorSite(name, "others") not in self.probe.sites}

    def _parts(self, affines: Mapping[str, Affine]) -> list[dict[ErrorSite, Affine | None]]:
        """Return what is rounded of all groups, in as few parts as have small enough errors to be held at once."""
        parts: list[dict[ErrorSite, Affine | None]] = []
        held = math.inf
        for group in self.plan.groups:
            rounding = self._rounding(group, affines[group])
            size = math.fsum(4 * self.elements[site.tensor] for site in rounding)
            if held + size > PART_BYTES:
                parts.append({})
                held = 0.0
            parts[-1].update(rounding)
            held += size
        return parts

    def _promising(self, affines: Mapping[str, Affine], groups: list[str], most: int) -> list[str]:
        """Return so many of groups, in their order: those whose steps are largest for the size of their values."""
        if len(groups) <= most:
            return groups

        def promise(group: str) -> float:
            if not any(each.source for each in self.plan.members(group)):
                return 0.0
            histogram = group_histogram(self.plan, self.tensors, group)
            power = float(histogram.counts @ np.square(histogram.centers)) / max(histogram.total, 1)
            return affines[group].scale ** 2 / power if power > 0 else 0.0

        best = set(sorted(groups, key=promise, reverse=True)[:most])
        return [group for group in groups if group in best]

    def better_ranges(
        self, sweep: Sweep, ranges: Ranges, calibration: CalibrationSettings, quantization: QuantizationSettings
    ) -> tuple[Ranges, tuple[str, ...]]:
        """Take another method's range where it surely makes less noise at the outputs.

        Args:
            sweep: Tells which tensors matter.
            ranges: What the method chose.
            calibration, quantization: Ranges that the user fixed stay, and so does a method that was asked for by name.

        Returns:
            The ranges, and a line per change.
        """
        groups = [group for group in self.plan.groups if self._open(group, sweep, ranges, quantization)]
        count = self._count(len(groups) * (len(CANDIDATES) + 1), RANGE_SAMPLES)
        if calibration.method != "auto" or not groups or count < LEAST_SAMPLES:
            return ranges, ()
        entries, lines = dict(ranges.entries), []
        for group in track(groups, len(groups), "ranges by output error"):
            affines = [ranges.entries[group].affine]
            histogram = group_histogram(self.plan, self.tensors, group)
            for method, percentile in CANDIDATES:
                affines.append(choose(histogram, method, quantization.activations, percentile).affine)
            # all on a few samples; then what is best of them on the rest as well
            few = self.samples[: min(FIRST_SAMPLES, count)]
            best = int(_ratios(self._noise(group, affines, few, sweep)).mean(axis=1).argmin())
            method, percentile = CANDIDATES[best - 1] if best else (calibration.method, 0.0)
            name = f"{method} {percentile:g}" if method == "percentile" else str(method)
            affine = affines[best]
            if sweep.groups[group] >= MOVED_SHARE:
                affine = self._moved(group, affine, histogram.observed, few, sweep)
            if affine == affines[0]:
                continue
            tried = list(dict.fromkeys((affines[0], affine, affines[best])))
            noise = self._noise(group, tried, self.samples[:count], sweep)
            moved = affine != affines[best] and _surely_less(noise[:2])
            if moved:
                name = f"{affine.low:.4g} to {affine.high:.4g}"
            elif best and _surely_less(noise[[0, -1]]):
                affine = affines[best]
            else:
                continue
            now, other = noise[0], noise[1 if moved else -1]
            for tensor in (each.tensor for each in self.plan.members(group)):
                entries[tensor] = replace(
                    entries[tensor].with_affine(affine),
                    method="outputs" if moved else method,
                    clipped=clipped_by(self.tensors[tensor].histogram, affine),
                )
            lines.append(
                f"range of {group}: {name} for {ranges.entries[group].method}, its noise at the outputs falls by "
                f"{10 * math.log10(now.mean() / max(other.mean(), now.mean() * 1e-6)):.1f} dB ({count} samples)"
            )
        return replace(ranges, entries=entries), tuple(lines)

    def _moved(
        self, group: str, affine: Affine, observed: tuple[float, float], samples: Sequence[SampleLike], sweep: Sweep
    ) -> Affine:
        """Move the ends of a range, one after the other, as long as there is less noise at the outputs.

        Squared errors of the values say nothing of what becomes of them: a Gelu writes nearly 0 for all below -3, so
        the codes that a range spends on these are lost.

        Args:
            group: Its tensors share the range.
            affine: Where to start.
            observed: No end is moved beyond it.
            samples: A few.
            sweep: As for `_noise`.
        """
        if affine.dtype.qmin < 0 or self._count(ROUNDS * len(MOVES), len(samples)) < len(samples):
            return affine  # symmetric, or there is no time
        for _ in range(ROUNDS):
            least, most = min(observed[0], affine.low), max(observed[1], affine.high)
            ends = ((max(affine.low * low, least), min(affine.high * high, most)) for low, high in MOVES)
            moved = dict.fromkeys(affine_from_range(*each, affine.dtype) for each in ends)
            tried = [affine, *(each for each in moved if each != affine)]
            ratios = _ratios(self._noise(group, tried, samples, sweep)).mean(axis=1)
            if ratios.min() > -LEAST_MOVED:
                break
            affine = tried[int(ratios.argmin())]
        return affine

    def _noise(self, group: str, affines: Sequence[Affine], samples: Sequence[SampleLike], sweep: Sweep) -> Float64:
        """Return what ranges of one group do, in shares of the whole noise of a sample, (ranges, samples)."""
        errors, _ = self.probe.rounding_noise(samples, [self._rounding(group, affine) for affine in affines])
        return relative(errors, sweep.signal) / (sweep.total or math.inf)

    def dynamic_gains(self, groups: Sequence[str], affines: Mapping[str, Affine]) -> dict[str, float]:
        """Return the noise that ranges taken at run time would take away at the outputs, by group; 0 where unsure.

        Args:
            groups: Groups of planned tensors.
            affines: The ranges in force.

        Returns:
            Squared error over squared value, of the mean over samples, that is saved.
        """
        count = self._count(2 * len(groups), RANGE_SAMPLES)
        samples = self.samples[:count]
        gains = {}
        for group in groups:
            roundings = [self._rounding(group, affine) for affine in (affines[group], None)]
            errors, signals = self.probe.rounding_noise(samples, roundings)
            both = relative(errors, signals.mean(axis=0))
            ratios = _ratios(both)[1]
            spread = ratios.std(ddof=1) / math.sqrt(count) if count > 1 else math.inf
            sure = ratios.mean() < -max(SURE * spread, LEAST_RATIO / 2)
            gains[group] = max(float((both[0] - both[1]).mean()), 0.0) if sure else 0.0
        return gains

    def upgrades(
        self, sweep: Sweep, allowance: float, *, residual: bool = True
    ) -> tuple[tuple[Upgrade, ...], tuple[str, ...]]:
        """Choose residual codes and float regions: most noise per microsecond first, as long as the allowance lasts.

        Args:
            sweep: With the ranges in force.
            allowance: Fraction of the int8 model's estimated time.
            residual: Residual codes may be taken: activations are u8.

        Returns:
            What is taken, and a line for everything that was looked at.
        """
        whole = inference_us(self.model, self.plan, self.elements)
        left, lines = allowance * whole, []
        taken: list[Upgrade] = []
        for each in sorted(self._possible(sweep, residual=residual), key=lambda each: -each.gain / each.us):
            # some channels of a tensor may be taken already, or all of them
            before = next((one for one in taken if one.tensor and one.tensor == each.tensor), None)
            gain, us = each.gain, each.us
            if before is not None:
                gain, us = gain - before.gain, us - before.us
            if gain < LEAST_GAIN:
                verdict = "too little to be tried"
            elif us > left:
                verdict = BEYOND
            else:
                verdict = TRIED
                left -= us
                taken = [*(one for one in taken if one is not before), each]
            percent = 100 * us / whole
            lines.append(
                f"{each.what} would take away {100 * gain:.0f} % of the noise, for an estimated {percent:.1f} % more "
                f"time: {verdict}"
            )
        return tuple(taken), tuple(lines)

    def _possible(self, sweep: Sweep, *, residual: bool) -> list[Upgrade]:
        result = []
        groups = {each.tensor: each.group for each in self.plan.tensors}
        for tensor, each in self._residual_groups().items() if residual else ():
            gain = sweep.groups[groups[tensor]] * (1 - RESIDUAL_LEAVES)
            result.append(Upgrade(f"residual codes for {tensor}", each.nodes, (), gain, each.us, tensor))
            layers = [layer for layer in self.plan.layers if layer.input == tensor]
            channels, part = self._outlying(layers)
            share = len(channels) / layers[0].channels
            us = sum(fine_channels_us(layer, self.elements[tensor], share) for layer in layers)
            if channels and us < each.us:
                what = f"residual codes for {len(channels)} channel{'s' if len(channels) > 1 else ''} of {tensor}"
                result.append(Upgrade(what, (), (), gain * part, us, tensor, dict.fromkeys(each.nodes, channels)))
        for region, gain in sweep.floats.items():
            us = sum(float_us(self.index.nodes[node], self.elements) for node in region)
            name = region[0] if len(region) == 1 else f"{region[0]} and {len(region) - 1} more"
            result.append(Upgrade(f"float for {name}", (), region, gain, us))
        return result

    def _outlying(self, layers: Sequence[Layer]) -> tuple[tuple[int, ...], float]:
        """Return the channels of an input whose codes make most noise by far, and their share of its noise.

        All codes have the same step, so the noise of a channel is as the squares of the weights that read it.

        Args:
            layers: All that read it.
        """
        count = layers[0].channels
        if count < FEWEST or not all(can_have_copies(self.plan, layer) for layer in layers):
            return (), 0.0
        noise = np.zeros(count)
        for layer in layers:
            noise += np.square(self.index.constant(layer.weight).astype(np.float64)).sum(axis=layer.axis)
        largest = np.argsort(-noise, kind="stable")[: int(FINE_SHARE * count)]
        chosen = np.sort(largest[noise[largest] > OUTLYING * noise.mean()])
        return tuple(chosen.tolist()), float(noise[chosen].sum() / max(noise.sum(), np.finfo(np.float64).tiny))

    def _open(self, group: str, sweep: Sweep, ranges: Ranges, quantization: QuantizationSettings) -> bool:
        members = self.plan.members(group)
        if any(each.tensor in quantization.ranges or each.tensor not in ranges.entries for each in members):
            return False
        return sweep.groups[group] >= LEAST_SHARE

    def _rounding(self, group: str, affine: Affine | None) -> dict[ErrorSite, Affine | None]:
        sources = (point.tensor for point in self.plan.members(group) if point.source)
        return {site: affine for tensor in sources for site in sites_among(self.probe.sites, tensor)}

    def _avoidable(self, region: tuple[str, ...]) -> tuple[ErrorSite, ...]:
        """Return where codes are read that nobody needs once the region is in float."""
        inside = set(region)
        found = []
        for tensor in dict.fromkeys(name for node in region for name in self.index.nodes[node].input if name):
            point = self.plan.tensor(tensor)
            site = ErrorSite(tensor, "others")
            if point is None or not point.source or site not in self.probe.sites:
                continue
            if not point.exclusive or owner_of(self.index, self.plan, tensor) in inside:
                found.append(site)
        return tuple(found)

    def _count(self, runs: int, most: int) -> int:
        return sample_count(self.seconds, runs, self.run_s, min(most, len(self.samples)))


def residual_groups(plan: Plan, elements: Mapping[str, float]) -> dict[str, ResidualGroup]:
    """Return the tensors that may have residual codes, with the layers that read them.

    Args:
        plan: The plan of the model.
        elements: Values per inference of every planned tensor.
    """
    readers: dict[str, list[Layer]] = {}
    for layer in plan.layers:
        readers.setdefault(layer.input, []).append(layer)
    return {
        tensor: ResidualGroup(
            tuple(layer.node for layer in layers), sum(residual_codes_us(layer, elements[tensor]) for layer in layers)
        )
        for tensor, layers in readers.items()
        if all(can_have_residual_codes(plan, layer) for layer in layers)
    }


def optional_regions(index: Index, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Return the nodes on integers that are no layers, joined where one reads what another wrote; in graph order."""
    inner = plan.integer_nodes - {layer.node for layer in plan.layers}
    names = [node.name for node in index.graph.node if node.name in inner]
    reads = (
        (owner_of(index, plan, name), node.name)
        for node in index.graph.node
        if node.name in inner
        for name in node.input
    )
    return tuple(tuple(region) for region in connected(names, reads))


def _ratios(noise: Float64) -> Float64:
    """Return log(noise / noise of the first row), (n, samples): loud samples count no more than quiet ones."""
    logarithms = np.log(np.maximum(noise, np.finfo(np.float64).tiny))
    result: Float64 = logarithms - logarithms[0]
    return result


def _surely_less(both: Float64) -> bool:
    """Whether the second row's noise is less than the first's: over all samples, and nearly in each of them.

    Args:
        both: Noise in shares of the whole, (2, samples). A few loud samples decide its sum, and say little about
            others; a clipped one that is missing here would speak against it. So both the sum and the ratios must fall.
    """
    now, other = both
    ratios = _ratios(both)[1]
    error = ratios.std(ddof=1) / math.sqrt(len(ratios))
    return bool((now - other).mean() > LEAST_SHARE / 5 and ratios.mean() < -max(SURE * error, LEAST_RATIO))
