"""A directory as Optimum's ORTModels have them becomes one of the int8 model, which the same class loads.

from model_directory import quantize_directory
from optimum.onnxruntime import ORTModelForSequenceClassification

quantize_directory("exported", "exported-int8", "reviews.csv", preprocess={"text": {"max_length": 128}})
model = ORTModelForSequenceClassification.from_pretrained("exported-int8", file_name="model_quantized.onnx")
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import external_data_helper

import int8cal

if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTIZED = "model_quantized.onnx"  # as Optimum calls what it quantizes
_TOKENIZER = "tokenizer.json"


def quantize_directory(
    directory: str | Path,
    output: str | Path,
    data: Any,
    *,
    file_name: str = "model.onnx",
    preprocess: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Quantize the model of a directory, and write a directory with all that belongs to it.

    Args:
        directory: With `file_name`, and with what Optimum exports beside it: config.json, tokenizer.json, ….
        output: A directory that is not there yet.
        data: As for `int8cal.calibrate`. Text goes through the directory's own tokenizer.json.
        file_name: The FP32 model.
        preprocess: As for `int8cal.calibrate`; of text the tokenizer may be left out.
        settings: Other keywords of `int8cal.calibrate`.

    Returns:
        The int8 model's file, beside its table.

    Raises:
        FileExistsError: The output is there.
        Int8calError: See `int8cal.calibrate`.
    """
    source, target = Path(directory), Path(output)
    model, tokenizer = source / file_name, source / _TOKENIZER
    if target.exists():
        raise FileExistsError(target)
    chosen = dict(preprocess or {})
    if tokenizer.is_file() and isinstance(data, (str, Path)) and ("text" in chosen or _is_text(data)):
        chosen["text"] = {"tokenizer": str(tokenizer), **chosen.get("text", {})}
    table = int8cal.calibrate(model, data, preprocess=chosen or None, **settings)
    quantized = int8cal.quantize(model, table)
    left = _files(model)  # other models of the directory stay float beside it
    shutil.copytree(source, target, ignore=lambda folder, names: [n for n in names if Path(folder, n) in left])
    onnx.save(quantized, target / QUANTIZED)
    table.save(target / "model_quantized.table.json")
    return target / QUANTIZED


def _files(model: Path) -> set[Path]:
    """Name a model's file, and the files that hold its large tensors."""
    tensors = onnx.load(model, load_external_data=False).graph.initializer
    outside = (external_data_helper.ExternalDataInfo(each) for each in tensors if each.external_data)
    return {model, *(model.parent / each.location for each in outside)}


def _is_text(data: str | Path) -> bool:
    return Path(str(data)).suffix.lower() in (".txt", ".csv", ".tsv", ".jsonl")
