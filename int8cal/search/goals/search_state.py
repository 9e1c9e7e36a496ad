"""What a search has measured, on disk while it runs, so that one that was killed does not measure again.

Figures are filed under the hash of the int8 model, in a file for one FP32 model, set of samples and runtime: they
follow from these alone. Anything else in the file's place is measured again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from int8cal.atomic import atomic_write
from int8cal.evaluation.result import Drop, Metrics, OutputMetrics

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "int8cal/search"


@dataclass(frozen=True)
class Figures:
    """What gates about outputs are held against."""

    metrics: Metrics
    outputs: dict[str, OutputMetrics]


class SearchState:
    """Figures by int8 model.

    Args:
        path: The file; None keeps them in memory alone.
        key: Everything besides the int8 model that figures depend on.
    """

    def __init__(self, path: Path | None, key: dict[str, str]) -> None:
        self._path, self._key = path, key
        self._found = _read(path, key) if path is not None else {}

    def get(self, model: str) -> Figures | None:
        """Return the figures of a model by its hash; None where it was not measured."""
        return self._found.get(model)

    def put(self, model: str, figures: Figures) -> None:
        """Remember the figures of a model.

        Raises:
            OutputError: The file cannot be written.
        """
        self._found[model] = figures
        if self._path is not None:
            measured = {name: asdict(each) for name, each in self._found.items()}
            text = json.dumps({"format": FORMAT, "key": self._key, "measured": measured}, indent=1)
            atomic_write(self._path, text + "\n")


def _read(path: Path, key: dict[str, str]) -> dict[str, Figures]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["key"] != key:
            return {}
        return {str(model): _figures(each) for model, each in document["measured"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _figures(values: dict[str, Any]) -> Figures:
    metrics = _intervals(values["metrics"])
    drops = {name: metrics[name] and Drop(**_intervals(metrics[name])) for name in ("top1", "top5")}
    outputs = {name: OutputMetrics(**_intervals(each)) for name, each in values["outputs"].items()}
    return Figures(Metrics(**{**metrics, **drops}), outputs)


def _intervals(values: dict[str, Any]) -> dict[str, Any]:
    """Make pairs of the lists that JSON holds."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
