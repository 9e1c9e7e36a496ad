"""The models of a chain: which tensor of which model another one reads, and where its samples are recorded."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.job import DataSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.config.yaml_file import SettingPlace
    from int8cal.job import Job

CALIBRATION, EVALUATION = "calibration", "evaluation"


@dataclass(frozen=True)
class Link:
    """An input that is fed with a tensor of another model.

    Attributes:
        input: Of the model that reads.
        source: Name of the job that is read.
        tensor: One of that model's outputs or inputs.
        place: Where that stands.
    """

    input: str
    source: str
    tensor: str
    place: SettingPlace


@dataclass(frozen=True)
class ChainModel:
    """What a job of a chain has beside its settings.

    Attributes:
        links: What it reads of the models above it.
        own: Data of its other inputs, for each name of `splits`; none where there are no others.
        gates: Of the chain.
    """

    links: tuple[Link, ...]
    own: dict[str, DataSettings]
    gates: tuple[str, ...]


def read_links(
    inputs: Mapping[str, str], above: Sequence[str], below: Sequence[str], place: Mapping[str, SettingPlace]
) -> tuple[Link, ...]:
    """Read what a model says of its inputs.

    Args:
        inputs: Input -> "model.tensor".
        above, below: Names of the models before it, and of itself and those behind it.
        place: Input -> where that stands.

    Raises:
        ConfigError: A model that there is not, or that is not above; no tensor.
    """
    links = []
    for name, text in inputs.items():
        found = max((each for each in above if text.startswith(f"{each}.")), key=len, default="")
        if not found:
            late = next((each for each in below if text.startswith(f"{each}.")), "")
            if late:
                raise place[name].error(
                    f'"{late}" does not stand above this model, so that its outputs come later', "move it up"
                )
            near = difflib.get_close_matches(text.partition(".")[0], above, n=1, cutoff=0.0)
            raise place[name].error(
                f'"{text}" names no tensor of a model above',
                f'write "{near[0]}.OUTPUT"' if near else "the first model reads data alone",
            )
        links.append(Link(name, found, text[len(found) + 1 :], place[name]))
    return tuple(links)


def splits(job: Job) -> tuple[str, ...]:
    """Name the kinds of samples that a job has."""
    return (CALIBRATION,) if job.evaluation.data is None else (CALIBRATION, EVALUATION)


def data_of(job: Job, split: str) -> DataSettings:
    """Return the data of one kind of samples."""
    return job.data if split == CALIBRATION else job.evaluation.data or job.data


def recorded_at(directory: Path, split: str) -> Path:
    """Say where the samples of a model are recorded that reads other models: beside its output directory."""
    return directory.with_name(f"{directory.name}-inputs") / split


def require_unrecorded(readers: Sequence[Job], directories: Mapping[Path, SettingPlace]) -> None:
    """Refuse jobs that would write among recorded samples.

    Args:
        readers: Jobs that read other models.
        directories: Output directories of all jobs, and where each job stands.

    Raises:
        ConfigError: Names the job that the samples are for.
    """
    folders = {realpath(recorded_at(job.directory, CALIBRATION).parent): job.name for job in readers}
    for directory, place in directories.items():
        real = Path(realpath(directory))
        reader = next((folders[path] for path in map(str, (real, *real.parents)) if path in folders), None)
        if reader is not None:
            what = f'would write to {directory}, where samples of "{reader}" are recorded'
            raise place.error(what, "give it another output.dir")


def recorded_job(
    job: Job, links: tuple[Link, ...], above: Mapping[str, Job], place: SettingPlace, *, own: bool
) -> tuple[Job, dict[str, DataSettings]]:
    """Let a job read the samples that will be recorded for it.

    Args:
        job: With its own data, where it has any.
        links: Not empty.
        above: The jobs that it reads.
        place: Of the job.
        own: Whether it has data of its own.

    Returns:
        The job, and its own data by kind of samples.

    Raises:
        ConfigError: One has evaluation data, and another that belongs to it has none.
    """
    first = links[0].source
    wanted = splits(above[first])
    for link in links:
        if splits(above[link.source]) != wanted:
            what = f'of "{first}" and "{link.source}" one has evaluation data and the other has none'
            raise link.place.error(what, "give evaluation.data to both, or to none")
    if not own and job.evaluation.data is not None:
        raise place.error("has evaluation data of its own, and no data", "add data for calibration, or leave it out")
    if own and splits(job) != wanted:
        what = f'of "{first}" and this model one has evaluation data and the other has none'
        raise place.error(what, "give evaluation.data to both, or to none")
    settings = {split: data_of(job, split) for split in wanted} if own else {}
    paths = {split: DataSettings(path=str(recorded_at(job.directory, split))) for split in wanted}
    evaluation = replace(job.evaluation, data=paths.get(EVALUATION))
    return replace(job, data=paths[CALIBRATION], evaluation=evaluation), settings
