"""Models of 16 bits and of float64 become float32 models: what is converted, what is kept, and that the outputs stay."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from int8cal.graph.index import Index, walk
from int8cal.graph.passes.float32 import CONVERTED, float32_reference, in_float32, in_their_types, plain_casts
from int8cal.graph.prepare import prepare
from int8cal.graph.signature import signature_of
from int8cal.protos import metadata_of
from int8cal.runtime.sessions import Session, simplify

WEIGHT = np.random.default_rng(0).normal(0, 0.3, (8, 8))


def made(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    return model


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    in_float32(result)
    onnx.checker.check_model(result, full_check=True)
    return result


def casts(model: onnx.ModelProto) -> list[tuple[str, str]]:
    return [(node.input[0], node.output[0]) for node in walk(model.graph) if node.op_type == "Cast"]


def test_a_float16_model_computes_in_float32_and_keeps_its_types():
    model = made("g (float16[N,8] x) => (float16[N,8] y) { a = MatMul(x, W) y = Relu(a) }", W=WEIGHT.astype(np.float16))
    result = converted(model)
    assert casts(result) == [("x", "x_float32"), ("y_float32", "y")]
    assert [value.type.tensor_type.elem_type for value in (*result.graph.input, *result.graph.output)] == [10, 10]
    assert metadata_of(result, CONVERTED) == "float16"
    np.testing.assert_array_equal(Index(result).constant("W"), WEIGHT.astype(np.float16).astype(np.float32))
    x = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float16)
    (y,) = ReferenceEvaluator(result).run(None, {"x": x})
    expected = np.maximum(x.astype(np.float32) @ WEIGHT.astype(np.float16).astype(np.float32), 0)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, expected.astype(np.float16))


def test_bfloat16_weights_keep_their_values():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="onnx brings it from 1.19 on")
    weight = WEIGHT.astype(ml_dtypes.bfloat16)
    model = made(
        "g (float[N,8] x) => (float[N,8] y) { h = Cast <to = 16> (x) a = MatMul(h, W) y = Cast <to = 1> (a) }", W=weight
    )
    result = converted(model)
    np.testing.assert_array_equal(Index(result).constant("W"), weight.astype(np.float32))
    assert metadata_of(result, CONVERTED) == "bfloat16"
    y = Session(result).run({"x": np.ones((1, 8), np.float32)})["y"]
    np.testing.assert_allclose(y[0], weight.astype(np.float32).sum(0), rtol=1e-5, atol=1e-5)


def test_subgraphs_constants_and_type_attributes_are_converted_too():
    model = made(
        """g (float16[8] x, bool c) => (float16[8] y) {
            k = Constant ()
            s = Shape(x)
            o = ConstantOfShape (s)
            b = If (c) <
                then_branch = t () => (float16[8] u) { i = Mul(x, k) u = Add(i, o) },
                else_branch = e () => (float16[8] v) { w = RandomNormalLike <dtype = 10, scale = 0.0000001> (x) v = Add(w, o) }
            >
            y = Add(b, W)
        }""",
        W=np.ones(8, np.float16),
    )
    for node, value in ((model.graph.node[0], 2), (model.graph.node[2], 0.5)):
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.array([value], np.float16))))
    result = converted(model)
    x = np.arange(8, dtype=np.float16)
    session = Session(result)
    np.testing.assert_array_equal(session.run({"x": x, "c": np.array(True)})["y"], (x * 2 + 1.5).astype(np.float16))
    np.testing.assert_array_equal(session.run({"x": x, "c": np.array(False)})["y"], np.full(8, 1.5, np.float16))


def test_a_tensor_that_is_rounded_on_purpose_stays_rounded():
    text = "h = Cast <to = 10> (x) r = Cast <to = 1> (h) y = MatMul(r, W)"
    model = made(f"g (float[N,8] x) => (float[N,8] y) {{ {text} }}", W=WEIGHT.astype(np.float32))
    assert converted(model) == model  # nothing else is of 16 bits
    model = made(
        f"g (float[N,8] x) => (float16[N,8] z) {{ {text} q = Cast <to = 10> (y) z = Add(q, V) }}",
        W=WEIGHT.astype(np.float32),
        V=np.zeros(8, np.float16),
    )
    x = np.full((1, 8), 1 + 2.0**-12, np.float32)
    result = converted(model)
    assert [node.output[0] for node in result.graph.node if node.op_type == "Cast" and node.attribute[0].i == 10] == [
        "h",
        "z",
    ]
    expected = WEIGHT.astype(np.float32).sum(0)  # x rounded to 1
    z = Session(result).run({"x": x})["z"][0]
    np.testing.assert_allclose(z, expected, rtol=1e-3, atol=1e-3)


def test_a_float32_model_is_left_alone():
    model = made("g (float[N,8] x) => (float[N,8] y) { y = MatMul(x, W) }", W=WEIGHT.astype(np.float32))
    assert converted(model) == model
    assert float32_reference(model).run is model


def test_float64_is_converted_where_a_product_has_such_weights_and_nowhere_else():
    model = made("g (double[N,8] x) => (double[N,8] y) { a = MatMul(x, W) y = Clip(a, l, h) }", W=WEIGHT)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.float64(value), name) for name, value in (("l", -1.7e308), ("h", 1.7e308))
    )
    result = converted(model)
    assert metadata_of(result, CONVERTED) == "float64"
    x = np.random.default_rng(1).normal(size=(3, 8))
    y = Session(result).run({"x": x})["y"]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, x @ WEIGHT, rtol=1e-4, atol=1e-5)
    beside = made(
        "g (float[N,8] x, double[N] t) => (float[N,8] y, double[N] u) { y = MatMul(x, W) u = Add(t, c) }",
        W=WEIGHT.astype(np.float32),
        c=np.array(2.0**40),
    )
    assert converted(beside) == beside


def test_inputs_and_outputs_of_bfloat16_are_fed_and_read_as_float32():
    model = made("g (bfloat16[N,8] x) => (bfloat16[N,8] y, float[N,8] z) { y = Add(x, V) z = Cast <to = 1> (y) }")
    model.graph.initializer.append(helper.make_tensor("V", 16, [8], np.arange(8.0)))
    signature = signature_of(model)
    assert {spec.dtype for spec in (*signature.inputs, *signature.outputs)} == {np.dtype(np.float32)}
    x = (np.arange(24, dtype=np.float32).reshape(3, 8) - 12) / 4  # and sums that 8 bits hold
    given = Session(converted(model)).run({"x": x + np.float32(2.0**-12)})
    np.testing.assert_array_equal(given["y"][x != 0], (x + np.arange(8, dtype=np.float32))[x != 0])
    assert given["y"].dtype == np.float32
    np.testing.assert_allclose(given["z"], given["y"], rtol=1e-2)


def test_an_output_that_another_node_reads_and_an_input_that_is_given_out_keep_their_names():
    model = made(
        "g (float16[N,8] x) => (float16[N,8] a, float16[N,8] x, float16[N,8] y) { a = MatMul(x, W) y = Relu(a) }",
        W=WEIGHT.astype(np.float16),
    )
    result = converted(model)
    assert [value.name for value in result.graph.output] == ["a", "x", "y"]
    assert casts(result) == [("x", "x_float32"), ("a_float32", "a"), ("y_float32", "y")]


def test_castlike_of_a_weight_is_folded():
    model = made(
        "g (float[N,8] x) => (float[N,8] y) { w = CastLike(W, x) y = MatMul(x, w) }", W=WEIGHT.astype(np.float16)
    )
    plain_casts(model)
    assert [node.op_type for node in model.graph.node] == ["Cast", "MatMul"]
    assert [node.op_type for node in prepare(model, simplify).model.graph.node] == ["MatMul"]


def test_what_is_left_in_float_is_stored_in_its_type_where_that_holds_it():
    table = np.random.default_rng(0).normal(size=(64, 8))
    model = made(
        "g (int64[N] i) => (float16[N,8] y) { e = Gather(T, i) y = MatMul(e, W) }",
        T=table.astype(np.float16),
        W=WEIGHT.astype(np.float16),
    )
    result = converted(model)
    changed = np.asarray(Index(result).constant("T")).copy()
    result.graph.initializer.append(numpy_helper.from_array(changed + np.float32(1e-6), "inexact"))
    result.graph.node.extend([helper.make_node("Gather", ["inexact", "i"], ["unused"], name="more")])
    before = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    stored = in_their_types(result)
    types = {tensor.name: tensor.data_type for tensor in stored.graph.initializer}
    assert types == {"T_float16": 10, "W": 1, "inexact": 1}  # W is smaller than what a node more would cost
    assert before["T"] == 1
    feed = {"i": np.array([3, 5])}
    expected = table.astype(np.float16).astype(np.float32)[[3, 5]] @ WEIGHT.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(Session(stored).run(feed)["y"], expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("raw", [True, False])
def test_values_of_bfloat16_are_the_upper_halves_of_float32(raw):
    bits = (WEIGHT.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.BFLOAT16, dims=bits.shape)
    if raw:
        tensor.raw_data = bits.tobytes()
    else:
        tensor.int32_data.extend(bits.ravel().tolist())
    model = made("g (float[N,8] x) => (float[N,8] y) { c = Cast <to = 1> (w) y = MatMul (x, c) }")
    model.graph.initializer.append(tensor)
    in_float32(model)
    values = numpy_helper.to_array(next(each for each in model.graph.initializer if each.name == "w"))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, (bits.astype(np.uint32) << 16).view(np.float32))
