"""A small sentence encoder as exporters write one, and sentences for it, of their own length or padded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

WORDS, WIDTH, HEADS = 40, 16, 2
LEAST = float(np.finfo(np.float32).min)


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes))
        return output


def encoder(
    length: int | str = "length",
    *,
    mask: str = "attention_mask",
    masked: bool = True,
    positions: bool = True,
    batch: int | str = "batch",
    seed: int = 0,
) -> onnx.ModelProto:
    """Embedding, one attention layer of two heads, a feed-forward layer; token embeddings and their mean over the mask.

    Args:
        length: Of the sequence axis: a symbol, or a number.
        mask: Name of the mask input.
        masked: Whether attention leaves padding out; the mean does always.
        positions: Whether absolute positions are added.
        batch: Of the first axis.
        seed: Of the weights.
    """
    random = np.random.default_rng(seed)
    g = _Graph()

    def weight(name: str, *shape: int, scale: float = 0.3) -> str:
        return g.constant(name, random.normal(0, scale, shape).astype(np.float32))

    def dense(x: str, name: str, inner: int, outer: int) -> str:
        product = g.node("MatMul", [x, weight(f"{name}.w", inner, outer)], f"{name}.product")
        return g.node("Add", [product, weight(f"{name}.b", outer)], name)

    def norm(x: str, name: str) -> str:
        scale = g.constant(f"{name}.scale", random.uniform(0.5, 2, WIDTH).astype(np.float32))
        return g.node("LayerNormalization", [x, scale, weight(f"{name}.shift", WIDTH)], name, axis=-1)

    words = weight("words", WORDS, WIDTH, scale=1.0)
    x = g.node("Gather", [words, "input_ids"], "embedded")
    kinds = g.node("Gather", [weight("kinds", 2, WIDTH, scale=1.0), "token_type_ids"], "kinds.embedded")
    x = g.node("Add", [x, kinds], "summed")
    if positions:
        shape = g.node("Shape", ["input_ids"], "ids.shape")
        last = g.node("Gather", [shape, g.constant("one", np.int64(1))], "ids.length")
        places = g.node("Range", [g.constant("zero", np.int64(0)), last, "one"], "places")
        table = weight("places.table", 64, WIDTH, scale=1.0)
        x = g.node("Add", [x, g.node("Gather", [table, places], "places.embedded")], "placed")
    x = norm(x, "norm0")
    kept = g.node("Cast", [mask], "kept", to=TensorProto.FLOAT)
    parts = {}
    split = g.constant("split", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    for part, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        heads = g.node("Reshape", [dense(x, part, WIDTH, WIDTH), split], f"{part}.heads")
        parts[part] = g.node("Transpose", [heads], f"{part}.t", perm=list(order))
    scores = g.node("MatMul", [parts["q"], parts["k"]], "scores")
    if masked:
        gone = g.node("Sub", [g.constant("unit", np.float32(1)), kept], "gone")
        wide = g.node("Unsqueeze", [gone, g.constant("mask.axes", np.array([1, 2], np.int64))], "gone.wide")
        scores = g.node(
            "Add", [scores, g.node("Mul", [wide, g.constant("least", np.float32(LEAST))], "bias")], "biased"
        )
    weights = g.node("Softmax", [scores], "weights", axis=-1)
    mixed = g.node("Transpose", [g.node("MatMul", [weights, parts["v"]], "mixed")], "mixed.t", perm=[0, 2, 1, 3])
    joined = g.node("Reshape", [mixed, g.constant("join", np.array([0, 0, WIDTH], np.int64))], "joined")
    x = norm(g.node("Add", [x, dense(joined, "out", WIDTH, WIDTH)], "added1"), "norm1")
    hidden = g.node("Relu", [dense(x, "up", WIDTH, 2 * WIDTH)], "hidden")
    x = norm(g.node("Add", [x, dense(hidden, "down", 2 * WIDTH, WIDTH)], "added2"), "tokens")
    column = g.node("Unsqueeze", [kept, g.constant("pool.axes", np.array([2], np.int64))], "column")
    axis = g.constant("pool.axis", np.array([1], np.int64))
    total = g.node("ReduceSum", [g.node("Mul", [x, column], "weighted"), axis], "total", keepdims=0)
    g.node("Div", [total, g.node("ReduceSum", [column, axis], "count", keepdims=0)], "pooled")
    names = ("input_ids", mask, "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length]) for name in names]
    outputs = [
        helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [batch, length, WIDTH]),
        helper.make_tensor_value_info("pooled", TensorProto.FLOAT, [batch, WIDTH]),
    ]
    graph = helper.make_graph(g.nodes, "encoder", inputs, outputs, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sentences(count: int, *, seed: int = 1, shortest: int = 3, longest: int = 12, mask: str = "attention_mask") -> list:
    """Feeds of sentences of their own length; shapes (1, length), int64."""
    random = np.random.default_rng(seed)
    feeds = []
    for _ in range(count):
        length = int(random.integers(shortest, longest, endpoint=True))
        kinds = (np.arange(length) >= length // 2).astype(np.int64)
        feeds.append(
            {
                "input_ids": random.integers(1, WORDS, (1, length)),
                mask: np.ones((1, length), np.int64),
                "token_type_ids": kinds[None],
            }
        )
    return feeds


def padded(feeds: list, length: int, *, side: str = "end") -> list:
    """The same sentences with zeros up to a length, at the "end" or at the "start"."""

    def pad(value: np.ndarray) -> np.ndarray:
        missing = length - value.shape[1]
        return np.pad(value, ((0, 0), (missing, 0) if side == "start" else (0, missing)))

    return [{name: pad(value) for name, value in feed.items()} for feed in feeds]


def write(folder: Path, feeds: list) -> Path:
    """One .npz per feed."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, feed in enumerate(feeds):
        np.savez(folder / f"{index:03d}.npz", **feed)
    return folder
