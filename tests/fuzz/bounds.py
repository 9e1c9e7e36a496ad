"""How far an int8 model can be from its float values, by its scales alone: the model with a bound of the error beside each tensor.

`bounded` takes Q and DQ of activations out of an int8 model, which leaves a float model with dequantized weights, and adds
for each tensor t a tensor "t!" that is at least |t of the int8 model - t of that float model|:

    Q, DQ         error of the input + scale / 2 + what lies outside of the range
    products      |a| * error of b + error of a * |b| + error of a * error of b
    what moves or averages values, or takes the largest: the same of the errors
    what grows no faster than c * x: c * error

Nothing of int8cal is used for it but the model's own scales.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOVES = (
    *(
        "Reshape",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Split",
        "Identity",
        "Expand",
        "Gather",
        "Cast",
    ),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "DepthToSpace"),
)
STEEPEST = {
    "Relu": 1.0,
    "Clip": 1.0,
    "Tanh": 1.0,
    "Sigmoid": 0.25,
    "Abs": 1.0,
    "Neg": 1.0,
    "HardSwish": 1.5,
    "Gelu": 1.13,
    "Softplus": 1.0,
}
# of ops whose integer kernels of onnxruntime compute in other ways than DQ, op, Q: how many steps more that may cost
ROUGH = {"Softmax": 1.0, "GlobalAveragePool": 1.0, "AveragePool": 1.0, "Add": 0.5, "Mul": 0.5, "Concat": 0.5}


class UnboundedError(Exception):
    """An op of which nothing is known here."""


def bounded(model: onnx.ModelProto, of: Literal["activations", "weights"] = "activations") -> onnx.ModelProto:
    """Return the float model, whose outputs are followed by bounds of their errors, named "NAME!".

    Args:
        model: An int8 model in QDQ form.
        of: "activations" bounds how far the int8 model is from this float model, "weights" how far the model that its
            weights were rounded from is: each of them by a step.

    Raises:
        UnboundedError: It has an op that is not known here.
    """
    return _Bounds(model, of).made()


class _Bounds:
    def __init__(self, model: onnx.ModelProto, of: str) -> None:
        self.model, self.of = model, of
        self.constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self.producer = {name: node for node in model.graph.node for name in node.output}
        self.nodes: list[onnx.NodeProto] = []
        self.added: list[onnx.TensorProto] = []
        self.ranks: dict[str, int] = {}  # of dequantized constants
        self.exact: set[str] = set(self.constants)  # tensors without an error
        self.scales: dict[str, np.ndarray] = {}  # of codes
        self.count = 0

    def made(self) -> onnx.ModelProto:
        graph = self.model.graph
        self.exact |= {value.name for value in graph.input}
        for node in graph.node:
            self._walk(node)
        outputs = []
        for value in graph.output:
            elem = value.type.tensor_type.elem_type
            outputs += [value, helper.make_tensor_value_info(f"{value.name}!", elem, None)]
            if value.name in self.exact:
                self._put("Sub", [value.name, value.name], f"{value.name}!")
        kept = [
            each
            for each in graph.initializer
            if each.data_type not in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32)
        ]
        made = helper.make_graph(self.nodes, "bounds", list(graph.input), outputs, [*kept, *self.added])
        return helper.make_model(made, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)

    def _put(self, op: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        self.count += 1
        output = output or f"!{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def _like(self, node: onnx.NodeProto, inputs: list[str], outputs: list[str]) -> list[str]:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{node.name}!{self.count}"
        self.count += 1
        copy.ClearField("input")
        copy.ClearField("output")
        copy.input.extend(inputs)
        copy.output.extend(outputs)
        self.nodes.append(copy)
        return outputs

    def _constant(self, value: object, dtype: object = np.float32) -> str:
        self.count += 1
        name = f"!c{self.count}"
        self.added.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def _error(self, name: str) -> str:
        return self._put("Sub", [name, name]) if name in self.exact else f"{name}!"

    def _walk(self, node: onnx.NodeProto) -> None:
        match node.op_type:
            case "QuantizeLinear":
                self._quantize(node)
            case "DequantizeLinear" if node.input[0] in self.constants:
                value, step = _dequantized(node, *(self.constants[name] for name in node.input))
                self.added.append(numpy_helper.from_array(value, node.output[0]))
                self.ranks[node.output[0]] = value.ndim
                if self.of == "weights":
                    self.added.append(numpy_helper.from_array(step, f"{node.output[0]}!"))
                else:
                    self.exact.add(node.output[0])
            case "DequantizeLinear":
                self._dequantize(node)
            case "Pad" if len(node.input) > 2 and self.constants[node.input[2]].dtype.kind in "iu":
                # of codes, by the zero point, which stands for 0
                self._like(node, [*node.input[:2]], [*node.output])
                self._bound(node)
            case "Constant":
                self.nodes.append(node)
                self.exact |= set(node.output)
            case _:
                self.nodes.append(node)
                if all(name in self.exact for name in node.input if name):
                    self.exact |= set(node.output)
                else:
                    self._bound(node)

    def _dequantize(self, node: onnx.NodeProto) -> None:
        codes, output, scale = node.input[0], node.output[0], self.constants[node.input[1]]
        # a DQ of another scale than its Q multiplies by a constant
        ratio = scale / self.scales.get(codes, scale)
        times = self._constant(ratio) if ratio.ndim == 0 and abs(ratio - 1) > 1e-6 else ""
        pairs = [(codes, output)] if codes in self.exact else [(codes, output), (f"{codes}!", f"{output}!")]
        for name, made in pairs:
            self._put("Mul" if times else "Identity", [name, times] if times else [name], made)
        if codes in self.exact:
            self.exact.add(output)

    def _quantize(self, node: onnx.NodeProto) -> None:
        source, target = node.input[0], node.output[0]
        self.scales[target] = self.constants[node.input[1]]
        if self.of == "weights":
            self._put("Identity", [source], target)
            if source in self.exact:
                self.exact.add(target)
            else:
                self._put("Identity", [self._error(source)], f"{target}!")
            return
        scale, zero = (self.constants[name] for name in node.input[1:3])
        limits = np.iinfo(zero.dtype)
        low, high = ((np.float64(code) - np.float64(zero)) * np.float64(scale) for code in (limits.min, limits.max))
        before = self.producer.get(source)
        steps = 0.5 + ROUGH.get(before.op_type if before is not None else "", 0.0) + 0.01
        self._put("Identity", [source], target)
        below = self._put("Relu", [self._put("Sub", [self._constant(low), source])])
        above = self._put("Relu", [self._put("Sub", [source, self._constant(high)])])
        outside = self._put("Add", [below, above])
        rounded = self._put("Add", [outside, self._constant(steps * np.float64(scale))])
        self._put("Add", [rounded, self._error(source)], f"{target}!")

    def _bound(self, node: onnx.NodeProto) -> None:
        op, first, outputs = node.op_type, node.input[0], [f"{name}!" for name in node.output]
        if op in MOVES:
            self._like(node, [self._error(first), *node.input[1:]], outputs)
        elif op == "Concat":
            self._like(node, [self._error(name) for name in node.input], outputs)
        elif op == "Pad":
            self._like(node, [self._error(first), node.input[1]], outputs)
        elif op in STEEPEST:
            self._put("Mul", [self._error(first), self._constant(STEEPEST[op])], outputs[0])
        elif op == "LeakyRelu":
            slope = next((each.f for each in node.attribute if each.name == "alpha"), 0.01)
            self._put("Mul", [self._error(first), self._constant(max(1.0, abs(slope)))], outputs[0])
        elif op in ("Add", "Sub", "Max", "Min"):
            total = self._error(first)
            for name in node.input[1:]:
                total = self._put("Add", [total, self._error(name)])
            self._put("Identity", [total], outputs[0])
        elif op == "Div" and node.input[1] in self.exact:
            self._put("Div", [self._error(first), self._put("Abs", [node.input[1]])], outputs[0])
        elif op in ("Conv", "MatMul", "Gemm", "Mul", "ConvTranspose"):
            self._product(node, outputs[0])
        elif op == "Softmax":
            self._softmax(node, outputs[0])
        else:
            raise UnboundedError(op)

    def _product(self, node: onnx.NodeProto, output: str) -> None:
        a, b = node.input[:2]
        sizes = self._put("Abs", [a]), self._put("Abs", [b])
        terms = []
        if b not in self.exact:
            terms.append((sizes[0], self._error(b)))
        if a not in self.exact:
            terms.append((self._error(a), sizes[1]))
        if len(terms) == 2:
            terms.append((self._error(a), self._error(b)))
        total = ""
        for left, right in terms:
            term = self._like(node, [left, right], [f"!t{self.count}"])[0]
            total = self._put("Add", [total, term]) if total else term
        if len(node.input) > 2 and node.input[2] not in self.exact:
            bias = self._error(node.input[2])
            if node.op_type != "Gemm":  # of channels, which stand before the places
                bias = self._put("Reshape", [bias, self._constant([1, -1, *[1] * (self.ranks[b] - 2)], np.int64)])
            total = self._put("Add", [total, bias])
        self._put("Identity", [total], output)

    def _softmax(self, node: onnx.NodeProto, output: str) -> None:
        # |dx| <= m in all of a row: p' is within p * exp(-2 m) and p * exp(2 m), and both are within 0 and 1
        largest = self._put("ReduceMax", [self._error(node.input[0])], keepdims=0)
        grown = self._put(
            "Sub", [self._put("Exp", [self._put("Mul", [largest, self._constant(2.0)])]), self._constant(1.0)]
        )
        self._put("Min", [self._put("Mul", [node.output[0], grown]), self._constant(1.0)], output)


def _dequantized(
    node: onnx.NodeProto, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of constant codes, and one step of each."""
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    shape = [-1 if at == axis % codes.ndim else 1 for at in range(codes.ndim)] if scale.ndim and codes.ndim else []
    zeros = np.zeros_like(scale) if zero is None else zero
    scales, points = (each.reshape(shape).astype(np.float64) if each.ndim else each for each in (scale, zeros))
    values = (codes.astype(np.float64) - points) * scales
    return values.astype(scale.dtype), np.broadcast_to(np.abs(scales), codes.shape).astype(scale.dtype)
