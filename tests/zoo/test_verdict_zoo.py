"""No false alarm: the zoo's models, fed right and calibrated by default, are told nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from int8cal.cli.main import main

pytestmark = [pytest.mark.zoo, pytest.mark.slow]

MODELS = (
    "resnet20", "resnet20_imbalanced", "mbv2", "vit", "kws_dscnn", "ultraface_rfb320", "silero_vad_16k_flat",
    "text_encoder3", "mnist_op8",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_zoo_that_is_right_is_not_told_anything(name, zoo, calibrated, tmp_path):
    feeds, labels = zoo.feeds(name, "test"), zoo.labels(name)
    np.savez(tmp_path / "test.npz", **feeds, **({} if labels is None else {"labels": labels}))
    (int8,) = calibrated(name).glob("*.int8.onnx")
    command = ["evaluate", zoo.model_path(name), int8, "--data", tmp_path / "test.npz", "--no-latency", "--quiet"]
    code = main([*map(str, command), "-o", str(tmp_path / "report")])
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert (code, report["warnings"]) == (0, [])


def test_every_model_of_the_zoo_is_asked(zoo):
    assert sorted(zoo.names()) == sorted(MODELS)
