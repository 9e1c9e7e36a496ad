"""Tables and statistics in the terminal: ranges, weight scales and small histograms."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.loglinear import linear_histogram
from int8cal.report import wording
from int8cal.report.layer_lines import spread_lines
from int8cal.report.reading import flat

if TYPE_CHECKING:
    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.calibration.table import CalibrationTable, TensorEntry, WeightEntry
    from int8cal.report.screen import Screen

# Settings that map every name of a kind: to their number unless every row is asked for.
_OF_NODES = "left_"
_OF_TENSORS = ("ranges",)


def table_lines(table: CalibrationTable, name: str, screen: Screen) -> list[str]:
    """Show a calibration table.

    Args:
        table: Any table.
        name: Of its file.
        screen: Where.

    Returns:
        What it is for; a line per tensor, with a bar for the part of the observed range that is kept; the scales of the
        weights; corrections and warnings.
    """
    settings = [text for key, value in table.settings.items() if value for text in _setting(key, value)]
    lines = [
        f"table        {name} for {table.model.get('name')} (sha256 {str(table.model.get('sha256'))[:12]})",
        f"calibrated   on {table.data.get('samples')} samples"
        if table.data.get("samples") != 0
        else f"converted    from {table.settings.get('method')}, its ranges were not measured here",
        *screen.wrap("settings     " + ", ".join(settings), 13),
        *_mappings(table, screen),
        "",
    ]
    affine = "" if screen.narrow else f"{'type':<5}  {'scale':>11} {'zero':>4} "
    kept = f"{'kept of seen':{_bar(screen)}}"
    lines.append(f"{affine}{'low':>10} {'high':>10}  {kept}  {'clipped':>9}  {'method':<10}  tensor")
    entries = screen.chosen(list(table.tensors.items()), lambda item: item[0], lambda item: -item[1].clipped)
    lines += screen.cut([_tensor(tensor, entry, screen) for tensor, entry in entries], "tensor")
    weights = [
        (key, _kind(entry, screen), min(entry.scales), median(entry.scales), max(entry.scales))
        for key, entry in table.weights.items()
        if entry.scales and min(entry.scales) > 0
    ]
    if weights:
        lines += ["", *spread_lines(weights, screen)]
    for correction, changed in table.corrections.items():
        what = f"raw pixels at {changed['input']}" if correction == "uint8_input" else f"{len(changed)} entries"
        lines.append(f"correction   {correction}: {what}")
    lines += [part for each in table.warnings for part in screen.wrap(f"warning      {each}", 13)]
    return [wording.printable(line) for line in lines]


def _setting(key: str, value: object) -> list[str]:
    """Show a setting of a table; of nodes and tensors how many there are."""
    if not isinstance(value, dict):
        return [f"{key} {value}"]
    kind = _mapped(key)
    if kind:
        return [f"{key} {wording.count(len(value), kind)}"]
    return [f"{name} {text}" for name, text in flat({key: value})]


def _mapped(key: str) -> str:
    """Say of which kind of thing a setting maps every name; "" where it has keys of its own."""
    return "tensor" if key in _OF_TENSORS else "node" if key.startswith(_OF_NODES) else ""


def _mappings(table: CalibrationTable, screen: Screen) -> list[str]:
    """List what the settings map, where every row is shown."""
    if screen.rows is not None:
        return []
    return [
        part
        for key, value in table.settings.items()
        if isinstance(value, dict) and _mapped(key)
        for name, told in value.items()
        for part in screen.wrap(f"{key:<11}  {name}: {told}", 15)
    ]


def _kind(entry: WeightEntry, screen: Screen) -> str:
    if screen.narrow:
        return f"{entry.dtype} {entry.range}"
    axis = "per tensor" if entry.axis is None else f"axis {entry.axis}"
    return f"{entry.dtype} {entry.range}, {wording.count(len(entry.scales), 'scale')} ({axis})"


def _tensor(name: str, entry: TensorEntry, screen: Screen) -> str:
    method = entry.method + ("" if entry.source in ("calibrated", entry.method) else f", {entry.source}")
    low, high = entry.observed
    known = math.isfinite(low) and math.isfinite(high) and high > low
    kept = " " * _bar(screen)
    if known:
        kept = screen.part((entry.low - low) / (high - low), (entry.high - low) / (high - low), _bar(screen))
    affine = "" if screen.narrow else f"{entry.dtype:<5}  {entry.scale:11.5g} {entry.zero_point:4d} "
    numbers = f"{affine}{entry.low:10.4g} {entry.high:10.4g}  {kept}  {wording.small_percent(entry.clipped):>9}"
    line = f"{numbers}  {method:<10}  "
    return line + screen.name(name, len(line))


def _bar(screen: Screen) -> int:
    return 12 if screen.narrow else screen.bar_width


def statistics_lines(statistics: Statistics, name: str, screen: Screen) -> list[str]:
    """Show statistics.

    Args:
        statistics: Of any number of samples.
        name: Of their file.
        screen: Where.

    Returns:
        What they are of, and a line per tensor with a small histogram from its smallest value to its largest; heights
        are logarithms of counts.
    """
    lines = [
        f"statistics   {name} of a model with sha256 {statistics.model_sha256[:12]}",
        f"samples      {statistics.samples} (fingerprint {statistics.fingerprint:032x})",
        *(line for each in statistics.padding for line in screen.wrap(f"padding      {each.text}", 13)),
        "",
    ]
    values = "" if screen.narrow else f"{'values':>{_values(screen)}}"
    lines.append(f"{values}{'zeros':>6} {'min':>10} {'max':>10}  {'min to max':{screen.bar_width}}  tensor")
    tensors = screen.chosen(list(statistics.tensors.items()), lambda item: item[0], lambda item: -_amax(item[1]))
    lines += screen.cut([_statistics(tensor, each, screen) for tensor, each in tensors], "tensor")
    return [wording.printable(line) for line in lines]


def _amax(tensor: TensorStatistics) -> float:
    return max(abs(tensor.minimum), abs(tensor.maximum))


def _statistics(name: str, tensor: TensorStatistics, screen: Screen) -> str:
    zeros = tensor.zeros / tensor.count if tensor.count else 0.0
    values = "" if screen.narrow else f"{tensor.count:{_values(screen)},}"
    line = f"{values}{zeros:6.1%} {tensor.minimum:10.4g} {tensor.maximum:10.4g}  {_histogram(tensor, screen)}  "
    return line + screen.name(name, len(line))


def _values(screen: Screen) -> int:
    """Columns for a number of values."""
    return 0 if screen.narrow else 16


def _histogram(tensor: TensorStatistics, screen: Screen) -> str:
    low, high = tensor.minimum, tensor.maximum
    if not tensor.count or not high > low:
        return " " * screen.bar_width
    counts = linear_histogram(tensor.histogram, np.linspace(low, high, screen.bar_width + 1))
    heights = np.log1p(counts.astype(np.float64))
    return screen.sparkline((heights / heights.max()).tolist())
