"""Convolutions of three channels read a fourth one of zeros: the same sums, one patch copied faster."""

from dataclasses import replace

import numpy as np
import pytest

from int8cal.graph.ops import ONNXRUNTIME_CPU
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.residual_codes import with_residual_codes

IMAGE = "g (float[N,3,9,8] x) => (float[A,B,C,D] y)"
BODY = "c = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, W, B) r = Relu(c) y = Conv(r, V)"
WEIGHTS = {"W": (8, 3, 3, 3), "B": (8,), "V": (4, 8, 1, 1)}


def pads(built):
    return [node for node in built.model.graph.node if node.op_type == "Pad"]


def made(bench, body=BODY, head=IMAGE, constants=None, **settings):
    model = bench.text(f"{head} {{ {body} }}", opset=21, **(constants or WEIGHTS))
    return model, *bench.quantized(model, **{"weights": "s7"} | settings)


@pytest.mark.parametrize("residual", [False, True])
def test_the_outputs_are_the_same_bits_with_it_and_without(bench, residual):
    model, prepared, plan, table, built = made(bench)
    plain_plan = replace(
        plan, ops=replace(plan.ops, rules=plan.ops.rules | {"Conv": replace(plan.ops.rules["Conv"], padded_taps=0)})
    )
    if residual:
        table = with_residual_codes(table, plan, ["Conv_c"])
        built = build_model(prepared.model, plan, table)
    plain = build_model(prepared.model, plain_plan, table)
    assert (len(pads(built)), len(pads(plain))) == (1 + residual, 0)
    padded, codes = built.layers["Conv_c"].weight, plain.layers["Conv_c"].weight
    assert padded.shape == (8, 8 if residual else 4, 3, 3)
    planes = np.split(padded, 1 + residual, axis=1)
    np.testing.assert_array_equal(np.concatenate([each[:, :3] for each in planes], axis=1), codes)
    assert not any(each[:, 3:].any() for each in planes)
    feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 4, seed=11)])}
    for optimization in ("none", "all"):
        np.testing.assert_array_equal(
            bench.run(built.model, feed, optimization)["y"], bench.run(plain.model, feed, optimization)["y"]
        )


def test_several_convolutions_of_an_image_share_it(bench):
    *_, built = made(
        bench,
        "c = Conv(x, W) d = Conv(x, V) e = Add(c, d) y = Conv(e, U)",
        constants={"W": (8, 3, 3, 3), "V": (8, 3, 3, 3), "U": (4, 8, 3, 3)},
    )
    assert len(pads(built)) == 1


@pytest.mark.parametrize(
    ("head", "weight", "settings"),
    [
        ("g (float[N,4,9,8] x) => (float[A,B,C,D] y)", (8, 4, 3, 3), {}),
        ("g (float[N,1,9,8] x) => (float[A,B,C,D] y)", (8, 1, 3, 3), {}),
        (IMAGE, (8, 3, 7, 7), {}),
        (IMAGE, (3, 1, 3, 3), {}),
        ("g (float[N,3,9] x) => (float[A,B,C] y)", (8, 3, 3), {}),
        (IMAGE, (8, 3, 3, 3), {"activations": "u16"}),
        (IMAGE, (8, 3, 3, 3), {"target": "openvino"}),
        (IMAGE, (8, 3, 3, 3), {"target": "tensorrt", "activations": "s8", "weights": "s8"}),
    ],
    ids=["four channels", "one", "large windows", "depthwise", "along time", "16 bits", "openvino", "tensorrt"],
)
def test_others_read_what_they_read(bench, head, weight, settings):
    group = f"<group = {3 // weight[1]}>" if weight[0] == 3 else ""
    *_, built = made(bench, f"y = Conv {group} (x, W)", head, {"W": weight}, **settings)
    assert pads(built) == []


def test_none_where_channels_come_last_in_the_input(bench):
    """The runtime would move the Pad in front of the Transpose, where it copies pixel by pixel."""
    head, text = "g (float[N,9,8,3] x) => (float[A,B,C,D] y)", "t = Transpose <perm = {}> (x) y = Conv(t, W)"
    *_, built = made(bench, text.format([0, 3, 1, 2]), head, {"W": (8, 3, 3, 3)})
    assert pads(built) == []
    other = "g (float[N,3,9,8] x) => (float[A,B,C,D] y)"
    *_, built = made(bench, text.format([0, 1, 3, 2]), other, {"W": (8, 3, 3, 3)})
    assert len(pads(built)) == 1


def test_the_table_names_the_runtime_that_gains():
    assert ONNXRUNTIME_CPU["Conv"].padded_taps == 25
