"""Files that are given in place of an ONNX model, told by their first bytes: what each is, and what to do."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TORCH = "export the model with torch.onnx.export and give the .onnx file"
_KERAS = "convert it with tf2onnx and give the .onnx file"
_SOURCE = "give the ONNX model it was made from"
_FETCH = "download the file itself"
# Where the bytes stand, the bytes, what such a file is, and what to do.
_MARKS = (
    (0, b"\x80\x02", "a Python pickle, as PyTorch wrote .pt files before 1.6", _TORCH),
    (0, b"\x80\x03", "a Python pickle", _TORCH),
    (0, b"\x80\x04", "a Python pickle", _TORCH),
    (8, b'{"', "a safetensors file, which holds weights and no network", _TORCH),
    (4, b"TFL3", "a TensorFlow Lite model", _KERAS),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes them", _KERAS),
    (4, b"ORTM", "a model in ORT format", _SOURCE),
    (0, b"ftrt", "a TensorRT engine", _SOURCE),
    (0, b"ptrt", "a TensorRT engine", _SOURCE),
    (0, b"GGUF", "a GGUF file", _SOURCE),
    (0, b"7767517", "an ncnn network", _SOURCE),
    (0, b"<?xml", "an XML file, as the models of OpenVINO are", _SOURCE),
    (0, b"version https://git-lfs", "the pointer of Git LFS to a file", "fetch the file with git lfs pull"),
    (0, b"<!DOCTYPE", "a web page", _FETCH),
    (0, b"<!doctype", "a web page", _FETCH),
    (0, b"<html", "a web page", _FETCH),
)
_READ = 512


@dataclass(frozen=True)
class ForeignFormat:
    """What a file is instead of an ONNX model, for a message that begins with "is", and what to do."""

    what: str
    do: str

    @property
    def is_model(self) -> bool:
        """Whether it is a model all the same, of another tool."""
        return self.do in (_TORCH, _KERAS, _SOURCE)


def foreign_format(path: Path) -> ForeignFormat | None:
    """Tell what a file is that is no ONNX model; None where its bytes do not say, and for .npz archives."""
    with path.open("rb") as stream:
        start = stream.read(_READ)
    if not start:
        return ForeignFormat("empty (0 bytes)", "export or download it again")
    if start.startswith(b"PK\x03\x04"):
        return _archive(path)
    for place, mark, what, do in _MARKS:
        if start.startswith(mark, place):
            return ForeignFormat(what, do)
    if all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in start):
        return ForeignFormat("a text file", "give the path of an .onnx file")
    return None


def _archive(path: Path) -> ForeignFormat | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError):  # cut off, or of a version that there is not
        return ForeignFormat("a damaged zip archive", "give the path of an .onnx file")
    if names and all(name.endswith(".npy") for name in names):
        return None
    if any(name.endswith(("data.pkl", "constants.pkl")) for name in names):
        return ForeignFormat("a PyTorch file (.pt or .pth)", _TORCH)
    return ForeignFormat("a zip archive", "unpack it and give the .onnx file in it")
