"""Which axis of the inputs is the batch."""

import onnx
import pytest
from onnx import helper

from int8cal.graph.signature import signature_of


def batch(**shapes):
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    return signature_of(helper.make_model(helper.make_graph([], "g", values, []))).batch


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
