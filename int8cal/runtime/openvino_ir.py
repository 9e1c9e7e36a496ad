"""A float model as OpenVINO's intermediate representation, with FakeQuantize operations at chosen tensors.

OpenVINO turns these into integer kernels when it compiles the model, as it does with the models of its own quantizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import ModelError, TableError, UsageError
from int8cal.numerics.fakequantize import FakeQuantize
from int8cal.protos import MAPPED, weight_bytes, write_split
from int8cal.runtime.sessions import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx


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


def fake_quantized(model: onnx.ModelProto, operations: Operations, where: str) -> Written:
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
    with scratch_folder() as folder:
        try:
            if weight_bytes(model) < MAPPED:
                converted = openvino.Core().read_model(model.SerializeToString())
            else:
                write_split(model, folder / "model.onnx", folder / "model.data", "model.data")
                converted = openvino.Core().read_model(str(folder / "model.onnx"))
        except Exception as error:  # OpenVINO's exceptions have no public base
            raise ModelError(
                f"OpenVINO cannot convert it: {_reason(error)}", where=where, do="use the JSON without --model"
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
        TableError: OpenVINO cannot read the files.
    """
    openvino = _openvino()
    try:
        model = openvino.Core().read_model(str(path))
    except Exception as error:  # OpenVINO's exceptions have no public base
        raise TableError(
            f"OpenVINO cannot read it: {_reason(error)}", where=str(path), do="give an .xml with its .bin beside it"
        ) from error
    found: dict[str, FakeQuantize] = {}
    covered: list[str] = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "FakeQuantize":
            continue
        names = sorted(node.input_value(0).names)
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


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise UsageError("openvino is not installed", do="pip install 'int8cal[openvino]'") from error
    return openvino


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]


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
