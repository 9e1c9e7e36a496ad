"""Everything that a job's results follow from: the model's bytes, the data, the settings, the versions."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from int8cal.batch.sources import Source, content_of, file_digest, source_of
from int8cal.evaluating import versions
from int8cal.graph.load import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from int8cal.job import DataSettings, Job

# No result depends on these: where things are, what may be replaced, what is printed, how far to read ahead.
_LEFT_OUT = {
    "": ("model", "name", "output", "quiet"),
    "data": ("path",),
    "calibration": ("batch_size", "statistics"),
}


@dataclass(frozen=True)
class Inputs:
    """What a job's results follow from.

    Attributes:
        model, sha256: The model's file name, and the hash of its bytes with its external data.
        data, evaluation: Calibration and evaluation data; evaluation None where it is the calibration data.
        settings: Key path -> value, as JSON has it.
        versions: Library -> version.
    """

    model: str
    sha256: str
    data: Source
    evaluation: Source | None
    settings: dict[str, Any]
    versions: dict[str, str]


@dataclass
class Lookups:
    """Looks at every file once, however many jobs of a batch read it."""

    _hashes: dict[Path, str] = field(default_factory=dict)
    _sources: dict[tuple[str, str | None], Source] = field(default_factory=dict)
    _contents: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def sha256(self, model: Path) -> str:
        """Hash a model."""
        if model not in self._hashes:
            self._hashes[model] = file_sha256(model)
        return self._hashes[model]

    def source(self, data: DataSettings) -> Source:
        """Look at data."""
        key = (data.path, data.labels)
        if key not in self._sources:
            self._sources[key] = source_of(data)
        return self._sources[key]

    def content(self, data: DataSettings) -> str:
        """Read data."""
        key = (data.path, data.labels)
        if key not in self._contents:
            self._contents[key] = content_of(data, self.source(data))
        return self._contents[key]


def inputs_of(job: Job, lookups: Lookups) -> Inputs:
    """Take the inputs of a job.

    Args:
        job: Any job.
        lookups: What is known of its files.

    Raises:
        DataError: There is no data.
        OSError, ValueError: A file cannot be read, or the model is none.
    """
    return Inputs(
        model=job.model.name,
        sha256=lookups.sha256(job.model),
        data=lookups.source(job.data),
        evaluation=None if job.evaluation.data is None else lookups.source(job.evaluation.data),
        settings=_settings(job) | _statistics(job),
        versions={**versions(job.evaluation.runtimes), "pillow": importlib.metadata.version("pillow")},
    )


def with_contents(inputs: Inputs, job: Job, lookups: Lookups) -> Inputs:
    """Add the hashes of the data's bytes, which tell later whether files that were touched are the same."""
    evaluation = inputs.evaluation
    if evaluation is not None and job.evaluation.data is not None:
        evaluation = replace(evaluation, content=lookups.content(job.evaluation.data))
    data = replace(inputs.data, content=lookups.content(job.data))
    return replace(inputs, data=data, evaluation=evaluation)


def changes(before: Inputs, now: Inputs, job: Job, lookups: Lookups) -> tuple[str, ...]:
    """Say in words what is not the same; nothing where results would be.

    Args:
        before: With the contents of the data.
        now: The job's.
        job: What `now` was taken from.
        lookups: What is known of its files.
    """
    found = [
        *(["the model"] if (before.model, before.sha256) != (now.model, now.sha256) else []),
        *(["the data"] if not _same(before.data, now.data, job.data, lookups) else []),
        *(
            ["the evaluation data"]
            if not _same(before.evaluation, now.evaluation, job.evaluation.data, lookups)
            else []
        ),
    ]
    for old, new in ((before.settings, now.settings), (before.versions, now.versions)):
        found += [
            f"{key} {_told(old.get(key))} -> {_told(new.get(key))}"
            for key in dict.fromkeys((*old, *new))
            if old.get(key) != new.get(key)
        ]
    return tuple(found)


def has_function(inputs: Inputs) -> bool:
    """Tell whether samples come from a function, so that nothing can be said about them."""
    return not inputs.data.listing or (inputs.evaluation is not None and not inputs.evaluation.listing)


def inputs_document(inputs: Inputs) -> dict[str, Any]:
    """Write inputs as JSON has them."""
    return asdict(inputs)


def inputs_from(document: dict[str, Any]) -> Inputs:
    """Read inputs back.

    Raises:
        KeyError, TypeError: It is no such document.
    """
    kept = {each.name: document[each.name] for each in fields(Inputs)}
    evaluation = kept["evaluation"]
    return Inputs(**kept | {"data": Source(**kept["data"]), "evaluation": evaluation and Source(**evaluation)})


def _same(before: Source | None, now: Source | None, data: DataSettings | None, lookups: Lookups) -> bool:
    """Tell whether two looks saw the same: nothing was touched, or the bytes are what they were."""
    if before is None or now is None or data is None:
        return before is now
    if before.listing == now.listing:
        return True
    return bool(before.content) and before.size == now.size and before.content == lookups.content(data)


def _settings(job: Job) -> dict[str, Any]:
    settings = asdict(job)
    for key in _LEFT_OUT[""]:
        del settings[key]
    for section, keys in _LEFT_OUT.items():
        for key in keys if section else ():
            del settings[section][key]
    for data in (settings["data"], settings["evaluation"]["data"]):
        if data is not None:
            data.pop("path", None)
            # the rows of a CSV count, they are part of the source; where the file lies does not
            data["labels"] = data["labels"] if data["labels"] in (None, "folders") else "CSV"
    plain = json.loads(json.dumps(settings))
    return dict(_flat(plain, ""))


def _statistics(job: Job) -> dict[str, Any]:
    """Take the bytes of statistics that were counted before."""
    file = job.calibration.statistics
    return {"calibration.statistics": None if file is None else file_digest(file)}


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "ranges":
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _told(value: object) -> str:
    if isinstance(value, str):
        return value[:12] if len(value) == 64 else value  # a hash says as much in twelve digits
    return "none" if value is None else json.dumps(value)
