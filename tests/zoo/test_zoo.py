"""Real pretrained models, where the zoo is at hand: INT8CAL_ZOO names its folder, by default ../shared/zoo."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.zoo


@pytest.fixture(scope="module")
def peers(zoo):
    return json.loads((zoo.HERE / "peers.json").read_text())


def calibrate(model, data, out, *more):
    command = [sys.executable, "-m", "int8cal", "calibrate", model, "--data", data, "-o", out]
    done = subprocess.run(
        [*map(str, command), "--no-latency", "--quiet", *map(str, more)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.int8.onnx"))


@pytest.mark.parametrize(
    "name",
    [
        "resnet20",
        "kws_dscnn",
        "silero_vad_16k_flat",
        "mnist_op8",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet20_imbalanced", "mbv2")),
    ],
)
def test_sqnr_is_no_less_than_half_a_decibel_below_the_best_peer(zoo, peers, calibrated, name):
    int8 = next(calibrated(name).glob("*.int8.onnx"))
    reference, outputs = zoo.run(zoo.model_path(name), name), zoo.run(int8, name)
    best = max(peer["sqnr_db"] for peer in peers[name].values())
    assert zoo.sqnr_db(reference, outputs) >= best - 0.5


def stats(path):
    with np.load(next(path.glob("*.stats.npz"))) as data:
        return {key: data[key] for key in data.files}


@pytest.mark.slow  # tests/e2e/test_sample.py cuts the sample's data in the same ways
@pytest.mark.parametrize("name", ["resnet20", "vit"])
def test_statistics_are_the_same_bits_for_any_batches_order_and_shards(zoo, tmp_path, name):
    inputs = zoo.feeds(name, "calib")["input"][:200]
    model = zoo.model_path(name)

    def run(label, images, size):
        folder = tmp_path / label
        folder.mkdir()
        for start in range(0, len(images), size):
            np.savez(folder / f"{start:05d}.npz", input=images[start : start + size])
        # what comes after the statistics does not change them: plain ranges, and little to judge them on
        quickly = ["--method", "max", "--eval-data", min(folder.iterdir())]
        calibrate(model, folder, tmp_path / f"{label}.out", "--batch-size", size, *quickly)
        return tmp_path / f"{label}.out"

    reference = stats(run("b1", inputs, 1))
    shuffled = inputs[np.random.default_rng(0).permutation(len(inputs))]
    for label, images, size in (("b7", inputs, 7), ("b64", shuffled, 64)):
        other = stats(run(label, images, size))
        assert reference.keys() == other.keys()
        assert all(np.array_equal(reference[key], other[key]) for key in reference), label
    halves = [run("h1", inputs[:90], 7), run("h2", inputs[90:], 64)]
    merged = tmp_path / "merged.stats.npz"
    files = [str(next(half.glob("*.stats.npz"))) for half in halves]
    subprocess.run([sys.executable, "-m", "int8cal", "merge", *files, "-o", str(merged)], check=True)
    with np.load(merged) as data:
        assert all(np.array_equal(reference[key], data[key]) for key in reference)
