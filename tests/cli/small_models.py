"""Models and data of the names that configs/ use, small enough for a test: a classifier of photos, a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = ("blue", "green", "red")
_OPSET = [helper.make_opsetid("", 17)]


def _model(nodes, inputs, outputs, weights) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value, dtype), name) for name, (value, dtype) in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=_OPSET, ir_version=8)
    onnx.checker.check_model(model)
    return model


def photo_classifier() -> onnx.ModelProto:
    """A classifier (n, 3, 224, 224) -> (n, 3): the strongest colour."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(0, 0.01, (8, 3, 3, 3))
    for channel in range(3):
        kernel[channel, channel] += 1 / 9
    last = rng.normal(0, 0.01, (3, 8))
    last[[0, 1, 2], [2, 1, 0]] += 4  # classes are in the order of their names, channels are R, G, B
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["a"], "stem", strides=[4, 4], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], "pool"),
        helper.make_node("Flatten", ["c"], ["d"], "flatten"),
        helper.make_node("Gemm", ["d", "last", "bias"], ["e"], "head", transB=1),
        helper.make_node("Softmax", ["e"], ["probabilities"], "softmax"),
    ]
    return _model(
        nodes,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 3])],
        {"kernel": (kernel, np.float32), "last": (last, np.float32), "bias": (np.zeros(3), np.float32)},
    )


def save_photos(folder: Path, count: int, seed: int) -> None:
    """Write JPEG photos of 320 x 256 pixels, one folder per class."""
    rng = np.random.default_rng(seed)
    for index, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 120, (256, 320, 3))
            pixels[..., 2 - index] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.jpg")


def transformer(vocabulary: int = 50, width: int = 32, classes: int = 3) -> onnx.ModelProto:
    """A transformer of one layer: input_ids and attention_mask (batch, sequence) -> logits (batch, classes)."""
    rng = np.random.default_rng(1)

    def weight(*shape):
        return rng.normal(0, shape[0] ** -0.5, shape), np.float32

    weights = {
        "embedding": (rng.normal(0, 1, (vocabulary, width)), np.float32),
        **{name: weight(width, width) for name in ("wq", "wk", "wv", "wo")},
        "up": weight(width, 4 * width),
        "down": weight(4 * width, width),
        "head": weight(width, classes),
        **{name: (np.ones(width), np.float32) for name in ("gain1", "gain2")},
        **{name: (np.zeros(width), np.float32) for name in ("shift1", "shift2")},
        "one": (1.0, np.float32),
        "far": (-1e4, np.float32),
        "scale": (width**-0.5, np.float32),
        "axes": ([1], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["x"], "embed"),
        *(node("MatMul", ["x", f"w{each}"], [each], f"attention/{each}") for each in "qkv"),
        node("Transpose", ["k"], ["kt"], "attention/transpose", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["qk"], "attention/scores"),
        node("Mul", ["qk", "scale"], ["scaled"], "attention/scale"),
        node("Cast", ["attention_mask"], ["mask"], "mask/cast", to=TensorProto.FLOAT),
        node("Sub", ["one", "mask"], ["hidden"], "mask/invert"),
        node("Mul", ["hidden", "far"], ["penalty"], "mask/scale"),
        node("Unsqueeze", ["penalty", "axes"], ["penalty3"], "mask/unsqueeze"),
        node("Add", ["scaled", "penalty3"], ["masked"], "attention/mask"),
        node("Softmax", ["masked"], ["weights"], "attention/softmax"),
        node("MatMul", ["weights", "v"], ["mixed"], "attention/mix"),
        node("MatMul", ["mixed", "wo"], ["projected"], "attention/out"),
        node("Add", ["x", "projected"], ["sum1"], "residual1"),
        node("LayerNormalization", ["sum1", "gain1", "shift1"], ["y"], "norm1"),
        node("MatMul", ["y", "up"], ["wide"], "ffn/up"),
        node("Relu", ["wide"], ["active"], "ffn/relu"),
        node("MatMul", ["active", "down"], ["narrow"], "ffn/down"),
        node("Add", ["y", "narrow"], ["sum2"], "residual2"),
        node("LayerNormalization", ["sum2", "gain2", "shift2"], ["z"], "norm2"),
        node("ReduceMean", ["z"], ["pooled"], "pool", axes=[1], keepdims=0),
        node("MatMul", ["pooled", "head"], ["logits"], "classifier"),
    ]
    return _model(
        nodes,
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        weights,
    )


def save_tokens(folder: Path, files: int, seed: int) -> None:
    """Write .npz files of 8 token sequences each, padded to 16."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(files):
        mask = (np.arange(16)[None] < rng.integers(4, 17, (8, 1))).astype(np.int64)
        np.savez(folder / f"{number}.npz", input_ids=rng.integers(1, 50, (8, 16)) * mask, attention_mask=mask)
