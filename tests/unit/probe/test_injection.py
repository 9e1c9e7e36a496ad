"""The float model with places for errors: without errors it is the model, with one it is the model with that error."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.numerics.affine import fake_quantized
from int8cal.probe.injection import ErrorSite, make_injection
from int8cal.runtime.sessions import Session

IMAGE = "g (float[N,4,8,8] x)"
WEIGHTS = {"W": (4, 4, 3, 3), "B": (4,), "V": (4, 4, 1, 1), "K": (4, 4, 4, 4), "G": (4, 3)}
MODELS = {
    "chain": f"{IMAGE} => (float[A,C,D,E] y) {{ c = Conv(x, W, B) r = Relu(c) y = Conv(r, V) }}",
    "residual": f"{IMAGE} => (float[A,C,D,E] y) "
    "{ a = Conv(x, V) b = Conv(a, V) s = Add(a, b) t = Conv(s, V) u = Add(s, t) y = Conv(u, V) }",
    "written by a kernel, and read on": f"{IMAGE} => (float[A,C,D,E] c, float[F,H,I,J] y) "
    "{ c = Conv(x, V) y = Conv(c, V) }",
    "written by a kernel, in float behind": f"{IMAGE} => (float[A,C,D,E] c, float[F,H,I,J] y) "
    "{ c = Conv(x, V) y = Tanh(c) }",
    "layers and float read one tensor": f"{IMAGE} => (float[A,C,D,E] y) "
    "{ t = Tanh(x) a = Conv <pads = [1, 1, 2, 2]> (t, K) b = Sin(t) y = Add(a, b) }",
    "integers and layers read an input": f"{IMAGE} => (float[A,C,D,E] y) "
    "{ a = Conv(x, V) s = Add(x, a) y = Conv(s, V) }",
    "pools and a product": f"{IMAGE} => (float[A,C] y) "
    "{ a = Conv(x, V) p = GlobalAveragePool(a) f = Flatten(p) y = Gemm(f, G) }",
}


def model_and_plan(bench, model):
    return bench.prepared(model).model, bench.plan(model)


def setup(bench, name, **settings):
    model = bench.text(MODELS[name], **WEIGHTS)
    prepared, plan, table, _ = bench.quantized(model)
    feed = bench.samples(model, 1, seed=9)[0].feed
    return prepared.model, plan, table, feed, make_injection(prepared.model, plan, **settings)


def run(injection, feed, errors=None):
    added = {injection.inputs[place]: value for place, value in (errors or {}).items()}
    return Session(injection.model, threads=1).run({**feed, **added})


def values_of(model, plan, feed):
    """Every planned tensor of the float model."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    tapped.graph.output.extend(onnx.ValueInfoProto(name=p.tensor) for p in plan.tensors if p.tensor not in known)
    return {**feed, **Session(tapped, threads=1, optimization="none").run(feed)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("outputs", [False, True])
def test_without_errors_the_outputs_are_the_models(bench, name, outputs):
    model, _, _, feed, injection = setup(bench, name, behind_layers=outputs)
    expected = bench.run(model, feed, "all")
    actual = run(injection, feed)
    assert set(actual) == set(expected)
    for output, value in expected.items():
        np.testing.assert_allclose(actual[output], value, rtol=1e-5, atol=1e-6)


def quantized_by_hand(model, tensor, affine, readers):
    """Q and DQ behind one tensor, for the readers that are named; "" among them renames the graph output."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    graph.initializer.append(numpy_helper.from_array(np.array(affine.scale, np.float32), "by_hand/scale"))
    graph.initializer.append(numpy_helper.from_array(np.array(affine.zero_point, affine.dtype.name), "by_hand/zero"))
    source, target = tensor, "by_hand/value"
    nodes = []
    for node in graph.node:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        for slot, name in enumerate(copy.input):
            if name == tensor:
                copy.input[slot] = target if node.name in readers else source
        nodes.append(copy)
    if "" in readers:
        for copy in nodes:
            copy.output[:] = ["by_hand/exact" if name == tensor else name for name in copy.output]
            copy.input[:] = ["by_hand/exact" if name == tensor else name for name in copy.input]
            copy.input[:] = [tensor if name == target else name for name in copy.input]
        source, target = "by_hand/exact", tensor
    pair = [
        helper.make_node("QuantizeLinear", [source, "by_hand/scale", "by_hand/zero"], ["by_hand/codes"]),
        helper.make_node("DequantizeLinear", ["by_hand/codes", "by_hand/scale", "by_hand/zero"], [target]),
    ]
    at = next((index + 1 for index, node in enumerate(nodes) if source in node.output), 0)
    del graph.node[:]
    graph.node.extend([*nodes[:at], *pair, *nodes[at:]])
    return result


@pytest.mark.parametrize("name", MODELS)
def test_an_error_at_one_place_is_that_tensor_quantized_for_these_readers(bench, name):
    model, plan, table, feed, injection = setup(bench, name)
    values = values_of(model, plan, feed)
    layers = {layer.node for layer in plan.layers}
    outputs = {value.name for value in model.graph.output}
    assert injection.inputs
    for place in injection.inputs:
        point, affine = plan.tensor(place.tensor), table.tensors[place.tensor].affine
        reading = {node.name for node in model.graph.node if place.tensor in node.input}
        others = reading - layers if point.exclusive else (reading - layers) & plan.integer_nodes
        readers = reading & layers if place.readers == "layers" else others
        if place.readers == "others" and place.tensor in outputs and point.exclusive:
            readers = readers | {""}
        expected = bench.run(quantized_by_hand(model, place.tensor, affine, readers), feed)
        actual = run(injection, feed, {place: fake_quantized(values[place.tensor], affine) - values[place.tensor]})
        for output, value in expected.items():
            np.testing.assert_allclose(actual[output], value, rtol=1e-4, atol=2e-5, err_msg=str(place))


@pytest.mark.parametrize("name", MODELS)
def test_all_errors_at_once_are_the_quantized_model_of_float_weights(bench, name):
    """Whatever reads codes has a place: rounding what arrives at each gives what Q and DQ everywhere give."""
    model, plan, _, _, injection = setup(bench, name)
    read = set()
    for node in model.graph.node:
        for slot, tensor in enumerate(node.input):
            point = plan.tensor(tensor)
            if point is None:
                continue
            if any(layer.node == node.name for layer in plan.layers) and slot == 0:
                read.add(ErrorSite(tensor, "layers"))
            elif point.exclusive or node.name in plan.integer_nodes:
                read.add(ErrorSite(tensor, "others"))
    ends = {value.name for value in model.graph.output}
    read |= {ErrorSite(each.tensor, "others") for each in plan.tensors if each.exclusive and each.tensor in ends}
    assert set(injection.inputs) == read


def test_a_place_behind_a_layer_lies_before_its_activation(bench):
    model, _, _, feed, injection = setup(bench, "chain", behind_layers=True)
    assert {place.tensor for place in injection.inputs if place.readers == "output"} == {"Conv_c", "Conv_y"}
    shift = np.full((1, 1, 1, 1), 0.7, np.float32)
    shifted = onnx.ModelProto()
    shifted.CopyFrom(model)
    for tensor in shifted.graph.initializer:
        if tensor.name == "B":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + shift.reshape(1), "B"))
    actual = run(injection, feed, {ErrorSite("Conv_c", "output"): shift})
    np.testing.assert_allclose(actual["y"], bench.run(shifted, feed)["y"], rtol=1e-4, atol=1e-5)
    assert not any(place.readers == "output" for place in setup(bench, "chain")[-1].inputs)


def test_names_that_the_model_has_already_do_no_harm(bench):
    model = bench.text(MODELS["written by a kernel, and read on"], **WEIGHTS)
    plain = make_injection(*model_and_plan(bench, model))
    clashing = onnx.ModelProto()
    clashing.CopyFrom(model)
    added = {*plain.inputs.values(), *(name for node in plain.model.shell.graph.node for name in node.output)}
    added -= {"c", "y"}
    for name in sorted(added):  # each of them is now a graph output of the model itself
        clashing.graph.node.append(helper.make_node("Abs", ["x"], [name]))
        clashing.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    prepared, plan = model_and_plan(bench, clashing)
    injection = make_injection(prepared, plan)
    assert not {*injection.inputs.values()} & added
    feed = bench.samples(model, 1)[0].feed
    expected, actual = bench.run(prepared, feed), run(injection, feed)
    assert set(actual) == set(expected) == added | {"c", "y"}
    np.testing.assert_allclose(actual["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_initializers_that_are_graph_inputs_too_stay_defaults(bench):
    model = bench.text(MODELS["chain"], **WEIGHTS)
    for tensor in list(model.graph.initializer):
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    prepared, plan = model_and_plan(bench, model)
    feed = bench.samples(model, 1)[0].feed
    injection = make_injection(prepared, plan)
    np.testing.assert_allclose(run(injection, feed)["y"], bench.run(prepared, feed)["y"], rtol=1e-5, atol=1e-6)


def test_the_model_itself_is_not_changed(bench):
    prepared, plan = model_and_plan(bench, bench.text(MODELS["residual"], **WEIGHTS))
    before = prepared.SerializeToString(deterministic=True)
    make_injection(prepared, plan, behind_layers=True)
    assert prepared.SerializeToString(deterministic=True) == before
