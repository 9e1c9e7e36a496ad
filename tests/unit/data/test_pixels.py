import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.data.pixels import Pixels, pixels_of
from int8cal.data.sample import Sample
from int8cal.errors import ConfigError, DataError, ModelError
from int8cal.graph.signature import Signature, TensorSpec
from int8cal.preprocess import Preprocess

IMAGENET = Pixels("x", 1, 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NUMBER = st.floats(0.01, 4.0).flatmap(lambda value: st.sampled_from([value, -value]))


def preprocessed(pixels, codes):
    """As data/images.py does it: float32, scale, mean, std."""
    shape = (-1, *[1] * (codes.ndim - pixels.axis - 1))
    values = codes.astype(np.float32) * np.float32(pixels.scale)
    return (values - np.float32(pixels.mean).reshape(shape)) / np.float32(pixels.std).reshape(shape)


def signature(*shape, dtype=np.float32):
    return Signature((TensorSpec("x", np.dtype(dtype), shape),), ())


@given(NUMBER, st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(NUMBER, min_size=3, max_size=3))
def test_every_pixel_survives_the_way_there_and_back(factor, mean, std):
    pixels = Pixels("x", 1, factor / 255, tuple(mean), tuple(std))
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (1, 3, 1, 256))
    back = pixels.codes(preprocessed(pixels, codes), "a.png")
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, codes)


def test_channels_may_be_last():
    pixels = Pixels("x", 3, 1.0, (10.0, 20.0, 30.0), (1.0, 2.0, 3.0))
    codes = np.random.default_rng(1).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    values = (codes - np.float32([10, 20, 30])) / np.float32([1, 2, 3])
    np.testing.assert_array_equal(pixels.codes(values, "a.png"), codes)


@pytest.mark.parametrize(
    ("value", "pixel"), [(0.5, "0.5"), (-1.0, "-1"), (256.0, "256"), (np.nan, "nan"), (np.inf, "inf")]
)
def test_what_is_no_pixel_is_refused_with_its_sample(value, pixel):
    values = np.zeros((1, 1, 2, 2), np.float32)
    values[0, 0, 1, 0] = value
    with pytest.raises(DataError, match=f"pixel {pixel}, no whole number") as caught:
        Pixels("x", 1, 1.0, (0.0,), (1.0,)).codes(values, "b.npz[3]")
    assert caught.value.where == "b.npz[3]"


def test_another_number_of_channels_is_refused():
    with pytest.raises(DataError, match="expected 3 channels on axis 1"):
        IMAGENET.codes(np.zeros((1, 1, 2, 2), np.float32), "c.npy")


def test_checked_passes_pixels_on_and_stops_at_others():
    good = Sample({"x": preprocessed(IMAGENET, np.full((1, 3, 2, 2), 7))}, "good")
    bad = Sample({"x": good.feed["x"] + np.float32(0.01)}, "bad")
    stream = IMAGENET.checked([good, bad])
    assert next(stream) is good
    with pytest.raises(DataError) as caught:
        next(stream)
    assert caught.value.where == "bad"


def test_json_keeps_every_bit():
    assert Pixels.from_dict(json.loads(json.dumps(IMAGENET.to_dict()))) == IMAGENET


@pytest.mark.parametrize(
    "change",
    [
        {"input": 3},
        {"axis": 2},
        {"axis": None},
        {"axis": True},
        {"axis": [1]},
        {"axis": 1.0},
        {"mean": [0.5]},
        {"mean": "0.5"},
        {"std": [1.0, 0.0, 1.0]},
        {"std": [1.0, None, 1.0]},
        {"std": [1.0, 10**400, 1.0]},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": None},
        {"scale": 1e300},
        {"scale": 1e-320},
        {"std": [1.0, 1e-300, 1.0]},
        {"mean": [1.0, 1e38, 1.0]},
    ],
)
def test_a_malformed_record_is_refused(change):
    with pytest.raises(ValueError):
        Pixels.from_dict({**IMAGENET.to_dict(), **change})


@pytest.mark.parametrize("document", [None, [], "pixels", {}])
def test_no_object_is_refused(document):
    with pytest.raises(ValueError, match="input"):
        Pixels.from_dict(document)


def test_the_preprocessing_gives_one_value_per_channel():
    declared = Preprocess(scale=0.5, mean=(2.0,), std=())
    assert pixels_of(signature("N", 3, 8, 8), declared, "m") == Pixels("x", 1, 0.5, (2.0,) * 3, (1.0,) * 3)
    assert pixels_of(signature("N", 8, 8, 1), None, "m") == Pixels("x", 3, 1.0, (0.0,), (1.0,))
    assert pixels_of(signature("N", 8, 8), None, "m") == Pixels("x", None, 1.0, (0.0,), (1.0,))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (signature("N", 16), "no image"),
        (signature("N", 4, 8, 8), "where the channels are"),
        (signature("N", 3, 8, 8, dtype=np.float64), "float32"),
        (signature("N", 3, 8, 8, dtype=np.uint8), "float32"),
        (Signature((*signature("N", 3, 8, 8).inputs, TensorSpec("y", np.dtype(np.float32), ("N",))), ()), "one input"),
    ],
)
def test_a_model_without_an_image_input_is_refused(given, words):
    with pytest.raises(ModelError, match=words) as caught:
        pixels_of(given, None, "model.onnx")
    assert "uint8_input" in caught.value.what
    assert caught.value.where == "model.onnx"


def test_preprocessing_that_does_not_fit_is_the_configuration_s_fault():
    with pytest.raises(ConfigError, match="mean has 2 values"):
        pixels_of(signature("N", 3, 8, 8), Preprocess(mean=(1.0, 2.0)), "m")


@pytest.mark.parametrize("declared", [Preprocess(std=(1e38,)), Preprocess(scale=1e35), Preprocess(mean=(-1e35,))])
def test_preprocessing_beyond_float32_is_refused_before_any_data_is_read(declared):
    with pytest.raises(ConfigError, match="within float32"):
        pixels_of(signature("N", 3, 8, 8), declared, "m")
