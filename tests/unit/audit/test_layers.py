"""Which layers multiply integers, in the forms in which tools write them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantized_models import FLOAT_UNDER_ONNXRUNTIME, SAFE, UNSAFE, Graph, conv_codes, float_model, qdq, quantized_input

from int8cal.audit.read_layers import read_layers
from int8cal.audit.worst_case import worst_cases
from int8cal.errors import ModelError
from int8cal.evaluation.fusion import audit_fusion, with_names


def judged(model, target="portable"):
    return worst_cases(model, target, audit_fusion(model, with_names(model)))


def verdicts(model, target="portable"):
    return [each.result.verdict for each in judged(model, target)]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_weights_are_found_in_every_form(name):
    model = UNSAFE[name]()
    onnx.checker.check_model(model)
    found = judged(model)
    assert {each.result.verdict for each in found} == {"unsafe"}
    if name == "gemm, transposed":  # its runtime's version decides: 1.22 runs it on integers, 1.31 in float
        return
    assert all(each.layer.onnxruntime != (name in FLOAT_UNDER_ONNXRUNTIME | {"conv, reshaped"}) for each in found)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("small codes", "safe"), ("depthwise", "exact"), ("unsigned", "exact"), ("unsigned products", "exact"), ("products", "data"), ("conv transposed, groups", "float")],
)  # fmt: skip
def test_what_cannot_saturate_is_told_apart(name, verdict):
    assert verdicts(SAFE[name]()) == [verdict]


@pytest.mark.parametrize("name", sorted(FLOAT_UNDER_ONNXRUNTIME))
def test_what_only_onednn_runs_on_integers_counts_for_portable_alone(name):
    model = UNSAFE[name]()
    assert verdicts(model, "portable") == ["unsafe"]
    assert verdicts(model, "x86-avx2") == ["float"]


@pytest.mark.parametrize("target", ["x86-vnni", "arm64"])
def test_targets_that_sum_exactly_have_no_unsafe_layer(target):
    assert verdicts(UNSAFE["conv per channel"](), target) == ["exact"]
    assert verdicts(UNSAFE["conv transposed"](), target) == ["exact"]


def test_convinteger_is_exact_under_onnxruntime():
    graph = Graph()
    graph.node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"])
    graph.node("ConvInteger", ["x_q", graph.constant("w", conv_codes((4, 6, 3, 3))), "x_z"], ["i"])
    graph.node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)
    # without a fusion audit: some versions of the runtime do not load it with s8 weights
    assert [each.result.verdict for each in worst_cases(graph.model([1, 6, 8, 8]), "portable", None)] == ["exact"]


def test_s8_activations_of_an_op_that_takes_codes_are_exact_under_onnxruntime_only():
    graph = Graph()
    q, s, z = quantized_input(graph, "int8")
    w = [graph.constant("w", conv_codes((9, 5))), s, graph.constant("w_z", np.int8(0))]
    graph.node("QLinearMatMul", [q, s, z, *w, s, z], ["y_q"])
    graph.node("DequantizeLinear", ["y_q", s, z], ["y"])
    model = graph.model([3, 9])
    assert verdicts(model, "x86-avx2") == ["exact"]
    assert verdicts(model, "portable") == ["unsafe"]


def test_float_layers_are_listed_and_cannot_saturate():
    assert verdicts(float_model()) == ["float"]
    weight_only = qdq("MatMul", conv_codes((9, 5)), [3, 9])
    for node in weight_only.graph.node:
        if node.op_type == "MatMul":
            node.input[0] = "x"
    (each,) = judged(weight_only)
    assert (each.result.verdict, each.result.why) == ("float", "its input is float")
    assert each.result.weight == "w_q"


def test_nodes_without_names_are_told_apart():
    model = UNSAFE["conv per channel"]()
    for node in model.graph.node:
        node.name = ""
    names = [node.name for node in with_names(model).graph.node]
    assert len(set(names)) == len(names)
    (each,) = judged(model)
    assert (each.result.node, each.result.verdict) == ("y_f", "unsafe")


def test_an_activation_behind_a_layout_op_is_quantized():
    graph = Graph()
    q, s, z = quantized_input(graph)
    data = graph.node("DequantizeLinear", [q, s, z], ["d"])
    flat = graph.node("Flatten", [data], ["flat"])
    w = [graph.constant("w", conv_codes((18, 5))), graph.constant("w_s", np.float32(0.01)), graph.constant("w_z", np.int8(0))]  # fmt: skip
    graph.node("MatMul", [flat, graph.node("DequantizeLinear", w, ["w_d"])], ["y_f"])
    graph.node("QuantizeLinear", ["y_f", s, z], ["y_q"])
    graph.node("DequantizeLinear", ["y_q", s, z], ["y"])
    (each,) = judged(graph.model([2, 9, 2], rank=2))
    assert each.result.verdict == "unsafe"
    assert [node.op_type for node in each.layer.data.path] == ["Flatten"]


def test_layers_inside_a_branch_are_judged():
    branches = []
    for index in range(2):
        inner = qdq("MatMul", conv_codes((9, 5)), [3, 9])
        for node in inner.graph.node:
            node.input[:] = [f"i{index}_{name}" if name != "x" else name for name in node.input]
            node.output[:] = [f"i{index}_{name}" for name in node.output]
        for tensor in inner.graph.initializer:
            tensor.name = f"i{index}_{tensor.name}"
        del inner.graph.input[:]
        inner.graph.output[0].name = f"i{index}_y"
        branches.append(inner.graph)
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "net",
        [info("x", TensorProto.FLOAT, [3, 9]), info("c", TensorProto.BOOL, [])],
        [info("y", TensorProto.FLOAT, [3, 5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = judged(model)
    assert [each.result.verdict for each in found] == ["unsafe", "unsafe"]
    assert found[0].result.node == "choice/else_branch/MatMul_y_f"


def test_without_a_fusion_audit_every_layer_that_could_run_on_integers_counts():
    model = UNSAFE["conv, reshaped"]()
    assert not judged(model)[0].layer.onnxruntime
    (layer,) = read_layers(model, None)
    assert layer.onnxruntime


@pytest.mark.parametrize("name", UNSAFE)
def test_rows_go_back_into_weights(name):
    for each in judged(UNSAFE[name]()):
        assert np.array_equal(each.layer.restore(each.rows.values), each.layer.weight.values)


def test_a_weight_of_the_wrong_rank_is_named():
    model = UNSAFE["conv per channel"]()
    for tensor in model.graph.initializer:
        if tensor.name == "w_q":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((4, 6), np.int8), "w_q"))
    with pytest.raises(ModelError, match="w_q"):
        worst_cases(model, "portable", None)
