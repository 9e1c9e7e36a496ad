"""Residual codes of some channels: what is written, what it computes, and what a table may say."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from int8cal.errors import TableError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.evaluation.layerwise import find_layers
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.channel_copies import ChannelCopies
from int8cal.quantization.corrections.residual_codes import (
    FACTOR,
    FineChannels,
    ResidualCodes,
    with_fine_channels,
    with_residual_codes,
)
from int8cal.quantization.table_file import parse_table, table_to_json
from int8cal.runtime.machine import exact_products

FINE = (1, 4)
MODELS = {
    "gemm": ("g (float[N,5] x) => (float[A,C] y)", "n = Tanh(x) y = Gemm(n, W, B)", (5, 8)),
    "gemm of a transposed weight": (
        "g (float[N,5] x) => (float[A,C] y)",
        "n = Tanh(x) y = Gemm <transB = 1> (n, W, B)",
        (8, 5),
    ),
    "matmul": ("g (float[N,5] x) => (float[A,C] y)", "n = Tanh(x) y = MatMul(n, W)", (5, 8)),
    "matmul of rows with bias": (
        "g (float[N,M,5] x) => (float[A,C,D] y)",
        "n = Tanh(x) m = MatMul(n, W) y = Add(B, m)",
        (5, 8),
    ),
}


def fine(bench, name, channels=FINE, copies=()):
    """Return the model, its layer, the table and what is built; the weights of `FINE` are the largest by far."""
    head, body, shape = MODELS[name]
    rng = np.random.default_rng(3)
    # codes of scale 1, which copies can halve, so all the noise is the input's
    weight = 2 * rng.integers(-1, 2, size=shape).astype(np.float32)
    heavy = np.moveaxis(weight, shape.index(5), 0)
    heavy[list(FINE)] = rng.choice([-127, 127], size=(len(FINE), 8))
    model = bench.text(f"{head} {{ {body} }}", W=weight, **({"B": (8,)} if "B" in body else {}))
    prepared, plan, table, _ = bench.quantized(model, weights="s8")
    (layer,) = plan.layers
    table = replace(table, weights={})
    table = table.corrected(ChannelCopies({layer.node: copies})) if copies else table
    table = with_fine_channels(table, plan, {layer.node: channels}) if channels else table
    return model, prepared, plan, table, build_model(prepared.model, plan, table)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("copies", [(), (0, 3)])
def test_the_noise_of_these_channels_goes(bench, name, copies):
    errors = []
    for channels in ((), FINE):
        model, _, _, _, built = fine(bench, name, channels, copies)
        onnx.checker.check_model(built.model, full_check=True)
        feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 64, seed=11)])}
        expected = bench.run(model, feed)["y"]
        # integer kernels would saturate where the CPU does: these weights are s8
        optimizations = ("none", "all") if exact_products() else ("none", "none")
        found = [bench.run(built.model, feed, optimization)["y"] for optimization in optimizations]
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
        errors.append(np.square(found[0] - expected).mean())
    assert errors[1] < 0.05 * errors[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_layer_stays_on_integers(bench, name):
    _, _, _, _, built = fine(bench, name)
    floats = audit_fusion(built.model).nodes
    assert [(node.op_type, node.residual) for node in floats if node.op_type != "Tanh"] == [("Sub", True)]


def test_the_tensor_is_still_seen_as_one(bench):
    _, prepared, _, _, built = fine(bench, "gemm")
    taps, missing = find_layers(prepared.model, built.model)
    assert ([tap.tensor for tap in taps], missing) == (["n"], ())


def test_a_table_gives_the_same_bytes(bench):
    _, prepared, plan, table, built = fine(bench, "matmul of rows with bias", copies=(4, 0))
    again = parse_table(table_to_json(table), "t")
    assert FineChannels.of(again).values == FineChannels.of(table).values
    rebuilt = build_model(prepared.model, plan, again)
    assert rebuilt.model.SerializeToString(deterministic=True) == built.model.SerializeToString(deterministic=True)
    assert json.loads(table_to_json(table))["corrections"]["fine"] == {plan.layers[0].node: list(FINE)}


def test_residual_codes_of_all_channels_take_their_place(bench):
    _, _, plan, table, _ = fine(bench, "gemm")
    whole = with_residual_codes(table, plan, [plan.layers[0].node])
    assert ResidualCodes.of(whole)
    assert not FineChannels.of(whole)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nobody": (1,)}, "'nobody', which is no matrix product"),
        ({"LAYER": (5,)}, "has channel 5, its input has 5"),
        ({"LAYER": (1,)}, "has residual codes already"),
    ],
)
def test_what_does_not_fit_is_refused(bench, values, message):
    _, prepared, plan, table, _ = fine(bench, "gemm", ())
    node = plan.layers[0].node
    named = {node if name == "LAYER" else name: each for name, each in values.items()}
    table = table.corrected(FineChannels(named), ResidualCodes({node: FACTOR}))
    with pytest.raises(TableError, match=message):
        build_model(prepared.model, plan, table)
