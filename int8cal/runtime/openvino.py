"""OpenVINO: its CPU plugin as a second runtime, and float models as its intermediate representation.

A session opens an ONNX model as it is, and tells what its layers became. A representation has FakeQuantize operations
at chosen tensors: OpenVINO turns these into integer kernels when it compiles the model, as it does with the models of
its own quantizer.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import DataError, ModelError, TableError, UsageError
from int8cal.extras import extra_hint
from int8cal.numerics.fakequantize import FakeQuantize
from int8cal.runtime.scratch import loadable, scratch_folder
from int8cal.runtime.sessions import cpu_count, first_line, model_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx
    import openvino

    from int8cal.numerics import Array
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


# CPU flag -> how many times the speed of onnxruntime default int8 models had, the first flag that a CPU has counts
# (docs/how-to/runtimes.md: ResNet-50, MobileNetV2, and on the latter CPU a BERT encoder and YOLOv8n).
GAINS = {"amx_int8": "1.4 to 2.6", "avx512_vnni": "0.86 to 1.30"}


def is_installed() -> bool:
    """Whether OpenVINO is installed; nothing of it is imported."""
    return importlib.util.find_spec("openvino") is not None


def require_openvino() -> None:
    """Insist that OpenVINO is installed.

    Raises:
        UsageError: It is not; says how to install it.
    """
    if not is_installed():
        raise UsageError("runtime openvino is not installed", do=extra_hint("openvino"))


class OpenVinoSession:
    """A model ready to run in OpenVINO's CPU plugin; runs like `runtime.sessions.Session`."""

    at_once = 1

    def __init__(self, model: onnx.ModelProto | ModelView | Path | str, *, threads: int = 0) -> None:
        """Open a session.

        Args:
            model: A file (external data beside it is found), or a model or view in memory (any size).
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

    def run(self, feed: dict[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run one feed.

        Args:
            feed: Input name -> array, as the model's signature asks; one that no layer reads is left out.
            outputs: Names to give; None for all.

        Returns:
            Output name -> array of the caller's own.

        Raises:
            DataError: A kernel failed on these values, or an input is missing.
        """
        # contiguous: the plugin takes the memory as it is; np.ascontiguousarray would make a vector of a scalar
        given = {self._taken[name]: np.asarray(array, order="C") for name, array in feed.items() if name in self._taken}
        try:
            self._request.infer(given, share_inputs=True)
            ports = {name: self._given[name] for name in (self.outputs if outputs is None else outputs)}
            return {name: np.array(self._request.get_output_tensor(port).data) for name, port in ports.items()}
        except RuntimeError as error:
            raise DataError(
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


@dataclass(frozen=True)
class Operations:
    """What to insert.

    Attributes:
        tensors: Activation tensor -> its operation, for every reader but the graph's outputs.
        weights: Constant -> axis of its channels (None for one operation) and the operations.
    """

    tensors: Mapping[str, FakeQuantize]
    weights: Mapping[str, tuple[int | None, Sequence[FakeQuantize]]]


@dataclass(frozen=True)
class Written:
    """The two files, and the names that the representation does not have."""

    xml: bytes
    data: bytes
    absent: tuple[str, ...]


def with_fake_quantize(model: onnx.ModelProto, operations: Operations, where: str) -> Written:
    """Convert a model and insert operations.

    Args:
        model: A float model.
        operations: What to insert, by ONNX tensor names.
        where: What messages call the model.

    Raises:
        UsageError: openvino is not installed.
        ModelError: OpenVINO cannot convert the model.
    """
    openvino = _openvino()
    with scratch_folder() as folder, loadable(model) as source:
        try:
            converted = openvino.Core().read_model(source)
        except Exception as error:  # OpenVINO's exceptions have no public base
            raise ModelError(
                f"OpenVINO cannot convert it: {_last_line(error)}", where=where, do="use the JSON without --model"
            ) from error
        outputs = {
            name: output for each in converted.get_ordered_ops() for output in each.outputs() for name in output.names
        }
        absent = [name for name in (*operations.tensors, *operations.weights) if name not in outputs]
        for name, operation in operations.tensors.items():
            if name in outputs:
                _insert(outputs[name], [operation], None)
        for name, (axis, each) in operations.weights.items():
            if name in outputs:
                _insert(outputs[name], each, axis)
        _name(converted)
        # no compression to 16 bits: the weights are those that were calibrated
        openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)
        xml, data = (folder / "model.xml").read_bytes(), (folder / "model.bin").read_bytes()
    return Written(xml, data, tuple(absent))


def operations_of(path: Path) -> tuple[dict[str, FakeQuantize], tuple[str, ...]]:
    """Read the FakeQuantize operations of activations from an intermediate representation.

    Args:
        path: The .xml; its .bin lies beside it.

    Returns:
        Tensor name -> operation; and the tensors that had a range per channel, and got the one that covers them all.
        Operations of weights, and of tensors without a name, are left out.

    Raises:
        UsageError: openvino is not installed.
        TableError: OpenVINO cannot read the files, or a tensor's name is no UTF-8.
    """
    openvino = _openvino()
    try:
        model = openvino.Core().read_model(str(path))
    except Exception as error:  # OpenVINO's exceptions have no public base
        raise TableError(
            f"OpenVINO cannot read it: {_last_line(error)}", where=str(path), do="give an .xml with its .bin beside it"
        ) from error
    found: dict[str, FakeQuantize] = {}
    covered: list[str] = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "FakeQuantize":
            continue
        try:
            names = sorted(node.input_value(0).names)
        except UnicodeDecodeError as error:
            raise TableError(
                "the name of a tensor is no UTF-8", where=str(path), do="convert the model again"
            ) from error
        sources = [node.input_value(slot).get_node() for slot in range(1, 5)]
        weights = node.input_value(0).get_node().get_type_name() == "Constant"
        if not names or weights or any(source.get_type_name() != "Constant" for source in sources):
            continue
        ends = [np.asarray(source.data, np.float64).reshape(-1) for source in sources]
        if max(end.size for end in ends) > 1:
            covered += names
        low, high, output_low, output_high = (
            float(end.max() if slot % 2 else end.min()) for slot, end in enumerate(ends)
        )
        levels = int(node.get_attributes()["levels"])
        found |= dict.fromkeys(names, FakeQuantize(low, high, output_low, output_high, levels))
    return found, tuple(covered)


def _name(model: Any) -> None:
    """Rename what OpenVINO numbers by a counter of the process, so that the same model has one text."""
    for position, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        if node.get_friendly_name().removeprefix(f"{kind}_").isdigit():
            node.set_friendly_name(f"{kind}_{position}")


def _insert(output: Any, operations: Sequence[FakeQuantize], axis: int | None) -> None:
    from openvino import opset13 as ops

    readers = [target for target in output.get_target_inputs() if target.get_node().get_type_name() != "Result"]
    if not readers:
        return
    shape = [1] * (0 if axis is None else len(output.get_partial_shape()))
    if axis is not None:
        shape[axis] = len(operations)

    def ends(name: str) -> Any:
        values = np.array([getattr(each, name) for each in operations], np.float32)
        return ops.constant(values.reshape(shape))

    names = ("input_low", "input_high", "output_low", "output_high")
    node = ops.fake_quantize(output, *(ends(name) for name in names), operations[0].levels)
    for reader in readers:
        reader.replace_source_output(node.output(0))


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise UsageError("openvino is not installed", do=extra_hint("openvino")) from error
    return openvino


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]
