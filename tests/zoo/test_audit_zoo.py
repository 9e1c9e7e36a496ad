"""The audit on real models: another tool's default can saturate, int8cal's cannot."""

import json
import subprocess
import sys

import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

pytestmark = pytest.mark.zoo

INT8CAL = (sys.executable, "-m", "int8cal")


class Reader(CalibrationDataReader):
    """The first samples, one by one."""

    def __init__(self, feeds, count=16):
        self.feeds = iter([{name: values[i : i + 1] for name, values in feeds.items()} for i in range(count)])

    def get_next(self):
        return next(self.feeds, None)


def audit(model, *options):
    done = subprocess.run([*INT8CAL, "audit", str(model), "--json", *options], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)["totals"]


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=lambda form: form.name)
def test_the_default_of_another_tool_is_unsafe(zoo, tmp_path, form):
    target = tmp_path / "other.int8.onnx"
    quantize_static(
        str(zoo.model_path("resnet20")),
        str(target),
        Reader(zoo.feeds("resnet20", "calib")),
        quant_format=form,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    code, totals = audit(target, "--gate", "unsafe_channels<=0")
    assert code == 7
    assert totals["unsafe_channels"] > totals["channels"] / 2
    fixed = tmp_path / "fixed.int8.onnx"
    code, totals = audit(target, "--fix", "-o", str(fixed), "--gate", "unsafe_channels<=0")
    assert code == 0
    assert audit(fixed)[1]["unsafe_channels"] == 0


@pytest.mark.parametrize("name", ["resnet20", "kws_dscnn", "silero_vad_16k_flat"])
def test_int8cal_s_default_is_safe_and_the_report_says_so(calibrated, name):
    out = calibrated(name)
    code, totals = audit(next(out.glob("*.int8.onnx")), "--gate", "unsafe_channels<=0")
    assert (code, totals["unsafe_channels"], totals["unsafe_pairs"]) == (0, 0, 0)
    saturation = json.loads((out / "report.json").read_text())["saturation"]
    assert (saturation["target"], saturation["unsafe_channels"]) == ("portable", 0)
