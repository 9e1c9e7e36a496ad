"""The contestants: what each can do, and which module it needs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.machine import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.request import Measured, Request

    Task = Callable[[Request], Measured]


@dataclass(frozen=True)
class Tool:
    """A contestant.

    Attributes:
        module: Its file in this package; TASKS there maps contestant -> action -> function.
        name: The contestant.
        title: What tables call it.
        actions: What it can do.
        needs: The module that must be importable.
        holds_activations: It keeps every activation of every sample in memory, so it gets fewer samples.
    """

    module: str
    name: str
    title: str
    actions: tuple[str, ...]
    needs: str = "onnxruntime"
    holds_activations: bool = False

    @property
    def available(self) -> bool:
        """Whether it is installed."""
        return installed(self.needs)

    def tasks(self) -> Mapping[str, Task]:
        """Import it: action -> function."""
        tasks: Mapping[str, Task] = importlib.import_module(f"benchmarks.tools.{self.module}").TASKS[self.name]
        return tasks


_ALL = (
    Tool("plain", "plain", "FP32 inference", ("calibrate",)),
    Tool("plain", "read", "read of memory", ("calibrate",)),
    Tool("int8cal", "taps-ordinary", "inference, tensors as outputs", ("calibrate",)),
    Tool("int8cal", "taps", "inference, tapped as int8cal does", ("calibrate",)),
    Tool("int8cal", "int8cal", "int8cal", ("calibrate", "quantize")),
    Tool("int8cal", "int8cal-job", "int8cal, weights and corrections too", ("calibrate",)),
    Tool("onnxruntime", "ort-minmax", "onnxruntime MinMax", ("calibrate", "quantize")),
    Tool("onnxruntime", "ort-entropy", "onnxruntime Entropy", ("calibrate",), holds_activations=True),
    Tool("onnxruntime", "ort-percentile", "onnxruntime Percentile", ("calibrate",), holds_activations=True),
    Tool("nncf", "nncf", "NNCF", ("calibrate", "quantize"), needs="nncf"),
    Tool("quark", "quark", "Quark", ("calibrate", "quantize"), needs="quark"),
)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL}
