"""What an error at some layers' outputs does where the float model is scored, everything else being exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from int8cal.graph.index import Index, attribute
from int8cal.graph.injection import ErrorSite, make_injection
from int8cal.graph.scoring import score_points, tensors_of, weights_of
from int8cal.protos import copied
from int8cal.quantization.noise import ReferenceOutputs, relative, scored_values
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
        self._points = score_points(model)
        self._names = [point.name for point in self._points]
        self._outputs = tensors_of(self._points)
        tensors = list(dict.fromkeys(layer.input for layer in self._layers.values()))
        injection = make_injection(model, plan, outputs=True, ends=self._outputs)
        self._added = {node: injection.inputs[ErrorSite(node, "output")] for node in self._layers}
        graph = injection.model.shell.graph
        given = {value.name for value in (*graph.input, *graph.output)}
        graph.output.extend(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors if name not in given
        )
        self._session = Session(injection.model, threads=threads)
        self._products: dict[str, Session] = {}
        self._feeds: list[dict[str, Array]] = []
        self._samples: list[SampleLike | None] = []  # where a run is one sample
        self._inputs: list[dict[str, Array]] = []
        size, held = batch_size(signature), 0
        for start in range(0, len(samples), size):
            feed = make_feed(signature, samples[start : start + size])
            values = self._run(feed, {}, [name for name in tensors if name not in feed])
            held += sum(value.nbytes for value in values.values())
            if self._inputs and held > _HELD_BYTES:
                break
            self._feeds.append(feed)
            self._samples.append(samples[start] if size == 1 else None)
            self._inputs.append({name: feed.get(name, values.get(name)) for name in tensors})  # type: ignore[misc]
        self._expected = [ReferenceOutputs.of(self._scored(run, {}), self._names) for run in range(self.runs)]

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

    def added_error(self, errors: Sequence[Mapping[str, Array]]) -> float:
        """Add errors to layers' outputs; returns the relative squared error where the model is scored.

        Args:
            errors: Per run, node -> what is added, of the shape of its output.

        Returns:
            Squared error over squared value, the mean over the points of graph.scoring.
        """
        noise = sum(
            exact.noise(self._scored(run, added), self._names)
            for run, (exact, added) in enumerate(zip(self._expected, errors, strict=True))
        )
        signal = np.sum([exact.power for exact in self._expected], axis=0) / weights_of(self._points)
        return float(relative(np.asarray(noise), signal))

    def _scored(self, run: int, added: Mapping[str, Array]) -> dict[str, Array]:
        values = self._run(self._feeds[run], added, self._outputs)
        return scored_values(self._points, values, self._samples[run])

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
