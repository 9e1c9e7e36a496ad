"""Channels that a layer reads several times: what is written, what it computes, and what a table may say."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from int8cal.errors import TableError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.graph.layers import Layer
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.channel_copies import ChannelCopies, merged, with_copies
from int8cal.quantization.corrections.residual_codes import with_residual_codes

COPIES = (4, 1, 1, 1)
MODELS = {
    "gemm": ("g (float[N,5] x) => (float[A,C] y)", "y = Gemm(x, W, B)", (5, 8)),
    "gemm of a transposed weight": ("g (float[N,5] x) => (float[A,C] y)", "y = Gemm <transB = 1> (x, W, B)", (8, 5)),
    "matmul": ("g (float[N,5] x) => (float[A,C] y)", "y = MatMul(x, W)", (5, 8)),
    "matmul of rows": ("g (float[N,3,5] x) => (float[A,C,D] y)", "y = MatMul(x, W)", (5, 8)),
    "matmul of rows with bias": (
        "g (float[N,M,5] x) => (float[A,C,D] y)",
        "m = MatMul(x, W) y = Add(B, m)",
        (5, 8),
    ),
}


def copied(bench, name, *, residual=False, **settings):
    """Return the model, its layer, and what is built with copies of its input's channels, after a look at the table."""
    head, body, shape = MODELS[name]
    model = bench.text(f"{head} {{ {body} }}", W=shape, **({"B": (8,)} if "B" in body else {}))
    prepared, plan, table, _ = bench.quantized(model, **settings)
    (layer,) = plan.layers
    table = replace(table.corrected(ChannelCopies({layer.node: COPIES})), weights={})
    table = with_residual_codes(table, plan, [layer.node]) if residual else table
    return model, layer, table, build_model(prepared.model, plan, table)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimization", ["none", "all"])
def test_copies_compute_what_their_codes_add_up_to(bench, name, optimization):
    model, layer, table, built = copied(bench, name, weights="s7")
    affine, integers = table.tensors["x"].affine, built.layers[layer.node]
    axis = layer.reduction.input_axis
    assert integers.weight.shape[axis] == 5 + len(COPIES)
    x = np.concatenate([sample.feed["x"] for sample in bench.samples(model, 6, seed=11)])
    codes = np.clip(np.rint(x / np.float32(affine.scale)) + affine.zero_point, 0, 255) - affine.zero_point
    whole = merged(integers.weight, COPIES, layer)
    sums = codes @ (whole if axis == 0 else whole.T)
    if integers.bias is not None:
        sums = sums + integers.bias
    actual = bench.run(built.model, {"x": x}, optimization)["y"]
    np.testing.assert_allclose(actual, sums * (affine.scale * integers.scales), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_layer_stays_on_integers_with_and_without_residual_codes(bench, name):
    for residual in (False, True):
        _, _, _, built = copied(bench, name, residual=residual)
        onnx.checker.check_model(built.model, full_check=True)
        assert [node.op_type for node in audit_fusion(built.model).nodes] == ["Sub"] * residual


@pytest.mark.parametrize("name", MODELS)
def test_copies_of_residual_codes_are_closer_still(bench, name):
    errors = []
    for residual in (False, True):
        model, _, _, built = copied(bench, name, residual=residual, weights="s8")
        feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 6, seed=11)])}
        errors.append(np.square(bench.run(built.model, feed)["y"] - bench.run(model, feed)["y"]).mean())
    assert errors[1] < errors[0]


def test_readers_of_one_tensor_share_its_copies(bench):
    head = "g (float[N,5] x) => (float[A,C] y, float[D,E] z)"
    model = bench.text(f"{head} {{ y = MatMul(x, W) z = MatMul(x, V) }}", W=(5, 8), V=(5, 3))
    prepared, plan, table, _ = bench.quantized(model)
    table = replace(table.corrected(ChannelCopies({layer.node: COPIES for layer in plan.layers})), weights={})
    ops = [node.op_type for node in build_model(prepared.model, plan, table).model.graph.node]
    assert ops.count("Gather") == ops.count("Concat") == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_shared_weights_add_up_to_the_weights(axis):
    weight = np.random.default_rng(1).normal(size=(5, 5))
    layer = Layer("m", "MatMul", "W", None, 1 - axis, "x", "y", 5)
    wide = with_copies(weight, COPIES, layer.reduction)
    assert wide.shape[axis] == 9
    np.testing.assert_array_equal(np.take(wide, 1, axis), np.take(weight, 1, axis) / 4)
    codes = np.arange(45).reshape(wide.shape).astype(np.int8)
    whole = merged(codes, COPIES, layer)
    np.testing.assert_array_equal(
        np.take(whole, 4, axis), np.take(codes, 4, axis) + np.take(codes, 5, axis).astype(int)
    )
    assert whole.sum() == codes.astype(int).sum()


def test_a_table_with_copies_gives_the_same_bytes(bench):
    _, _, table, built = copied(bench, "gemm")
    content = json.loads(json.dumps(ChannelCopies.of(table).to_json()))
    again = ChannelCopies.read(content, "t")
    prepared, plan, plain, _ = bench.quantized(
        bench.text("g (float[N,5] x) => (float[A,C] y) { y = Gemm(x, W, B) }", W=(5, 8), B=(8,))
    )
    rebuilt = build_model(prepared.model, plan, replace(plain.corrected(again), weights={}))
    assert rebuilt.model.SerializeToString() == built.model.SerializeToString()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nobody": (1,)}, "'nobody', which is no matrix product"),
        ({"LAYER": (5,)}, "has channel 5, its input has 5"),
    ],
)
def test_copies_that_do_not_fit_the_model_are_refused(bench, values, message):
    prepared, plan, table, _ = bench.quantized(
        bench.text("g (float[N,5] x) => (float[A,C] y) { y = Gemm(x, W, B) }", W=(5, 8), B=(8,))
    )
    named = {plan.layers[0].node if name == "LAYER" else name: each for name, each in values.items()}
    with pytest.raises(TableError, match=message):
        build_model(prepared.model, plan, table.corrected(ChannelCopies(named)))


@pytest.mark.parametrize("value", [[], [-1], [1.5], [True], 3, "1"])
def test_malformed_copies_are_refused(value):
    with pytest.raises(TableError, match="expected a list of channels"):
        ChannelCopies.read({"a": value}, "t")


def test_no_pair_of_weights_with_copies_can_saturate(bench):
    _, layer, _, built = copied(bench, "gemm", weights="paired")
    codes = built.layers[layer.node].weight.astype(int)
    pairs = codes[:8].reshape(4, 2, -1)
    assert np.maximum(pairs, 0).sum(axis=1).max() <= 128
    assert np.minimum(pairs, 0).sum(axis=1).min() >= -128
