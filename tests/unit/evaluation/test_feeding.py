"""Whether images reach a model as it expects them: a made classifier of colours that takes values of -2 to 2."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from int8cal.data.opening import open_feeds
from int8cal.evaluation.feeding import better_fed, feeding_findings
from int8cal.graph.signature import signature_of
from int8cal.job import DataSettings
from int8cal.preprocess import Preprocess

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZED = Preprocess(scale=1 / 255, mean=MEAN, std=STD)


def colour_model(bias=0.5):
    """Three classes: red, green and blue; tanh takes away what values far too large could still tell."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 3, 8, 8] x) => (float[N, 3] y) '
        "{ c = Conv (x, w, b) t = Tanh (c) p = GlobalAveragePool (t) y = Flatten (p) }"
    )
    weights = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    for name, value in (("w", weights), ("b", np.full(3, -bias, np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def write_photos(folder, count, label):
    """Noisy images, every third of one colour, in one folder per label."""
    rng = np.random.default_rng(0)
    for index in range(count):
        pixels = rng.integers(40, 180, (8, 8, 3))
        pixels[..., index % 3] += 60
        place = folder / str(label(index))
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """60 noisy images, one folder per colour."""
    return write_photos(tmp_path_factory.mktemp("photos"), 60, lambda index: index % 3)


def feeds(folder, preprocess):
    return open_feeds(DataSettings(str(folder), preprocess=preprocess), signature_of(colour_model()))


def found(folder, preprocess):
    model, samples = colour_model(), feeds(folder, preprocess)
    return [
        each.check for each in (*feeding_findings(model, samples, threads=1), *better_fed(model, samples, 3, threads=1))
    ]


def test_images_fed_right_are_not_told(photos):
    assert found(photos, NORMALIZED) == []


def test_images_without_preprocessing_are_told(photos):
    assert found(photos, None) == ["no-preprocess", "input-variant"]


def test_a_declared_preprocessing_without_scale_is_told_by_the_range(photos):
    assert "input-range" in found(photos, Preprocess())


def test_exchanged_colours_are_told_where_there_are_labels(photos):
    exchanged = Preprocess(scale=1 / 255, mean=MEAN, std=STD, color="BGR")
    (finding,) = better_fed(colour_model(), feeds(photos, exchanged), 3, threads=1)
    assert finding.check == "input-variant"
    assert "on 60 of the same images with red and blue exchanged" in finding.text


@pytest.mark.parametrize("mean", [(0.9, 0.5, 0.1), (0.67, 0.456, 0.35)])  # wrong on most, and right on most
def test_another_mean_and_std_than_that_declared_are_told_where_there_are_labels(photos, mean):
    declared = Preprocess(scale=1 / 255, mean=mean, std=STD)
    (finding,) = better_fed(colour_model(), feeds(photos, declared), 3, threads=1)
    assert "on 60 of the same images with ImageNet's mean and std in place of those declared" in finding.text
    assert finding.do.startswith("give --scale 1/255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 ")


def test_advice_to_give_options_is_for_image_files_alone(photos, tmp_path):
    raw = [(sample.feed["x"], sample.label) for sample in feeds(photos, None).spread(60)]
    values, labels = zip(*raw, strict=True)
    np.savez(tmp_path / "raw.npz", x=np.concatenate(values), labels=np.array(labels))
    (of_files,) = better_fed(colour_model(), feeds(photos, None), 3, threads=1)
    (of_arrays,) = better_fed(colour_model(), feeds(tmp_path / "raw.npz", None), 3, threads=1)
    assert of_files.text == of_arrays.text
    assert of_files.do.startswith("give --scale 1/255 ")
    assert of_arrays.do == "arrays are fed as they are: make them so, if it was trained so"


def test_what_was_done_already_is_no_advice(photos):
    # right, were the mean taken off twice; all of its classes are alike for what is fed
    model = colour_model()
    weights, bias = model.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(np.diag(100 * np.array(STD, np.float32)).reshape(3, 3, 1, 1), "w"))
    bias.CopyFrom(numpy_helper.from_array(100 * np.array(MEAN, np.float32), "b"))
    assert better_fed(model, feeds(photos, NORMALIZED), 3, threads=1) == ()


def test_a_variant_that_is_wrong_on_most_too_is_no_advice(tmp_path):
    write_photos(tmp_path, 120, lambda index: index % 3 if index % 5 < 3 else (index + 1) % 3)
    assert better_fed(colour_model(), feeds(tmp_path, None), 3, threads=1) == ()


def test_a_model_that_scales_by_itself_is_not_told(photos):
    model = colour_model()
    for name, value in (("scale", 1 / 64), ("shift", -1.8)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    inner = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 3, 8, 8] x) => (float[N, 3] y) '
        "{ s = Mul (x, scale) z = Add (s, shift) c = Conv (z, w, b) t = Tanh (c) p = GlobalAveragePool (t) "
        "y = Flatten (p) }"
    )
    inner.graph.initializer.extend(model.graph.initializer)
    assert feeding_findings(inner, feeds(photos, None), threads=1) == ()


@pytest.mark.parametrize(
    ("mean", "deviation", "checks"), [(127.5, 60.0, []), (0.0, 1.0, ["input-range"]), (127.5, 1e5, ["input-range"])]
)
def test_values_are_held_against_a_normalization_in_front_of_the_first_layer(photos, mean, deviation, checks):
    # as networks for faces have it, which take pixels from -127 to 128; the biases behind it say nothing of these
    model = colour_model()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([-0.02, 0.0, 0.02], np.float32), "b"))
    for name, value in (("mean", 0.0), ("variance", deviation**2), ("one", 1.0), ("zero", 0.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.full(3, value, np.float32), name))
    node = onnx.helper.make_node("BatchNormalization", ["x", "one", "zero", "mean", "variance"], ["n"])
    model.graph.node.insert(0, node)
    model.graph.node[1].input[0] = "n"
    found = feeding_findings(model, feeds(photos, Preprocess(mean=(mean,))), threads=1)
    assert [each.check for each in found] == checks


def test_normalized_values_do_not_overwhelm_small_biases(photos):
    # of a BatchNormalization whose inputs are centred already: its mean and its shift are next to nothing
    model = colour_model()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([-0.02, 0.0, 0.02], np.float32), "b"))
    assert feeding_findings(model, feeds(photos, NORMALIZED), threads=1) == ()
    assert [each.check for each in feeding_findings(model, feeds(photos, Preprocess()), threads=1)] == ["input-range"]


def test_a_model_without_biases_that_decides_alike_is_not_told(photos):
    model = colour_model(bias=0.0)
    del model.graph.node[1]  # no tanh: the largest stays the largest
    model.graph.node[1].input[0] = "c"
    assert feeding_findings(model, feeds(photos, None), threads=1) == ()


def test_samples_are_spread_over_the_classes(photos):
    assert {sample.label for sample in feeds(photos, NORMALIZED).spread(6)} == {0, 1, 2}
