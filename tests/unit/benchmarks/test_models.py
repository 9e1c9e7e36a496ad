import numpy as np
import onnx
import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.models import OCTAVES, expand, image_sample, token_sample, workload
from benchmarks.samples import endless, stored_samples
from benchmarks.topologies.bert import bert
from benchmarks.topologies.images import chain, mobilenetv2, resnet50


def parameters(model):
    return sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)


@pytest.mark.parametrize(
    ("build", "low", "high", "layers"),
    [(resnet50, 25.5e6, 25.6e6, 54), (mobilenetv2, 3.4e6, 3.6e6, 53), (lambda: bert(layers=1), 8e6, 10e6, 6)],
    ids=["resnet50", "mobilenetv2", "bert"],
)
def test_a_topology_is_valid_and_has_its_parameters(build, low, high, layers):
    model = build()
    onnx.checker.check_model(model, full_check=True)
    assert low < parameters(model) < high
    weights = {tensor.name for tensor in model.graph.initializer}
    weighted = [
        node
        for node in model.graph.node
        if node.op_type in {"Conv", "Gemm", "MatMul"} and any(name in weights for name in node.input)
    ]
    assert len(weighted) == layers
    assert all(value.type.tensor_type.shape.dim[0].dim_param == "N" for value in model.graph.input)


def test_the_same_seed_gives_the_same_bytes():
    assert chain(3).SerializeToString() == chain(3).SerializeToString()
    assert chain(3).SerializeToString() != chain(3, seed=5).SerializeToString()


def test_an_attention_mask_is_an_input_of_its_own():
    model = bert(layers=1, sequence=8, vocabulary=10, mask=True)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask"]


def test_activations_stay_sane_through_sixty_layers(tmp_path):
    import onnxruntime

    found = workload("mobilenetv2", tmp_path)
    model = onnx.load(found.path)
    sums = [node.output[0] for node in model.graph.node if node.op_type == "Add"]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in sums)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for values in session.run(None, found.sample(0)):
        assert 0.1 < values.std() < 10


def test_images_have_power_in_every_octave_and_tokens_stay_in_the_vocabulary():
    image = image_sample(224)(3)["input"]
    assert image.shape == (1, 3, 224, 224)
    assert image.dtype == np.float32
    assert 0.9 < image.std() < 1.1
    # neighbours look alike, as they do in photographs
    assert np.corrcoef(image[..., :-1].ravel(), image[..., 1:].ravel())[0, 1] > 0.8
    assert max(OCTAVES) < 224
    ids = token_sample(3)["input_ids"]
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < 2000


def test_a_sample_depends_on_its_index_alone(tmp_path):
    found = workload("chain2", tmp_path)
    stored = stored_samples(found, 3, tmp_path)
    np.testing.assert_array_equal(stored[2]["input"], found.sample(2)["input"])
    assert not np.array_equal(stored[1]["input"], stored[2]["input"])
    assert sum(1 for _ in endless(found, 200, tmp_path)) == 200


@pytest.mark.parametrize("names", ["resnet51", "chain", "chain0", "chainx", ""])
def test_an_unknown_model_is_named(names, tmp_path):
    with pytest.raises(BenchmarkError, match=names or "no model"):
        workload(expand(names, tmp_path)[0], tmp_path)


def test_an_absent_zoo_is_one_clear_line(tmp_path):
    with pytest.raises(BenchmarkError, match="--zoo DIR"):
        expand("resnet50,zoo", tmp_path)


@pytest.mark.zoo
def test_zoo_models_are_used_where_they_lie(zoo, tmp_path):
    for name in expand("zoo", zoo.HERE):
        found = workload(name, tmp_path, zoo.HERE)
        assert zoo.HERE in found.path.parents
        inputs = {value.name for value in onnx.load(found.path).graph.input}
        assert found.sample(0).keys() <= inputs
    assert not list(tmp_path.iterdir())
