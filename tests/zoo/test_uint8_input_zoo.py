"""Raw pixels into real pretrained models: no accuracy is lost at the input, padding included."""

import numpy as np
import onnxruntime
import pytest

import int8cal
from int8cal.evaluation.pixel_feeds import pixels_of_model

IMAGENET = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

pytestmark = pytest.mark.zoo

FEW = 15  # samples: nothing is fitted on so few, which is kept for one of two models and not for the other by chance


# Gains in dB over the model with a float input: +0.1 resnet20, +0.5 mbv2, 0.0 vit and ultraface, whose mean of 127 is a
# code in both. A loss of 0.3 would be a fault.
@pytest.mark.parametrize(
    ("name", "preprocess"),
    [
        ("resnet20", IMAGENET),
        pytest.param("mbv2", IMAGENET, marks=pytest.mark.slow),
        pytest.param("vit", IMAGENET, marks=pytest.mark.slow),
        pytest.param("ultraface_rfb320", {"mean": [127.0], "std": [128.0]}, marks=pytest.mark.slow),
    ],
)
def test_sqnr_is_that_of_a_float_input_or_better(zoo, name, preprocess):
    model = zoo.model_path(name)
    (key, images), *_ = zoo.feeds(name, "calib").items()
    feeds = [{key: image[None]} for image in images[:FEW]]
    reference = zoo.run(model, name)
    ratio = {}
    for uint8 in (False, True):
        # inputs in one plane: a float input could have a second one
        made = preprocess if uint8 else None
        table = int8cal.calibrate(model, feeds, uint8_input=uint8, preprocess=made, latency_allowance=0)
        int8 = int8cal.quantize(model, table)
        pixels = pixels_of_model(int8)
        session = onnxruntime.InferenceSession(int8.SerializeToString(), providers=["CPUExecutionProvider"])
        batches = [feed[key] for feed in zoo.batches(name, "test")]
        given = batches if pixels is None else [pixels.codes(batch, name) for batch in batches]
        outputs = [np.concatenate(parts) for parts in zip(*[session.run(None, {key: x}) for x in given], strict=True)]
        ratio[uint8] = zoo.sqnr_db(reference, outputs)
    assert ratio[True] > ratio[False] - 0.3
