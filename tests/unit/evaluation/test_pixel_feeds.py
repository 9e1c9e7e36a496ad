import json
from functools import partial

import numpy as np
import onnx
import pytest

from int8cal.audit.worst_case import audit_saturation
from int8cal.data.pixels import UINT8_INPUT_KEY, Pixels
from int8cal.errors import DataError, ModelError
from int8cal.evaluation import evaluate
from int8cal.evaluation.pixel_feeds import feeds_for, pixels_of_model

evaluate_pair = partial(evaluate.evaluate_pair, audit=audit_saturation)

IMAGENET = Pixels("x", 1, 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def raw(tools):
    """The classifier on raw pixels: the preprocessing is in its graph, and its metadata says so."""
    model = tools.classifier()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    shape = (3, 1, 1)
    extra = {
        "gain": IMAGENET.gain.astype(np.float32).reshape(shape),
        "offset": IMAGENET.offset.astype(np.float32).reshape(shape),
    }
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["x.float"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["x.float", "gain"], ["x.scaled"]),
        onnx.helper.make_node("Add", ["x.scaled", "offset"], ["x.ready"]),
    ]
    model.graph.node[0].input[0] = "x.ready"
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in extra.items())
    tell(model, IMAGENET.to_dict())
    return model


def tell(model, record):
    del model.metadata_props[:]
    model.metadata_props.add(key=UINT8_INPUT_KEY, value=record if isinstance(record, str) else json.dumps(record))


def samples(tools, count=5):
    rng = np.random.default_rng(3)
    for index in range(count):
        codes = rng.integers(0, 256, (1, 3, 8, 8))
        x = codes * IMAGENET.gain.reshape(-1, 1, 1) + IMAGENET.offset.reshape(-1, 1, 1)
        yield tools.sample({"x": x.astype(np.float32)}, f"image {index}", index % 8)


def test_a_model_on_raw_pixels_is_judged_on_the_same_images(tools, fp32, raw):
    evaluation = evaluate_pair(fp32, raw, samples(tools))
    assert evaluation.metrics.sqnr_db > 100
    assert evaluation.metrics.top1.int8 == evaluation.metrics.top1.fp32
    assert evaluation.latency is not None


def test_other_models_get_the_samples_as_they_are(tools, fp32):
    given = list(samples(tools))
    assert list(feeds_for(fp32, given)) == given
    assert pixels_of_model(fp32) is None


def test_the_origin_stays_with_the_pixels(tools, raw):
    fed = list(feeds_for(raw, samples(tools)))
    assert [sample.origin for sample in fed] == [f"image {index}" for index in range(5)]
    assert all(sample.feed["x"].dtype == np.uint8 for sample in fed)


def test_a_sample_that_is_no_image_is_named(tools, fp32, raw):
    noise = tools.sample({"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)}, "noise.npy")
    with pytest.raises(DataError, match="no whole number") as caught:
        evaluate_pair(fp32, raw, [noise], latency=False)
    assert caught.value.where == "noise.npy"


@pytest.mark.parametrize("record", ["no json", "[]", {"input": "x"}, IMAGENET.to_dict() | {"std": [0, 0, 0]}])
def test_malformed_metadata_is_the_models_fault(raw, record):
    tell(raw, record)
    with pytest.raises(ModelError, match=UINT8_INPUT_KEY):
        pixels_of_model(raw)


def test_an_integer_input_without_a_word_about_it_is_refused(tools, fp32, raw):
    del raw.metadata_props[:]
    with pytest.raises(ModelError, match="'x' of the int8 model is uint8, that of the FP32 model float32"):
        evaluate_pair(fp32, raw, samples(tools), latency=False)


def test_metadata_of_a_float_input_is_refused(tools, fp32):
    other = tools.classifier()
    tell(other, IMAGENET.to_dict())
    with pytest.raises(ModelError, match="its type is float32"):
        evaluate_pair(fp32, other, samples(tools), latency=False)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("N", 3), r"'x' of the int8 model has shape \(N, 3\), that of the FP32 model \(N, 3, 8, 8\)"),
        (("N", 3, 8, 9), r"has shape \(N, 3, 8, 9\)"),
    ],
)
def test_an_input_of_another_shape_is_refused(tools, fp32, shape, said):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    other = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [renamed(value, "y")]))
    with pytest.raises(ModelError, match=f"{said}.*; give the FP32 model that the int8 model was made from"):
        evaluate_pair(fp32, other, samples(tools), latency=False)


def renamed(value, name):
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def test_an_output_that_holds_floats_in_one_model_only_is_refused(tools, fp32):
    other = tools.classifier()
    node = onnx.helper.make_node("IsNaN", [other.graph.output[0].name], ["flags"])
    other.graph.node.append(node)
    other.graph.output[0].name = "flags"
    other.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    with pytest.raises(ModelError, match='output "y" is float32 in the FP32 model and bool in the int8 model'):
        evaluate_pair(fp32, other, samples(tools), latency=False)
