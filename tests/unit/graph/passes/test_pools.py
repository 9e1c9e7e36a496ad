"""A rising line per channel goes behind a MaxPool, to the bit, and nothing else does."""

import numpy as np
import pytest
from op_types import ops

HEAD = "g (float[N,3,8,8] x) => (float[A,B,C,D] y)"
POOL = "MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 0, 0]>"
SHIFT = np.array([0.3, -0.7, 1e-3], np.float32).reshape(3, 1, 1)
NORM = {
    "g": np.float32([0.5, 2, 1]),
    "b": np.float32([1, 0, -3]),
    "m": np.float32([0.1, 0, 2]),
    "v": np.float32([1, 4, 2]),
}

BEHIND = {
    "a shift": ("r = Tanh(x) a = Add(r, T) {}", {"T": SHIFT}, "Tanh MaxPool Add"),
    "a shift on the left": ("r = Tanh(x) a = Add(T, r) {}", {"T": SHIFT}, "Tanh MaxPool Add"),
    "positive factors": ("r = Tanh(x) a = Mul(r, T) {}", {"T": np.abs(SHIFT)}, "Tanh MaxPool Mul"),
    "a normalization": (
        "r = Tanh(x) a = BatchNormalization(r, g, b, m, v) {}",
        NORM,
        "Tanh MaxPool BatchNormalization",
    ),
    "several": ("r = Tanh(x) s = Mul(r, S) a = Add(s, T) {}", {"S": np.abs(SHIFT), "T": SHIFT}, "Tanh MaxPool Mul Add"),
}
KEPT = {
    "factors of both signs": ("r = Tanh(x) a = Mul(r, T) {}", {"T": SHIFT}),
    "a normalization that turns a channel": (
        "r = Tanh(x) a = BatchNormalization(r, g, b, m, v) {}",
        NORM | {"g": np.float32([0.5, -2, 1])},
    ),
    "a shift per pixel": ("r = Tanh(x) a = Add(r, T) {}", {"T": np.arange(64, dtype=np.float32).reshape(8, 8)}),
    "something else reads it": ("r = Tanh(x) a = Add(r, T) q = GlobalMaxPool(a) {}", {"T": SHIFT}),
    "a sum of two tensors": ("r = Tanh(x) a = Add(r, x) {}", {}),
}


def folded(bench, body, constants):
    text = f"{HEAD} {{ {body.format('p = ' + POOL + '(a) y = Sin(p)')} }}"
    return bench.folded(bench.text(text, **constants))


@pytest.mark.parametrize("name", BEHIND)
def test_a_rising_line_goes_behind_the_pool(bench, name):
    body, constants, expected = BEHIND[name]
    before, after = folded(bench, body, constants)
    assert ops(after) == [*expected.split(), "Sin"]
    feed = {"x": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}
    first, second = (bench.run(model, feed, "none") for model in (before, after))
    assert np.array_equal(first["y"], second["y"])
    assert next(node for node in after.graph.node if node.output[0] == "p").op_type == expected.split()[-1]


@pytest.mark.parametrize("name", KEPT)
def test_all_else_stays_in_front(bench, name):
    before, after = folded(bench, *KEPT[name])
    assert ops(after) == ops(before)


def test_what_goes_into_a_layer_goes_there(bench):
    weights = {"W": (3, 3, 1, 1), "B": (3,), "T": SHIFT}
    _, after = folded(bench, "r = Conv(x, W, B) a = Add(r, T) {}", weights)
    assert ops(after) == ["Conv", "MaxPool", "Sin"]
