"""How much of the noise at the outputs each rounding makes: one pass over a few samples, no int8 model per layer.

The errors of all inputs and weights of layers come out of one error model, in chunks that fit into memory. Each is then
added alone behind its layer in the float model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.costs import layer_outputs
from int8cal.graph.index import Index
from int8cal.graph.taps import in_chunks, tapped_model
from int8cal.numerics.channels import along
from int8cal.probe.injection import ErrorSite
from int8cal.probe.noise import run_seconds, sample_count
from int8cal.probe.probe import Probe
from int8cal.protos import copied
from int8cal.quantization.corrections.channel_copies import merged
from int8cal.quantization.corrections.residual_codes import fine_scale, first_plane
from int8cal.quantization.layers import scales_per_output
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.protos import ModelView
    from int8cal.runtime.batching import SampleLike

Float64 = npt.NDArray[np.float64]

SAMPLES = 8
SECONDS = 20.0  # that the pass may take by estimate; it runs on one sample at least
CHUNK_BYTES = 128_000_000  # of errors and of weights of rounded layers


@dataclass(frozen=True, eq=False)
class RoundedLayer:
    """A layer as it computes with integers.

    Attributes:
        layer: The layer.
        integers: Its weights and bias.
        affine: Of its input.
        residual: Its input has residual codes (see corrections.residual_codes).
        copies: Channels of its input that it reads once more (see corrections.channel_copies).
    """

    layer: Layer
    integers: QuantizedLayer
    affine: Affine
    residual: bool = False
    copies: tuple[int, ...] = ()

    def weight(self) -> npt.NDArray[np.float32]:
        """Return the dequantized weights, shaped as stored; with residual codes, those of the first codes."""
        codes, scales = self.integers.weight, self.integers.scales.astype(np.float32)
        if self.residual:
            codes = first_plane(codes, self.layer.reduction)
        whole = merged(codes, self.copies, self.layer.reduction).astype(np.float32)
        return whole * scales.reshape(along(self.layer.axis, whole.ndim))

    def bias(self) -> npt.NDArray[np.float32] | None:
        """Return the dequantized bias, (M,); None where there is none."""
        if self.integers.bias is None:
            return None
        scales = np.float32(self.affine.scale) * scales_per_output(self.integers.scales.astype(np.float32), self.layer)
        return (self.integers.bias * scales.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class NoiseSource:
    """One thing that is rounded, and nothing else.

    Attributes:
        what: "input" or "weights" of a layer, or "others": a tensor, for readers that are no layers.
        name: The layer's node, or the tensor.
        residual: The layer's input has residual codes.
    """

    what: Literal["input", "weights", "others"]
    name: str
    residual: bool = False

    @property
    def site(self) -> ErrorSite:
        """Where its error enters."""
        return ErrorSite(self.name, "others" if self.what == "others" else "output")


@dataclass(frozen=True, eq=False)
class Contributions:
    """Squares of the real outputs, summed over all samples that were used.

    Attributes:
        outputs: Their names.
        signal: Of the outputs without errors, (outputs,).
        noise: Of the errors that each source makes by itself, (outputs,).
    """

    outputs: tuple[str, ...]
    signal: Float64
    noise: Mapping[NoiseSource, Float64]

    def shares(self, outputs: Collection[str] = ()) -> dict[NoiseSource, float]:
        """Return each source's share of what all of them do to the outputs.

        Args:
            outputs: Those that count; none for all.

        Numerics: sum over outputs of noise / signal, which the output with the worst SQNR dominates: the one that
        decides the model's figure, until it is no longer the worst.
        """
        counts = self.signal > 0
        if outputs:
            counts &= np.array([name in outputs for name in self.outputs], np.bool_)
        ratios = {source: float((noise[counts] / self.signal[counts]).sum()) for source, noise in self.noise.items()}
        total = math.fsum(ratio for source, ratio in ratios.items() if not source.residual)
        return {source: ratio / total if total > 0 else 0.0 for source, ratio in ratios.items()}


def measure_contributions(
    model: onnx.ModelProto,
    plan: Plan,
    signature: Signature,
    sources: Mapping[NoiseSource, RoundedLayer | Affine],
    samples: Sequence[SampleLike],
    elements: Mapping[str, float],
    *,
    threads: int = 0,
) -> Contributions:
    """Measure the noise that each source makes at the outputs by itself.

    Args:
        model: The prepared (and equalized) float model that the integers stand for.
        plan: Its plan.
        signature: Its inputs.
        sources: What is rounded, each by itself: a layer, or the codes of a tensor. One inference each per sample.
        samples: The first of these are used, as many as SECONDS allow.
        elements: Values per inference of every planned tensor.
        threads: Of the runtime; 0 for all CPUs.

    Returns:
        Of all sources, on the same samples.
    """
    probe = Probe(model, plan, signature, threads, behind_layers=True, shown=(), at_outputs=True)
    if not probe.points:
        return Contributions((), np.zeros(0), {source: np.zeros(0) for source in sources})
    most = min(SAMPLES, len(samples))
    count = sample_count(SECONDS, len(sources) + 2, run_seconds(model, plan, elements), most)
    runs = [probe.run([sample]) for sample in samples[:count]]
    powers = {source: np.zeros(len(probe.points)) for source in sources}
    for chunk in in_chunks(sources, lambda each: _held_bytes(each, sources[each], elements), CHUNK_BYTES):
        error_model, names = _error_model(model, {source: sources[source] for source in chunk})
        session = Session(error_model, threads=threads)
        for run in runs:
            found = session.run(run.feed)
            for source in chunk:
                powers[source] += probe.noise(run, {source.site: found[names[source]]})
    signal: Float64 = np.sum([run.reference.power for run in runs], axis=0)
    return Contributions(tuple(point.tensor for point in probe.points), signal, powers)


def _held_bytes(source: NoiseSource, rounded: RoundedLayer | Affine, elements: Mapping[str, float]) -> float:
    """Return the bytes of the errors of a source and of the weights of its rounded layer."""
    if not isinstance(rounded, RoundedLayer):
        return 4 * elements[source.name]
    values = elements[rounded.layer.input]
    more = rounded.integers.weight.size if source.what == "weights" else values
    return 4 * (layer_outputs(rounded.layer, values) + more)


def _error_model(
    model: onnx.ModelProto, sources: Mapping[NoiseSource, RoundedLayer | Affine]
) -> tuple[ModelView, dict[NoiseSource, str]]:
    """Add rounded layers and tensors to a model, and drop its outputs.

    Beside each layer of the float model stand copies of it: one reads the dequantized codes of the same input, one has
    the dequantized codes of the weights. The difference between copy and layer is an output.

    Returns:
        The model, and the output that holds the error of each source, where it enters: behind the layer and before its
        activation, or at the tensor.
    """
    builder = _ErrorModelBuilder(model)
    for source, rounded in sources.items():
        if isinstance(rounded, RoundedLayer):
            builder.add_layer(source, rounded)
        else:
            builder.add_rounding(source, rounded)
    result = tapped_model(model, builder.outputs.values(), builder.added)
    result.shell.graph.initializer.extend(builder.constants)
    return result, builder.outputs


class _ErrorModelBuilder:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.index = Index(model)
        self.added: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: dict[NoiseSource, str] = {}

    def add_layer(self, source: NoiseSource, rounded: RoundedLayer) -> None:
        layer, node = rounded.layer, self.index.nodes[rounded.layer.node]
        stem = f"{layer.node}/{source.what}{'/residual' if rounded.residual else ''}"
        other = copied(node)
        other.name = f"{stem}/rounded_layer"
        other.output[0] = f"{stem}/output"
        bias = None
        if source.what == "input":
            other.input[0] = self._rounded(f"{stem}/rounded", layer.input, rounded.affine, residual=rounded.residual)
        else:
            other.input[1] = self._constant(f"{stem}/weight", rounded.weight())
            bias = rounded.bias()
        if bias is not None and not layer.bias_add:
            other.input[2] = self._constant(f"{stem}/bias", bias)
        self.added.append(other)
        error = self._node("Sub", [other.output[0], node.output[0]], f"{stem}/error")
        if bias is not None and layer.bias_add and layer.bias is not None:
            # the bias is added behind the product; what rounding changes in it shows here already
            exact = self.index.constant(layer.bias).astype(np.float32).reshape(-1)
            shift = self._constant(f"{stem}/bias", bias - exact)
            error = self._node("Add", [error, shift], f"{stem}/error_with_bias")
        self.outputs[source] = error

    def add_rounding(self, source: NoiseSource, affine: Affine) -> None:
        stem = f"{source.name}/others/rounded"
        value = self._rounded(stem, source.name, affine)
        self.outputs[source] = self._node("Sub", [value, source.name], f"{stem}/error")

    def _rounded(self, stem: str, tensor: str, affine: Affine, *, residual: bool = False) -> str:
        scale = self._constant(f"{stem}/scale", np.array(affine.scale, np.float32))
        zero = self._constant(f"{stem}/zero_point", np.array(affine.zero_point, affine.dtype.name))
        codes = self._node("QuantizeLinear", [tensor, scale, zero], f"{stem}/codes")
        first = self._node("DequantizeLinear", [codes, scale, zero], f"{stem}/dequantized")
        if not residual:
            return first
        fine = self._constant(f"{stem}/fine", fine_scale(affine))
        left = self._node("Sub", [tensor, first], f"{stem}/residual")
        second = self._node("QuantizeLinear", [left, fine, zero], f"{stem}/second")
        rest = self._node("DequantizeLinear", [second, fine, zero], f"{stem}/rest")
        return self._node("Add", [first, rest], f"{stem}/both")

    def _node(self, op_type: str, inputs: list[str], output: str) -> str:
        self.added.append(helper.make_node(op_type, inputs, [output], name=output))
        return output

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name
