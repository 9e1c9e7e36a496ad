"""Models with real data for the accuracy study: what to calibrate on, and test samples that calibration never sees."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.errors import BenchmarkError
from benchmarks.models import ZOO_PREFIX, load_zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    import numpy.typing as npt

    from benchmarks.models import Feed

    Outputs = list[npt.NDArray[Any]]

SAMPLE = "sample"
SAMPLE_DATA = Path(__file__).resolve().parents[1] / "sample_data"


@dataclass(frozen=True)
class Peer:
    """What another tool reached with all calibration samples; None where it was not recorded."""

    sqnr_db: float | None
    metric: float | None


@dataclass(frozen=True)
class Figure:
    """A task's own figure, for models without class scores.

    Attributes:
        name: "F1" or "agreement".
        measure: (FP32 outputs, int8 outputs), each stacked over the test samples, -> a fraction, higher is better.
        proportion: Whether it is a share of the test samples, so that it has an interval.
    """

    name: str
    measure: Callable[[Outputs, Outputs], float]
    proportion: bool


@dataclass(frozen=True)
class Dataset:
    """A model file and its data.

    Attributes:
        name: As on the command line.
        path: The FP32 model.
        calib, test: Feeds with a batch axis of 1.
        labels: Class of each test sample, or None.
        figure: For models that have no class scores.
        peers: Tool -> what it reached on the same data.
    """

    name: str
    path: Path
    calib: Sequence[Feed]
    test: Sequence[Feed]
    labels: Sequence[int] | None = None
    figure: Figure | None = None
    peers: Mapping[str, Peer] = field(default_factory=dict)


def expand_datasets(names: str | None, zoo: Path) -> tuple[str, ...]:
    """Turn "sample,zoo" into names; without names it is the sample, and the zoo where it is there.

    Raises:
        BenchmarkError: A name is unknown, or the zoo is asked for and not there.
    """
    if names is None:
        names = f"{SAMPLE},zoo" if (zoo / "zoo.py").is_file() else SAMPLE
    result: list[str] = []
    for name in (part.strip() for part in names.split(",") if part.strip()):
        if name == "zoo":
            result += [ZOO_PREFIX + entry for entry in load_zoo(zoo).names()]
        elif name == SAMPLE or name.startswith(ZOO_PREFIX):
            result.append(name)
        else:
            raise BenchmarkError(f'no model "{name}" with data; there are {SAMPLE}, zoo and zoo:NAME')
    if not result:
        raise BenchmarkError("--models names no model")
    return tuple(dict.fromkeys(result))


def dataset(name: str, zoo: Path) -> Dataset:
    """Load a model's data.

    Args:
        name: "sample" or "zoo:NAME".
        zoo: The directory of the zoo.

    Raises:
        BenchmarkError: The name is unknown.
    """
    if name == SAMPLE:
        calib, _ = _digits(SAMPLE_DATA / "calib")
        test, labels = _digits(SAMPLE_DATA / "eval")
        return Dataset(name, SAMPLE_DATA / "model.onnx", calib, test, labels)
    module, entry = load_zoo(zoo), name.removeprefix(ZOO_PREFIX)
    if entry not in module.names():
        raise BenchmarkError(f'no model "{entry}" in the zoo at {zoo}; there are {", ".join(module.names())}')
    known = module.labels(entry)
    return Dataset(
        name,
        Path(module.model_path(entry)),
        _rows(module, entry, "calib"),
        _rows(module, entry, "test"),
        None if known is None else known.tolist(),
        _figure(module, entry),
        _peers(zoo, entry),
    )


def _digits(folder: Path) -> tuple[list[Feed], list[int]]:
    """Read the sample's images; the folder's name is the class."""
    from PIL import Image

    files = sorted(folder.glob("*/*.png"))
    if not files:
        raise BenchmarkError(f"{folder} holds no image; the sample belongs to a checkout")
    feeds: list[Feed] = []
    for file in files:
        with Image.open(file) as image:
            feeds.append({"image": np.asarray(image, np.float32)[None, None]})
    return feeds, [int(file.parent.name) for file in files]


def _rows(module: ModuleType, entry: str, split: str) -> list[Feed]:
    stacked: Feed = module.feeds(entry, split)
    feeds = []
    for row in range(len(next(iter(stacked.values())))):
        feed = {key: value[row : row + 1] for key, value in stacked.items()}
        if entry.startswith("silero"):
            feed["state"] = feed["state"][0]
        feeds.append(feed)
    return feeds


def _figure(module: ModuleType, entry: str) -> Figure:
    def measure(reference: Outputs, outputs: Outputs) -> float:
        return float(module.metric(entry, reference, outputs))

    faces = module.ENTRIES[entry].task == "faces"
    return Figure("F1" if faces else "agreement", measure, proportion=not faces)


def _peers(zoo: Path, entry: str) -> dict[str, Peer]:
    source = zoo / "peers.json"
    recorded = json.loads(source.read_text(encoding="utf-8")).get(entry, {}) if source.is_file() else {}
    return {tool: Peer(figures.get("sqnr_db"), figures.get("metric")) for tool, figures in recorded.items()}
