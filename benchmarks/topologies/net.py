"""A small writer of ONNX graphs: nodes in order, weights from one seeded generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Net:
    """Collects nodes and weights; every method that adds a node returns the name of its output."""

    def __init__(self, name: str, seed: int) -> None:
        """Start an empty graph.

        Args:
            name: Of the graph.
            seed: Of all weights; the same seed gives the same bytes.
        """
        self._name = name
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def normal(self, name: str, shape: Sequence[int], scale: float) -> str:
        """Add a float32 weight with normal values of a standard deviation; returns its name."""
        values = self._rng.standard_normal(tuple(shape), np.float32)
        return self.constant(name, values * np.float32(scale))

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add an initializer; returns its name."""
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one output."""
        output = f"{name}_out"
        self._nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def conv(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        gain: float,
    ) -> str:
        """Add a convolution with "same" padding and a bias, as BatchNorm folding leaves it.

        Args:
            x: Input tensor.
            name: Of the node.
            channels: (in, out).
            kernel: Side of the square kernel.
            stride: In both directions.
            groups: 1, or the number of channels for a depthwise convolution.
            gain: Variance of the output over that of the input, for an input of independent values. Folded scales
                differ from channel to channel, here by a log-normal factor, as they do in trained networks.
        """
        fan_in = channels[0] // groups * kernel * kernel
        spread = np.exp(0.25 * self._rng.standard_normal(channels[1]))
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        values = self._rng.standard_normal(shape, np.float32) * np.sqrt(gain / fan_in)
        weight = self.constant(f"{name}.weight", (values * spread[:, None, None, None]).astype(np.float32))
        bias = self.normal(f"{name}.bias", (channels[1],), 0.1)
        return self.node(
            "Conv",
            [x, weight, bias],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )

    def linear(self, x: str, name: str, features: tuple[int, int], gain: float = 1.0) -> str:
        """Add MatMul and bias Add, as torch exports a Linear on more than two axes."""
        weight = self.normal(f"{name}.weight", features, float(np.sqrt(gain / features[0])))
        bias = self.normal(f"{name}.bias", (features[1],), 0.05)
        return self.node("Add", [bias, self.node("MatMul", [x, weight], f"{name}/MatMul")], f"{name}/Add")

    def classifier(self, x: str, name: str, features: tuple[int, int]) -> str:
        """Add GlobalAveragePool, Flatten and Gemm."""
        pooled = self.node("GlobalAveragePool", [x], "pool")
        flat = self.node("Flatten", [pooled], "flatten", axis=1)
        weight = self.normal(f"{name}.weight", (features[1], features[0]), float(np.sqrt(1.0 / features[0])))
        bias = self.normal(f"{name}.bias", (features[1],), 0.05)
        return self.node("Gemm", [flat, weight, bias], name, transB=1)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], output: tuple[str, str, Sequence[int | str]], opset: int
    ) -> onnx.ModelProto:
        """Finish: check the graph and return the model.

        Args:
            inputs: Graph inputs.
            output: (tensor, name of the graph output, its shape).
            opset: Of the default domain.
        """
        tensor, name, shape = output
        for node in self._nodes:
            node.output[:] = [name if item == tensor else item for item in node.output]
            node.input[:] = [name if item == tensor else item for item in node.input]
        graph = helper.make_graph(
            self._nodes,
            self._name,
            list(inputs),
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="int8cal")
        model.ir_version = 8  # of the time of these opsets, so that every onnxruntime that int8cal allows loads it
        return model
