"""Real models give in OpenVINO what they give in onnxruntime."""

import subprocess
import sys

import numpy as np
import pytest

import int8cal

pytestmark = pytest.mark.zoo

SAMPLES = 60


def feeds(zoo, name):
    data = zoo.feeds(name, "test")

    def stream():
        for row in range(SAMPLES):
            feed = {key: value[row : row + 1] for key, value in data.items()}
            if name.startswith("silero"):
                feed["state"] = feed["state"][0]
            yield feed

    return stream


def for_target(zoo, name, folder, target):
    model, data = zoo.model_path(name), folder / "data"
    if not data.exists():
        zoo.write_calibration(name, data)
    out = folder / target
    command = [sys.executable, "-m", "int8cal", "calibrate", model, "--data", data, "-o", out, "--samples", "64"]
    subprocess.run([*map(str, command), "--no-latency", "--quiet", "--target", target], check=True)
    return next(out.glob("*.int8.onnx"))


def in_openvino(zoo, name, int8):
    evaluation = int8cal.evaluate(zoo.model_path(name), int8, feeds(zoo, name), runtimes=["openvino"], latency=False)
    return evaluation.evaluation


@pytest.mark.slow
def test_target_openvino_is_better_there_than_portable(zoo, tmp_path):
    pytest.importorskip("openvino")
    portable, own = (
        in_openvino(zoo, "resnet20", for_target(zoo, "resnet20", tmp_path, target)).runtimes[0]
        for target in ("portable", "openvino")
    )
    assert own.metrics.sqnr_db > portable.metrics.sqnr_db + 0.3
    assert not {node.op_type for node in own.kernels.nodes} & {"Convolution", "FullyConnected", "MatMul"}


# one model with a long chain, one with residual adds, one with second planes and an LSTM, one with Softmax and Pad
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mbv2", "resnet20", "kws_dscnn")),
        "silero_vad_16k_flat",
        "mnist_op8",
    ],
)
def test_openvino_is_as_close_to_the_float_model_and_closer_to_onnxruntime(zoo, calibrated, name):
    pytest.importorskip("openvino")
    evaluation = in_openvino(zoo, name, next(calibrated(name).glob("*.int8.onnx")))
    (found,) = evaluation.runtimes
    assert found.metrics.sqnr_db >= evaluation.metrics.sqnr_db - 1
    # the two differ by how intermediate sums are rounded, which is less than what int8 itself costs
    assert found.against.sqnr_db >= evaluation.metrics.sqnr_db
    assert found.against.agreement is None or found.against.agreement >= 1 - 2 / SAMPLES
    assert found.kernels.integer > 0
    assert np.isfinite(found.against.max_abs_error)
