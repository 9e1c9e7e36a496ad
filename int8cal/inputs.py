"""Everything that a job's results follow from: the model's bytes, the data, the settings, the versions.

Data are looked at cheaply: by the names, sizes and times of their files, and by their bytes only where these differ.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import JsonValue, NonNegativeInt  # noqa: TC002 - the record's reader asks for these types

from int8cal.data.callables import is_callable_path
from int8cal.data.find import LABELS, find
from int8cal.data.hub import dataset_path, is_dataset, open_dataset
from int8cal.data.labels import labels_file
from int8cal.data.remote import is_url
from int8cal.data.text import meaning, tokenizer_file
from int8cal.errors import Int8calError
from int8cal.evaluating import versions
from int8cal.evaluation.user_metric import metric_of
from int8cal.graph.load import file_sha256
from int8cal.preprocess import TextPreprocess

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from int8cal.data.find import Found
    from int8cal.job import DataSettings, Job

# Bytes that are read to tell whether files whose times have changed hold what they held: seconds. Beyond, the job's own
# pass over its samples is the cheaper answer.
CONTENT_LIMIT = 1 << 30
_BLOCK = 1 << 20

# No result depends on these: where things are, what may be replaced, what is printed, how far to read ahead, what is
# saved on the way, where passes run.
_LEFT_OUT = frozenset(
    {
        *("model", "name", "output", "quiet"),
        *("calibration.batch_size", "calibration.checkpoint", "calibration.resume"),
        *("calibration.engine", "calibration.address"),
    }
)


@dataclass(frozen=True)
class Source:
    """The files behind one data path, labels included.

    Attributes:
        files, size: How many there are, and their bytes.
        listing: Hash of their places, sizes and times of change; "" for a function, which nobody can look into.
        content: Hash of their places and bytes; "" where they were not read.
    """

    files: NonNegativeInt
    size: NonNegativeInt
    listing: str
    content: str = ""


@dataclass(frozen=True)
class JobInputs:
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
    settings: dict[str, JsonValue]
    versions: dict[str, str]


class FileCache:
    """Looks at every file once, however many jobs of a batch read it.

    Attributes:
        sha256: Path of a model -> hash of its bytes.
        source: Data path and labels -> `Source` without its content.
        content: Data path and labels -> hash of the bytes; "" for a function, and for more than `CONTENT_LIMIT` bytes.
    """

    def __init__(self) -> None:
        self.sha256 = functools.cache(file_sha256)
        self.source = functools.cache(_source_of)
        self.content = functools.cache(lambda path, labels: _content_of(path, labels, self.source(path, labels)))


def inputs_of(job: Job, files: FileCache) -> JobInputs:
    """Take the inputs of a job; of the data without their contents.

    `with_contents` adds what takes longer.

    Raises:
        DataError: There is no data.
        OSError, ValueError: A file cannot be read, or the model is none.
    """
    evaluation = job.evaluation.data
    return JobInputs(
        model=job.model.name,
        sha256=files.sha256(job.model),
        data=files.source(job.data.path, job.data.labels),
        evaluation=None if evaluation is None else files.source(evaluation.path, evaluation.labels),
        settings=settings_of(job),
        versions=versions_of(job),
    )


def with_contents(inputs: JobInputs, job: Job, files: FileCache) -> JobInputs:
    """Add the hashes of the data's bytes, which tell later whether files that were touched are the same."""
    data = replace(inputs.data, content=files.content(job.data.path, job.data.labels))
    own, evaluation = job.evaluation.data, inputs.evaluation
    if evaluation is not None and own is not None:
        evaluation = replace(evaluation, content=files.content(own.path, own.labels))
    return replace(inputs, data=data, evaluation=evaluation)


def describe_changes(before: JobInputs, now: JobInputs, job: Job, files: FileCache) -> tuple[str, ...]:
    """Say in words what is not the same, such as "calibration.method kl -> mse"; nothing where results would be.

    Args:
        before: With the contents of the data.
        now: Taken from `job`; its data are read only where names, sizes or times differ.
    """
    found = _changed_files(before, now, job, files)
    return (*found, *changes(before.settings, now.settings), *changes(before.versions, now.versions))


def gives_others(before: JobInputs, now: JobInputs, job: Job, files: FileCache) -> bool:
    """Tell whether the float model may give other outputs; arguments as for `describe_changes`."""
    chosen = any(each.startswith(("data.", "evaluation.data.")) for each in changes(before.settings, now.settings))
    return has_function(now) or chosen or bool(_changed_files(before, now, job, files))


def _changed_files(before: JobInputs, now: JobInputs, job: Job, files: FileCache) -> list[str]:
    found = []
    if (before.model, before.sha256) != (now.model, now.sha256):
        found.append("the model")
    if not _same(before.data, now.data, job.data, files):
        found.append("the data")
    if not _same(before.evaluation, now.evaluation, job.evaluation.data, files):
        found.append("the evaluation data")
    return found


def changes(before: Mapping[str, object], now: Mapping[str, object]) -> tuple[str, ...]:
    """Say what is not the same, such as "calibration.method kl -> mse"."""
    return tuple(
        f"{key} {_short(before.get(key))} -> {_short(now.get(key))}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    )


def has_function(inputs: JobInputs) -> bool:
    """Tell whether samples come from a function, so that nothing can be said about them."""
    return not inputs.data.listing or (inputs.evaluation is not None and not inputs.evaluation.listing)


def flatten(settings: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to key paths and values; an empty mapping is a value, so is what stands at `whole`."""
    for key, value in settings.items():
        if isinstance(value, dict) and value and key not in whole:
            yield from flatten(value, whole, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def setting_text(value: object) -> str:
    """Write the value of a setting in one line."""
    if isinstance(value, str | Path):
        return str(value)
    return "none" if value is None else json.dumps(value, default=str)


def _source_of(data_path: str, labels: str | None) -> Source:
    """List the files of a data path, without reading them; a function has none, and those at a URL are not listed."""
    if is_dataset(data_path):
        dataset = open_dataset(data_path)
        return Source(len(dataset.table), 0, dataset.fingerprint)
    if is_callable_path(data_path) or is_url(data_path):
        return Source(0, 0, "")
    listing = xxhash.xxh3_128()
    count = size = 0
    for place, path in _entries(find(data_path), labels):
        listing.update(_place_bytes(place))
        if path is not None:
            stat = path.stat()
            listing.update(f"{stat.st_size}|{stat.st_mtime_ns}|".encode())
            count, size = count + 1, size + stat.st_size
    return Source(count, size, listing.hexdigest())


def _content_of(data_path: str, labels: str | None, source: Source) -> str:
    """Hash the bytes of all files of a data path; "" for a function, too many bytes, or a file that cannot be read."""
    if not source.listing or source.size > CONTENT_LIMIT or is_dataset(data_path):
        return ""
    content = xxhash.xxh3_128()
    try:
        for place, path in _entries(find(data_path), labels):
            content.update(_place_bytes(place))
            if path is not None:
                content.update(f"{path.stat().st_size}|".encode())
                with path.open("rb") as stream:
                    while block := stream.read(_BLOCK):
                        content.update(block)
    except OSError:
        return ""  # the job itself tells it better, or leaves the file out
    return content.hexdigest()


def paths_of(data: DataSettings) -> Iterator[Path]:
    """Name what a data path reads, as far as that can be found: the path itself, its files, and their labels."""
    if data.preprocess is not None and data.preprocess.text is not None:
        with contextlib.suppress(Int8calError):
            yield tokenizer_file(data.preprocess.text.tokenizer)
    if is_dataset(data.path):
        local = dataset_path(data.path)
        if local is not None:
            yield local
        return
    if is_callable_path(data.path) or is_url(data.path):
        return
    yield Path(data.path)
    with contextlib.suppress(Int8calError, OSError, ValueError):  # the job itself tells it better
        for _, path in _files(find(data.path), data.labels):
            yield path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _entries(found: Found, labels: str | None) -> Iterator[tuple[str, Path | None]]:
    """Name the folders right under the root, where a class without samples still counts, and all files.

    Where a file lies in no folder, folders are no classes, and may be results of this very job.
    """
    if all("/" in found.place(file) for file in found.files):
        with os.scandir(found.root) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        for folder in folders:
            yield f"{folder}/", None
    yield from _files(found, labels)


def _files(found: Found, labels: str | None) -> Iterator[tuple[str, Path]]:
    """Name the files of samples and the file of labels, each with its place under the root."""
    for file in found.files:
        yield found.place(file), file
    beside, given = found.root / LABELS, labels_file(labels)
    if labels is None and beside.is_file():
        yield LABELS, beside
    elif given is not None:
        yield "/labels", given


def _place_bytes(place: str) -> bytes:
    return f"{len(place)}:{place}|".encode("utf-8", "surrogateescape")


def _same(before: Source | None, now: Source | None, data: DataSettings | None, files: FileCache) -> bool:
    """Tell whether two looks saw the same: nothing was touched, or the bytes are what they were."""
    if before is None or now is None or data is None:
        return before is now
    if before.listing == now.listing:
        return True
    return bool(before.content) and before.size == now.size and before.content == files.content(data.path, data.labels)


def versions_of(job: Job) -> dict[str, str]:
    """Take the versions that results depend on."""
    return {**versions(job.evaluation.runtimes), **_decoders(job)}


def settings_of(job: Job) -> dict[str, JsonValue]:
    """Take the settings that results depend on, key path -> value; files count by their bytes, not their place."""
    settings = asdict(job)
    for data in filter(None, (settings["data"], settings["evaluation"]["data"])):
        del data["path"]
        # the rows of a CSV are part of the source
        data["labels"] = data["labels"] if labels_file(data["labels"]) is None else "CSV"
        if data["preprocess"] is not None and data["preprocess"]["text"] is not None:
            data["preprocess"]["text"] = meaning(TextPreprocess(**data["preprocess"]["text"]))
    statistics = settings["calibration"].pop("statistics")
    plain = json.loads(json.dumps({key: value for key, value in settings.items() if key not in _LEFT_OUT}))
    flat = {key: value for key, value in flatten(plain, whole=("ranges",)) if key not in _LEFT_OUT}
    if job.evaluation.metric is not None:
        flat["evaluation.metric file"] = _metric_digest(job.evaluation.metric)
    return flat | {"calibration.statistics": None if statistics is None else file_digest(statistics)}


def _decoders(job: Job) -> dict[str, str]:
    """Return the versions of what makes arrays of the samples."""
    names = ["pillow"]
    for data in filter(None, (job.data, job.evaluation.data)):
        chosen = data.preprocess
        names += [] if chosen is None or chosen.text is None else ["tokenizers"]
        names += [] if chosen is None or chosen.audio is None else ["soundfile", "soxr"]
    installed = {name: _version(name) for name in names}
    return {name: version for name, version in installed.items() if version}


def _version(library: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(library)
    return ""


def _metric_digest(metric: str) -> str:
    """Hash the file that a metric comes from; "" where there is none, which the job itself tells."""
    with contextlib.suppress(Int8calError):
        found = metric_of(metric)
        return found.digest if found else ""
    return ""


def _short(value: object) -> str:
    """Write a setting or version; a hash says as much in twelve digits."""
    return value[:12] if isinstance(value, str) and len(value) == 64 else setting_text(value)
