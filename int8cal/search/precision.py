"""Where eight bits are too few: what the codes of each tensor do to the outputs, and what it costs to do better.

Three ways are open here, none of which takes a layer out of int8: another range, residual codes for an input that
exists as float, and float in optional nodes between the layers. (A fourth one does: see `search.islands`.) Each is
chosen by the noise that single errors really make at the outputs (see `probe.probe`), and the last two within an
allowance of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.ranges import choose, clipped_by, group_histogram
from int8cal.graph.costs import float_us, inference_us
from int8cal.graph.index import Index, connected
from int8cal.graph.islands import owner_of
from int8cal.numerics.affine import affine_from_range
from int8cal.probe.injection import ErrorSite, sites_among
from int8cal.probe.noise import relative, run_seconds, sample_count
from int8cal.probe.probe import Probe
from int8cal.progress import track
from int8cal.search.islands import BEYOND, TRIED, byte_worth_db
from int8cal.search.residual import RESIDUAL_LEAVES, Upgrade, residual_upgrades

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx

    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.ranges import Ranges
    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import CalibrationSettings, Method, QuantizationSettings
    from int8cal.numerics import Float64
    from int8cal.numerics.affine import Affine
    from int8cal.runtime.batching import SampleLike


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
LEAST_GROUPS = 6  # that a sweep measures, whatever it takes: a few layers may make all the noise of a slow model
PART_BYTES = 64_000_000  # of errors that are added in one inference
MOST_PARTS = 4  # of all tensors' errors, whatever time they take


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

    def without(self, groups: Collection[str]) -> Sweep:
        """Return the shares of what is left where groups have residual codes already, none of which is theirs."""
        left = 1.0 - (1.0 - RESIDUAL_LEAVES) * math.fsum(self.groups[group] for group in groups)
        left = max(left, RESIDUAL_LEAVES)  # measured one by one, shares may add up to more than all
        shares = {group: 0.0 if group in groups else share / left for group, share in self.groups.items()}
        floats = {region: share / left for region, share in self.floats.items()}
        return replace(self, groups=shares, floats=floats, total=self.total * left)


class Precision:
    """Measures and decides for one model.

    Args:
        model: The prepared (and equalized) model.
        plan: Its plan.
        signature: Its inputs.
        tensors: Statistics of the planned tensors, equalized likewise.
        samples: What errors are measured on, the more the better.
        seconds: Estimated time that measuring may take; decides how many samples are used.
        others_us: Estimated time of the nodes that are in float whatever is chosen.
        threads: Of the runtime; 0 for all CPUs.
        cluster: Runs long sweeps, see `Probe`; None for this process alone.
        fixed: Tensors that keep their range, of which samples tell too little.
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
        others_us: float = 0.0,
        threads: int = 0,
        cluster: Cluster | None = None,
        fixed: Collection[str] = (),
    ) -> None:
        self.model, self.plan, self.tensors, self.samples = model, plan, tensors, samples
        self.index = Index(model)
        self.elements = {name: value.count / max(seen, 1) for name, value in tensors.items()}
        self.seconds, self.others_us, self.fixed = seconds, others_us, frozenset(fixed)
        self.run_s = run_seconds(model, plan, self.elements)
        self.probe = Probe(model, plan, signature, threads, cluster=cluster, run_s=self.run_s)
        self.regions = optional_regions(self.index, plan)
        # what was measured of a sample: squared errors by rounding, and squared values
        self._errors: dict[tuple[int, frozenset[tuple[ErrorSite, Affine | None]]], Float64] = {}
        self._signals: dict[int, Float64] = {}

    def sweep(
        self,
        affines: Mapping[str, Affine],
        wanted: Collection[str] | None = None,
        allowance: float = math.inf,
        noise: float = 0.0,
    ) -> Sweep:
        """Measure what each tensor's codes and each optional region add to the noise.

        Every one takes an inference. So only those are measured that something can be done for, and where the time is
        not enough for these, even with one sample, those that promise most; the others count as if they added nothing.
        What all add together is the sum over groups where each is measured, and is measured in a few parts where not;
        where these are more than there is time for, it is what the int8 model adds.

        Args:
            affines: Of the planned tensors.
            wanted: Groups whose part is of interest; None for all.
            allowance: Fraction of the int8 model's estimated time beyond which a region is of no interest.
            noise: Of the int8 model, weights' and all, over the signal; 0 where it is not known.
        """
        most = int(self.seconds / max(self.run_s, 1e-9))
        groups = list(self.plan.groups)
        asked = groups if wanted is None else [group for group in groups if group in wanted]
        left = allowance * self.whole_us
        regions = self.regions if left == math.inf else [each for each in self.regions if self._float_us(each) <= left]
        avoidable = {region: sites for region in regions if (sites := self._avoidable(region))}
        if not asked and not avoidable:
            return Sweep(dict.fromkeys(groups, 0.0), {}, 0.0, np.zeros(len(self.probe.points)), 0)
        parts = [] if asked == groups and len(groups) <= most else self._parts(affines)
        if noise > 0 and len(parts) > max(most, MOST_PARTS):
            parts = []
        measured = self._promising(affines, asked, max(most - len(parts), LEAST_GROUPS))
        floats = list(avoidable)[: max(most - len(parts) - len(measured), 0)]
        roundings = [self._rounding(group, affines[group]) for group in measured]
        roundings += [{site: affines[site.tensor] for site in avoidable[region]} for region in floats]
        # of as many samples as there is time for with everything, so that less is less work
        count = self._count(max(len(groups) + len(avoidable), len(roundings) + len(parts)), SHARE_SAMPLES)
        roundings += parts
        errors, signals = self._rounding_noise(count, roundings)
        signal = signals.mean(axis=0)
        added = relative(errors.mean(axis=1), signal)
        whole = asked == groups == measured
        total = float((added[len(measured) + len(floats) :] if parts else added[: len(measured)]).sum())
        total = total if parts or whole else max(noise, total)
        shares = [float(each) / total if total > 0 else 0.0 for each in added]
        return Sweep(
            dict.fromkeys(groups, 0.0) | dict(zip(measured, shares, strict=False)),
            dict(zip(floats, shares[len(measured) :], strict=False)),
            total,
            signal,
            count,
        )

    @property
    def has_time_for_ranges(self) -> bool:
        """Whether the ranges of one group at least can be compared on enough samples."""
        return self._count(len(CANDIDATES) + 1, RANGE_SAMPLES) >= LEAST_SAMPLES

    def open_to_residual_codes(self, allowance: float = math.inf) -> set[str]:
        """Return the groups of tensors that may have residual codes, of some channels at least, within an allowance."""
        groups = {each.tensor: each.group for each in self.plan.tensors}
        return {groups[each.tensor] for each in self._residual_upgrades if each.us <= allowance * self.whole_us}

    @cached_property
    def _residual_upgrades(self) -> list[Upgrade]:
        # other nodes would read the first codes alone, with their wider range
        found = residual_upgrades(self.index, self.plan, self.elements)
        return [each for each in found if ErrorSite(each.tensor, "others") not in self.probe.sites]

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
            power = group_histogram(self.plan, self.tensors, group).mean_square
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
            few = min(FIRST_SAMPLES, count)
            best = int(_ratios(self._noise(group, affines, few, sweep)).mean(axis=1).argmin())
            method, percentile = CANDIDATES[best - 1] if best else (calibration.method, 0.0)
            name = f"{method} {percentile:g}" if method == "percentile" else str(method)
            affine = affines[best]
            if sweep.groups[group] >= MOVED_SHARE:
                affine = self._moved(group, affine, histogram.observed, few, sweep)
            if affine == affines[0]:
                continue
            tried = list(dict.fromkeys((affines[0], affine, affines[best])))
            noise = self._noise(group, tried, count, sweep)
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
                f"range of {group}: {name} in place of {ranges.entries[group].method}, its noise at the outputs falls "
                f"by {10 * math.log10(now.mean() / max(other.mean(), now.mean() * 1e-6)):.1f} dB ({count} samples)"
            )
        return replace(ranges, entries=entries), tuple(lines)

    def _moved(self, group: str, affine: Affine, observed: tuple[float, float], samples: int, sweep: Sweep) -> Affine:
        """Move the ends of a range, one after the other, as long as there is less noise at the outputs.

        Squared errors of the values say nothing of what becomes of them: a Gelu writes nearly 0 for all below -3, so
        the codes that a range spends on these are lost.

        Args:
            group: Its tensors share the range.
            affine: Where to start.
            observed: No end is moved beyond it.
            samples: How many to look at, a few.
            sweep: As for `_noise`.
        """
        if affine.dtype.qmin < 0 or self._count(ROUNDS * len(MOVES), samples) < samples:
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

    def _noise(self, group: str, affines: Sequence[Affine], samples: int, sweep: Sweep) -> Float64:
        """Return what ranges of one group do, in shares of the whole noise of a sample, (ranges, samples)."""
        errors, _ = self._rounding_noise(samples, [self._rounding(group, affine) for affine in affines])
        return relative(errors, sweep.signal) / (sweep.total or math.inf)

    def _rounding_noise(
        self, samples: int, roundings: Sequence[Mapping[ErrorSite, Affine | None]]
    ) -> tuple[Float64, Float64]:
        """Do what `Probe.rounding_noise` does on the first samples; what was measured before is not run again."""
        keys = [frozenset(rounding.items()) for rounding in roundings]
        lacking: dict[tuple[int, ...], list[int]] = {}  # roundings -> samples
        for row in range(samples):
            new = {key: place for place, key in enumerate(keys) if (row, key) not in self._errors}
            if new:
                lacking.setdefault(tuple(new.values()), []).append(row)
        for places, rows in lacking.items():
            chosen = [self.samples[row] for row in rows]
            errors, signals = self.probe.rounding_noise(chosen, [roundings[place] for place in places])
            for column, row in enumerate(rows):
                self._signals[row] = signals[column]
                self._errors |= {(row, keys[place]): errors[at, column] for at, place in enumerate(places)}
        points = len(self.probe.points)
        found = [[self._errors[row, key] for row in range(samples)] for key in keys]
        power = [self._signals.get(row, np.zeros(points)) for row in range(samples)]
        return np.array(found, np.float64).reshape(len(keys), samples, points), np.stack(power)

    def dynamic_gains(self, groups: Sequence[str], affines: Mapping[str, Affine]) -> dict[str, float]:
        """Return the noise that ranges taken at run time would take away at the outputs, by group; 0 where unsure.

        Args:
            groups: Groups of planned tensors.
            affines: The ranges in force.

        Returns:
            Squared error over squared value, of the mean over samples, that is saved.
        """
        count = self._count(2 * len(groups), RANGE_SAMPLES)
        gains = {}
        for group in groups:
            roundings = [self._rounding(group, affine) for affine in (affines[group], None)]
            errors, signals = self._rounding_noise(count, roundings)
            both = relative(errors, signals.mean(axis=0))
            ratios = _ratios(both)[1]
            spread = ratios.std(ddof=1) / math.sqrt(count) if count > 1 else math.inf
            sure = ratios.mean() < -max(SURE * spread, LEAST_RATIO / 2)
            gains[group] = max(float((both[0] - both[1]).mean()), 0.0) if sure else 0.0
        return gains

    def upgrades(
        self, sweep: Sweep, allowance: float, *, residual: bool = True, least_worth: float = 0.0
    ) -> tuple[tuple[Upgrade, ...], tuple[str, ...]]:
        """Choose residual codes and float regions: most noise per microsecond first, as long as the allowance lasts.

        Args:
            sweep: With the ranges in force.
            allowance: Fraction of the int8 model's estimated time.
            residual: Residual codes may be taken: activations are u8.
            least_worth: Share of the noise that has to go for each share of the time.

        Returns:
            What is taken, and a line for everything that was looked at beyond that.
        """
        whole = self.whole_us
        left, lines = allowance * whole, []
        taken: list[Upgrade] = []
        for each in sorted(self._possible(sweep, residual=residual), key=lambda each: -each.gain / each.us):
            # some channels of a tensor may be taken already, or all of them
            before = next((one for one in taken if one.tensor and one.tensor == each.tensor), None)
            gain, us, more = each.gain, each.us, each.bytes
            if before:
                gain, us, more = gain - before.gain, us - before.us, more - before.bytes
            if gain < 0:  # more noise, as some channels leave of a tensor whose channels all have residual codes
                continue
            if gain == 0 and least_worth:  # not measured
                continue
            if gain < LEAST_GAIN:
                verdict = "too little to be tried"
            elif gain < least_worth * us / whole:
                verdict = "too little for its time"
            # with a price of time, what is worth that is tried, and the score decides about its bytes
            elif not least_worth and _decibels(gain, taken) < more * self._byte_worth_db:
                verdict = "too little for its bytes"
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

    @cached_property
    def whole_us(self) -> float:
        """Estimated time of the int8 model, in microseconds."""
        return inference_us(self.model, self.plan, self.elements) + self.others_us

    @cached_property
    def _byte_worth_db(self) -> float:
        return byte_worth_db(self.index, self.plan)

    def _possible(self, sweep: Sweep, *, residual: bool) -> list[Upgrade]:
        groups = {each.tensor: each.group for each in self.plan.tensors}
        result = [
            replace(each, gain=each.gain * sweep.groups[groups[each.tensor]])
            for each in (self._residual_upgrades if residual else ())
        ]
        for region, gain in sweep.floats.items():
            name = region[0] if len(region) == 1 else f"{region[0]} and {len(region) - 1} more"
            result.append(Upgrade(f"float for {name}", (), region, gain, self._float_us(region)))
        return result

    def _float_us(self, region: Sequence[str]) -> float:
        return sum(float_us(self.index.nodes[node], self.elements) for node in region)

    def _open(self, group: str, sweep: Sweep, ranges: Ranges, quantization: QuantizationSettings) -> bool:
        names = {each.tensor for each in self.plan.members(group)}
        if not names <= ranges.entries.keys() or names & (self.fixed | quantization.ranges.keys()):
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


def _decibels(gain: float, taken: Sequence[Upgrade]) -> float:
    """Return by how much less noise raises the score at most, on top of what is taken and where there is no other."""
    left = 1.0 - math.fsum(each.gain for each in taken)
    return -10.0 * math.log10(max(1.0 - gain / max(left, gain), 1e-9))
