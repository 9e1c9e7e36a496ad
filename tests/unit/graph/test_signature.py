"""Which axis of the inputs is the batch."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.graph.index import Index
from int8cal.graph.signature import signature_of


def batch(outputs=(), **shapes):
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    results = [helper.make_tensor_value_info(f"y{index}", 1, shape) for index, shape in enumerate(outputs)]
    return signature_of(helper.make_model(helper.make_graph([], "g", values, results))).batch


@pytest.mark.parametrize("shapes", [{"x": (64,)}, {"x": (64,), "h": (64,)}, {"x": (64,), "h": (3,)}])
def test_vectors_of_fixed_size_are_whole_samples(shapes):
    assert batch(**shapes) is None


@pytest.mark.parametrize("weights", ["float[64,32]", "float[5,64,32]", "float[64]"])
def test_an_axis_that_a_product_sums_over_is_no_batch(weights):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[K] x) => (float y) <{weights} W = {{0}}> {{ y = MatMul(x, W) }}"""
    )
    signature = signature_of(model)
    assert signature.inputs[0].shape == (64,)
    assert signature.batch is None


def test_one_number_per_row_is_a_batch_axis():
    assert batch(x=("N",)) == "dynamic"
    assert batch(x=(8, 3), lengths=(8,)) == 8


@pytest.mark.parametrize(
    ("outputs", "expected"), [([(8, 5)], 8), ([(5, 8)], None), ([(5,), (8,)], 8), ([("N", 5)], 8), ([()], 8), ([], 8)]
)
def test_a_size_that_no_output_begins_with_is_no_batch(outputs, expected):
    assert batch(outputs, x=(8, 3), shape=(8,)) == expected


@pytest.mark.parametrize(
    ("shape", "outputs", "expected"),
    [
        ((3, 64, 48), [("boxes", 4), ("boxes",)], None),
        ((3, 64, 48), [(3, 10)], 3),
        ((3, 64, 48), [], 3),
        ((5, 64, 48), [("boxes", 4)], 5),
        ((3, 8, 64, 48), [("boxes", 4)], 3),
    ],
)
def test_a_picture_by_itself_is_no_batch_of_three(shape, outputs, expected):
    assert batch(outputs, image=shape) == expected


def test_a_batch_of_one_is_one_whatever_comes_out():
    assert batch([(5, 4)], x=(1, 3)) == 1


def test_sizes_of_which_exporters_know_nothing_need_not_agree():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Relu(x) }"""
    )
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value = -1
    for dim in dims[2:]:
        dim.dim_param = "?"
    signature = signature_of(model)
    assert signature.inputs[0].shape == (None, 3, None, None)
    assert signature.batch == "dynamic"
    assert Index(model).dims("x") == (None, 3, None, None)


@pytest.mark.parametrize("nodes", ["m = Reshape(x, v)", "m = Expand(x, v)", "i = Cast <to = 1> (v) m = MatMul(i, W)"])
def test_a_vector_that_is_no_row_per_sample_leaves_no_batch_axis(nodes):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x, int64[2] v) => (float[2,3] y) <float[2,3] W = {{0}}> {{ {nodes} y = Add(x, m) }}"""
    )
    assert signature_of(model).batch == (2 if "Cast" in nodes else None)  # behind a Cast it may be anything


_LSTM = """<float[1,32,40] W = {0}, float[1,32,8] R = {0}, int64[1] axis = {1}, int64[3] three = {20, -1, 40}> {
    NODES y, h, c = LSTM <hidden_size = 8 MORE> (steps, W, R) }"""


@pytest.mark.parametrize(
    ("shape", "nodes", "more", "expected"),
    [
        ("20,1,40", "steps = Identity(x)", "", None),
        ("T,1,40", "steps = Identity(x)", "", None),
        ("20,4,40", "r = Relu(x) steps = Cast <to = 1> (r)", "", None),
        ("20,40", "steps = Unsqueeze(x, axis)", "", None),
        ("20,5,40", "steps = Transpose <perm = [1, 0, 2]> (x)", "", 20),
        ("N,5,40", "steps = Transpose <perm = [1, 0, 2]> (x)", "", "dynamic"),
        ("20,5,40", "steps = Identity(x)", ", layout = 1", 20),
        ("20,5,40", "t = Transpose <perm = [1, 0, 2]> (x) steps = Transpose <perm = [1, 0, 2]> (t)", "", None),
        ("1,1,40", "steps = Identity(x)", "", 1),
    ],
)
def test_steps_of_a_recurrence_are_no_batch(shape, nodes, more, expected):
    body = _LSTM.replace("NODES", nodes).replace("MORE", more)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float y) {body}"""
    )
    assert signature_of(model).batch == expected


def test_what_a_scan_goes_along_is_no_batch():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[20,4] x, float[20,4] z) => (float y) <float[4] s = {0}> {
            last, y = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] row) => (float[4] next, float[4] out) {
                next = Add(a, row) out = Identity(next) }> (s, x) }"""
    )
    assert signature_of(model).batch is None


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = MatMul(r, v)", 4),
        ("f = MatMul(r, v) y = Reshape(f, flat)", None),
        ("y = ReduceMean <axes = [0]> (r)", None),
    ],
    ids=["the batch", "all rows", "their mean"],
)
def test_outputs_without_a_shape_have_that_of_inference(nodes, expected):
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4,6,16] x) => (float[] y) {{ a = MatMul(x, w) r = Relu(a) {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, value in {"w": np.ones((16, 8), np.float32), "v": np.ones((8, 8), np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 8]), "flat"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.output.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [16, 8]))  # a weight, as it is
    signature = signature_of(model)
    assert signature.batch == expected
    model.graph.output[0].CopyFrom(onnx.shape_inference.infer_shapes(model).graph.output[0])
    assert model.graph.output[0].type.tensor_type.HasField("shape")
    assert signature_of(model) == signature


def test_steps_of_a_recurrence_in_a_function_are_no_batch():
    text = """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[7,1,4] x, float[1,12,4] w, float[1,12,3] r) => (float[7,1,1,3] y) { y = own.Steps(x, w, r) }
        <domain: "own", opset_import: ["" : 17]>
        Steps (a, w, r) => (b) { b = GRU <hidden_size = 3> (a, w, r) }
    """
    model = onnx.parser.parse_model(text)
    weights = [model.graph.input.pop() for _ in range(2)]
    for value in weights:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), value.name))
    assert signature_of(model).whole
    assert signature_of(onnx.inliner.inline_local_functions(model)).whole
