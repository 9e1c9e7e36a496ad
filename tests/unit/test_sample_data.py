from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from PIL import Image

SAMPLE = Path(__file__).parents[2] / "sample_data"
SHIPPED = ("README.md", "make_sample.py", "sample.yaml", "model.onnx", "calib/*/*.png", "eval/*/*.png")


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(SAMPLE / "model.onnx")


def content_hashes(folder: str) -> list[str]:
    """Hash decoded pixels, so that the same image in two encodings counts as the same."""
    hashes = []
    for path in sorted((SAMPLE / folder).glob("*/*.png")):
        with Image.open(path) as image:
            hashes.append(hashlib.sha256(image.tobytes()).hexdigest())
    return hashes


def eval_set() -> tuple[np.ndarray, np.ndarray]:
    paths = sorted((SAMPLE / "eval").glob("*/*.png"))
    pixels = []
    for path in paths:
        with Image.open(path) as image:
            pixels.append(np.asarray(image, dtype=np.float32)[None])
    return np.stack(pixels), np.array([int(path.parent.name) for path in paths])


def test_the_sample_stays_under_3_mb() -> None:
    files = [path for pattern in SHIPPED for path in SAMPLE.glob(pattern)]
    assert len(files) == 4 + 200 + 450
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_the_model_is_valid_and_has_opset_17_or_higher(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] >= 17


def test_the_model_takes_a_dynamic_batch_of_grey_images(model: onnx.ModelProto) -> None:
    (image,), (logits,) = model.graph.input, model.graph.output
    shapes = [[d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in (image, logits)]
    assert (image.name, logits.name) == ("image", "logits")
    assert shapes == [["batch", 1, 32, 32], ["batch", 10]]


def test_the_model_leaves_folding_and_relu6_for_int8cal(model: onnx.ModelProto) -> None:
    ops = [node.op_type for node in model.graph.node]
    depthwise = [
        n for n in model.graph.node if n.op_type == "Conv" for a in n.attribute if a.name == "group" and a.i > 1
    ]
    assert ops.count("BatchNormalization") == ops.count("Conv") == 8
    assert ops.count("Clip") == 7
    assert ops.count("Add") == 1
    assert len(depthwise) == 1
    assert all(node.name for node in model.graph.node)


def test_fp32_top1_on_the_evaluation_images_is_at_least_97_percent() -> None:
    images, labels = eval_set()
    session = onnxruntime.InferenceSession(SAMPLE / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": images})
    assert logits.shape == (450, 10)
    assert np.mean(logits.argmax(axis=1) == labels) >= 0.97


def test_images_are_32_by_32_grey_in_one_folder_per_digit() -> None:
    for folder, per_class in (("calib", 20), ("eval", 45)):
        counts = {path.name: len(list(path.glob("*.png"))) for path in (SAMPLE / folder).iterdir()}
        assert counts == {str(digit): per_class for digit in range(10)}
        for path in (SAMPLE / folder).glob("*/*.png"):
            with Image.open(path) as image:
                assert (image.mode, image.size) == ("L", (32, 32))


def test_no_image_occurs_twice_or_in_both_calibration_and_evaluation() -> None:
    hashes = content_hashes("calib") + content_hashes("eval")
    assert len(hashes) == 650
    assert len(set(hashes)) == len(hashes)


def test_the_yaml_names_what_is_there_and_gates_one_point_of_top1() -> None:
    job = yaml.safe_load((SAMPLE / "sample.yaml").read_text(encoding="utf-8"))
    assert (SAMPLE / job["model"]).is_file()
    assert (SAMPLE / job["data"]["path"]).is_dir()
    assert (SAMPLE / job["evaluation"]["data"]).is_dir()
    assert job["evaluation"]["gates"] == ["top1.drop<=1.0"]
