"""Layers of settings: plain nested mappings with the YAML's keys, merged in one way, made into a `Job` at the end.

Defaults, a job of a file, one value of a matrix and the command line are all layers; a later layer wins. Mappings merge
key by key, everything else (numbers, text, lists) is replaced as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from int8cal.declared import Declared, declared
from int8cal.errors import ConfigError
from int8cal.job import DEFAULT_TARGET, Job
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
    _place_below(base, layer, Job)
    return layer


def _place_below(base: Path, layer: Layer, kind: type) -> None:
    for setting in declared(kind):
        value = layer.get(setting.name)
        if value is None:
            continue
        if setting.section is not None:
            _place_below(base, value, setting.section)
        elif setting.form in ("file", "directory", "source", "labels"):
            layer[setting.name] = _below(base, value, setting.form)


def _below(base: Path, text: str, form: str) -> str:
    if (form == "labels" and text == "folders") or (
        form == "source" and _CALLABLE.fullmatch(text) and not (base / text).exists()
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
    data = dict(layer["data"])
    evaluation = dict(layer.get("evaluation", {}))
    labels = evaluation.pop("labels", None)
    if evaluation.get("data") is not None:
        inherited = {key: data[key] for key in _INHERITED_BY_EVALUATION if key in data}
        evaluation["data"] = inherited | evaluation["data"] | ({"labels": labels} if labels else {})
        if not evaluation["data"].get("path"):
            raise _missing(place, "evaluation.data.path", "path: photos/val")
    elif labels:
        data["labels"] = labels  # judged on the calibration data, so these are its labels
    quantization = dict(layer.get("quantization", {}))
    target = TARGETS.get(quantization.get("target", DEFAULT_TARGET))
    if target is not None:
        quantization.setdefault("activations", target.activations[0])
    name = name or layer.get("name") or Path(layer["model"]).stem
    sections = {"data": data, "evaluation": evaluation, "quantization": quantization}
    job: Job = _made(Job, layer | sections | {"name": name})
    return job


def _missing(place: ErrorSite, key: str, example: str) -> ConfigError:
    return ConfigError(f"{key} is missing", do=f'add "{example}"', where=place.text, key=key, line=place.line)


def _made(kind: type, layer: Layer) -> Any:
    """Make a dataclass of `int8cal.job` from the keys that a layer holds."""
    return kind(**{each.name: _value(each, layer[each.name]) for each in declared(kind) if each.name in layer})


def _value(setting: Declared, value: Any) -> Any:
    if value is None:
        return None
    if setting.section is not None:
        return _made(setting.section, value)
    return Path(value) if setting.form in ("file", "directory") else _with_tuples(value)


def _with_tuples(value: Any) -> Any:
    """Make tuples of lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value
