"""The way from a YAML file and a command line to jobs. Command line beats YAML beats defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.config.expand import Expanded, expand, names_of, require_distinct_outputs, with_directory
from int8cal.config.layers import Layer, job_of, layer_of, nest
from int8cal.config.locate import Document, ErrorSite, Loc, key_path, read_document
from int8cal.config.messages import validate
from int8cal.config.schema import JobLayer
from int8cal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.job import Job

_COMMAND_LINE = "command line"


def load_jobs(
    path: Path, overrides: Mapping[str, object] | None = None, *, flags: Mapping[str, str] | None = None
) -> tuple[Job, ...]:
    """Read the jobs of a YAML file.

    Args:
        path: YAML file with one job, or with defaults, jobs and matrix; its paths are relative to its directory.
        overrides: Key path ("calibration.method") -> value from the command line, paths relative to the working
            directory; wins in every job.
        flags: Key path -> name of the option it came from ("--method"), for messages.

    Returns:
        The jobs in the order of the file, each with its own name and output directory.

    Raises:
        ConfigError: Unknown key, wrong type or value (with file, line and column), undefined environment variable, a
            glob that matches nothing, a missing model or data, two jobs with one output directory.
    """
    return tuple(located.job for located in load_located(path, overrides, flags=flags))


@dataclass(frozen=True)
class Located:
    """A job, and the file that tells where its settings stand."""

    job: Job
    document: Document
    loc: Loc

    def place(self, key: str) -> ErrorSite:
        """Find where a setting of the job stands: a matrix, its own entry, the defaults; else the entry itself."""
        keys = tuple(key.split("."))
        locs: tuple[Loc, ...] = (("matrix", key), (*self.loc, *keys), ("defaults", *keys))
        return self.document.place(next((loc for loc in locs if key and self.document.has(loc)), self.loc))


def load_located(
    path: Path, overrides: Mapping[str, object] | None = None, *, flags: Mapping[str, str] | None = None
) -> tuple[Located, ...]:
    """Read the jobs of a YAML file as `load_jobs` does, with the places of their settings."""
    document = read_document(path)
    expanded = expand(document, _command_line(overrides or {}, flags or {}))
    jobs = _jobs(expanded)
    require_distinct_outputs(jobs, (each.place.text for each in expanded))
    return tuple(Located(job, document, each.loc) for job, each in zip(jobs, expanded, strict=True))


def job_from_options(
    options: Mapping[str, object], config: Path | None = None, *, flags: Mapping[str, str] | None = None
) -> Job:
    """Make the one job of a command from its options and, if given, a YAML file.

    Args:
        options: Key path -> value, only what the user gave; paths relative to the working directory.
        config: YAML file with one job; it need not hold a model or data when `options` do.
        flags: Key path -> name of the option it came from, for messages.

    Returns:
        The job: options beat the file, the file beats the defaults of `int8cal.job`.

    Raises:
        ConfigError: As `load_jobs`, or the file holds several jobs.
    """
    layer = _command_line(options, flags or {})
    if config is None:
        return job_of(layer, ErrorSite(_COMMAND_LINE, ""))
    expanded = expand(read_document(config), layer)
    if len(expanded) != 1:
        raise ConfigError(
            f"holds {len(expanded)} jobs, this command takes one",
            do=f"use: int8cal run {config}",
            where=str(config),
            path=config,
        )
    if not expanded[0].layer.get("model"):
        return job_of(expanded[0].layer, expanded[0].place)  # says that the model is missing
    return _jobs(expanded)[0]


def _command_line(options: Mapping[str, object], flags: Mapping[str, str]) -> Layer:
    """Check the command line like a layer of YAML; a message names the option rather than a line."""

    def place(loc: Loc, _at_key: bool) -> ErrorSite:
        keys = [step for step in loc if isinstance(step, str)]
        names = (flags.get(".".join(keys[:length])) for length in range(len(keys), 0, -1))
        flag = next((name for name in names if name), None)
        return ErrorSite(flag or f"{_COMMAND_LINE}: {key_path(loc)}", key_path(loc))

    return layer_of(validate(JobLayer, nest(options), place), Path())


def _jobs(expanded: tuple[Expanded, ...]) -> tuple[Job, ...]:
    for each in expanded:
        if not each.layer.get("model"):
            job_of(each.layer, each.place)  # says that the model is missing
    names = names_of(expanded)
    for each, name in zip(expanded, names, strict=True):
        if name in {".", ".."}:  # of a model called "...onnx"
            raise ConfigError(
                f'the job is called "{name}", like a directory, after its model',
                do="give it a name",
                where=each.place.text,
            )
    return tuple(
        job_of(with_directory(each.layer, name), each.place, name=name)
        for each, name in zip(expanded, names, strict=True)
    )
