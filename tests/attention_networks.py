"""Layers of decoders in the forms that exporters write: masks, rotary positions, shared heads, caches, ops of opset 23 on.

Each is a norm, an attention of 4 heads of 8 with products in front and behind, and a gated MLP, of width 32: seven
products with constant weights. All inputs have free lengths, and samples differ in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, HEADS, HEAD, LONGEST = 32, 4, 8, 32
LAYERS = 7
LOWEST = float(np.finfo(np.float32).min)  # what exporters put where a query must not look


@dataclass(frozen=True)
class Decoder:
    """One form of the layer.

    Attributes:
        opset: 23 on: norms are RMSNormalization, and attention is the op Attention, or at least may be.
        mask: How queries are kept from later keys: "added" or "chosen" (by Where) from an input, "made" by the graph
            from a range of positions, "" not at all.
        rotary: "halves" or "pairs" of nodes, "op" or "op pairs", "" for none.
        shared: Heads of queries that share a head of keys and values.
        cache: Keys and values of earlier steps are inputs, and those so far outputs.
        fused: Attributes of the op Attention in place of products and Softmax; None for these.
        scores: The op gives its scores out.
    """

    opset: int = 17
    mask: str = ""
    rotary: str = ""
    shared: int = 1
    cache: bool = False
    fused: dict[str, Any] | None = None
    scores: bool = False

    @property
    def kept(self) -> int:
        """Heads of keys and values."""
        return HEADS // self.shared

    def model(self) -> onnx.ModelProto:
        net = _Net(self)
        hidden = net.attended("x")
        net.node("Add", [hidden, net.gated(net.normed(hidden, "second"))], to="y")
        return net.model()

    def samples(self, count: int = 12) -> Iterator[dict[str, np.ndarray]]:
        """Yield feeds; with a cache, every third has an empty one."""
        rng = np.random.default_rng(11)
        for number in range(count):
            new = int(rng.integers(3, 9))
            past = (0, 5, 2)[number % 3] if self.cache else 0
            feed = {"x": rng.normal(size=(1, new, WIDTH)).astype(np.float32)}
            if self.cache:
                shape = (1, self.kept, past, HEAD)
                feed |= {name: rng.normal(size=shape).astype(np.float32) for name in ("past_k", "past_v")}
            if self.rotary:
                feed["places"] = np.arange(past, past + new)[None]
            if self.mask in ("added", "chosen"):
                later = np.arange(past + new) > np.arange(past, past + new)[:, None]
                seen = np.where(later, np.float32(LOWEST), np.float32(0)) if self.mask == "added" else ~later
                feed["mask"] = seen[None, None]
            yield feed


@dataclass
class _Net:
    decoder: Decoder
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def node(self, op: str, inputs: list[str], to: str = "", **attributes: Any) -> str:
        to = to or f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [to], f"/{to}", **attributes))
        return to

    def constant(self, name: str, value: Any) -> str:
        value = np.asarray(value)
        self.constants[name] = value.astype(np.float32) if value.dtype == np.float64 else value
        return name

    def product(self, x: str, name: str, width: int, to: int) -> str:
        weight = self.constant(f"{name}.weight", self.rng.normal(0, width**-0.5, (width, to)))
        return self.node("MatMul", [x, weight], to=name)

    def normed(self, x: str, name: str) -> str:
        gain = self.constant(f"{name}.gain", self.rng.uniform(0.5, 2, WIDTH))
        if self.decoder.opset >= 23:
            return self.node("RMSNormalization", [x, gain])
        square = self.node("Pow", [x, self.constant("square", 2.0)])
        mean = self.node("ReduceMean", [square], axes=[-1])
        root = self.node("Sqrt", [self.node("Add", [mean, self.constant("least", 1e-6)])])
        return self.node("Mul", [self.node("Div", [x, root]), gain])

    def gated(self, x: str) -> str:
        gate, up = self.product(x, "gate", WIDTH, 64), self.product(x, "up", WIDTH, 64)
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        return self.product(self.node("Mul", [gate, up]), "down", 64, WIDTH)

    def attended(self, x: str) -> str:
        """Attention with its norm and residual."""
        decoder, normed = self.decoder, self.normed(x, "first")
        q = self.heads(self.product(normed, "q", WIDTH, WIDTH), HEADS)
        k, v = (self.heads(self.product(normed, n, WIDTH, decoder.kept * HEAD), decoder.kept) for n in "kv")
        if decoder.rotary:
            q, k = self.rotated(q), self.rotated(k)
        mixed = self.unfused(q, k, v) if decoder.fused is None else self.fused(q, k, v)
        mixed = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.constant("merged", [0, 0, WIDTH])])
        return self.node("Add", [x, self.product(mixed, "o", WIDTH, WIDTH)])

    def heads(self, x: str, count: int) -> str:
        apart = self.node("Reshape", [x, self.constant(f"heads{count}", [0, 0, count, HEAD])])
        return self.node("Transpose", [apart], perm=[0, 2, 1, 3])

    def rotated(self, x: str) -> str:
        rotary, angles = self.decoder.rotary, np.arange(LONGEST)[:, None] / 100 ** (np.arange(4) / 4)
        if rotary.startswith("op"):
            tables = [self.constant("cos", np.cos(angles)), self.constant("sin", np.sin(angles))]
            return self.node("RotaryEmbedding", [x, *tables, "places"], interleaved=int(rotary == "op pairs"))
        angles = np.tile(angles, 2) if rotary == "halves" else np.repeat(angles, 2, axis=1)
        axes = self.constant("axis1", [1])
        cos, sin = (
            self.node("Unsqueeze", [self.node("Gather", [self.constant(name, of(angles)), "places"]), axes])
            for name, of in (("cos", np.cos), ("sin", np.sin))
        )
        turned = x if rotary == "halves" else self.node("Reshape", [x, self.constant("pairs", [0, 0, -1, 4, 2])])
        size = HEAD // 2 if rotary == "halves" else 1
        ends = [self.constant(f"end{n}", [n * size]) for n in range(3)]
        first, second = (
            self.node("Slice", [turned, *each, self.constant("last", [-1])]) for each in (ends[:2], ends[1:])
        )
        turned = self.node("Concat", [self.node("Neg", [second]), first], axis=-1)
        if rotary == "pairs":
            turned = self.node("Reshape", [turned, self.constant("whole", [0, 0, -1, HEAD])])
        return self.node("Add", [self.node("Mul", [x, cos]), self.node("Mul", [turned, sin])])

    def unfused(self, q: str, k: str, v: str) -> str:
        if self.decoder.cache:
            k = self.node("Concat", ["past_k", k], to="present_k", axis=2)
            v = self.node("Concat", ["past_v", v], to="present_v", axis=2)
        if self.decoder.shared > 1:
            k, v = self.repeated(k), self.repeated(v)
        scores = self.node("MatMul", [q, self.node("Transpose", [k], perm=[0, 1, 3, 2])])
        scores = self.node("Mul", [scores, self.constant("root", HEAD**-0.5)])
        return self.node("MatMul", [self.node("Softmax", [self.masked(scores)], axis=-1), v])

    def repeated(self, x: str) -> str:
        """Give each head of keys or values to all the queries that share it."""
        apart = self.node("Unsqueeze", [x, self.constant("axis2", [2])])
        copies = self.node("Expand", [apart, self.constant("copies", [1, 1, self.decoder.shared, 1, 1])])
        return self.node("Reshape", [copies, self.constant("all_heads", [1, HEADS, -1, HEAD])])

    def masked(self, scores: str) -> str:
        how, low = self.decoder.mask, self.constant("lowest", LOWEST)
        if how == "added":
            return self.node("Add", [scores, "mask"])
        if how == "chosen":
            return self.node("Where", ["mask", scores, low])
        if how == "made":
            shape = self.node("Shape", [scores])
            last = self.constant("last_two", [-2]), self.constant("end", [9])
            square = self.node("Slice", [shape, *last])
            full = self.node("Expand", [low, square])
            return self.node("Add", [scores, self.node("Trilu", [full, self.constant("one", 1)], upper=1)])
        return scores

    def fused(self, q: str, k: str, v: str) -> str:
        decoder = self.decoder
        inputs = [q, k, v, "mask" if decoder.mask else "", *(("past_k", "past_v") if decoder.cache else ())]
        node = helper.make_node("Attention", inputs, ["mixed"], "/mixed", **decoder.fused)
        node.output.extend(("present_k", "present_v") if decoder.cache else ("", ""))
        node.output.extend(["scores"] if decoder.scores else [])
        self.nodes.append(node)
        return "mixed"

    def model(self) -> onnx.ModelProto:
        decoder, real = self.decoder, TensorProto.FLOAT
        rows = {"x": (real, ["N", "L", WIDTH])}
        if decoder.rotary:
            rows["places"] = TensorProto.INT64, ["N", "L"]
        if decoder.mask in ("added", "chosen"):
            rows["mask"] = real if decoder.mask == "added" else TensorProto.BOOL, ["N", 1, "L", "M"]
        results = {"y": (real, ["N", "L", WIDTH])}
        if decoder.cache:
            rows |= {name: (real, ["N", decoder.kept, "P", HEAD]) for name in ("past_k", "past_v")}
            results |= {name: (real, ["N", decoder.kept, "M", HEAD]) for name in ("present_k", "present_v")}
        if decoder.scores:
            results["scores"] = real, ["N", HEADS, "L", "M"]
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            *([helper.make_tensor_value_info(name, *each) for name, each in side.items()] for side in (rows, results)),
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", decoder.opset)], ir_version=10)


DECODERS = {
    "no mask": Decoder(),
    "mask added": Decoder(mask="added"),
    "mask by Where": Decoder(mask="chosen"),
    "mask made in the graph": Decoder(mask="made"),
    "rotary halves": Decoder(mask="added", rotary="halves"),
    "rotary pairs": Decoder(mask="chosen", rotary="pairs"),
    "shared heads": Decoder(mask="added", rotary="halves", shared=2),
    "one head of keys": Decoder(mask="made", shared=4),
    "cache": Decoder(mask="added", cache=True),
    "cache of shared heads": Decoder(mask="chosen", rotary="halves", shared=2, cache=True),
}
# of opset 23 on, which the oldest onnx does not know
NEW_DECODERS = {
    "products, opset 23": Decoder(23, mask="added", rotary="op"),
    "products, opset 25": Decoder(25, mask="chosen", rotary="op pairs", shared=2, cache=True),
    "products, opset 26": Decoder(26, mask="made"),
    "Attention": Decoder(23, fused={}),
    "Attention, causal": Decoder(23, rotary="op", fused={"is_causal": 1}),
    "Attention, mask added": Decoder(23, mask="added", fused={}),
    "Attention, mask of bool": Decoder(24, mask="chosen", rotary="op pairs", fused={}),
    "Attention, shared heads": Decoder(23, mask="added", shared=2, fused={"softcap": 15.0}),
    "Attention, cache": Decoder(24, mask="added", rotary="op", shared=2, cache=True, fused={}),
    "Attention, its scores": Decoder(23, mask="added", fused={"qk_matmul_output_mode": 1}, scores=True),
    "Attention, its probabilities": Decoder(24, mask="chosen", fused={"qk_matmul_output_mode": 3}, scores=True),
    "Attention, opset 26": Decoder(26, mask="chosen", shared=4, cache=True, rotary="op", fused={"softcap": 20.0}),
}
