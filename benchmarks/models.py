"""The workloads: a model file, and seeded samples that fit it. Real topologies with seeded weights, and zoo models.

A workload is named, so that a worker process finds the same one again: "resnet50", "chain16", "zoo:vit".
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from benchmarks.errors import BenchmarkError
from benchmarks.topologies.bert import bert
from benchmarks.topologies.images import chain, mobilenetv2, resnet50

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    import numpy.typing as npt

    Feed = dict[str, npt.NDArray[Any]]

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {"resnet50": resnet50, "mobilenetv2": mobilenetv2, "bert": bert}
TOPOLOGIES = tuple(BUILDERS)
ZOO = Path(__file__).resolve().parents[2] / "shared" / "zoo"
ZOO_PREFIX = "zoo:"
CHAIN_PREFIX = "chain"
OCTAVES = (7, 14, 28, 56, 112)  # grids of noise, coarse to fine, that add up to an image


@dataclass(frozen=True)
class Workload:
    """A model and its samples.

    Attributes:
        name: As on the command line.
        path: The FP32 model file.
        sample: Index -> feed with a batch axis of 1; the same index gives the same values, in any order.
    """

    name: str
    path: Path
    sample: Callable[[int], Feed]

    def samples(self, count: int) -> Iterator[Feed]:
        """Give the first `count` feeds, one at a time."""
        return (self.sample(index) for index in range(count))


def expand(names: str, zoo: Path) -> tuple[str, ...]:
    """Turn "resnet50,zoo" into names; "zoo" stands for every model of the zoo.

    Raises:
        BenchmarkError: A name is unknown, or the zoo is not there.
    """
    result: list[str] = []
    for name in (part.strip() for part in names.split(",") if part.strip()):
        if name == "zoo":
            result += [ZOO_PREFIX + entry for entry in load_zoo(zoo).names()]
        elif name in BUILDERS or name.startswith((ZOO_PREFIX, CHAIN_PREFIX)):
            result.append(name)
        else:
            raise BenchmarkError(f'no model "{name}"; there are {", ".join(TOPOLOGIES)}, zoo, zoo:NAME and chainK')
    if not result:
        raise BenchmarkError("--models names no model")
    return tuple(dict.fromkeys(result))


def workload(name: str, folder: Path, zoo: Path = ZOO) -> Workload:
    """Find a workload; its model file is written to `folder` when it is not there yet.

    Args:
        name: A topology, "chainK" for K convolutions, or "zoo:NAME".
        folder: Where model files are kept.
        zoo: The directory of the zoo.

    Raises:
        BenchmarkError: The name is unknown.
    """
    if name.startswith(ZOO_PREFIX):
        return _zoo_workload(name, zoo)
    path = folder / f"{name}.onnx"
    if not path.is_file():
        onnx.save(_builder(name)(), str(path))
    return Workload(name, path, token_sample if name == "bert" else image_sample(28 if name not in BUILDERS else 224))


def _builder(name: str) -> Callable[[], onnx.ModelProto]:
    digits = name.removeprefix(CHAIN_PREFIX)
    if name.startswith(CHAIN_PREFIX) and digits.isdecimal() and int(digits) > 0:
        return lambda: chain(int(digits))
    if name not in BUILDERS:
        raise BenchmarkError(f'no model "{name}"; there are {", ".join(TOPOLOGIES)}, zoo, zoo:NAME and chainK')
    return BUILDERS[name]


def image_sample(size: int) -> Callable[[int], Feed]:
    """Return a function index -> {"input": float32 (1, 3, size, size)} of image-like noise.

    Natural images have about equal power in every octave of spatial frequency, which a sum of upsampled grids imitates;
    the result has mean about 0 and standard deviation 1, as preprocessed photographs do.
    """

    def sample(index: int) -> Feed:
        rng = np.random.Generator(np.random.PCG64([11, index]))
        image = 0.2 * rng.standard_normal((3, size, size), np.float32)
        for grid in (octave for octave in OCTAVES if octave < size and size % octave == 0):
            repeat = size // grid
            noise = rng.standard_normal((3, grid, grid), np.float32)
            image += noise.repeat(repeat, axis=1).repeat(repeat, axis=2)
        # the grids' blocks have hard borders that no photograph has
        smooth = (
            image + np.roll(image, 1, axis=1) + np.roll(image, 1, axis=2) + np.roll(image, (1, 1), axis=(1, 2))
        ) / 4
        return {"input": (smooth / smooth.std())[None].astype(np.float32)}

    return sample


def token_sample(index: int) -> Feed:
    """Return {"input_ids": int64 (1, 128)}, ids with the falling frequencies of words."""
    rng = np.random.Generator(np.random.PCG64([12, index]))
    return {"input_ids": np.minimum(rng.zipf(1.2, (1, 128)) - 1, 1999).astype(np.int64)}


@cache
def load_zoo(folder: Path) -> ModuleType:
    """Import zoo.py from where it lies.

    Raises:
        BenchmarkError: It is not there.
    """
    source = folder / "zoo.py"
    spec = importlib.util.spec_from_file_location("int8cal_zoo", source) if source.is_file() else None
    if spec is None or spec.loader is None:
        raise BenchmarkError(f"the zoo is not at {folder} (no zoo.py); give --zoo DIR, or leave zoo models out")
    module = importlib.util.module_from_spec(spec)
    sys.modules["int8cal_zoo"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _zoo_workload(name: str, folder: Path) -> Workload:
    zoo, entry = load_zoo(folder), name.removeprefix(ZOO_PREFIX)
    if entry not in zoo.names():
        raise BenchmarkError(f'no model "{entry}" in the zoo at {folder}; there are {", ".join(zoo.names())}')
    stacked: Feed = zoo.feeds(entry, "calib")
    count = len(next(iter(stacked.values())))

    def sample(index: int) -> Feed:
        row = index % count
        feed = {key: value[row : row + 1] for key, value in stacked.items()}
        if entry.startswith("silero"):
            feed["state"] = feed["state"][0]
        return feed

    return Workload(name, Path(zoo.model_path(entry)), sample)
