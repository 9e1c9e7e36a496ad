"""Layers of settings: plain nested mappings with the YAML's keys, merged in one way, made into a `Job` at the end.

Defaults, a job of a file, one value of a matrix and the command line are all layers; a later layer wins. Mappings merge
key by key, everything else (numbers, text, lists) is replaced as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from int8cal.errors import ConfigError
from int8cal.job import (
    CalibrationSettings,
    DataSettings,
    EvaluationSettings,
    Job,
    OutputSettings,
    Preprocess,
    QuantizationSettings,
)
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.config.locate import ErrorSite
    from int8cal.config.schema import Section

Layer = dict[str, Any]

_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Evaluation images go through the same preprocessing as calibration images unless they say otherwise.
_INHERITED_BY_EVALUATION = ("preprocess", "skip_bad", "seed")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Layer:
    """Put one layer on top of another; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def nest(settings: Mapping[str, object]) -> Layer:
    """Turn {"calibration.method": "kl"} into {"calibration": {"method": "kl"}}."""
    layer: Layer = {}
    for path, value in settings.items():
        part: Any = value
        for key in reversed(path.split(".")):
            part = {key: part}
        layer = merge(layer, part)
    return layer


def layer_of(section: Section, base: Path) -> Layer:
    """Take the keys that a checked section really holds, paths made relative to `base`.

    Args:
        section: A validated `JobLayer`.
        base: The YAML file's directory, or Path() for the command line.
    """
    layer: Layer = section.model_dump(exclude_unset=True, exclude={"defaults", "jobs", "matrix"})
    evaluation = layer.get("evaluation", {})
    for mapping, key in (
        (layer, "model"),
        (layer.get("data"), "path"),
        (layer.get("data"), "labels"),
        (layer.get("calibration"), "statistics"),
        (evaluation.get("data"), "path"),
        (evaluation.get("data"), "labels"),
        (evaluation, "labels"),
        (layer.get("output"), "dir"),
    ):
        if mapping and mapping.get(key) is not None:
            mapping[key] = _below(base, mapping[key], key)
    return layer


def _below(base: Path, text: str, key: str) -> str:
    if (key == "labels" and text == "folders") or (
        key == "path" and _CALLABLE.fullmatch(text) and not (base / text).exists()
    ):
        return text
    return str(base / Path(text).expanduser())


def job_of(layer: Layer, place: ErrorSite, *, name: str = "") -> Job:
    """Make a job from fully merged settings.

    Args:
        layer: All layers merged.
        place: Where the job stands, for the message about a missing key.
        name: The job's name; the model's stem when empty.

    Raises:
        ConfigError: model or data is missing.
    """
    if not layer.get("model"):
        raise _missing(place, "model", "model: model.onnx")
    if not layer.get("data"):
        raise _missing(place, "data", "data: photos/train")
    if not layer["data"].get("path"):
        raise _missing(place, "data.path", "path: photos/train")
    model = Path(layer["model"])
    data = dict(layer["data"])
    evaluation = dict(layer.get("evaluation", {}))
    labels = evaluation.pop("labels", None)
    if evaluation.get("data") is not None:
        inherited = {key: data[key] for key in _INHERITED_BY_EVALUATION if key in data}
        evaluation["data"] = inherited | evaluation["data"] | ({"labels": labels} if labels else {})
        if not evaluation["data"].get("path"):
            raise _missing(place, "evaluation.data.path", "path: photos/val")
        evaluation["data"] = _data(evaluation["data"])
    elif labels:
        data["labels"] = labels  # judged on the calibration data, so these are its labels
    for key in ("gates", "runtimes", "providers"):
        evaluation[key] = tuple(evaluation.get(key, ()))
    quantization = dict(layer.get("quantization", {}))
    for key in ("exclude", "include"):
        quantization[key] = tuple(quantization.get(key, ()))
    target = TARGETS.get(quantization.get("target", QuantizationSettings.target))
    if target is not None:
        quantization.setdefault("activations", target.activations[0])
    quantization["ranges"] = {
        tensor: (float(low), float(high)) for tensor, (low, high) in quantization.get("ranges", {}).items()
    }
    calibration, output = dict(layer.get("calibration", {})), dict(layer.get("output", {}))
    if calibration.get("statistics") is not None:
        calibration["statistics"] = Path(calibration["statistics"])
    if output.get("dir") is not None:
        output["dir"] = Path(output["dir"])
    return Job(
        model=model,
        data=_data(data),
        calibration=CalibrationSettings(**calibration),
        quantization=QuantizationSettings(**quantization),
        evaluation=EvaluationSettings(**evaluation),
        output=OutputSettings(**output),
        quiet=layer.get("quiet", False),
        name=name or layer.get("name") or model.stem,
    )


def _missing(place: ErrorSite, key: str, example: str) -> ConfigError:
    return ConfigError(f"{key} is missing", do=f'add "{example}"', where=place.text, key=key, line=place.line)


def _data(settings: Layer) -> DataSettings:
    preprocess = settings.get("preprocess")
    return DataSettings(**(settings | {"preprocess": None if preprocess is None else _preprocess(preprocess)}))


def _preprocess(settings: Layer) -> Preprocess:
    values: Layer = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return Preprocess(**values)
