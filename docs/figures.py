"""The figures of docs/explanation/theory.md, and the numbers that the page quotes.

Run: python docs/figures.py. Everything is computed by int8cal itself, on arrays that are made here and on the shipped
sample. The same libraries give the same bytes. `facts` needs no matplotlib; a test compares them with the page.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics.affine import U8, Affine, QType, affine_from_range
from int8cal.numerics.kl import BINS, divergences, entropy_threshold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
U3 = QType("uint8", 0, 7)  # eight codes can be seen, 256 cannot
EXAMPLE = (-1.0, 3.0)
PLANES = 16  # the second plane's step is a sixteenth of the first's
BLUE, BROWN, GREEN, GREY = "#1f5fa8", "#8a5a2b", "#2e7d5b", "#9aa2ad"
# a fixed salt and no date: the same figure is the same bytes; text stays text
_STYLE = {"svg.hashsalt": "int8cal", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "figure.figsize": (7.6, 3.0), "figure.constrained_layout.use": True}


def error_function_histogram() -> tuple[Any, float]:
    """Return 2048 counts over [0, 8] of |x| of a normal distribution, one value at the end; and the bin width."""
    edges = np.linspace(0.0, 8.0, BINS + 1)
    below = np.array([math.erf(edge / math.sqrt(2)) for edge in edges])
    counts = np.rint(1e6 * np.diff(below)).astype(np.int64)
    counts[-1] += 1
    return counts, 8.0 / BINS


def squared_errors(counts: Any, width: float, candidates: Any) -> Any:
    """Return the mean squared error of symmetric 8-bit codes with each threshold, over both signs."""
    centres = (np.arange(BINS) + 0.5) * width
    result = []
    for threshold in candidates:
        scale = threshold / 127
        codes = np.minimum(np.rint(centres / scale), 127)
        result.append(float(np.sum(counts * (centres - codes * scale) ** 2) / counts.sum()))
    return np.array(result)


def sample_weights() -> Any:
    """Return the weights of the sample's block3 depthwise convolution, BatchNormalization folded in: (128, 9)."""
    import onnx
    from onnx import numpy_helper

    from int8cal.graph.prepare import prepare
    from int8cal.runtime.sessions import simplify

    model = prepare(onnx.load(ROOT / "sample_data" / "model.onnx"), simplify).model
    name = "ConvBnFusion_W_block3.depthwise.conv.weight"
    found = next(each for each in model.graph.initializer if each.name == name)
    return numpy_helper.to_array(found).reshape(-1, 9).astype(np.float64)


def rounding_noise(weights: Any, amax: Any) -> float:
    """Return the SQNR in dB of nearest s8 codes with these largest magnitudes."""
    scale = amax / 127
    error = weights - np.rint(weights / scale) * scale
    return float(10 * np.log10(np.sum(weights**2) / np.sum(error**2)))


def rounded(x: Any, affine: Affine) -> Any:
    """Return what the codes of x stand for."""
    codes = np.clip(np.rint(x / affine.scale) + affine.zero_point, affine.dtype.qmin, affine.dtype.qmax)
    return affine.scale * (codes - affine.zero_point)


def two_planes(x: Any, affine: Affine) -> Any:
    """Return x as its first code and the second one of the remainder stand for it, see docs/numerics.md."""
    first = rounded(x, affine)
    second = Affine(affine.scale / PLANES, affine.zero_point, affine.dtype)
    return first + rounded(x - first, second)


def facts() -> dict[str, str]:
    """Return every computed number that the page quotes, as it is written there."""
    example = affine_from_range(*EXAMPLE, U8)
    counts, width = error_function_histogram()
    found = entropy_threshold(counts, 128, width)
    if found is None:
        raise ValueError("the example has a threshold")
    threshold, kept = found
    candidates = np.arange(200, BINS + 1) * width
    errors = squared_errors(counts, width, candidates)
    weights = sample_weights()
    magnitudes = np.abs(weights).max(axis=1, keepdims=True)
    return {
        "scale of [-1, 3]": f"{example.scale:.7f}",
        "zero point of [-1, 3]": f"zero_point = {example.zero_point}",
        "range of [-1, 3]": f"[{example.low:.5f}, {example.high:.5f}]",
        "entropy threshold": f"{threshold:.6f}",
        "entropy bins": f"i = {kept}",
        "entropy": f"{divergences(counts, 128)[kept]:.5e}".replace("e-05", " · 10⁻⁵"),
        "mse threshold": f"{candidates[int(np.argmin(errors))]:.2f}",
        "mse gain": f"{10 * np.log10(errors[-1] / errors.min()):.1f} dB",
        "largest channel": f"{magnitudes.max() / magnitudes.min():.1f} times",
        "one scale": f"{rounding_noise(weights, magnitudes.max()):.1f} dB",
        "scale per channel": f"{rounding_noise(weights, magnitudes):.1f} dB",
        "il of [-1, 1]": f"{-128 / 127!r}",
    }


def figures() -> Iterator[tuple[str, Figure]]:
    """Draw every figure: file name and figure."""
    yield "theory-affine", _affine()
    yield "theory-thresholds", _thresholds()
    yield "theory-sample", _sample()
    yield "theory-weights", _weights()
    yield "theory-planes", _planes()


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False)
    return figure, list(axes[0])


def _affine() -> Figure:
    figure, (left, right) = _panels(2)
    affine = affine_from_range(*EXAMPLE, U3)
    x = np.linspace(-2, 4, 3001)
    x_hat = rounded(x, affine)
    left.plot(x, x, color=GREY, lw=1, label="x")
    left.plot(x, x_hat, color=BLUE, lw=1.6, label="what q stands for")
    left.plot(0, 0, "o", color=BROWN, label=f"0 is code {affine.zero_point}")
    left.set(xlabel="x", ylabel="what the code stands for", title=f"8 codes for [{EXAMPLE[0]:g}, {EXAMPLE[1]:g}]")
    left.legend(frameon=False, fontsize=8)
    right.plot(x, x_hat - x, color=BLUE, lw=1.2)
    for edge in (affine.low, affine.high):
        right.axvline(edge, color=BROWN, lw=1)
    right.axhspan(-affine.scale / 2, affine.scale / 2, color=GREY, alpha=0.25, lw=0)
    right.set(xlabel="x", ylabel="error", title="half a step inside, clipped outside")
    return figure


def _thresholds() -> Figure:
    figure, (left, right) = _panels(2)
    counts, width = error_function_histogram()
    centres = (np.arange(BINS) + 0.5) * width
    left.semilogy(centres, np.where(counts > 0, counts, np.nan), color=BLUE, lw=1.2)
    left.plot(centres[-1], 1, "o", color=BROWN)
    left.annotate("one value", (centres[-1], 1), (6.6, 5), color=BROWN)
    left.set(xlabel="|x|", ylabel="values per bin", title="2048 bins: normal, one outlier")
    kl = divergences(counts, 128)[1:]
    edges = (np.arange(1, BINS + 1) - 0.5) * width
    known = np.isfinite(kl) & (edges > 2)
    right.semilogy(edges[known], kl[known], color=BLUE, lw=1.2, label="KL divergence, nats")
    candidates = np.arange(512, BINS + 1, 4) * width
    errors = squared_errors(counts, width, candidates)
    right.semilogy(candidates, errors, color=GREEN, lw=1.2, label="mean squared error")
    for x, y, colour, aside in ((edges, np.where(known, kl, np.inf), BLUE, 14), (candidates, errors, GREEN, -14)):
        best = int(np.argmin(y))
        right.plot(x[best], y[best], "o", color=colour)
        right.annotate(f"{x[best]:.2f}", (x[best], y[best]), (aside, -12), textcoords="offset points", ha="center")
    right.set(xlabel="threshold", title="what each search makes small")
    right.margins(y=0.15)
    right.legend(frameon=False, fontsize=8)
    return figure


def _sample() -> Figure:
    from int8cal.calibration.ranges import candidates
    from int8cal.job import DataSettings, Job
    from int8cal.pipeline import calibrate_model

    model = ROOT / "sample_data" / "model.onnx"
    calibrated = calibrate_model(Job(model, DataSettings(str(ROOT / "sample_data" / "calib"))), model)
    histogram = calibrated.statistics.tensors["/block3/Add_output"].histogram
    figure, (axes,) = _panels(1)
    bins = np.linspace(*histogram.observed, 160)
    axes.hist(histogram.centers, bins=bins, weights=histogram.counts, color=GREY, log=True)
    colours = dict(zip(("kl", "percentile", "mse", "max"), (BROWN, GREEN, BLUE, "#222222"), strict=True))
    for name, (low, high) in candidates(histogram, "u8", 99.99).items():
        axes.axvline(low, color=colours[name], lw=1.3, label=f"{name}: {low:.2f} to {high:.2f}")
        axes.axvline(high, color=colours[name], lw=1.3)
    axes.set(xlabel="value", ylabel="values per bin", title="/block3/Add_output of the sample, 200 images")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _weights() -> Figure:
    figure, (left, right) = _panels(2)
    weights = sample_weights()
    order = np.argsort(-np.abs(weights).max(axis=1))
    magnitudes = np.abs(weights).max(axis=1)[order]
    left.bar(np.arange(len(order)), magnitudes, color=BLUE, width=1.0)
    left.set(xlabel="channel, largest first", ylabel="largest |weight|", title=f"{len(order)} channels of one layer")
    for amax, colour, label in (
        (np.full(len(order), magnitudes.max()), BROWN, "one scale"),
        (magnitudes, BLUE, "a scale per channel"),
    ):
        noise = [rounding_noise(weights[channel], each) for channel, each in zip(order, amax, strict=True)]
        right.plot(noise, ".", color=colour, label=label)
    right.set(xlabel="channel, largest first", ylabel="SQNR of its weights, dB", title="nearest codes")
    right.legend(frameon=False, fontsize=8)
    return figure


def _planes() -> Figure:
    figure, (axes,) = _panels(1)
    affine = affine_from_range(*EXAMPLE, U8)
    x = np.linspace(0.9, 1.0, 2001)
    axes.plot(x, rounded(x, affine) - x, color=GREY, lw=1.2, label="one plane")
    axes.plot(x, two_planes(x, affine) - x, color=BLUE, lw=1.2, label="two planes")
    axes.set(
        xlabel="x", ylabel="error", title=f"error of codes for [{EXAMPLE[0]:g}, {EXAMPLE[1]:g}], a part of the range"
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def main() -> None:
    """Write all figures."""
    import matplotlib as mpl

    mpl.use("svg")
    with mpl.rc_context(_STYLE):
        for name, figure in figures():
            figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
