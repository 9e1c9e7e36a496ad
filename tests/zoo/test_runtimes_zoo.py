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


# one model with a long chain, one with residual adds, one with second planes and an LSTM, one with Softmax and Pad
@pytest.mark.parametrize("name", ["mbv2", "resnet20", "silero_vad_16k_flat", "kws_dscnn", "mnist_op8"])
def test_openvino_is_as_close_to_the_float_model_and_closer_to_onnxruntime(zoo, tmp_path, name):
    pytest.importorskip("openvino")
    model, data = zoo.model_path(name), zoo.write_calibration(name, tmp_path / "data")
    command = [sys.executable, "-m", "int8cal", "calibrate", model, "--data", data, "-o", tmp_path / "out"]
    subprocess.run([*map(str, command), "--no-latency", "--quiet", "--samples", "128"], check=True)
    int8 = next((tmp_path / "out").glob("*.int8.onnx"))
    evaluation = int8cal.evaluate(model, int8, feeds(zoo, name), runtimes=["openvino"], latency=False).evaluation
    (found,) = evaluation.runtimes
    assert found.metrics.sqnr_db >= evaluation.metrics.sqnr_db - 1
    # the two differ by how intermediate sums are rounded, which is less than what int8 itself costs
    assert found.against.sqnr_db >= evaluation.metrics.sqnr_db
    assert found.against.agreement is None or found.against.agreement >= 1 - 2 / SAMPLES
    assert found.kernels.integer > 0
    assert np.isfinite(found.against.max_abs_error)
