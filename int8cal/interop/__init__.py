"""Tables for other runtimes, and from them: one file per format, `convert` is the entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.job import WeightRange

FORMATS = ("tensorrt", "ncnn", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Choices:
    """What a conversion may be told.

    Attributes:
        model: The FP32 model; needed where a format names layers, and to make a table that quantize takes.
        param: ncnn's .param file, whose layer names are to be used.
        header: First line of a TensorRT cache; None for its default.
        target, weights: Of the table that a foreign file becomes: where the model will run, and the range of its
            weights' codes. None for the file's, or else the default target and its own range.
        missing_float: Leave layers in float for whose tensors a foreign file has no range.
        force: Take a table that was made for another model.
    """

    model: Path | None = None
    param: Path | None = None
    header: str | None = None
    target: str | None = None
    weights: WeightRange | None = None
    missing_float: bool = False
    force: bool = False
