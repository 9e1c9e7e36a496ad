"""One FP32 model as int8 models of several weight ranges, through the command line, and what differs between two CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from harness import Arrays, Case, Machine

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

# all of the zoo, s7 too, and more images (minutes)
LONG = os.environ.get("INT8CAL_EMULATED") == "long"
IMAGES = int(os.environ.get("INT8CAL_EMULATED_SAMPLES", "64" if LONG else "16"))
SAFE = ("default", "s7") if LONG else ("default",)
# "default" states nothing: --target portable, and its weight range
RANGES = {"default": (), "s8": ("--weights", "s8"), "s7": ("--weights", "s7"), "paired": ("--weights", "paired")}


@dataclass(frozen=True)
class Variant:
    """An int8 model, and its runs on two CPUs.

    Attributes:
        codes: Names of the activations' integer tensors.
        outputs: Names of the model's own outputs.
        here, there: All of them from either CPU, stacked over the runs.
        kernels: Op types of the graph that the first CPU ran.
    """

    codes: tuple[str, ...]
    outputs: tuple[str, ...]
    here: Arrays
    there: Arrays
    kernels: tuple[str, ...]

    def changed(self) -> dict[str, int]:
        """Integer tensors that differ: the largest difference of two codes."""
        steps = {name: np.abs(self.here[name].astype(int) - self.there[name]).max() for name in self.codes}
        return {name: int(step) for name, step in steps.items() if step}

    def share_beyond(self, codes: str, steps: int) -> float:
        """Share of an integer tensor's codes that differ by more than so many steps."""
        return float((np.abs(self.here[codes].astype(int) - self.there[codes]) > steps).mean())

    def output_steps(self) -> dict[str, float]:
        """Largest difference of each output, in 255ths of its range."""
        return {
            name: float(np.abs(self.here[name] - self.there[name]).max() * 255 / np.ptp(self.here[name]))
            for name in self.outputs
        }

    def answers_alike(self) -> bool:
        """Whether no output differs by more than a 255th of its range, nor in where it is largest."""
        return all(step <= 1 for step in self.output_steps().values()) and all(
            np.array_equal(self.here[name].argmax(axis=-1), self.there[name].argmax(axis=-1)) for name in self.outputs
        )


def zoo_feeds(zoo: ModuleType, name: str) -> Arrays:
    """Return the first images as runs of the batch that the model takes."""
    batch = min(zoo.ENTRIES[name].batch, 16)
    data = {key: value[:IMAGES] for key, value in zoo.feeds(name, "test").items()}
    return {
        # silero: (frames, samples) and (frames, 2, 1, 128), one frame a run
        key: value.reshape(-1, batch, *value.shape[1:]) if key != "state" else value
        for key, value in data.items()
    }


def calibrate(model: Path, data: Path, out: Path, *more: str) -> Path:
    """Run `int8cal calibrate` in the cheapest way and return the int8 model."""
    command = [sys.executable, "-m", "int8cal", "calibrate", model, "--data", data, "-o", out, "--samples", 32]
    done = subprocess.run(
        [*map(str, command), "--no-latency", "--quiet", *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.int8.onnx"))


def variants(
    paths: dict[str, Path], feeds: Arrays, here: Machine, there: Machine, *, codes: bool = True
) -> dict[str, Variant]:
    """Run the same feeds through int8 models on both CPUs, with their activations' integers as further outputs."""
    models, integers, outputs = {}, {}, {}
    for kind, path in paths.items():
        model = onnx.load(path)
        outputs[kind] = tuple(output.name for output in model.graph.output)
        quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and codes]
        integers[kind] = tuple(node.output[0] for node in quantizers)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in integers[kind])
        models[kind] = model
    runs = [machine.run(Case(model, feeds) for model in models.values()) for machine in (here, there)]
    return {
        kind: Variant(integers[kind], outputs[kind], first.outputs, second.outputs, first.kernels)
        for kind, first, second in zip(models, *runs, strict=True)
    }
