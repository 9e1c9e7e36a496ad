"""OpenVINO's CPU plugin as a second runtime: an ONNX model opened as it is, and what its layers became."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import ModelError, StatisticsError, UsageError
from int8cal.runtime.sessions import cpu_count, first_line, loadable, model_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    import onnx
    import openvino

    from int8cal.protos import ModelView

# f32: on CPUs with bf16 the plugin would otherwise compute the float layers in bf16, and their error would pass for
# that of int8
_SETTINGS = {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
_INTEGER = frozenset({"i8", "u8"})
_REAL = frozenset({"f32", "f16", "bf16"})
# Lines of its errors that say nothing of the model.
_FRAME = ("Exception from", "Check '", "FrontEnd API", "Model wasn't", "Summary:", "To facilitate")
# Layers that store, convert or rename values: Q and DQ, changes of layout, and what holds constants.
_BOUNDARY = frozenset(
    {"Const", "Input", "Output", "Reorder", "Convert", "FakeQuantize", "Reshape", "ShapeOf", "MemoryInput"}
)


@dataclass(frozen=True)
class Executed:
    """A layer that the plugin executes.

    Attributes:
        name: Its name in the plugin's graph.
        op_type: OpenVINO's own, such as "Convolution".
        precision: Of the values it takes: "u8", "i8", "f32", ...
        kernel: Such as "brgconv_avx512_I8".
    """

    name: str
    op_type: str
    precision: str
    kernel: str

    @property
    def is_integer(self) -> bool:
        """Whether it takes 8-bit integers."""
        return self.precision in _INTEGER


def require_openvino() -> None:
    """Insist that OpenVINO is installed.

    Raises:
        UsageError: It is not; says how to install it.
    """
    if importlib.util.find_spec("openvino") is None:
        raise UsageError("runtime openvino is not installed", do="pip install 'int8cal[openvino]'")


class OpenVinoSession:
    """A model ready to run in OpenVINO's CPU plugin; runs like `runtime.sessions.Session`."""

    def __init__(self, model: onnx.ModelProto | ModelView | Path | str, *, threads: int = 0) -> None:
        """Open a session.

        Args:
            model: A file (external data beside it is found), or a model or graft in memory (any size).
            threads: Threads of the plugin; 0 for one per available CPU.

        Raises:
            UsageError: OpenVINO is not installed.
            ModelError: OpenVINO cannot read or compile the model; the message is its own.
        """
        require_openvino()
        import openvino

        settings = {**_SETTINGS, "INFERENCE_NUM_THREADS": threads or cpu_count()}
        with loadable(model) as source:
            try:
                core = openvino.Core()
                self._compiled = core.compile_model(core.read_model(source), "CPU", settings)
                self._request = self._compiled.create_infer_request()
            except RuntimeError as error:  # what OpenVINO makes of all its exceptions
                raise ModelError(
                    f"OpenVINO cannot load it: {_reason(error)}",
                    where=model_name(model),
                    do="evaluate without --runtime openvino, or quantize with --target openvino",
                ) from error
        self._taken = _by_name(self._compiled.inputs)
        self._given = _by_name(self._compiled.outputs)
        self.inputs: tuple[str, ...] = tuple(self._taken)
        self.outputs: tuple[str, ...] = tuple(self._given)

    def run(
        self, feed: dict[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Run one feed.

        Args:
            feed: Input name -> array, as the model's signature asks; one that no layer reads is left out.
            outputs: Names to give; None for all.

        Returns:
            Output name -> array of the caller's own.

        Raises:
            StatisticsError: A kernel failed on these values, or an input is missing.
        """
        # contiguous: the plugin takes the memory as it is
        given = {self._taken[name]: np.ascontiguousarray(array) for name, array in feed.items() if name in self._taken}
        try:
            self._request.infer(given, share_inputs=True)
            ports = {name: self._given[name] for name in (self.outputs if outputs is None else outputs)}
            return {name: np.array(self._request.get_output_tensor(port).data) for name, port in ports.items()}
        except RuntimeError as error:
            raise StatisticsError(
                f"inference failed in OpenVINO: {_reason(error)}", do="evaluate without --runtime openvino"
            ) from error

    def executed(self) -> tuple[Executed, ...]:
        """Return the layers that compute or move activations, in the order of execution.

        Left out are inputs, outputs, what follows from constants alone, Q and DQ (FakeQuantize, Convert), changes of
        layout or shape, and arithmetic on shapes.
        """
        model = self._compiled.get_runtime_model()
        constants = _from_constants(model)
        keys = ("layerType", "runtimePrecision", "primitiveType")
        layers = [
            Executed(node.get_friendly_name(), *(_text(node.get_rt_info(), key) for key in keys))
            for node in model.get_ordered_ops()
            if node.get_friendly_name() not in constants
        ]
        return tuple(each for each in layers if each.op_type not in _BOUNDARY and each.precision in _INTEGER | _REAL)


def _by_name(ports: Sequence[openvino.ConstOutput]) -> dict[str, int]:
    """Return each name of a port with its position: one tensor may be several outputs."""
    return {name: number for number, port in enumerate(ports) for name in sorted(port.names)}


def _from_constants(model: openvino.Model) -> frozenset[str]:
    """Name the nodes that depend on constants alone: the plugin runs them once, when it compiles."""
    fixed: set[str] = set()
    for node in model.get_ordered_ops():
        sources = [port.get_node().get_friendly_name() for port in node.input_values()]
        kind = _text(node.get_rt_info(), "layerType")
        if kind == "Const" or (sources and kind != "Output" and fixed.issuperset(sources)):
            fixed.add(node.get_friendly_name())
    return frozenset(fixed)


def _text(info: openvino.RTMap, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""


def _reason(error: Exception) -> str:
    """Pick the line of OpenVINO's text that says something: others name its source files, or its documentation."""
    lines = [line.strip(" -") for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_FRAME)]
    return telling[-1][:300] if telling else first_line(error)
