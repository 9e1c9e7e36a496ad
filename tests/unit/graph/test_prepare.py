import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from op_types import ops

from int8cal.errors import ModelError
from int8cal.graph.index import Index
from int8cal.graph.passes.opsets import MAX_OPSET
from int8cal.graph.prepare import normalize, prepare
from int8cal.graph.prepare import require_layers as require
from int8cal.graph.select import Selection
from int8cal.runtime.sessions import simplify

NET = """g (float[N,4,8,8] x) => (float[N,8,6,6] y) {
    c = Conv(x, W, B)
    b = BatchNormalization(c, s, o, m, v)
    y = Relu(b)
}"""


@pytest.fixture
def net(bench):
    return bench.text(NET, W=(8, 4, 3, 3), B=(8,), s=(8,), o=(8,), m=(8,), v=np.linspace(0.5, 2, 8))


def opset(model):
    return next(item.version for item in model.opset_import if item.domain == "")


def same_outputs(bench, original, prepared):
    for sample in bench.samples(original, 2):
        expected, actual = bench.run(original, sample.feed), bench.run(prepared.model, sample.feed)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5)


def test_batch_norm_folds_into_the_convolution_and_outputs_stay(bench, net):
    prepared = prepare(net, simplify)
    assert ops(prepared.model) == ["Conv", "Relu"]
    same_outputs(bench, net, prepared)


def test_constants_fold(bench):
    model = bench.text(
        """g (float[N,4] x) => (float[N,6] y) { t = Transpose(W) n = Neg(t) y = MatMul(x, n) }""", W=(6, 4)
    )
    prepared = prepare(model, simplify)
    assert ops(prepared.model) == ["MatMul"]
    same_outputs(bench, model, prepared)


@pytest.mark.parametrize(("given", "expected"), [(11, 13), (12, 13), (13, 13), (17, 17), (21, 21)])
def test_only_an_opset_below_13_is_raised(bench, given, expected):
    model = bench.text(
        "g (float[N,4,8,8] x) => (float[N,8,6,6] y) { c = Conv(x, W) y = Relu(c) }", opset=given, W=(8, 4, 3, 3)
    )
    prepared = prepare(model, simplify)
    assert opset(prepared.model) == expected
    same_outputs(bench, model, prepared)


def test_clip_attributes_of_opset_9_become_inputs(bench):
    model = bench.text(
        "g (float[N,4,8,8] x) => (float[N,8,6,6] y) { c = Conv(x, W) y = Clip <min = 0.0, max = 6.0> (c) }",
        opset=9,
        W=(8, 4, 3, 3),
    )
    prepared = prepare(model, simplify)
    assert [len(node.input) for node in prepared.model.graph.node] == [2, 3]
    same_outputs(bench, model, prepared)


def test_an_old_model_whose_weights_are_no_inputs_is_raised(bench):
    model = bench.text("g (float[N,4] x) => (float[N,6] y) { y = MatMul(x, W) }", opset=11, W=(4, 6))
    model.ir_version = 3
    assert opset(prepare(model, simplify).model) == 13


@pytest.mark.newest  # older versions do not know this opset
def test_an_opset_that_the_runtime_has_no_quantize_linear_of_is_lowered(bench):
    model = bench.text("g (float[N,4] x) => (float[N,6] y) { h = MatMul(x, W) y = Relu(h) }", opset=28, W=(4, 6))
    prepared = prepare(model, simplify)
    assert opset(prepared.model) == MAX_OPSET
    same_outputs(bench, model, prepared)


@pytest.mark.newest  # older versions of onnx do not know this opset
def test_ops_that_have_changed_are_converted_down(bench):
    nodes = "h = MatMul(x, W) c = Celu(h) y = Cast <to = 1> (c)"
    model = bench.text(f"g (float[N,4] x) => (float[N,6] y) {{ {nodes} }}", opset=28, W=(4, 6))
    prepared = prepare(model, simplify)
    assert opset(prepared.model) == MAX_OPSET
    same_outputs(bench, model, prepared)


def test_initializers_listed_as_inputs_are_no_inputs_afterwards(bench, net):
    net.graph.input.append(onnx.helper.make_tensor_value_info("W", 1, [8, 4, 3, 3]))
    prepared = prepare(net, simplify)
    assert [value.name for value in prepared.model.graph.input] == ["x"]
    assert [spec.name for spec in prepared.signature.inputs] == ["x"]
    assert len(net.graph.input) == 2  # the user's model is not touched


def test_nodes_get_unique_names_and_good_ones_stay(bench):
    model = bench.text(
        "g (float[N,4] x) => (float[N,4] y) { a = Tanh(x) b = Tanh(a) c = Tanh(b) d = Tanh(c) y = Tanh(d) }"
    )
    for node, name in zip(model.graph.node, ["twice", "twice", "good", "", "Tanh_c"], strict=True):
        node.name = name
    names = [node.name for node in normalize(model, "m").graph.node]
    assert names == ["Tanh_a", "Tanh_b", "good", "Tanh_d", "Tanh_c"]


def test_descriptions_metadata_and_dynamic_axes_survive(net):
    net.producer_name, net.producer_version, net.domain, net.model_version = "trainer", "1.2", "org.example", 7
    net.doc_string, net.graph.doc_string = "about the model", "about the graph"
    net.graph.input[0].doc_string = "pixels"
    net.metadata_props.add(key="labels", value="cat,dog")
    prepared = prepare(net, simplify).model
    assert (prepared.producer_name, prepared.producer_version) == ("trainer", "1.2")
    assert (prepared.domain, prepared.model_version) == ("org.example", 7)
    assert (prepared.doc_string, prepared.graph.doc_string, prepared.graph.name) == (
        "about the model",
        "about the graph",
        "g",
    )
    assert [(item.key, item.value) for item in prepared.metadata_props] == [("labels", "cat,dog")]
    assert prepared.graph.input[0] == net.graph.input[0]
    assert prepared.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"


@pytest.mark.parametrize("scale", [3.0, 1.5, 0.75])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op_type", "given"), [("Upsample", 9), ("Resize", 10)])
def test_images_are_resized_as_before_the_opset_was_raised(bench, op_type, given, mode, scale):
    if op_type == "Upsample" and scale < 1:
        return  # it only makes images larger
    model = bench.text(
        f'g (float[1,2,8,8] x) => (float[1,2,C,D] y) {{ y = {op_type} <mode = "{mode}"> (x, scales) }}', opset=given
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales"))
    prepared = prepare(model, simplify)
    assert opset(prepared.model) == 13
    same_outputs(bench, model, prepared)


def test_opsets_that_no_node_uses_are_not_imported(net):
    assert [item.domain for item in prepare(net, simplify).model.opset_import] == [""]


def test_custom_domains_of_kept_nodes_stay_imported(bench):
    model = bench.text(
        "g (float[N,4] x) => (float[N,6] y) { h = MatMul(x, W) y = com.microsoft.FastGelu(h) }",
        domains=', "com.microsoft" : 1',
        W=(4, 6),
    )
    assert {item.domain for item in prepare(model, simplify).model.opset_import} == {"", "com.microsoft"}


@pytest.mark.parametrize("transposed", [0, 1])
def test_alpha_and_beta_of_gemm_go_into_its_constants(bench, transposed):
    model = bench.text(
        f"""g (float[N,4] x) => (float[N,6] y) {{
            y = Gemm <alpha = 0.5, beta = 3.0, transB = {transposed}> (x, W, B)
        }}""",
        W=(6, 4) if transposed else (4, 6),
        B=(6,),
    )
    prepared = prepare(model, simplify)
    (node,) = prepared.model.graph.node
    values = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert (values.get("alpha", 1.0), values.get("beta", 1.0)) == (1.0, 1.0)
    same_outputs(bench, model, prepared)


def test_a_gemm_weight_that_another_node_reads_is_not_scaled_for_it(bench):
    model = bench.text(
        """g (float[N,4] x, float[4,6] z) => (float[N,6] y, float[4,6] u) {
            y = Gemm <alpha = 0.5> (x, W)
            u = Add(z, W)
        }""",
        W=(4, 6),
    )
    same_outputs(bench, model, prepare(model, simplify))


def test_inner_tensors_get_types_and_shapes(net):
    index = Index(prepare(net, simplify).model)
    inner = next(name for name in index.producer if name not in index.outputs)
    assert index.elem_type(inner) == onnx.TensorProto.FLOAT
    assert index.rank(inner) == 4


def test_large_constants_do_not_get_in_the_way_of_shape_inference(bench):
    model = bench.text(
        "g (float[N,4,32] x) => (float[N,K] y) { r = Reshape(x, s) y = MatMul(r, W) }", s=np.array([0, -1]), W=(128, 16)
    )
    prepared = prepare(model, simplify).model
    (dims,) = [value.type.tensor_type.shape.dim for value in prepared.graph.value_info if value.name == "r"]
    assert dims[1].dim_value == 128
    assert numpy_helper.to_array(prepared.graph.initializer[-1]).size  # the weights themselves are still there


def test_an_already_quantized_model_is_refused(bench, net):
    with pytest.raises(ModelError, match="already quantized"):
        prepare(bench.quantized(net)[3].model, simplify)


def test_a_model_without_any_operator_set_is_refused(net):
    del net.opset_import[:]
    with pytest.raises(ModelError, match="imports no ONNX operator set"):
        prepare(net, simplify)


def test_the_other_name_of_the_standard_domain_changes_nothing(net):
    usual = normalize(net, "net")
    for item in net.opset_import:
        item.domain = "ai.onnx"
    for node in net.graph.node[:2]:
        node.domain = "ai.onnx"
    assert normalize(net, "net") == usual
    assert prepare(net, simplify).model.graph == prepare(usual, simplify).model.graph


@pytest.mark.parametrize("domains", [("", ""), ("", "ai.onnx"), ("ai.onnx", "")])
def test_of_two_operator_sets_the_last_is_meant_as_in_the_runtime(bench, domains):
    model = bench.text("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }")
    del model.opset_import[:]
    for domain, version in zip(domains, (11, 13), strict=True):
        model.opset_import.add(domain=domain, version=version)
    normal = normalize(model, "net")
    assert [(each.domain, each.version) for each in normal.opset_import] == [("", 13)]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(bench.run(normal, {"x": x})["y"], bench.run(model, {"x": x})["y"])


def test_a_model_of_other_domains_alone_has_nothing_to_quantize():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]>
        g (float[N,4] x) => (float[N,4] y) { y = ai.onnx.ml.Normalizer(x) }"""
    )
    with pytest.raises(ModelError, match=r"ops of ai.onnx.ml only, none of ONNX's own .*; run the model in float"):
        prepare(model, simplify)


def test_an_operator_that_the_runtime_does_not_know_is_a_model_error(bench, tmp_path):
    model = bench.text(
        "g (float[N,4] x) => (float[N,6] y) { h = MatMul(x, W) y = mine.Secret(h) }", domains=', "mine" : 1', W=(4, 6)
    )
    with pytest.raises(ModelError, match=r"onnxruntime cannot load it.*Secret.*; export it without this operator"):
        prepare(model, simplify)
    path = tmp_path / "secret.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError) as caught:
        prepare(path, simplify)
    assert caught.value.where == str(path)


def test_local_functions_are_inlined_and_quantized(bench):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "loc" : 1]>
        g (float[N,2] x) => (float[N,2] y)
        <float[2,2] W = {1, 2, 3, 4}, float[2,2] V = {0.5, -1, 2, 1}> { h = loc.Layer(x, W) y = loc.Layer(h, V) }
        <domain: "loc", opset_import: ["" : 17]>
        Layer (a, w) => (o) { s = MatMul(a, w) o = Relu(s) }"""
    )
    prepared, plan, _, built = bench.quantized(model)
    assert [layer.op_type for layer in plan.layers] == ["MatMul", "MatMul"]
    same_outputs(bench, model, prepared)
    onnx.checker.check_model(built.model)


@pytest.mark.parametrize(("opset", "activations"), [(17, "u16"), (12, "u8")])
def test_local_functions_stay_what_they_are_where_the_opset_is_raised(bench, opset, activations):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "loc" : 1]>
        g (float[N,2] x) => (float[N,2] y)
        <float[2,2] W = {{1, 2, 3, 4}}, float[2,2] V = {{0.5, -1, 2, 1}}> {{ h = loc.Both(x, W) y = loc.Layer(h, V) }}
        <domain: "loc", opset_import: ["" : {opset}]> Layer (a, w) => (o) {{ s = MatMul(a, w) o = Relu(s) }}
        <domain: "loc", opset_import: ["" : {opset}, "loc" : 1]> Both (a, w) => (o) {{ b = loc.Layer(a, w) o = Tanh(b) }}"""
    )
    prepared = prepare(model, simplify, activations)
    assert [layer.op_type for layer in require(prepared, Selection()).layers] == ["MatMul", "MatMul"]
    same_outputs(bench, model, prepared)


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_models_of_other_float_types_are_quantized_and_keep_their_types(bench, kind):
    model = bench.text(f"g ({kind}[N,4] x) => ({kind}[N,6] y) {{ y = MatMul(x, W) }}")
    dtype = np.float16 if kind == "float16" else np.float64
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 6), dtype), "W"))
    prepared = prepare(model, simplify)
    (layer,) = require(prepared, Selection()).layers
    assert (layer.node, layer.op_type) == ("MatMul_y", "MatMul")
    assert [spec.dtype for spec in (*prepared.signature.inputs, *prepared.signature.outputs)] == [dtype, dtype]


@pytest.mark.parametrize(
    ("body", "exclude", "reason"),
    [
        ("y = Tanh(x)", (), "no Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU or RNN that can be quantized;"),
        ("y = MatMul(x, x)", (), "its weights are not constant"),
        ("y = MatMul(x, W)", ("*",), "excluded by the user"),
    ],
)
def test_a_model_without_a_layer_to_quantize_is_refused_with_reasons(bench, body, exclude, reason):
    model = bench.text(f"g (float[4,4] x) => (float[4,4] y) {{ {body} }}", W=(4, 4))
    with pytest.raises(ModelError, match=reason) as caught:
        require(prepare(model, simplify), Selection((), exclude))
    assert caught.value.exit_code == 3


def test_a_model_of_transposed_convolutions_alone_is_refused_where_they_run_in_float(bench):
    model = bench.text("g (float[N,4,8,8] x) => (float[A,B,C,D] y) { y = ConvTranspose(x, W) }", W=(4, 3, 2, 2))
    prepared = prepare(model, simplify)
    for target in ("portable", "x86-avx2", "arm64"):
        with pytest.raises(
            ModelError, match=r"no integer kernel for it.*run the model in float, or .*--target"
        ) as caught:
            require(prepared, Selection(target=target))
        assert caught.value.exit_code == 3
    for target in ("openvino", "tensorrt"):
        assert [layer.node for layer in require(prepared, Selection(target=target)).layers] == ["ConvTranspose_y"]


@pytest.mark.parametrize("sum_", ["Add(m, B)", "Add(B, m)"])
@pytest.mark.parametrize("shape", [(6,), (1, 6)])
def test_a_product_of_matrices_takes_the_constant_row_behind_it_as_bias(bench, sum_, shape):
    model = bench.text(f"g (float[N,4] x) => (float[N,6] y) {{ m = MatMul(x, W) y = {sum_} }}", W=(4, 6), B=shape)
    model.graph.node[0].name = "dense"
    prepared = prepare(model, simplify)
    assert [(node.op_type, node.name) for node in prepared.model.graph.node] == [("Gemm", "dense")]
    same_outputs(bench, model, prepared)


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "bias"),
    [
        ("float[N,5,4] x", "float[N,5,6] y", "m = MatMul(x, W) y = Add(m, B)", (6,)),  # not a matrix
        ("float[N,4] x", "float[N,6] y, float[N,6] m", "m = MatMul(x, W) y = Add(m, B)", (6,)),  # its output is wanted
        ("float[N,4] x", "float[N,6] y", "m = MatMul(x, W) a = Add(m, B) y = Mul(a, m)", (6,)),  # read twice
        ("float[1,4] x", "float[3,6] y", "m = MatMul(x, W) y = Add(m, B)", (3, 6)),  # not a row
        ("float[N,4] x", "float[N,6] y", "m = MatMul(x, W) y = Add(m, m)", (6,)),
    ],
)
def test_other_products_stay_as_they_are(bench, inputs, outputs, body, bias):
    model = bench.text(f"g ({inputs}) => ({outputs}) {{ {body} }}", W=(4, 6), B=bias)
    prepared = prepare(model, simplify)
    assert "MatMul" in ops(prepared.model)
    same_outputs(bench, model, prepared)
