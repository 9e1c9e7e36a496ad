import struct
import zipfile

import pytest

from int8cal.describe import describe_file
from int8cal.errors import ModelError, UsageError
from int8cal.graph.foreign import foreign_format
from int8cal.graph.load import load_model
from int8cal.report.screen import Screen

HEADER = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


def torch(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("net/version", "3\n")


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net.onnx", b"\x08\x08")


def holding(content):
    return lambda path: path.write_bytes(content)


FILES = {
    "a PyTorch file (.pt or .pth)": torch,
    "a Python pickle, as PyTorch wrote .pt files before 1.6": holding(b"\x80\x02}q\x00."),
    "a safetensors file, which holds weights and no network": holding(
        struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)
    ),
    "a TensorFlow Lite model": holding(b"\x1c\x00\x00\x00TFL3" + bytes(40)),
    "an HDF5 file, as Keras writes them": holding(b"\x89HDF\r\n\x1a\n" + bytes(40)),
    "a TensorRT engine": holding(b"ftrt" + bytes(40)),
    "an XML file, as the models of OpenVINO are": holding(b'<?xml version="1.0"?><net name="x"></net>'),
    "a web page": holding(b"<!DOCTYPE html><html>404</html>"),
    "the pointer of Git LFS to a file": holding(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "a zip archive": archive,
    "a damaged zip archive": holding(b"PK\x03\x04" + bytes(20)),
    "a text file": holding("naïve notes, no model\n".encode()),
    "empty (0 bytes)": holding(b""),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_of_another_format_is_called_by_its_name_wherever_a_model_is_asked_for(tmp_path, what):
    path = tmp_path / "net.onnx"
    FILES[what](path)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert caught.value.what == f"is {what}, not an ONNX model"
    assert caught.value.do == foreign_format(path).do
    path = path.rename(tmp_path / "net.bin")
    expected = ModelError if foreign_format(path).is_model else UsageError
    with pytest.raises(expected, match=r", (not an|no) ONNX model") as caught:
        describe_file(path, Screen())
    assert caught.value.what.startswith(f"is {what}, ")


def test_what_the_bytes_do_not_tell_is_not_named(tmp_path, bench):
    model = bench.text("net (float[N,4] x) => (float[N,4] y) { y = Neg(x) }").SerializeToString()
    for content in (model, model[:20], bytes(40), b"\xff\xfe\x00"):
        (tmp_path / "m.onnx").write_bytes(content)
        assert foreign_format(tmp_path / "m.onnx") is None
