"""From a batch to its jobs: defaults under each job, the combinations of the matrix, globs, names, directories."""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.config.layers import SettingsLayer, layered, nest, settings_layer, validate
from int8cal.config.schema import ConfigFile, JobLayer
from int8cal.errors import ConfigError
from int8cal.io.paths import exists
from int8cal.job import model_stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from int8cal.config.yaml_file import Loc, SettingPlace, YamlFile
    from int8cal.job import Job

_BATCH_KEYS = ("defaults", "jobs", "matrix")
_CHAIN_KEYS = ("defaults", "models", "gates")
_NAME_PLACEHOLDER = "{name}"
# Jobs of one file; a matrix that gives more is a mistake, or a batch that nobody waits for.
JOB_LIMIT = 10_000


@dataclass(frozen=True)
class Expanded:
    """The merged settings of one job before it becomes a `Job`.

    Attributes:
        layer: All layers merged; `model` is one file.
        place: The job's entry in the file.
        loc: Where that is.
        suffix: What the matrix adds to the name.
        inputs: Of a model of a chain: input -> "model.tensor".
    """

    layer: SettingsLayer
    place: SettingPlace
    loc: Loc
    suffix: str
    inputs: dict[str, str] = field(default_factory=dict)


def expand(document: YamlFile, overrides: SettingsLayer) -> tuple[Expanded, ...]:
    """Expand a file into the settings of its jobs.

    Args:
        document: The YAML file.
        overrides: The command line's layer; it wins over everything in the file, and a `model` in it is never a glob.

    Returns:
        The jobs' settings in the order of the file; matrix values vary last key fastest, globs in sorted order.

    Raises:
        ConfigError: Any mistake in the file, with its line; a glob that matches nothing; a job without a model; more
            than `JOB_LIMIT` jobs.
    """
    config = validate(ConfigFile, document.values, lambda loc, at_key: document.place(loc, at_key=at_key))
    base = document.path.parent
    if "models" in config.model_fields_set:
        return tuple(_chain(document, config, base, overrides))
    if "gates" in config.model_fields_set:
        what = "gates of a chain, in a file without models"
        raise document.place(("gates",), at_key=True).error(what, "write them under evaluation")
    expanded: list[Expanded] = []
    _require_few(document, max(len(config.jobs or ()), 1) * math.prod(map(len, config.matrix.values())))
    for loc, layer in _entries(document, config, base):
        for values, suffix, matrix_locs in _combinations(document, config, base):
            merged = layered(layered(layer, values), overrides)
            place = document.place(loc)
            origins = (*matrix_locs, (*loc, "model"), ("defaults", "model"))
            models = [merged.get("model")] if "model" in overrides else _models(document, merged, origins)
            expanded += [Expanded(merged | ({"model": model} if model else {}), place, loc, suffix) for model in models]
            _require_few(document, len(expanded))
    return tuple(expanded)


def _chain(document: YamlFile, config: ConfigFile, base: Path, overrides: SettingsLayer) -> Iterator[Expanded]:
    """Give the models of a chain, each a job under the defaults, named by its key."""
    for key in document.values:
        if key not in _CHAIN_KEYS:
            what = "a file with models takes defaults and gates beside them"
            raise document.place((key,), at_key=True).error(what, f"move {key} under defaults, or to a file of its own")
    defaults = settings_layer(config.defaults, base)
    for name, model in config.models.items():
        layer = settings_layer(model, base)
        inputs = layer.pop("inputs", {})
        loc: Loc = ("models", name)
        merged = layered(layered(defaults, {"name": name} | layer), overrides)
        if inputs and "data" not in layer:  # the defaults' data are for models that read no other
            merged.pop("data", None)
            if "data" not in layer.get("evaluation", {}):
                merged["evaluation"] = {k: v for k, v in merged.get("evaluation", {}).items() if k != "data"}
        yield Expanded(merged, document.place(loc), loc, "", inputs)


def _require_few(document: YamlFile, count: int) -> None:
    if count <= JOB_LIMIT:
        return
    loc: Loc = ("matrix",) if document.has(("matrix",)) else ("jobs",) if document.has(("jobs",)) else ()
    raise document.place(loc, at_key=True).error(
        f"makes {count:,} jobs or more, at most {JOB_LIMIT:,} are taken",
        "give the matrix fewer values, or split the file",
    )


def _entries(document: YamlFile, config: ConfigFile, base: Path) -> Iterator[tuple[Loc, SettingsLayer]]:
    held = config.model_fields_set
    if "jobs" not in held and "defaults" not in held:
        yield (), settings_layer(config, base)
        return
    for key in document.values:
        if key not in _BATCH_KEYS:
            what = "a file with jobs or defaults takes no settings beside them"
            raise document.place((key,), at_key=True).error(what, f"move {key} under defaults")
    if "jobs" not in held:
        raise document.place(("defaults",), at_key=True).error("defaults without jobs", 'add a list "jobs:"')
    defaults = settings_layer(config.defaults, base)
    for index, job in enumerate(config.jobs):
        yield ("jobs", index), layered(defaults, settings_layer(job, base))


def _combinations(
    document: YamlFile, config: ConfigFile, base: Path
) -> Iterator[tuple[SettingsLayer, str, tuple[Loc, ...]]]:
    """Each choice of one value per matrix key: its layer, the name's suffix, and where its values stand."""
    choices: list[list[tuple[SettingsLayer, str, Loc]]] = []
    for path, values in config.matrix.items():
        column = []
        for index, value in enumerate(values):
            loc: Loc = ("matrix", path, index)
            section = validate(JobLayer, nest({path: value}), _matrix_place(document, path, loc))
            column.append((settings_layer(section, base), _slug(path, index, value), loc))
        choices.append(column)
    for combination in itertools.product(*choices):
        layer: SettingsLayer = {}
        for part, _, _ in combination:
            layer = layered(layer, part)
        locs = tuple(loc for _, _, loc in combination if loc[1] == "model")
        yield layer, "".join(f"-{slug}" for _, slug, _ in combination if slug), locs


def _matrix_place(document: YamlFile, path: str, matrix_loc: Loc) -> Callable[[Loc, bool], SettingPlace]:
    depth = len(path.split("."))

    def place(loc: Loc, at_key: bool) -> SettingPlace:
        if len(loc) <= depth and at_key:  # the key path itself is wrong
            return document.place(matrix_loc[:2], at_key=True)
        return document.place((*matrix_loc, *loc[depth:]), at_key=at_key)

    return place


def _slug(path: str, index: int, value: object) -> str:
    key = path.rsplit(".", maxsplit=1)[-1]
    if key in ("model", "name"):  # these name the job by themselves
        return ""
    text = f"{key}{index + 1}" if isinstance(value, dict | list) or value is None else str(value)
    if not isinstance(value, str | dict | list) and value is not None:
        text = f"{key}{text.lower()}"
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or f"{key}{index + 1}"


def _models(document: YamlFile, layer: SettingsLayer, origins: Iterable[Loc]) -> list[str | None]:
    pattern = layer.get("model")
    if pattern is None or exists(Path(pattern)):
        return [pattern]
    # Only what the file says is a pattern: its own directory may well be called "runs [old]".
    base = document.path.parent
    below = os.path.relpath(pattern, base) if Path(pattern).is_relative_to(base) else pattern
    if not glob.has_magic(below):
        return [pattern]
    matches = glob.glob(below, root_dir=base, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    found = sorted(str(base / match) for match in matches if (base / match).is_file())
    if not found:
        place = document.place(next((loc for loc in origins if document.has(loc)), ("model",)))
        raise place.error(f'no file matches "{pattern}"', "correct the pattern; it is relative to this YAML file")
    return list(found)


def names_of(jobs: tuple[Expanded, ...]) -> tuple[str, ...]:
    """Give every job, with a model each, its own name.

    It is the job's `name` or its model's stem, plus the matrix suffix; models of one stem get their directory's name in
    front, and what is still not unique is numbered from 2.
    """
    names = [(job.layer.get("name") or model_stem(job.layer["model"])) + job.suffix for job in jobs]
    shared = {name for name, count in Counter(names).items() if count > 1}
    for index, job in enumerate(jobs):
        folder = Path(job.layer["model"]).parent.name
        if names[index] in shared and not job.layer.get("name") and folder:
            names[index] = f"{folder}-{names[index]}"
    taken: set[str] = set()
    following: dict[str, int] = {}  # of each name; without it many jobs of one name take their number squared
    for index, name in enumerate(names):
        unique, number = name, following.get(name, 2)
        while unique in taken:
            unique, number = f"{name}-{number}", number + 1
        taken.add(unique)
        following[name] = number
        names[index] = unique
    return tuple(names)


def with_directory(layer: SettingsLayer, name: str) -> SettingsLayer:
    """Fill in `{name}` in output.dir, and give a job that is not named after its model a directory of its own."""
    directory = layer.get("output", {}).get("dir")
    if directory is None and name != model_stem(layer["model"]):
        return layered(layer, {"output": {"dir": f"{name}-int8"}})
    if directory is not None and _NAME_PLACEHOLDER in directory:
        return layered(layer, {"output": {"dir": directory.replace(_NAME_PLACEHOLDER, name)}})
    return layer


def require_distinct_outputs(jobs: Iterable[Job], places: Iterable[str]) -> None:
    """Refuse two jobs that would write into the same directory; `places` is where each job stands.

    Raises:
        ConfigError: Names both jobs and the directory.
    """
    owners: dict[Path, Job] = {}
    for job, where in zip(jobs, places, strict=True):
        owner = owners.setdefault(Path(os.path.realpath(job.directory)), job)  # resolve() fails on a link to itself
        if owner is not job:
            raise ConfigError(
                f'jobs "{owner.name}" and "{job.name}" would both write to {job.directory}',
                do='write "dir: results/{name}" under output, {name} stands for the job',
                where=where,
            )
