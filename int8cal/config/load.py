"""The way from a YAML file and a command line to jobs. Command line beats YAML beats defaults.

What each setting may say is checked in `config.schema`; here is what settings cannot say together.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from int8cal.config.chain import ChainModel, read_links, recorded_job, require_unrecorded
from int8cal.config.expand import Expanded, expand, names_of, require_distinct_outputs, with_directory
from int8cal.config.layers import SettingsLayer, nest, settings_layer, validate
from int8cal.config.schema import JobLayer
from int8cal.config.yaml_file import Loc, SettingPlace, YamlFile, key_path, read_yaml
from int8cal.errors import ConfigError, UsageError
from int8cal.evaluation.figures import metric_name
from int8cal.evaluation.gates import gates_of, on_outputs, parse_gates
from int8cal.job import DEFAULT_TARGET, CalibrationSettings, DataSettings, Job, QuantizationSettings, model_stem
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

# Evaluation samples are read and preprocessed as calibration samples are unless they say otherwise.
_INHERITED_BY_EVALUATION = ("preprocess", "columns", "skip_bad", "seed")
_COMMAND_LINE = "command line"
_RECORDED = "(recorded)"  # until it is known where, the path of data that other models of the chain give
_GATES = "evaluation.gates"
PATTERN_KEYS = ("quantization.exclude", "quantization.include", "quantization.weights_only")


@dataclass(frozen=True)
class Located:
    """A job, the file that tells where its settings stand, and what it is in a chain of models."""

    job: Job
    document: YamlFile
    loc: Loc
    chain: ChainModel | None = None

    def place(self, key: str) -> SettingPlace:
        """Find where a setting of the job stands: a matrix, its own entry, the defaults; else the entry itself."""
        return _setting_place(self.document, self.loc, key)


def _setting_place(document: YamlFile, own: Loc, key: str, *inside: int) -> SettingPlace:
    """Find where a setting of a job stands, or a part of its value; its own entry where it stands nowhere."""
    keys: Loc = (*key.split("."), *inside)
    locs: tuple[Loc, ...] = (("matrix", key), (*own, *keys), ("defaults", *keys))
    return document.place(next((loc for loc in locs if document.has(loc)), own))


def load_jobs(
    path: Path, overrides: Mapping[str, object] | None = None, *, flags: Mapping[str, str] | None = None
) -> tuple[Located, ...]:
    """Read the jobs of a YAML file.

    Args:
        path: YAML file with one job, or with defaults, jobs and matrix; its paths are relative to its directory.
        overrides: Key path ("calibration.method") -> value from the command line, paths relative to the working
            directory; wins in every job.
        flags: Key path -> name of the option it came from ("--method"), for messages.

    Returns:
        The jobs in the order of the file, with the places of their settings, their own names and output directories.

    Raises:
        ConfigError: Unknown key, wrong type or value (with file, line and column), undefined environment variable, a
            glob that matches nothing, a missing model or data, two jobs with one output directory.
    """
    document = read_yaml(path)
    expanded = expand(document, _command_line(overrides or {}, flags or {}))
    jobs = _jobs(expanded, document, overrides or {}, flags or {})
    require_distinct_outputs(jobs, (each.place.text for each in expanded))
    if "models" in document.values:
        return _chained(jobs, expanded, document)
    return tuple(Located(job, document, each.loc) for job, each in zip(jobs, expanded, strict=True))


def _chained(jobs: tuple[Job, ...], expanded: tuple[Expanded, ...], document: YamlFile) -> tuple[Located, ...]:
    """Let the models of a chain read each other.

    Raises:
        ConfigError: A link that leads nowhere, or upwards; a job that writes where samples are recorded.
    """
    found: list[Located] = []
    names = [job.name for job in jobs]
    gates = tuple(str(gate) for gate in document.values.get("gates") or ())  # type: ignore[attr-defined]
    _require_gates(gates, "", lambda index: document.place(("gates", index)), outputs=True)
    for number, (job, each) in enumerate(zip(jobs, expanded, strict=True)):
        places = {name: document.place((*each.loc, "inputs", name)) for name in each.inputs}
        links, own = read_links(each.inputs, names[:number], names[number:], places), dict[str, DataSettings]()
        read = job
        if links:
            above = {other.job.name: other.job for other in found}
            read, own = recorded_job(job, links, above, each.place, own=job.data.path != _RECORDED)
        found.append(Located(read, document, each.loc, ChainModel(links, own, gates)))
    linked = [each.job for each in found if each.chain is not None and each.chain.links]
    require_unrecorded(
        linked, dict(zip((each.job.directory for each in found), (each.place for each in expanded), strict=True))
    )
    return tuple(found)


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
        job = _job(layer, SettingPlace(_COMMAND_LINE, ""))
        place = SettingPlace((flags or {}).get(_GATES) or _COMMAND_LINE, _GATES)
        _require_gates(job.evaluation.gates, metric_name(job.evaluation.metric), lambda _: place)
        _require_use(job, options, flags or {})
        return job
    document = read_yaml(config)
    expanded = expand(document, layer)
    if len(expanded) != 1 or expanded[0].inputs:
        raise ConfigError(
            f"holds {len(expanded)} jobs, this command takes one",
            do=f"use: int8cal run {config}",
            where=str(config),
            path=config,
        )
    job = _jobs(expanded, document, options, flags or {})[0]
    _require_use(job, options, flags or {})
    return job


def _require_use(job: Job, options: Mapping[str, object], flags: Mapping[str, str]) -> None:
    """Refuse what has no effect on this job where it is given; in files it may be there for other jobs."""
    key, method = "calibration.percentile", job.calibration.method
    given = options.get(key, CalibrationSettings.percentile) != CalibrationSettings.percentile
    if given and method not in ("auto", "percentile"):
        raise UsageError(
            f"method {method} uses none", where=flags.get(key, key), do="leave it out, or take the method percentile"
        )
    key, fallback = "quantization.fallback", QuantizationSettings.fallback
    if options.get(key, fallback) != fallback and job.quantization.budget is None:
        raise UsageError(
            "is how a budget is spent, and there is none",
            where=flags.get(key, key),
            do="give a budget, or leave it out",
        )


def gates_left_out(options: Mapping[str, object], config: Path | None) -> tuple[str, ...]:
    """Name the gates of a YAML file whose place those of the command line take: who loses one should see it.

    Args:
        options: As for `job_from_options`, which has found no mistake in them.
        config: The file; None for no file.

    Returns:
        A warning that names them as they are written there, without those that the command line gives too; or none.
    """
    given = options.get(_GATES)
    if config is None or not isinstance(given, list):
        return ()
    expanded = expand(read_yaml(config), {key: options[key] for key in ("model",) if key in options})
    held = [gate for each in expanded for gate in each.layer.get("evaluation", {}).get("gates", ())]
    left = [gate for gate in dict.fromkeys(held) if gate not in given]
    return (f"--gate takes the place of all gates in {config}; not checked: {', '.join(left)}",) if left else ()


def _command_line(options: Mapping[str, object], flags: Mapping[str, str]) -> SettingsLayer:
    """Check the command line like a layer of YAML; a message names the option rather than a line."""

    def place(loc: Loc, _at_key: bool) -> SettingPlace:
        keys = [step for step in loc if isinstance(step, str)]
        names = (flags.get(".".join(keys[:length])) for length in range(len(keys), 0, -1))
        flag = next((name for name in names if name), None)
        return SettingPlace(flag or f"{_COMMAND_LINE}: {key_path(loc)}", key_path(loc))

    return settings_layer(validate(JobLayer, nest(options), place), Path())


def _jobs(
    expanded: tuple[Expanded, ...], document: YamlFile, options: Mapping[str, object], flags: Mapping[str, str]
) -> tuple[Job, ...]:
    for each in expanded:
        _require_model(each.layer, each.place)
    names = names_of(expanded)
    for each, name in zip(expanded, names, strict=True):
        if name in {".", ".."}:  # of a model called "...onnx"
            raise each.place.error(f'the job is called "{name}", like a directory, after its model', "give it a name")
    jobs = []
    for each, name in zip(expanded, names, strict=True):
        job = _job(with_directory(each.layer, name), each.place, name, linked=bool(each.inputs))

        def place(index: int, loc: Loc = each.loc) -> SettingPlace:
            if _GATES in options:
                return SettingPlace(flags.get(_GATES) or _COMMAND_LINE, _GATES)
            return _setting_place(document, loc, _GATES, index)

        _require_gates(job.evaluation.gates, metric_name(job.evaluation.metric), place)
        jobs.append(job)
    return tuple(jobs)


def _require_gates(
    texts: Iterable[str], metric: str | None, place: Callable[[int], SettingPlace], *, outputs: bool = False
) -> None:
    """Refuse a gate on a figure that there is not, and with `outputs` one that is not about the models' outputs.

    Only a whole job has both its gates and its metric. `place` says where the gate at a position stands.
    """
    for index, text in enumerate(texts):
        try:
            gates = parse_gates([text], metric)
        except ConfigError as error:
            found = place(index)
            raise found.error(error.what, error.do, key=found.key, gate=text) from error
        if outputs and len(on_outputs(gates)) < len(gates):
            what = f'gate "{text}" cannot hold: only the outputs of models are compared in a chain'
            raise place(index).error(what, "write it under evaluation of the model that it is about", gate=text)


def _job(layer: SettingsLayer, place: SettingPlace, name: str = "", *, linked: bool = False) -> Job:
    """Make a job from fully merged settings; `place` is where it stands, for the message about a missing key.

    One that is `linked` to other models of a chain may have no data of its own.
    """
    _require_model(layer, place)
    if not layer.get("data"):
        if not linked:
            raise _missing(place, "data", "data: photos/train")
        layer = layer | {"data": {"path": _RECORDED}}
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
    name = name or layer.get("name") or model_stem(layer["model"])
    sections = {"data": data, "evaluation": evaluation, "quantization": quantization}
    # every layer has been checked strictly: this makes paths of text, and tuples of lists
    return _job_reader().validate_python(layer | sections | {"name": name})


def _require_model(layer: SettingsLayer, place: SettingPlace) -> None:
    if not layer.get("model"):
        raise _missing(place, "model", "model: model.onnx")


def _missing(place: SettingPlace, key: str, example: str) -> ConfigError:
    return place.error(f"{key} is missing", f'add "{example}"', key=key)


@cache
def _job_reader() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def require_available(job: Job) -> None:
    """Refuse a setting that is known but not built in this version, and settings that contradict each other.

    Args:
        job: The job, before anything is read or written.

    Raises:
        ConfigError: Names the setting, its value and what is available.
        UsageError: A budget without a gate that it could be spent on, or beside optimize; a target that cannot have
            what is asked for.
    """
    if job.calibration.engine == "ray":
        from int8cal.calibration.engines.ray import require_ray

        require_ray()
    elif job.calibration.address is not None:
        raise UsageError(
            "an address is that of a Ray cluster, and engine local uses none",
            do="give engine ray, or leave address out",
        )
    if job.calibration.shard is not None and job.calibration.statistics is not None:
        raise UsageError(
            "a shard is counted, statistics are counted already: not both in one job",
            where=job.name,
            key="calibration.shard",
            do="leave --shard or --stats out",
        )
    if job.calibration.shard is not None and job.calibration.engine == "ray":
        raise UsageError(
            "a cluster of Ray cuts the data into parts itself",
            where=job.name,
            key="calibration.shard",
            do="leave --shard or --engine ray out",
        )
    _require_sense_of_target(job)
    if job.quantization.weights_only is True:
        _require_nothing_of_activations(job)
    if job.quantization.budget is not None:
        _require_use_for_budget(job)


def _require_sense_of_target(job: Job) -> None:
    target, settings = TARGETS[job.quantization.target], job.quantization
    if settings.activations not in target.activations:
        raise UsageError(
            f"target {target.name} takes activations {' or '.join(target.activations)}, not {settings.activations}",
            do="leave activations out, or choose another target",
        )
    if settings.weights_only and target.name == "tensorrt":
        raise UsageError(
            "target tensorrt takes weights of 8 bits only beside activations of 8 bits",
            do="leave weights_only out, or choose another target",
        )
    if settings.optimize is not None and not target.onnxruntime:
        raise UsageError(
            f"optimize measures kernels of onnxruntime, which says nothing of target {target.name}",
            do="leave one of them out",
        )


def _require_nothing_of_activations(job: Job) -> None:
    """Refuse what is about activations where all of them stay float."""
    settings, calibration = job.quantization, job.calibration
    contrary = {
        f"method {calibration.method}": calibration.method != CalibrationSettings.method,
        f"percentile {calibration.percentile:g}": calibration.percentile != CalibrationSettings.percentile,
        f"recipe {settings.recipe}": settings.recipe != "fast",
        f"activations {settings.activations}": settings.activations != "u8",
        "uint8_input": settings.uint8_input,
        "ranges": bool(settings.ranges),
        "a budget": settings.budget is not None,
        "optimize": settings.optimize is not None,
    }
    what = next((name for name, given in contrary.items() if given), None)
    if what is not None:
        raise UsageError(
            f"weights_only leaves all activations in float, so there is nothing for {what} to do",
            do="leave one of them out, or name some nodes under weights_only",
        )


def _require_use_for_budget(job: Job) -> None:
    gates = gates_of(job.evaluation)
    if not gates:
        raise UsageError(
            "a budget is spent until the gates hold, but there is no gate",
            key="quantization.budget",
            do='give --gate, for example --gate "sqnr_db>=30", or leave --budget out',
        )
    if not on_outputs(gates):
        raise UsageError(
            f'a budget buys accuracy, but no gate is about it ("{gates[0].text}")',
            key="quantization.budget",
            do='give one that is, for example --gate "sqnr_db>=30", or leave --budget out',
        )
    if job.quantization.optimize is not None:
        raise UsageError(
            "a budget spends time on accuracy by estimates, optimize saves time by measuring: not both in one job",
            key="quantization.budget",
            do="leave one of them out",
        )


@contextmanager
def placed_patterns(place: Callable[[str], str | None]) -> Iterator[None]:
    """Let the error of a pattern that matches no node begin with where the pattern stands.

    Args:
        place: Says it for a key path; None for the option of the command line, which the error names by itself.
    """
    try:
        yield
    except UsageError as error:
        key = f"quantization.{error.where.removeprefix('--').replace('-', '_')}"
        where = place(key) if key in PATTERN_KEYS and "pattern" in error.fields else None
        if where is None:
            raise
        raise UsageError(error.what, do=error.do, where=where, **error.fields) from error
