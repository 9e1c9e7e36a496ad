"""A BERT encoder as torch exports it: attention in single MatMul, Div and Softmax nodes, GELU with Erf."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from benchmarks.topologies.net import Net

HIDDEN, HEADS, INNER = 768, 12, 3072


def bert(
    *, layers: int = 4, sequence: int = 128, vocabulary: int = 2000, mask: bool = False, seed: int = 3
) -> onnx.ModelProto:
    """Build an encoder: embeddings of int64 ids, then `layers` blocks of hidden size 768, opset 17.

    Args:
        layers: Encoder blocks.
        sequence: Tokens per sample.
        vocabulary: Rows of the word embedding; BERT's own 30 522 would only make the file large.
        mask: Add the input attention_mask (N, 1, 1, sequence): 0 where a token counts, far below 0 where not.
        seed: Of the weights.
    """
    net = Net("bert", seed)
    words = net.normal("embeddings.word", (vocabulary, HIDDEN), 1.0)
    places = net.normal("embeddings.position", (1, sequence, HIDDEN), 0.3)
    x = net.node("Gather", [words, "input_ids"], "embeddings/Gather")
    x = _norm(net, net.node("Add", [x, places], "embeddings/Add"), "embeddings/LayerNorm")
    split = net.constant("split_heads", np.array([0, sequence, HEADS, HIDDEN // HEADS], np.int64))
    join = net.constant("join_heads", np.array([0, sequence, HIDDEN], np.int64))
    scalars = {
        name: net.constant(name, np.array(value, np.float32))
        for name, value in (
            ("root_of_head", math.sqrt(HIDDEN // HEADS)),
            ("root_of_two", math.sqrt(2.0)),
            ("one", 1.0),
            ("half", 0.5),
        )
    }
    for layer in range(layers):
        name = f"layer.{layer}"
        x = _attention(net, x, name, (split, join), scalars, mask=mask)
        y = _gelu(net, net.linear(x, f"{name}/intermediate", (HIDDEN, INNER)), f"{name}/gelu", scalars)
        y = net.linear(y, f"{name}/output", (INNER, HIDDEN))
        x = _norm(net, net.node("Add", [y, x], f"{name}/output/residual"), f"{name}/output/LayerNorm")
    inputs = [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["N", sequence])]
    if mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", onnx.TensorProto.FLOAT, ["N", 1, 1, sequence]))
    return net.model(inputs, (x, "last_hidden_state", ["N", sequence, HIDDEN]), opset=17)


def _attention(net: Net, x: str, name: str, shapes: tuple[str, str], scalars: dict[str, str], *, mask: bool) -> str:
    split, join = shapes
    heads = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        y = net.linear(x, f"{name}/{part}", (HIDDEN, HIDDEN))
        y = net.node("Reshape", [y, split], f"{name}/{part}/Reshape")
        heads[part] = net.node("Transpose", [y], f"{name}/{part}/Transpose", perm=order)
    scores = net.node("MatMul", [heads["query"], heads["key"]], f"{name}/scores/MatMul")
    scores = net.node("Div", [scores, scalars["root_of_head"]], f"{name}/scores/Div")
    if mask:
        scores = net.node("Add", [scores, "attention_mask"], f"{name}/scores/Add")
    weights = net.node("Softmax", [scores], f"{name}/Softmax", axis=-1)
    y = net.node("MatMul", [weights, heads["value"]], f"{name}/context/MatMul")
    y = net.node("Transpose", [y], f"{name}/context/Transpose", perm=[0, 2, 1, 3])
    y = net.node("Reshape", [y, join], f"{name}/context/Reshape")
    y = net.linear(y, f"{name}/attention_output", (HIDDEN, HIDDEN))
    return _norm(net, net.node("Add", [y, x], f"{name}/attention/residual"), f"{name}/attention/LayerNorm")


def _gelu(net: Net, x: str, name: str, scalars: dict[str, str]) -> str:
    y = net.node("Erf", [net.node("Div", [x, scalars["root_of_two"]], f"{name}/Div")], f"{name}/Erf")
    y = net.node("Add", [y, scalars["one"]], f"{name}/Add")
    return net.node("Mul", [net.node("Mul", [x, y], f"{name}/Mul"), scalars["half"]], f"{name}/Half")


def _norm(net: Net, x: str, name: str) -> str:
    scale = net.constant(f"{name}.weight", np.ones(HIDDEN, np.float32))
    bias = net.normal(f"{name}.bias", (HIDDEN,), 0.05)
    return net.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-12)
