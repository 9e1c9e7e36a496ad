"""Runs the same models in several processes: on this CPU, under an emulated Haswell or ARM, and with oneDNN held to an older CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HERE = Path(__file__).parent
# AVX2, and nothing later. TCG lacks the features that are taken off, and would say so on stderr.
HASWELL = ("qemu-x86_64", "-cpu", "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-rtm,-invpcid")

# OpenVINO's layers that multiply by weights
PRODUCTS = {"Convolution", "Deconvolution", "FullyConnected", "MatMul"}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and its feeds; the first axis of every feed counts the runs."""

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    level: str = "all"


def has_integer_products(kernels: Iterable[str]) -> bool:
    """Whether OpenVINO multiplies in integers somewhere, among layers such as "Convolution jit_avx2_I8"."""
    layers = [kernel.split() for kernel in kernels]
    return any(layer in PRODUCTS and primitive.lower().endswith("_i8") for layer, primitive in layers)


@dataclass(frozen=True)
class Result:
    """Outputs by name, stacked over the runs, and what the runtime made of the graph.

    kernels: onnxruntime: op types of the optimized graph; OpenVINO: types and primitives of its layers ("Convolution jit_avx2_I8").
    """

    outputs: Arrays
    kernels: tuple[str, ...]

    @property
    def first(self) -> np.ndarray:
        return next(iter(self.outputs.values()))


@dataclass(frozen=True)
class Machine:
    """A runtime on a CPU: a script, what starts Python there, and its environment. All cases share one process.

    features: Of an emulated ARM, those that decide between int8 kernels.
    """

    folder: Path
    script: str
    python: tuple[str, ...] = (sys.executable,)
    environment: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()

    def run(self, cases: Iterable[Case]) -> list[Result]:
        jobs = []
        for index, case in enumerate(cases):
            stem = str(self.folder / f"{index}")
            onnx.save(case.model, f"{stem}.onnx")
            np.savez(f"{stem}.feeds.npz", **case.feeds)
            jobs.append(
                {
                    "model": f"{stem}.onnx",
                    "feeds": f"{stem}.feeds.npz",
                    "outputs": f"{stem}.outputs.npz",
                    "level": case.level,
                    "kernels": f"{stem}.kernels.json",
                    "optimized": f"{stem}.optimized.onnx",
                }
            )
        listing = self.folder / "jobs.json"
        listing.write_text(json.dumps(jobs))
        done = subprocess.run(
            [*self.python, str(HERE / self.script), str(listing)],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [_result(job) for job in jobs]


def _result(job: dict[str, str]) -> Result:
    with np.load(job["outputs"]) as data:
        outputs = {name: data[name] for name in data.files}
    primitives = Path(job["kernels"])
    if primitives.is_file():
        return Result(outputs, tuple(json.loads(primitives.read_text())))
    return Result(outputs, tuple(node.op_type for node in onnx.load(job["optimized"]).graph.node))
