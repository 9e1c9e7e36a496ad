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
    data, report = tmp_path / "test", tmp_path / "report"
    data.mkdir()
    labels, first = zoo.labels(name), 0
    for number, feed in enumerate(zoo.batches(name, "test")):
        count = len(next(iter(feed.values())))
        told = {} if labels is None else {"labels": labels[first : first + count]}
        np.savez(data / f"{number:05}.npz", **feed, **told)
        first += count
    (int8,) = calibrated(name).glob("*.int8.onnx")
    command = ["evaluate", zoo.model_path(name), int8, "--data", data, "--no-latency", "--quiet"]
    code = main([*map(str, command), "-o", str(report)])
    said = json.loads((report / "report.json").read_text(encoding="utf-8"))
    assert (code, said.get("findings", []), said["warnings"]) == (0, [], [])


def test_every_model_of_the_zoo_is_asked(zoo):
    assert sorted(zoo.names()) == sorted(MODELS)
