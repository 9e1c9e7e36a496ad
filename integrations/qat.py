"""From an int8 model to a PyTorch checkpoint for quantization-aware training: weights, scales and zero points go over.

The module must be the one that was exported to ONNX. Every Conv2d and Linear of it whose node is int8 becomes its
counterpart of `torch.ao.nn.qat`: its weight and bias are those of the int8 model, its weight goes through a
`FakeQuantize` with the model's scales, and so do its input, and its output where the model quantizes it. In evaluation
mode its outputs are the int8 model's up to the rounding of float sums; training goes on from there, with scales that
stay (observers are off) or move:

    import torch
    from qat import hand_over

    module = hand_over(Net(), "net-int8/net.int8.onnx")
    module.apply(torch.ao.quantization.enable_observer)  # scales follow the values again
    ...  # train
    torch.save(module.state_dict(), "qat.pt")

What the int8 model quantizes between other nodes, the sides of an Add for example, has no module to stand at: `carried`
says which tensors these are. Biases are float in training, as torch.ao has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.ao.nn import qat
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
from torch.ao.quantization.qconfig import QConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

_LAYERS = ("Conv", "Gemm", "MatMul")
_PASSING = ("Relu", "Clip", "Identity")  # between a layer and the Q of its output
_COUNTERPARTS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: qat.Conv2d, nn.Linear: qat.Linear}


@dataclass(frozen=True)
class Quantizer:
    """The codes of a tensor.

    Attributes:
        tensor: Its name in the int8 model.
        scale: Real units per code, float32 (): or (channels,).
        zero_point: The code of 0, integers of the same shape.
        axis: Of the channels; None where scale is one number.
    """

    tensor: str
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[Any]
    axis: int | None = None


@dataclass(frozen=True)
class Layer:
    """A layer of the int8 model whose weights are codes.

    Attributes:
        node, op_type: The node.
        weight: Values of the codes, as a module has them: outputs first.
        bias: Likewise, None without.
        weights, input, output: Their quantizers; None for a float input or output.
    """

    node: str
    op_type: str
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    weights: Quantizer
    input: Quantizer | None
    output: Quantizer | None


class _Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def behind(self, name: str) -> tuple[npt.NDArray[np.float32], Quantizer] | None:
        """Return the values of constant codes and their quantizer; None for what is no constant behind a DQ."""
        node = self.maker.get(name)
        codes = None if node is None or node.op_type != "DequantizeLinear" else self.constants.get(node.input[0])
        if node is None or codes is None:
            return None
        found = self.quantizer(node, node.input[0])
        shape = [1] * codes.ndim
        if found.axis is not None:
            shape[found.axis] = -1
        scale, zero = found.scale.reshape(shape), found.zero_point.reshape(shape).astype(np.int64)
        return ((codes.astype(np.int64) - zero) * scale.astype(np.float64)).astype(np.float32), found

    def quantizer(self, node: onnx.NodeProto, tensor: str) -> Quantizer:
        """Read the scale and zero point of a Q or DQ."""
        scale = np.asarray(self.constants[node.input[1]])
        zero = np.zeros(scale.shape, np.uint8)
        if len(node.input) > 2 and node.input[2]:
            zero = np.asarray(self.constants[node.input[2]])
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
        return Quantizer(tensor, scale.astype(np.float32), zero, axis if scale.ndim and scale.size > 1 else None)

    def source(self, name: str) -> Quantizer | None:
        """Return the quantizer of a layer's input."""
        node = self.maker.get(name)
        return self.quantizer(node, node.input[0]) if node is not None and node.op_type == "DequantizeLinear" else None

    def result(self, name: str) -> Quantizer | None:
        """Return the quantizer of a layer's output; None where other nodes read it."""
        readers = self.readers.get(name, [])
        if len(readers) == 1 and readers[0].op_type in _PASSING:
            return self.result(readers[0].output[0])
        if not readers or any(node.op_type != "QuantizeLinear" for node in readers):
            return None
        return self.quantizer(readers[0], name)


def layers_of(model: onnx.ModelProto) -> list[Layer]:
    """List the layers of a QDQ model, by any tool, whose weights are codes.

    Args:
        model: With its weights.
    """
    graph, found = _Graph(model), []
    for node in graph.nodes:
        weight = graph.behind(node.input[1]) if node.op_type in _LAYERS else None
        if weight is None:
            continue
        values, quantizer = weight
        plain = not any(each.name == "transB" and each.i for each in node.attribute)
        if node.op_type in ("Gemm", "MatMul") and plain:
            values = np.ascontiguousarray(values.T)
            axis = None if quantizer.axis is None else 1 - quantizer.axis
            quantizer = Quantizer(quantizer.tensor, quantizer.scale, quantizer.zero_point, axis)
        bias = graph.behind(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        float_bias = graph.constants.get(node.input[2]) if len(node.input) > 2 else None
        found.append(
            Layer(
                node.name,
                node.op_type,
                values,
                bias[0] if bias else None if float_bias is None else np.asarray(float_bias, np.float32),
                quantizer,
                graph.source(node.input[0]),
                graph.result(node.output[0]),
            )
        )
    return found


def hand_over(module: nn.Module, int8: str | Path, modules: Mapping[str, str] | None = None) -> nn.Module:
    """Put the weights, scales and zero points of an int8 model into the module that it was exported from.

    Args:
        module: Changed in place; BatchNorms that the export folded into convolutions become nn.Identity beforehand.
        int8: The QDQ model's file.
        modules: Node of the int8 model -> name of its module, for nodes whose names do not tell.

    Returns:
        The module, in evaluation mode: fake quantization on, observers off.

    Raises:
        ValueError: A layer of the int8 model has no module, or one of other dimensions; names the node.
    """
    known = dict(module.named_modules())
    for layer in layers_of(onnx.load(str(int8))):
        name = (modules or {}).get(layer.node) or _module_name(layer.node, known)
        found = known.get(name)
        if found is None or type(found) not in _COUNTERPARTS:
            raise ValueError(f'node "{layer.node}" has no Conv2d or Linear; name it: modules={{"{layer.node}": "..."}}')
        if tuple(found.weight.shape) != layer.weight.shape:
            raise ValueError(
                f'node "{layer.node}": {name} has weights {tuple(found.weight.shape)}, not {layer.weight.shape}'
            )
        parent, _, own = name.rpartition(".")
        setattr(known[parent] if parent else module, own, _trained(found, layer))
    return module.eval()


def _module_name(node: str, known: Mapping[str, nn.Module]) -> str:
    """Read a module's name off a node's, which torch.onnx makes of it: "/features/0/Conv" -> "features.0"."""
    parts = [part for part in node.split("/") if part][:-1]
    names = (".".join(parts[start:]) for start in range(len(parts)))
    return next((name for name in names if name in known), "")


def carried(int8: str | Path) -> tuple[set[str], set[str]]:
    """Say which quantized activations of an int8 model `hand_over` takes along, and which have no module.

    Returns:
        Names of their tensors: taken along, left.
    """
    model = onnx.load(str(int8))
    graph = _Graph(model)
    taken = {each.tensor for layer in layers_of(model) for each in (layer.output,) if each is not None}
    taken |= {
        graph.maker[each.tensor].input[0]
        for layer in layers_of(model)
        for each in (layer.input,)
        if each is not None and each.tensor in graph.maker
    }
    every = {node.input[0] for node in graph.nodes if node.op_type == "QuantizeLinear"}
    return every & taken, every - taken


def _trained(module: nn.Module, layer: Layer) -> nn.Module:
    """Make the counterpart of a module, with a layer's values and quantizers."""
    module.qconfig = QConfig(activation=nn.Identity, weight=lambda **_: _fake(layer.weights, _weight_range(layer)))
    made = _COUNTERPARTS[type(module)].from_float(module.train())
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(layer.weight))
        if layer.bias is not None:
            made.bias = nn.Parameter(torch.from_numpy(layer.bias.copy()))
    for name, quantizer in (("input", layer.input), ("output", layer.output)):
        if quantizer is not None:
            made.add_module(f"{name}_fake_quant", _fake(quantizer, None))
    if layer.input is not None:
        made.register_forward_pre_hook(lambda own, given: (own.input_fake_quant(given[0]), *given[1:]))
    if layer.output is not None:
        made.register_forward_hook(lambda own, _, result: own.output_fake_quant(result))
    return made


def _weight_range(layer: Layer) -> tuple[int, int]:
    """Return the range of codes that the weights use: -64..63 or -127..127."""
    scale = layer.weights.scale.reshape(-1)
    axis = layer.weights.axis or 0
    rows = np.moveaxis(layer.weight, axis, 0).reshape(layer.weight.shape[axis], -1)
    codes = np.rint(rows / (scale[:, None] if scale.size > 1 else scale))
    return (-64, 63) if codes.min() >= -64 and codes.max() <= 63 else (-127, 127)


def _fake(quantizer: Quantizer, weights: tuple[int, int] | None) -> FakeQuantize:
    """Make a fake quantization with the codes of a tensor; its observer is off."""
    signed = quantizer.zero_point.dtype == np.int8
    low, high = weights or ((-128, 127) if signed else (0, 255))
    channels = quantizer.axis is not None
    schemes = (torch.per_channel_symmetric if channels else torch.per_tensor_symmetric, torch.per_tensor_affine)
    made = FakeQuantize(
        observer=MovingAveragePerChannelMinMaxObserver if channels else MovingAverageMinMaxObserver,
        quant_min=low,
        quant_max=high,
        dtype=torch.qint8 if signed else torch.quint8,
        qscheme=schemes[weights is None],
        **({"ch_axis": quantizer.axis} if channels else {}),
    )
    made.scale = torch.from_numpy(np.atleast_1d(quantizer.scale).copy())
    made.zero_point = torch.from_numpy(np.atleast_1d(quantizer.zero_point).astype(np.int32))
    made.disable_observer()
    return made
