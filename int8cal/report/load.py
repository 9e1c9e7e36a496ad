"""Reads a report.json back, and refuses what is not one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from int8cal.errors import ConfigError
from int8cal.input_paths import require_readable
from int8cal.report.document import FORMAT, VERSION
from int8cal.report.runtimes import FIRST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from int8cal.report.document import Document

# Beyond these no figure is, and arithmetic on what is read could overflow.
_DIGITS = 300
_LARGEST = 1e300
_NUMBER = (int, float)
_OPTIONAL = (int, float, type(None))
_TOP: dict[str, tuple[type, ...]] = {
    "model": (dict,),
    "settings": (dict,),
    "metrics": (dict,),
    "outputs": (dict,),
    "layers": (list,),
    "fusion": (dict, type(None)),
    "saturation": (dict,),
    "size": (dict,),
    "latency_ms": (dict, type(None)),
    "timing_s": (dict,),
    "gates": (list,),
}
# Parts that a report of another tool, or an older one, may lack; an empty one stands for them.
_ADDED: dict[str, type] = {"reasons": dict, "warnings": list, "decisions": list}
_DROP = {"fp32": _OPTIONAL, "int8": _OPTIONAL, "drop": _OPTIONAL, "drop_ci95": (list,)}
_METRICS = {
    "sqnr_db": _OPTIONAL,
    "cosine": _OPTIONAL,
    "max_abs_error": _OPTIONAL,
    "agreement": _OPTIONAL,
    "top1": (dict, type(None)),
    "top5": (dict, type(None)),
}
# 95 % intervals, which reports of 0.1 lack.
_INTERVALS = ("metrics.sqnr_db_ci95", "metrics.agreement_ci95", "latency_ms.speedup_ci95")
_LAYER = {"tensor": (str,), "node": (str,), "op_type": (str,), "sqnr_db": _OPTIONAL, "clipped": _OPTIONAL}
_RANGE = {"dtype": (str,), "low": _OPTIONAL, "high": _OPTIONAL, "method": (str,)}
_WEIGHTS = {
    "node": (str,),
    "op_type": (str,),
    "weight": (str,),
    "tensor": (str,),
    "dtype": (str,),
    "range": (str,),
    "scales": (int,),
    **dict.fromkeys(("scale_min", "scale_median", "scale_max"), _OPTIONAL),
}
_GATE = {"gate": (str,), "value": _OPTIONAL, "passed": (bool,)}
_NODE = {"node": (str,), "op_type": (str,), "reason": (str,)}
_SATURATION = {"node": (str,), "op_type": (str,), "verdict": (str,), "channels": _NUMBER, "unsafe_channels": _NUMBER}
_STEP = {"step": (str,), "before_db": _OPTIONAL, "sqnr_db": _OPTIONAL, "kept": (bool,)}
_MIXED = {"budget_percent": _NUMBER, "fallback": (str,), "outcome": (str,), "layers": (list,), "curve": (list,)}
_MIXED_LAYER = {
    "node": (str,),
    "op_type": (str,),
    "contribution": _NUMBER,
    "estimated_percent": _NUMBER,
    "decision": (str,),
}
_MIXED_POINT = {
    "layers_left": (int,),
    "planes": (int,),
    "estimated_percent": _NUMBER,
    "gates": (dict,),
    "sqnr_db": _OPTIONAL,
    "kept": (bool,),
}
_MIXED_GATE = {"value": _OPTIONAL, "passed": (bool,)}
_TIMES = ("fp32", "int8", "speedup")
_RUNTIME = {"metrics": (dict,), "outputs": (dict,), "kernels": (dict, type(None)), "latency_ms": (dict, type(None))}
_AGAINST = dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "agreement"), _OPTIONAL)
_AGAIN = "evaluate again to write a sound report"


def load_report(path: Path) -> Document:
    """Read and check a report.json.

    Args:
        path: The file.

    Returns:
        The document; "samples" is None, and "reasons", "warnings" and "decisions" are empty, where the file lacks them.

    Raises:
        ConfigError: The file is missing, is not JSON, is another format or a newer version, or misses a part.
    """
    require_readable(path, ConfigError, "check the path")
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except (ValueError, RecursionError) as error:
        raise _error(path, f"is not valid JSON ({error})", "give the report.json that int8cal wrote") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _error(path, f'is not a report: "format" is not "{FORMAT}"', "give the report.json that int8cal wrote")
    if document.get("version") != VERSION:
        found = f"report version is {document.get('version')!r}, this int8cal reads version {VERSION}"
        raise _error(path, found, "update int8cal, or evaluate again")
    _check(path, document)
    document.setdefault("samples", None)
    for key, kind in _ADDED.items():
        document.setdefault(key, kind())
    return document


def _check(path: Path, document: Document) -> None:
    _keys(path, "", document, _TOP)
    for key, kind in _ADDED.items():
        if key in document:
            _keys(path, "", document, {key: (kind,)})
    _metrics(path, "metrics", document["metrics"])
    for name, output in document["outputs"].items():
        _keys(path, f"outputs.{name}", output, {"sqnr_db": _OPTIONAL, "cosine": _OPTIONAL})
        _interval(path, f"outputs.{name}.sqnr_db_ci95", output.get("sqnr_db_ci95"))
    _table(path, "layers", document["layers"], _LAYER)
    for index, layer in enumerate(document["layers"]):
        if "dtype" in layer:  # the range of a tensor that int8cal calibrated
            _keys(path, f"layers.{index}", layer, _RANGE)
    if "weights" in document:
        _keys(path, "", document, {"weights": (list,)})
        _table(path, "weights", document["weights"], _WEIGHTS)
        for index, weights in enumerate(document["weights"]):
            _scales(path, f"weights.{index}", weights)
    _table(path, "gates", document["gates"], _GATE)
    for index, gate in enumerate(document["gates"]):
        _interval(path, f"gates.{index}.ci95", gate.get("ci95"))
    if "steps" in document:
        _keys(path, "", document, {"steps": (list,)})
        _table(path, "steps", document["steps"], _STEP)
    _keys(path, "saturation", document["saturation"], {"target": (str,), "unsafe_channels": _OPTIONAL})
    if "layers" in document["saturation"]:  # reports of 0.1 have none
        _keys(path, "saturation", document["saturation"], {"channels": _NUMBER, "layers": (list,)})
        _table(path, "saturation.layers", document["saturation"]["layers"], _SATURATION)
    _keys(path, "size", document["size"], {"fp32_bytes": _NUMBER, "int8_bytes": _NUMBER})
    if document["fusion"] is not None:
        _keys(path, "fusion", document["fusion"], {"integer": _NUMBER, "float": _NUMBER, "nodes": (list,)})
        _table(path, "fusion.nodes", document["fusion"]["nodes"], _NODE)
    if document["latency_ms"] is not None:
        _keys(path, "latency_ms", document["latency_ms"], dict.fromkeys(_TIMES, _OPTIONAL))
    if "runtimes" in document:
        _runtimes(path, document["runtimes"])
    for place in _INTERVALS:
        part, _, key = place.partition(".")
        _interval(path, place, (document[part] or {}).get(key))
    if "mixed_precision" in document:
        _mixed(path, document["mixed_precision"])
    _each(path, "timing_s", list(document["timing_s"].values()), _OPTIONAL)
    _each(path, "reasons", list(document.get("reasons", {}).values()), (str,))
    for key in ("warnings", "decisions"):
        _each(path, key, document.get(key, []), (str,))


def _metrics(path: Path, place: str, metrics: Any) -> None:
    _keys(path, place, metrics, _METRICS)
    if "exact_outputs" in metrics:  # reports of 0.1 lack it
        _keys(path, place, metrics, {"exact_outputs": (list,)})
        _each(path, f"{place}.exact_outputs", metrics["exact_outputs"], (str,))
    for name in ("top1", "top5"):
        if metrics[name] is not None:
            _keys(path, f"{place}.{name}", metrics[name], _DROP)
            _interval(path, f"{place}.{name}.drop_ci95", metrics[name]["drop_ci95"])
            _together(path, f"{place}.{name}", metrics[name], ("fp32", "int8", "drop"))


def _scales(path: Path, place: str, weights: Document) -> None:
    keys = ("scale_min", "scale_median", "scale_max")
    _together(path, place, weights, keys)
    lower = 0.0
    for key in keys:
        if weights[key] is not None and weights[key] < lower:
            raise _error(path, f"{place}.{key} is {_shown(weights[key])}, expected at least {lower:g}", _AGAIN)
        lower = weights[key] or lower


def _together(path: Path, place: str, part: Document, keys: tuple[str, ...]) -> None:
    """Refuse values of which some are null, where all were measured or none was."""
    nulls = [key for key in keys if part[key] is None]
    if nulls and len(nulls) < len(keys):
        raise _error(path, f"{place}.{nulls[0]} is null while others of {place} are not", _AGAIN)


def _runtimes(path: Path, found: Any) -> None:
    _kind(path, "runtimes", found, (dict,))
    for name, part in found.items():
        place = f"runtimes.{name}"
        _keys(path, place, part, _RUNTIME)
        _metrics(path, f"{place}.metrics", part["metrics"])
        if part["kernels"] is not None:
            _keys(path, f"{place}.kernels", part["kernels"], {"integer": _NUMBER, "float": _NUMBER})
        if part["latency_ms"] is not None:
            _keys(path, f"{place}.latency_ms", part["latency_ms"], dict.fromkeys(_TIMES, _OPTIONAL))
        if name != FIRST or "against_onnxruntime" in part:
            _keys(path, place, part, {"against_onnxruntime": (dict,)})
            _keys(path, f"{place}.against_onnxruntime", part["against_onnxruntime"], _AGAINST)


def _mixed(path: Path, found: Any) -> None:
    _keys(path, "mixed_precision", found, _MIXED)
    _table(path, "mixed_precision.layers", found["layers"], _MIXED_LAYER)
    _table(path, "mixed_precision.curve", found["curve"], _MIXED_POINT)
    if any(list(point["gates"]) != list(found["curve"][0]["gates"]) for point in found["curve"]):
        raise _error(path, "mixed_precision.curve has points with different gates", _AGAIN)
    for index, point in enumerate(found["curve"]):
        _table(path, f"mixed_precision.curve.{index}.gates", list(point["gates"].values()), _MIXED_GATE)


def _interval(path: Path, place: str, value: Any) -> None:
    """Check the two ends of an interval; None stands for one that there is not."""
    if value is None:
        return
    _kind(path, place, value, (list,))
    _each(path, place, value, _OPTIONAL)
    if len(value) != 2:
        raise _error(path, f"{place} has {len(value)} values, expected 2", _AGAIN)


def _table(path: Path, place: str, rows: list[Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    for index, row in enumerate(rows):
        _keys(path, f"{place}.{index}", row, kinds)


def _each(path: Path, place: str, values: list[Any], kinds: tuple[type, ...]) -> None:
    for index, value in enumerate(values):
        _kind(path, f"{place}.{index}", value, kinds)


def _keys(path: Path, place: str, part: Any, kinds: Mapping[str, tuple[type, ...]]) -> None:
    _kind(path, place, part, (dict,))
    for key, expected in kinds.items():
        full = f"{place}.{key}" if place else key
        if key not in part:
            raise _error(path, f"{full} is missing", _AGAIN)
        _kind(path, full, part[key], expected)


def _kind(path: Path, place: str, value: Any, kinds: tuple[type, ...]) -> None:
    # To Python a bool is an int; to a report it is not a number.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise _error(path, f"{place} is {_shown(value)}, expected {names}", _AGAIN)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if abs(value) > _LARGEST:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _error(path: Path, what: str, do: str) -> ConfigError:
    return ConfigError(what, do=do, where=str(path), path=str(path))
