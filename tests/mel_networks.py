"""A network of sounds with its front end in the graph: spectra, filters and a logarithm, in float ops, and then layers."""

from __future__ import annotations

import numpy as np

ROWS, WINDOW, BANDS = 16, 64, 20

TEXT = f"""g (float[N,{ROWS},{WINDOW}] x) => (float[N,{ROWS},10] y) {{
    f = MatMul (x, D) p = Mul (f, f) m = MatMul (p, M) s = Add (m, least) l = Log (s)
    a = MatMul (l, A) ar = Elu (a) b = MatMul (ar, B) br = Elu (b) c = MatMul (br, C) cr = Elu (c) y = MatMul (cr, E)
}}"""

# the same spectra by a convolution, which holds most weights, and fewer layers behind them
CONVOLVED = f"""g (float[N,1,{ROWS * WINDOW}] x) => (float[N,{ROWS},10] y) {{
    w = Conv <strides = [{WINDOW}]> (x, D) f = Transpose <perm = [0, 2, 1]> (w) p = Mul (f, f) m = MatMul (p, M)
    s = Add (m, least) l = Log (s) a = MatMul (l, A) ar = Elu (a) y = MatMul (ar, E)
}}"""


def weights(least: float) -> dict[str, np.ndarray]:
    """Weights of `TEXT`: a Fourier transform with a window, triangles, and random layers behind them.

    Args:
        least: What is added in front of the logarithm: a small one makes it tell quiet sounds apart.
    """
    rng = np.random.default_rng(3)
    bins = np.arange(WINDOW // 2 + 1)
    angles = 2 * np.pi * np.outer(np.arange(WINDOW), bins) / WINDOW
    fourier = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.hanning(WINDOW)[:, None]
    centers = np.linspace(0, bins[-1], BANDS + 2)
    rise = (bins[:, None] - centers[:-2]) / np.diff(centers)[:-1]
    fall = (centers[2:] - bins[:, None]) / np.diff(centers)[1:]
    triangles = np.maximum(np.minimum(rise, fall), 0.0)
    sizes = {"A": (BANDS, 192), "B": (192, 192), "C": (192, 192), "E": (192, 10)}
    dense = {name: rng.normal(size=size) / np.sqrt(size[0]) for name, size in sizes.items()}
    return {"D": fourier, "M": np.concatenate([triangles, triangles]), "least": np.array([least]), **dense}


def convolved(least: float) -> dict[str, np.ndarray]:
    """Weights of `CONVOLVED`, with fewer channels behind the logarithm."""
    found = weights(least)
    kernel = np.ascontiguousarray(found["D"].T[:, None])
    return {"D": kernel, "M": found["M"], "least": found["least"], "A": found["A"][:, :16], "E": found["E"][:16]}


def sounds(count: int = 64) -> list[dict[str, np.ndarray]]:
    """Return tones in noise, from loud to a thousandth of that."""
    rng = np.random.default_rng(4)
    time = np.arange(ROWS * WINDOW).reshape(ROWS, WINDOW)
    found = []
    for _ in range(count):
        tone = np.sin(time * rng.uniform(0.05, 3.0)) + 0.01 * rng.normal(size=time.shape)
        loud = 10 ** rng.uniform(-3, 0, size=(ROWS, 1))
        found.append({"x": (loud * tone)[None].astype(np.float32)})
    return found
