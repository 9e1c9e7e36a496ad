"""What an error at some layers' outputs does to the outputs of the float model, everything else being exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from int8cal.graph.index import Index, attribute
from int8cal.graph.injection import Place, make_injection
from int8cal.protos import copied
from int8cal.runtime.batching import batch_size, make_feed
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from int8cal.graph.plan import Layer, Plan
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import SampleLike

Array = npt.NDArray[Any]

_HELD_BYTES = 256_000_000  # of layer inputs, over all runs


class Injected:
    """The float model with an input beside each layer that is added to what the layer computes.

    Args:
        model: The prepared model.
        plan: Its plan.
        signature: Of its inputs.
        layers: Conv, Gemm and MatMul layers.
        samples: As many runs are used as fit in memory, one at least.
        threads: Threads of the runtime.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Plan,
        signature: Signature,
        layers: Iterable[Layer],
        samples: Sequence[SampleLike],
        *,
        threads: int = 0,
    ) -> None:
        self._index = Index(model)
        self._layers = {layer.node: layer for layer in layers}
        self._opsets = model.opset_import
        self._threads = threads
        self._outputs = [value.name for value in model.graph.output]
        tensors = list(dict.fromkeys(layer.input for layer in self._layers.values()))
        injection = make_injection(model, plan, outputs=True)
        self._added = {node: injection.inputs[Place(node, "output")] for node in self._layers}
        graph = injection.model.shell.graph
        given = {value.name for value in (*graph.input, *graph.output)}
        graph.output.extend(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors if name not in given
        )
        self._session = Session(injection.model, threads=threads)
        self._products: dict[str, Session] = {}
        self._feeds: list[dict[str, Array]] = []
        self._inputs: list[dict[str, Array]] = []
        size, held = batch_size(signature), 0
        for start in range(0, len(samples), size):
            feed = make_feed(signature, samples[start : start + size])
            values = self._run(feed, {}, [name for name in tensors if name not in feed])
            held += sum(value.nbytes for value in values.values())
            if self._inputs and held > _HELD_BYTES:
                break
            self._feeds.append(feed)
            self._inputs.append({name: feed.get(name, values.get(name)) for name in tensors})  # type: ignore[misc]
        self._expected = [self._run(feed, {}, self._outputs) for feed in self._feeds]

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self._feeds)

    def read(self, node: str, run: int) -> Array:
        """Return what a layer reads in a run."""
        return self._inputs[run][self._layers[node].input]

    def product(self, node: str, values: Array, weight: Array) -> Array:
        """Compute a layer without its bias, on other values and with another weight; float32 both."""
        if node not in self._products:
            self._products[node] = Session(self._alone(node), threads=self._threads)
        return self._products[node].run({"x": values, "w": weight})["y"]

    def close_layers(self) -> None:
        """Give the memory of the layers that were computed alone back."""
        self._products.clear()

    def harm(self, errors: Sequence[Mapping[str, Array]]) -> float:
        """Add errors to layers' outputs; returns the relative squared error of the model's outputs.

        Args:
            errors: Per run, node -> what is added, of the shape of its output.

        Returns:
            Squared error over squared value, the mean over the float outputs; inf where it is not finite.
        """
        noise, power = dict.fromkeys(self._outputs, 0.0), dict.fromkeys(self._outputs, 0.0)
        for feed, expected, added in zip(self._feeds, self._expected, errors, strict=True):
            actual = self._run(feed, added, self._outputs)
            for name, value in expected.items():
                if value.dtype.kind == "f":
                    noise[name] += float(np.square(actual[name].astype(np.float64) - value).sum())
                    power[name] += float(np.square(value, dtype=np.float64).sum())
        ratios = [noise[name] / power[name] for name in self._outputs if power[name] > 0]
        total = float(np.mean(ratios)) if ratios else 0.0
        return total if np.isfinite(total) else float("inf")

    def _run(self, feed: dict[str, Array], added: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
        inputs = {self._added[node]: error for node, error in added.items()}
        return dict(self._session.run({**feed, **inputs}, names)) if names else {}

    def _alone(self, node: str) -> onnx.ModelProto:
        """Return a model of the layer's node alone, with values and weight as inputs."""
        layer = self._layers[node]
        proto = copied(self._index.nodes[node])
        if layer.op_type == "Gemm":
            transposed = attribute(proto, "transB", 0)
            proto = helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)
        else:
            del proto.input[:], proto.output[:]
            proto.input.extend(["x", "w"])
            proto.output.append("y")
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "w", "y")]
        graph = helper.make_graph([proto], "layer", values[:2], values[2:])
        return helper.make_model(graph, opset_imports=self._opsets, ir_version=8)
