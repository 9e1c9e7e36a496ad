"""The files of a report: writes report.json, report.md and report.html, and reads report.json back."""

from __future__ import annotations

import copy
import functools
import json
import operator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from int8cal.errors import ConfigError, OutputError, reason_of
from int8cal.evaluation.result_parts import FIRST
from int8cal.io.atomic import atomic_write
from int8cal.io.paths import REPORT, REPORT_MARKDOWN, REPORT_PAGE, require_readable
from int8cal.report.document import FORMAT, VERSION, LaidOut, document_from, figures_from, report_to_json
from int8cal.report.file_lines import SUMMARY
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from int8cal.evaluation.result import Metrics, Report
    from int8cal.report.document import Document, WeightScales

# What pydantic calls a wrong type, or a number that cannot be -> what was expected.
_KINDS = {
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "dataclass_type": "dict",
    "dict_type": "dict",
    "tuple_type": "list",
    "string_type": "str",
    "bool_type": "bool",
    "int_from_float": "int",
}
_AGAIN = "evaluate again to write a sound report"


def write_reports(report: Report, directory: Path) -> None:
    """Write the three reports of one job.

    Args:
        report: Any report.
        directory: Created with its parents where missing; files of these names in it are replaced, each atomically.

    Raises:
        OutputError: The directory cannot be made, or a file cannot be written.
        Exception: Of the first view that cannot be made; the others are written by then.
    """
    # All three are made before the first is written: a failure in between would leave reports of different runs.
    texts: dict[str, str] = {}
    failure: Exception | None = None
    laid_out = LaidOut(report)
    for name, view in (
        (REPORT, report_to_json),
        (REPORT_MARKDOWN, report_to_markdown),
        (REPORT_PAGE, report_to_html),
    ):
        try:
            texts[name] = view(report, laid_out)
        except Exception as error:  # noqa: BLE001 - raised again below: the other views are written all the same
            failure = failure or error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"the output directory cannot be made ({reason_of(error)})",
            do="give another output directory",
            where=str(directory),
            path=str(directory),
        ) from error
    for name, text in texts.items():
        atomic_write(directory / name, text)
    if failure is not None:
        raise failure


def load_report(path: Path) -> Document:
    """Read and check a report.json.

    Returns:
        The document; what a file may lack is None or empty where this one lacks it.

    Raises:
        ConfigError: The file is missing, is not JSON, is another format or a newer version, or misses a part.
    """
    require_readable(path, ConfigError, "check the path")
    try:
        document = figures_from(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _error(path, f"is not valid JSON ({error})", "give the report.json that int8cal wrote") from error
    if isinstance(document, dict) and document.get("format") == SUMMARY:
        raise _error(path, "is the summary of a batch, not a report", "give the directory of one job of it")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _error(path, f'is not a report: "format" is not "{FORMAT}"', "give the report.json that int8cal wrote")
    if document.get("version") != VERSION:
        found = f"report version is {document.get('version')!r}, this int8cal reads version {VERSION}"
        raise _error(path, found, "update int8cal, or evaluate again")
    try:
        report = document_from(document)
    except ValidationError as error:
        raise _refused(path, document, error) from error
    _require_sound(path, report)
    return report


def _refused(path: Path, content: Any, found: ValidationError) -> ConfigError:
    """Say what is wrong with the first part that is not as it has to be."""
    error = found.errors(include_url=False)[0]
    keys, value = [str(key) for key in error["loc"]], error["input"]
    place = ".".join(keys)
    if isinstance(value, list) and error["type"] in ("missing", "too_long"):  # an interval
        keys = keys[:-1] if error["type"] == "missing" else keys
        return _error(path, f"{'.'.join(keys)} has {len(value)} values, expected 2", _AGAIN)
    if error["type"] == "missing":
        return _error(path, f"{place} is missing", _AGAIN)
    kind = _KINDS[error["type"]].format(**error.get("ctx", {})) if error["type"] in _KINDS else error["msg"]
    expected = kind + (" or null" if _takes_null(content, error["loc"]) else "")
    return _error(path, f"{place or 'a key'} is {_shown(value)}, expected {expected}", _AGAIN)


def _takes_null(content: Any, place: tuple[int | str, ...]) -> bool:
    """Say whether null may stand in a place of a report: whether there is nothing wrong there with null in it."""
    if not place:  # a key that is no text has no place
        return False
    changed = copy.deepcopy(content)
    functools.reduce(operator.getitem, place[:-1], changed)[place[-1]] = None
    try:
        document_from(changed)
    except ValidationError as error:
        return all(each["loc"] != place for each in error.errors())
    return True


def _require_sound(path: Path, document: Document) -> None:
    """Refuse figures that contradict each other."""
    _require_sound_drops(path, "metrics", document.metrics)
    for index, weights in enumerate(document.weights):
        _require_sound_scales(path, f"weights.{index}", weights)
    for name, runtime in document.runtimes.items():
        _require_sound_drops(path, f"runtimes.{name}.metrics", runtime.metrics)
        if runtime.against_onnxruntime is None and name != FIRST:
            raise _error(path, f"runtimes.{name}.against_onnxruntime is missing", _AGAIN)
    curve = () if document.mixed_precision is None else document.mixed_precision.curve
    if any(list(point.gates) != list(curve[0].gates) for point in curve):
        raise _error(path, "mixed_precision.curve has points with different gates", _AGAIN)


def _require_sound_drops(path: Path, place: str, metrics: Metrics) -> None:
    for name, drop in (("top1", metrics.top1), ("top5", metrics.top5)):
        if drop is not None:
            _require_together(path, f"{place}.{name}", {"fp32": drop.fp32, "int8": drop.int8, "drop": drop.drop})


def _require_sound_scales(path: Path, place: str, weights: WeightScales) -> None:
    scales = {
        "scale_min": weights.scale_min,
        "scale_median": weights.scale_median,
        "scale_max": weights.scale_max,
    }
    _require_together(path, place, scales)
    lower = 0.0
    for name, scale in scales.items():
        if scale is not None and scale < lower:
            raise _error(path, f"{place}.{name} is {_shown(scale)}, expected at least {lower:g}", _AGAIN)
        lower = scale or lower


def _require_together(path: Path, place: str, values: Mapping[str, float | None]) -> None:
    """Refuse values of which some are null, where all were measured or none was."""
    nulls = [name for name, value in values.items() if value is None]
    if nulls and len(nulls) < len(values):
        raise _error(path, f"{place}.{nulls[0]} is null while others of {place} are not", _AGAIN)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _error(path: Path, what: str, do: str) -> ConfigError:
    return ConfigError(what, do=do, where=str(path), path=str(path))
