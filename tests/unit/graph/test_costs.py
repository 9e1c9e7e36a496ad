"""Estimated times: exact in what they count, and of the right order between choices."""

import numpy as np
import onnx
import pytest

from int8cal.graph.costs import (
    ELEMENT_US,
    FLOAT_MAC_US,
    FLOAT_VALUE_US,
    LEAST_US,
    float_us,
    inference_us,
    layer_float_us,
    other_nodes_us,
    products,
    residual_codes_us,
)

MODELS = {
    # name -> (head, body, weights, elements of the input, products)
    "conv": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "y = Conv <pads = [1, 1, 1, 1]> (x, W)",
        {"W": (6, 4, 3, 3)},
        4 * 64,
        64 * 6 * 4 * 9,
    ),
    "strided conv": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, W)",
        {"W": (6, 4, 3, 3)},
        4 * 64,
        16 * 6 * 4 * 9,
    ),
    "depthwise": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "y = Conv <group = 4, pads = [1, 1, 1, 1]> (x, W)",
        {"W": (4, 1, 3, 3)},
        4 * 64,
        64 * 4 * 9,
    ),
    "transposed": (
        "g (float[N,4,5,5] x) => (float[A,C,D,E] y)",
        "y = ConvTranspose <strides = [2, 2]> (x, W)",
        {"W": (4, 6, 2, 2)},
        100,
        25 * 4 * 6 * 4,
    ),
    "gemm": ("g (float[N,4] x) => (float[A,C] y)", "y = Gemm(x, W)", {"W": (4, 6)}, 4, 24),
    "transposed gemm": ("g (float[N,4] x) => (float[A,C] y)", "y = Gemm <transB = 1> (x, W)", {"W": (6, 4)}, 4, 24),
    "rows": ("g (float[N,7,4] x) => (float[A,C,D] y)", "y = MatMul(x, W)", {"W": (4, 6)}, 28, 7 * 24),
}


def planned(bench, name):
    head, body, weights, *_ = MODELS[name]
    model = bench.text(f"{head} {{ {body} }}", **weights)
    return bench.prepared(model).model, bench.plan(model, target="openvino" if name == "transposed" else "portable")


@pytest.mark.parametrize("name", MODELS)
def test_products_are_counted(bench, name):
    _, plan = planned(bench, name)
    *_, elements, expected = MODELS[name]
    assert products(plan.layers[0], elements) == expected


@pytest.mark.parametrize("name", MODELS)
def test_estimates_are_positive_and_grow_with_the_tensors(bench, name):
    model, plan = planned(bench, name)
    (layer,) = plan.layers
    sizes = [{each.tensor: float(factor) * MODELS[name][3] for each in plan.tensors} for factor in (1, 10)]
    for integer in (True, False):
        small, large = (inference_us(model, plan, size, integer=integer) for size in sizes)
        assert 0 < small < large < np.inf
    small, large = (residual_codes_us(layer, size[layer.input]) for size in sizes)
    assert 0 < small < large


def test_a_dense_layer_is_cheaper_on_integers(bench):
    model, plan = planned(bench, "conv")
    elements = {each.tensor: 1e6 for each in plan.tensors}
    assert inference_us(model, plan, elements) < inference_us(model, plan, elements, integer=False)


def test_what_stays_in_float_counts_by_what_it_writes_and_multiplies(bench):
    prepared = bench.prepared(
        bench.text(
            """g (float[N,S,8] x) => (float[N,S,4] y) {
                q = MatMul(x, Q) t = Transpose <perm = [0, 2, 1]> (x)
                s = MatMul(q, t) p = Softmax(s) a = MatMul(p, x) y = MatMul(a, W)
            }""",
            Q=(8, 8),
            W=(8, 4),
        )
    )
    plan = bench.plan(prepared.model)
    assert {layer.weight for layer in plan.layers} == {"Q", "W"}
    feed = {"x": np.zeros((2, 5, 8), np.float32)}
    scores, values = 2 * 5 * 5, 2 * 5 * 8
    expected = FLOAT_MAC_US * (scores * 8 + values * 5) + ELEMENT_US * (scores + values)
    expected += FLOAT_VALUE_US["Transpose"] * values + FLOAT_VALUE_US["Softmax"] * scores
    assert other_nodes_us(prepared.model, plan, feed) == pytest.approx(expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_in_float_pays_for_codes_only_where_it_exchanges_them(bench, name):
    _, plan = planned(bench, name)
    (layer,), elements = plan.layers, 10.0 * MODELS[name][3]
    ends = ((False, False), (True, False), (False, True), (True, True))
    neither, before, behind, both = (
        layer_float_us(layer, elements, codes_before=first, codes_behind=second) for first, second in ends
    )
    assert 0 < neither < min(before, behind)
    assert before + behind == pytest.approx(neither + both, abs=LEAST_US)
    assert layer_float_us(layer, 0.0, codes_before=False, codes_behind=False) > 0


@pytest.mark.parametrize("op_type", ["Add", "Sigmoid", "Reshape", "Whatever"])
def test_float_always_costs_something(op_type):
    node = onnx.helper.make_node(op_type, ["x", "unknown"], ["y"])
    empty, read, written = (float_us(node, elements) for elements in ({}, {"x": 1000.0}, {"x": 1.0, "y": 1000.0}))
    assert 0 < empty < read == written
