"""Conversions from file to file, where a model has a say."""

import onnx
import pytest

from int8cal.data.pixels import Pixels
from int8cal.errors import TableError, UsageError
from int8cal.interop import FORMATS, Choices
from int8cal.interop.convert import export_table, import_table
from int8cal.interop.tensorrt import read_tensorrt
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.uint8_input import Uint8Input
from int8cal.quantization.table_file import load_table

NET = """net (float[N,3,8,8] x) => (float[N,2,8,8] y)
{ a = Conv (x, W1)
  b = Relu (a)
  y = Conv (b, W2) }"""


@pytest.fixture
def files(bench, tmp_path):
    """A model, its table, and that table with rescaled channels."""
    from dataclasses import replace

    from int8cal.quantization.build import with_weights

    model = bench.text(NET, W1=(4, 3, 1, 1), W2=(2, 4, 1, 1))
    onnx.save(model, tmp_path / "m.onnx")
    prepared, plan, table, built = bench.quantized(tmp_path / "m.onnx")
    with_weights(table, plan, built).save(tmp_path / "t.json")
    rescaled = replace(table, corrections=(Equalization({"b": (2, 0, -1, 0)}),))
    with_weights(rescaled, plan, built).save(tmp_path / "rescaled.json")
    wrong = replace(table, corrections=(Equalization({"b": (2,)}),))
    wrong.save(tmp_path / "wrong.json")
    assert prepared.sha256 == table.model["sha256"]
    return tmp_path


def test_rescaled_ranges_need_the_model(files):
    with pytest.raises(TableError, match="give --model"):
        export_table(files / "rescaled.json", "tensorrt", files / "c", Choices())
    assert not (files / "c").exists()


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (Equalization({"t": (0.0, 1.0)}), "rescaled the channels of 1 tensor .* FP32 model"),
        (Uint8Input(Pixels("x", 1, 1.0, (0.0,), (1.0,)), None), "takes raw pixels .* FP32 model"),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_ranges_of_a_changed_model_are_refused(make, tmp_path, form, correction, message):
    make.small(corrections=(correction,)).save(tmp_path / "t.json")
    with pytest.raises(TableError, match=message):
        export_table(tmp_path / "t.json", form, tmp_path / "out.json", Choices())
    assert not (tmp_path / "out.json").exists()


def test_a_param_file_needs_the_model_whatever_the_table_is(files):
    (files / "net.param").write_text("7767517\n0 0\n", encoding="utf-8")
    with pytest.raises(UsageError, match="only the model tells apart"):
        export_table(files / "rescaled.json", "ncnn", files / "c", Choices(param=files / "net.param"))


def test_factors_of_one_are_no_change(make, tmp_path):
    make.small(corrections=(Equalization({"t": (0.0, 0.0)}),)).save(tmp_path / "t.json")
    export_table(tmp_path / "t.json", "tensorrt", tmp_path / "out", Choices())


def test_with_the_model_they_are_taken_back_and_that_is_said(files):
    choices = Choices(model=files / "m.onnx")
    plain = export_table(files / "t.json", "tensorrt", files / "c", choices)
    converted = export_table(files / "rescaled.json", "tensorrt", files / "d", choices)
    before, after = (read_tensorrt(each.content, "c").tensors for each in (plain, converted))
    assert after["b"].scale == 2 * before["b"].scale
    assert after["x"] == before["x"]
    assert converted.losses[0].startswith("the recipe rescaled channels of 1 tensor")
    assert "up to 2 times ('b')" in converted.losses[0]
    assert plain.losses[1:] == converted.losses[2:]


def test_exponents_of_another_model_are_refused(files):
    with pytest.raises(TableError, match="has 1 exponents, the model expects 4"):
        export_table(files / "wrong.json", "tensorrt", files / "c", Choices(model=files / "m.onnx"))


def test_a_table_that_lacks_a_tensor_of_the_model_is_refused(files):
    table = load_table(files / "t.json")
    del table.tensors["b"]
    table.save(files / "less.json")
    with pytest.raises(TableError, match="no entry for 1 tensor of the model: 'b'"):
        export_table(files / "less.json", "ncnn", files / "n", Choices(model=files / "m.onnx"))


def test_a_param_file_needs_the_model(files):
    (files / "p").write_text("7767517\n")
    with pytest.raises(UsageError, match="--model"):
        export_table(files / "t.json", "ncnn", files / "n", Choices(param=files / "p"))


def test_an_input_is_never_the_output(files):
    for name, choices in (("m.onnx", Choices(model=files / "m.onnx")), ("t.json", Choices())):
        before = (files / name).read_bytes()
        with pytest.raises(Exception, match="is also an input"):
            export_table(files / "t.json", "tensorrt", files / name, choices, overwrite=True)
        assert (files / name).read_bytes() == before


def test_the_settings_of_a_fakequantize_file_hold_unless_told_otherwise(files):
    export_table(files / "t.json", "openvino", files / "fq.json", Choices())
    text = (files / "fq.json").read_text().replace('"weights": "paired"', '"weights": "s7",\n  "target": "x86-avx2"')
    (files / "fq.json").write_text(text)
    imported = import_table(files / "fq.json", "openvino", files / "a", Choices(model=files / "m.onnx")).table
    assert (imported.settings.weights, imported.settings.target) == ("s7", "x86-avx2")
    told = Choices(model=files / "m.onnx", target="arm64", weights="s8")
    imported = import_table(files / "fq.json", "openvino", files / "b", told).table
    assert (imported.settings.weights, imported.settings.target) == ("s8", "arm64")
