"""What must hold in every emitted model."""

import collections

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.graph.index import outer_references
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model

MODELS = {
    "residual": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[N,8,6,6] r)",
        "c = Conv(x, W, B) r = Relu(c) d = Conv(r, U) a = Add(d, r) q = Relu(a) y = Conv(q, V, K)",
        {"W": (8, 4, 3, 3), "B": (8,), "U": (8, 8, 1, 1), "V": (3, 8, 1, 1), "K": (3,)},
    ),
    "shared": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "c = Conv <pads = [1, 1, 1, 1]> (x, W, B) r = Relu(c) d = Conv(r, W, B) e = Conv(x, W, B) y = Concat <axis = 2> (d, e)",
        {"W": (4, 4, 3, 3), "B": (4,)},
    ),
    "head": (
        "g (float[N,4,8,8] x) => (float[A,C] y)",
        "c = Conv <group = 4> (x, W, B) m = MaxPool <kernel_shape = [2, 2]> (c) f = Flatten(m) h = Gemm(f, G, K) y = MatMul(h, M)",
        {"W": (8, 1, 3, 3), "B": (8,), "G": (200, 6), "K": (1,), "M": (6, 5)},
    ),
    "transposed": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "y = ConvTranspose(x, W, B)",
        {"W": (4, 3, 2, 2), "B": (3,)},
    ),
    "branches": (
        "g (float[N,4,8,8] x, bool k) => (float[A,C,D,E] y)",
        """c = Conv(x, W, B)
        i = If (k) <
            then_branch = t () => (float[N,8,6,6] p) { p = Abs(c) },
            else_branch = e () => (float[N,8,6,6] q) { q = Neg(c) }>
        y = Conv(i, V)""",
        {"W": (8, 4, 3, 3), "B": (8,), "V": (3, 8, 1, 1)},
    ),
    "taken": (
        "g (float[N,4,8,8] x, float[N,1,1,1] x_scale) => (float[A,C,D,E] y_float, float[A,C,D,E] y)",
        "x_quantized = Mul(x, x_scale) y_float = Conv(x_quantized, W, B) y = Conv(x, W)",
        {"W": (8, 4, 3, 3), "B": (8,)},
    ),
}


@pytest.fixture(params=MODELS)
def made(request, bench):
    head, body, weights = MODELS[request.param]
    model = bench.text(f"{head} {{ {body} }}", **weights)
    # of the targets it is openvino's that quantizes a ConvTranspose, with a bias in s32
    return model, *bench.quantized(model, target="openvino" if request.param == "transposed" else "portable")


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def weight_pairs(built, plan):
    """Layer -> (its node, DQ of the weight, DQ of the bias or None)."""
    producer = {node.output[0]: node for node in built.model.graph.node}
    nodes = {node.name: node for node in built.model.graph.node}
    for layer in plan.layers:
        node = nodes[layer.node]
        yield layer, node, producer[node.input[1]], producer[node.input[2]] if layer.bias else None


def test_the_checker_passes_and_the_runtime_opens_it(made, bench):
    model, _, _, _, built = made
    onnx.checker.check_model(built.model, full_check=True)
    feed = bench.samples(model, 1)[0].feed
    assert bench.run(built.model, feed, "all").keys() == bench.run(model, feed).keys()


def test_every_dequantize_has_one_reader(made):
    _, _, _, _, built = made
    graph = built.model.graph
    readers = collections.Counter(name for node in graph.node for name in (*node.input, *outer_references(node)))
    readers.update(value.name for value in graph.output)
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            assert readers[node.output[0]] == 1


def test_no_pair_straddles_a_graph_output(made):
    _, _, _, _, built = made
    outputs = {value.name for value in built.model.graph.output}
    for node in built.model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert node.output[0] not in outputs
            assert node.input[0] not in outputs


def test_nodes_and_tensors_keep_their_names(made):
    _, prepared, plan, _, built = made
    old = {node.name: node for node in prepared.model.graph.node}
    kept = {node.name: node for node in built.model.graph.node if node.name in old}
    assert kept.keys() == old.keys()
    tensors = {name for node in built.model.graph.node for name in node.output}
    tensors |= {value.name for value in built.model.graph.input}
    assert {name for node in old.values() for name in node.output} <= tensors
    assert [value.name for value in built.model.graph.output] == [value.name for value in prepared.model.graph.output]
    assert len(plan.tensors) == sum(node.op_type == "QuantizeLinear" for node in built.model.graph.node)


def test_names_are_unique(made):
    _, _, _, _, built = made
    graph = built.model.graph
    made_names = [name for node in graph.node for name in node.output if name]
    made_names += [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    assert [name for name, count in collections.Counter(made_names).items() if count > 1] == []
    assert [name for name, count in collections.Counter(node.name for node in graph.node).items() if count > 1] == []


def of_own_groups(codes, layer):
    """What outputs of a grouped convolution read of their own group, where several are one; the rest is zero."""
    if codes.shape == tuple(layer.dims):
        return codes
    own, width = np.zeros(layer.dims, np.int8), layer.dims[1]
    for output in range(len(codes)):
        group = output // (len(codes) // layer.group)
        first = group * width % codes.shape[1]
        own[output] = codes[output, first : first + width]
        assert np.count_nonzero(codes[output]) == np.count_nonzero(own[output])
    return own


def test_weights_are_int8_with_one_scale_per_output_channel(made):
    _, prepared, plan, _, built = made
    values, floats = constants(built.model), constants(prepared.model)
    for layer, _, dequantize, _ in weight_pairs(built, plan):
        codes, scale, zero = (values[name] for name in dequantize.input)
        assert codes.dtype == np.int8
        assert codes.min() >= -127
        assert not zero.any()
        axis = next(item.i for item in dequantize.attribute if item.name == "axis")
        assert axis == layer.axis
        shape = [1] * codes.ndim
        shape[axis] = -1
        error = of_own_groups(codes, layer) * scale.reshape(shape) - floats[layer.weight]
        assert np.square(error).sum() < 1e-3 * np.square(floats[layer.weight]).sum()


def test_biases_are_s32_with_the_float32_product_of_both_scales(made):
    _, _, plan, table, built = made
    values = constants(built.model)
    biases = set()
    for layer, _, weight, bias in weight_pairs(built, plan):
        if bias is None:
            continue
        codes, scale, zero = (values[name] for name in bias.input)
        assert codes.dtype == np.int32
        assert not zero.any()
        weight_scale = values[weight.input[1]]
        expected = np.float32(table.tensors[layer.input].scale) * weight_scale
        assert scale.dtype == np.float32
        np.testing.assert_array_equal(scale, expected)
        biases.add(bias.input[0])
    assert len(biases) == sum(layer.bias is not None for layer in plan.layers)  # none is shared


def test_no_initializer_is_left_that_nobody_reads(made):
    _, _, _, _, built = made
    read = {name for node in built.model.graph.node for name in (*node.input, *outer_references(node))}
    assert {tensor.name for tensor in built.model.graph.initializer} <= read


def test_the_same_input_gives_the_same_bytes_and_the_prepared_model_stays(made):
    _, prepared, plan, table, built = made
    before = prepared.model.SerializeToString(deterministic=True)
    again = build_model(prepared.model, plan, table)
    assert again.model.SerializeToString(deterministic=True) == built.model.SerializeToString(deterministic=True)
    assert prepared.model.SerializeToString(deterministic=True) == before


def test_metadata_dynamic_axes_and_opset_survive(bench):
    head, body, weights = MODELS["residual"]
    model = bench.text(f"{head} {{ {body} }}", **weights)
    model.metadata_props.add(key="labels", value="cat,dog")
    prepared, _, _, built = bench.quantized(model)
    assert {item.key: item.value for item in built.model.metadata_props}["labels"] == "cat,dog"
    assert list(built.model.graph.input) == list(model.graph.input)
    assert list(built.model.graph.output) == list(prepared.model.graph.output)
    assert built.model.opset_import == prepared.model.opset_import


def test_a_batch_of_any_size_runs(bench):
    head, body, weights = MODELS["head"]
    model = bench.text(f"{head} {{ {body} }}", **weights)
    built = bench.quantized(model)[3]
    for rows in (1, 3):
        feed = {"x": np.random.default_rng(rows).normal(size=(rows, 4, 8, 8)).astype(np.float32)}
        assert bench.run(built.model, feed, "all")["y"].shape == (rows, 5)


def test_zero_size_tensors_run_and_are_warned_about(bench):
    model = bench.text("g (float[0,4] x) => (float[0,3] y) { y = Gemm(x, W, B) }", W=(4, 3), B=(3,))
    _, _, table, built = bench.quantized(model)
    assert bench.run(built.model, {"x": np.zeros((0, 4), np.float32)}, "all")["y"].shape == (0, 3)
    assert all(np.isfinite(entry.scale) and entry.scale > 0 for entry in table.tensors.values())


def test_a_weight_that_is_all_zero_stays_zero_and_finite(bench):
    model = bench.text("g (float[N,4] x) => (float[N,3] y) { y = Gemm(x, W, B) }", W=np.zeros((4, 3)), B=(3,))
    _, _, _, built = bench.quantized(model)
    feed = bench.samples(model, 1)[0].feed
    np.testing.assert_allclose(bench.run(built.model, feed)["y"], bench.run(model, feed)["y"], rtol=1e-5)
    for value in constants(built.model).values():
        assert np.isfinite(value).all()


def test_an_input_that_is_directly_an_output_stays_float(bench):
    model = bench.text(
        "g (float[N,4] x) => (float[N,3] y, float[N,4] z) { y = MatMul(x, W) z = Identity(x) }", W=(4, 3)
    )
    built = bench.quantized(model)[3]
    feed = bench.samples(model, 1)[0].feed
    np.testing.assert_array_equal(bench.run(built.model, feed)["z"], feed["x"])


def test_nodes_of_other_domains_stay_beside_integer_ones(bench):
    model = bench.text(
        "g (float[N,4] x) => (float[N,3] y) { h = MatMul(x, W) a = com.microsoft.FastGelu(h) y = MatMul(a, V) }",
        domains=', "com.microsoft" : 1',
        W=(4, 8),
        V=(8, 3),
    )
    _, plan, _, built = bench.quantized(model)
    assert len(plan.layers) == 2
    feed = bench.samples(model, 1)[0].feed
    expected = bench.run(model, feed)["y"]
    assert np.abs(bench.run(built.model, feed, "all")["y"] - expected).max() < 0.05 * np.abs(expected).max() + 0.05
    assert {item.domain for item in built.model.opset_import} == {"", "com.microsoft"}


def test_a_convolution_of_another_domain_is_not_taken_for_onnx_s(bench):
    prepared = bench.prepared(
        bench.text("g (float[N,4,8,8] x) => (float[A,C,D,E] y) { y = Conv(x, W) }", W=(8, 4, 3, 3))
    )
    prepared.model.graph.node[0].domain = "mine"
    prepared.model.opset_import.append(helper.make_opsetid("mine", 1))
    assert make_plan(prepared.model, Selection()).layers == ()


def test_with_signed_activations_a_product_and_its_bias_stay_apart(bench):
    text = "g (float[N,5,4] x) => (float[N,5,8] y) { m = MatMul(x, W) y = Add(m, B) }"
    prepared = bench.prepared(bench.text(text, W=(4, 8), B=(8,)))
    plan = make_plan(prepared.model, Selection())
    for activations, expected in (("u8", ["Reshape", "Gemm", "Reshape"]), ("s8", ["MatMul", "Reshape", "Add"])):
        built = build_model(prepared.model, plan, bench.table(prepared, plan, activations=activations))
        ops = [node.op_type for node in built.model.graph.node if "Linear" not in node.op_type]
        assert ops == expected
        onnx.checker.check_model(built.model)
