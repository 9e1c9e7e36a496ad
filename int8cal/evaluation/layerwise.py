"""Error of the int8 model layer by layer: every quantized tensor against the same tensor of the FP32 model.

Which these are is told from the structure alone (a QuantizeLinear that reads the tensor), so that it works for other
tools' models too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
from onnx import helper

from int8cal.data.padding import has_positions, kept
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import LayerMetrics
from int8cal.evaluation.scaled_back import equalization_of, scaled_back
from int8cal.evaluation.thinning import slices_with_steps, thinnings
from int8cal.graph.constants import Constants
from int8cal.graph.dims import named_dims
from int8cal.graph.index import Index, attribute
from int8cal.graph.ops import op_of
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import tapped_model
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.numerics.shares import fair_share
from int8cal.phrases import counted
from int8cal.protos import weight_bytes
from int8cal.quantization.whole_blocks import real_channels
from int8cal.runtime.batching import make_feed, run_each, run_group
from int8cal.runtime.sessions import QUIET, Session, cpu_count
from int8cal.threads import threads_until_done

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.evaluation.thinning import Thinning
    from int8cal.numerics import Array, Float32, Float64, Int32
    from int8cal.protos import ModelView
    from int8cal.runtime.batching import SampleLike

X = TypeVar("X")

# Tapped tensors of both models that one inference may hold: as much as the weights, held anyway, between these.
# Every further chunk runs both models again.
_CHUNK_BYTES, _MOST_CHUNK_BYTES = 128_000_000, 256_000_000
_MOST_CHUNKS = 2  # with more, the largest tensors are thinned to their share of one chunk
# Values that are compared, a second or so, but those of LEAST samples always.
_MOST_VALUES, LEAST = 50_000_000, 2
_PREFIX = "int8cal.tap."


@dataclass(frozen=True)
class LayerTap:
    """One quantized tensor.

    Attributes:
        tensor: Its name in the FP32 graph.
        node, op_type: The FP32 node that produces it; "" and "Input" for a graph input.
        order: Position of that node in the FP32 graph, -1 for a graph input.
        quantize: The QuantizeLinear of the int8 graph.
    """

    tensor: str
    node: str
    op_type: str
    order: int
    quantize: onnx.NodeProto


def find_layers(
    fp32: onnx.ModelProto | Index, int8: onnx.ModelProto | Index
) -> tuple[tuple[LayerTap, ...], tuple[str, ...]]:
    """Find the tensors of the FP32 graph that the int8 graph quantizes.

    A tensor keeps its name before the QuantizeLinear, or (a graph output) behind the DequantizeLinear. Where the int8
    graph has left out a Relu, Clip or BatchNormalization, the tensor compared is the one behind it.
    Weights are not layers. A tensor that is quantized twice counts once, with its first QuantizeLinear.

    Args:
        fp32: The FP32 model, or its index; it need not be the very graph that was quantized.
        int8: Any model with QuantizeLinear nodes in its main graph, or its index.

    Returns:
        The layers in the order of the FP32 graph, and the int8 names of quantized tensors that the FP32 graph lacks.
    """
    source, target = Index.of(fp32), Index.of(int8)
    order = {name: position for position, node in enumerate(source.graph.node) for name in node.output}
    found: dict[str, LayerTap] = {}
    missing: list[str] = []
    for quantize in target.graph.node:
        if quantize.op_type != "QuantizeLinear" or quantize.input[0] in target.derived:
            continue
        tensor = _reference(source, target, quantize)
        if tensor is None:
            if not _residual_of_quantizer(target, quantize) and not _quantized_again(target, quantize):
                missing.append(quantize.input[0])
        elif tensor not in found:
            producer = source.producer.get(tensor)
            found[tensor] = (
                LayerTap(tensor, "", "Input", -1, quantize)
                if producer is None
                else LayerTap(tensor, producer.name, producer.op_type, order[tensor], quantize)
            )
    return tuple(sorted(found.values(), key=lambda tap: tap.order)), tuple(missing)


@dataclass(frozen=True)
class _Part:
    """An output of the tapped int8 model: real values, or codes with the scale and zero point of all or of an axis."""

    output: str
    scale: Float32 | None = None
    zero_point: Int32 | None = None

    def real(self, outputs: Mapping[str, Array]) -> Array:
        given = outputs[self.output]
        if self.scale is None or self.zero_point is None:
            return given
        result: Array = (given.astype(np.int32) - self.zero_point).astype(np.float32) * self.scale
        return result


def int8_with_taps(
    model: onnx.ModelProto | Index,
    taps: Sequence[LayerTap],
    names: Sequence[str],
    thinned: Mapping[str, Thinning] = MappingProxyType({}),
) -> tuple[ModelView, list[list[_Part]]]:
    """Copy the int8 model with the codes of each tapped tensor as outputs.

    Args:
        model: The int8 model, or its index.
        taps: What to show.
        names: Of each, for what the graph does not have: any that are free.
        thinned: What is shown of a tensor, by its name in the FP32 graph; all of it where it is not named.

    Returns:
        The model, and the parts that each tensor is the sum of: one, or two where it has residual codes.

    The graph's own Q and DQ nodes stay as they are, and with them the integer kernels that the runtime makes of their
    neighbours. Codes are dequantized outside, to the bit as the runtime does it, since it takes several times as long
    to open a graph with thousands of DequantizeLinear more. Only codes of other types, or with scales along an axis,
    get one.
    """
    index = Index.of(model)
    constants = Constants(index)
    rests = {tensor: node for node in index.graph.node if (tensor := _residual_of_quantizer(index, node))}
    # residual codes of some channels alone are not a second part of the tensor
    rests = {tensor: node for tensor, node in rests.items() if tensor in index.producer[node.input[0]].input}
    nodes: list[onnx.NodeProto] = []
    found = []
    for tap, name in zip(taps, names, strict=True):
        rest = rests.get(tap.quantize.input[0])
        parts = []
        for number, quantize in enumerate([tap.quantize] if rest is None else [tap.quantize, rest]):
            part = _codes(constants, quantize)
            if part is None:
                nodes.append(_dequantized(quantize, f"{name}.{number}"))
                part = _Part(f"{name}.{number}")
            if tap.tensor in thinned:
                nodes += thinned[tap.tensor].nodes(part.output, f"{name}.{number}.thinned")
                part = replace(part, output=f"{name}.{number}.thinned")
            parts.append(part)
        found.append(parts)
    shown = [part.output for parts in found for part in parts]
    return tapped_model(index.model, shown, nodes), found


def _codes(constants: Constants, quantize: onnx.NodeProto) -> _Part | None:
    """Return the output of a Q with one constant scale and 8-bit codes; None for any other."""
    scale = constants.value(quantize.input[1])
    named = len(quantize.input) > 2 and bool(quantize.input[2])
    zero = constants.value(quantize.input[2]) if named else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        return None
    if zero.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)) or (
        not named and attribute(quantize, "output_dtype", 0)
    ):
        return None
    return _Part(quantize.output[0], scale.reshape(()), zero.reshape(()).astype(np.int32))


def _dequantized(quantize: onnx.NodeProto, output: str) -> onnx.NodeProto:
    codes, parameters = quantize.output[0], list(quantize.input[1:])
    node = helper.make_node("DequantizeLinear", [codes, *parameters], [output], domain=quantize.domain)
    # DequantizeLinear knows axis and block_size, but not QuantizeLinear's saturate, precision and output type
    node.attribute.extend(item for item in quantize.attribute if item.name in {"axis", "block_size"})
    return node


def _reference(source: Index, target: Index, quantize: onnx.NodeProto) -> str | None:
    """Find the FP32 tensor that the codes stand for."""
    behind: list[str] = [
        use.node.output[0]
        for use in target.uses.get(quantize.output[0], [])
        if use.slot == 0 and use.node.op_type == "DequantizeLinear"
    ]
    known = (name for name in (quantize.input[0], *behind) if name in source.producer or name in source.inputs)
    name: str | None = next(known, None)
    while name is not None:
        reader = source.only_reader(name)
        if reader is None or reader.input[0] != name:
            return name
        if not op_of(reader).clips and reader.op_type != "BatchNormalization":
            return name
        kept = target.producer.get(reader.output[0])
        if kept is not None and kept.op_type != "DequantizeLinear":
            return name
        name = reader.output[0]
    return None


def _residual_of_quantizer(index: Index, quantize: onnx.NodeProto) -> str:
    """Return the tensor of which a Q writes the residual codes, what its first code leaves; "" for any other node."""
    difference = index.producer.get(quantize.input[0]) if quantize.op_type == "QuantizeLinear" else None
    return residual_of(index, difference) if difference is not None else ""


def _quantized_again(index: Index, quantize: onnx.NodeProto) -> bool:
    """Whether a Q writes codes that a Conv read, with their own scale: see `quantization.channels_last`."""
    conv = index.producer.get(quantize.input[0])
    before = index.producer.get(conv.input[0]) if conv is not None and conv.op_type == "Conv" else None
    return before is not None and before.op_type == "DequantizeLinear" and before.input[1:] == quantize.input[1:]


def residual_of(index: Index, difference: onnx.NodeProto) -> str:
    """Return the tensor from which a node takes its own dequantized codes away; "" where it does something else."""
    if difference.op_type != "Sub":
        return ""
    known = index.producer.get(difference.input[1])
    first = None if known is None or known.op_type != "DequantizeLinear" else index.producer.get(known.input[0])
    whole, picked = difference.input[0], index.producer.get(difference.input[0])
    if first is not None and picked is not None and first.op_type == picked.op_type == "Gather":  # some channels
        first, whole = index.producer.get(first.input[0]), picked.input[0]
    if first is None or first.op_type != "QuantizeLinear" or first.input[0] != whole:
        return ""
    return str(whole)


def measure_layers(
    fp32: onnx.ModelProto,
    int8: onnx.ModelProto,
    samples: Sequence[SampleLike],
    *,
    threads: int = 0,
    clipped: Mapping[str, float] | None = None,
) -> tuple[tuple[LayerMetrics, ...], dict[str, str], int]:
    """Compare every quantized tensor with its FP32 value, over all samples or as many of them as have enough values.

    Args:
        fp32, int8: Both models, weights loaded.
        samples: The samples to run, the first ones first; held in memory: tens, not thousands.
        threads: Threads of the runtime; 0 for all CPUs.
        clipped: FP32 tensor name -> fraction of calibration values outside its range; None when not known.

    Returns:
        The layers in the order of the FP32 graph, reasons for what is missing ("layers", "layers.missing",
        "layers.<tensor>.sqnr_db"), and how many of the samples were run. A tensor that int8cal equalized is scaled back
        before it is compared.

    Raises:
        ModelError: A model does not load, or its equalization record is malformed.
        DataError: A kernel failed.
    """
    index = Index(int8)
    taps, missing = find_layers(fp32, index)
    reasons: dict[str, str] = {}
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        told = f"{counted(len(missing), 'quantized tensor')} without a counterpart in the FP32 model"
        reasons["layers.missing"] = f"{told}: {names}"
    if not taps:
        reasons["layers"] = "the int8 model quantizes no tensor of the FP32 model"
        return (), reasons, 0
    if clipped is None:
        reasons["layers"] = "the fraction of clipped values needs calibration statistics, and none were given"
    factors = equalization_of(int8)
    layers: list[LayerMetrics] = []
    room = min(max(_CHUNK_BYTES, weight_bytes(fp32)), _MOST_CHUNK_BYTES)
    dims = _dims(fp32, taps, samples[0], threads)
    value_bytes = _value_bytes(index, taps)
    # where padding lies in a slice is not known
    padded = any(has_positions(each) for each in samples)
    thinned = {} if padded else _thinned(fp32, index, taps, dims, value_bytes, room, factors)
    counts = [
        thinned[tap.tensor].count(sizes) if tap.tensor in thinned else math.prod(sizes)
        for tap, sizes in zip(taps, dims, strict=True)
    ]
    shares = {
        tap.tensor: count / math.prod(sizes)
        for tap, count, sizes in zip(taps, counts, dims, strict=True)
        if tap.tensor in thinned
    }
    samples = samples[: max(_MOST_VALUES // max(sum(counts), 1), LEAST)]
    for chunk in _chunks(taps, counts, value_bytes, room):
        for tap, (sums, problem, outside) in zip(
            chunk,
            _compare(fp32, index, chunk, samples, factors=factors, thinned=thinned, threads=threads),
            strict=True,
        ):
            if problem:
                reasons[f"layers.{tap.tensor}.sqnr_db"] = problem
            if clipped is not None and tap.tensor not in clipped:
                reasons[f"layers.{tap.tensor}.clipped"] = "it has no calibration statistics"
            fraction = None if clipped is None else clipped.get(tap.tensor)
            ratio = None if problem else sums.sqnr_db
            share = shares.get(tap.tensor)
            metrics = LayerMetrics(tap.tensor, tap.node, tap.op_type, ratio, fraction, compared=share)
            layers.append(outside.told(metrics))
    return tuple(layers), reasons, len(samples)


def _compare(
    fp32: onnx.ModelProto,
    int8: Index,
    taps: Sequence[LayerTap],
    samples: Sequence[SampleLike],
    *,
    factors: Mapping[str, tuple[int, Float64]],
    thinned: Mapping[str, Thinning],
    threads: int,
) -> list[tuple[ErrorSums, str, _Outside]]:
    """Error sums of each tap, what made them impossible ("" when nothing did), and values outside its range."""
    names = [f"{_PREFIX}{index}" for index in range(len(taps))]
    channels = real_channels(int8.model)
    sums, problems, outside = [ErrorSums()] * len(taps), [""] * len(taps), [_Outside() for _ in taps]
    # they keep their names: the runtime takes several times as long to open a graph with an Identity behind thousands
    shown = {
        tap.tensor: f"{name}.fp32" if tap.tensor in thinned else tap.tensor
        for tap, name in zip(taps, names, strict=True)
        if tap.op_type != "Input"
    }
    cuts = [node for tensor, name in shown.items() if name != tensor for node in thinned[tensor].nodes(tensor, name)]
    threads = threads or cpu_count()
    # beside each other, with half of the threads each, both take less of the CPU than one after the other
    each = max(threads // 2, 1)
    first = Session(tapped_model(fp32, shown.values(), cuts), threads=each, entries=QUIET)
    coded, dequantized = int8_with_taps(int8, taps, names, thinned)
    second = Session(coded, threads=each, entries=QUIET)
    del coded  # of a long graph as large as what the runtime holds of it
    reference = run_each(first, signature_of(fp32), samples, [*shown.values()] or None)
    wanted = [part.output for parts in dequantized for part in parts]
    quantized = run_each(second, signature_of(int8.model), feeds_for(int8.model, samples), wanted)
    pairs = _together(reference, quantized) if threads > 1 else zip(reference, quantized, strict=True)
    for (sample, expected), (_, actual) in pairs:
        for index, tap in enumerate(taps):
            x = sample.feed[tap.tensor] if tap.op_type == "Input" else expected[shown[tap.tensor]]
            first_part, *rest = (part.real(actual) for part in dequantized[index])
            y = sum(rest, first_part)
            if tap.quantize.input[0] in channels:
                y = y[:, : channels[tap.quantize.input[0]]]
            if x.shape != y.shape:
                problems[index] = f"its shape is {x.shape} in the FP32 model and {y.shape} in the int8 model"
            elif not np.isfinite(x).all():
                problems[index] = "the FP32 tensor holds NaN or infinity"
            else:
                factor = factors.get(tap.quantize.input[0], factors.get(tap.tensor))
                scaled = x if factor is None else scaled_back(tap.tensor, x, factor[0], 1 / factor[1])
                outside[index].add(kept(tap.tensor, scaled, sample), dequantized[index][0], actual)
                y = y if factor is None else scaled_back(tap.tensor, y, *factor)
                sums[index] += error_sums(*(kept(tap.tensor, value, sample) for value in (x, y)))
    for index, total in enumerate(sums):
        if not problems[index] and total.sqnr_db is None:
            problems[index] = "the FP32 tensor is zero everywhere"
    return list(zip(sums, problems, outside, strict=True))


def _together(first: Iterator[X], second: Iterator[X]) -> Iterator[tuple[X, X]]:
    """Pair the items of two iterators of one length, each of which takes its next step in a thread of its own."""
    with threads_until_done(2) as pool:
        while True:
            steps = [pool.submit(next, each, None) for each in (first, second)]
            one, other = (step.result() for step in steps)
            if one is None and other is None:
                return
            if one is None or other is None:
                raise ValueError("one of the iterators is longer than the other")
            yield one, other


@dataclass
class _Outside:
    """Holds the values of a tensor against the range of its codes, where these have one scale."""

    outside: int = 0
    values: int = 0
    low: float = 0.0
    high: float = 0.0
    width: float = 0.0

    def add(self, x: Array, part: _Part, codes: Mapping[str, Array]) -> None:
        if part.scale is None or part.zero_point is None or not x.size:
            return
        ends = np.iinfo(codes[part.output].dtype)
        scale = float(part.scale)
        low, high = (scale * (code - int(part.zero_point)) for code in (ends.min, ends.max))
        # what rounds to the last code is not cut off
        self.outside += int(np.count_nonzero((x < low - scale / 2) | (x > high + scale / 2)))
        self.values += x.size
        self.low, self.high = min(self.low, max(float(x.min()), low)), max(self.high, min(float(x.max()), high))
        self.width = high - low

    def told(self, layer: LayerMetrics) -> LayerMetrics:
        """Add to a layer the fraction outside, and how much of the range the values span, where they were counted."""
        if not self.values or not self.width:
            return layer
        return replace(layer, outside=self.outside / self.values, used=(self.high - self.low) / self.width)


def _dims(fp32: onnx.ModelProto, taps: Sequence[LayerTap], sample: SampleLike, threads: int) -> list[tuple[int, ...]]:
    """Dimensions of each tapped tensor in one inference as shape inference says, else the runtime: data decide some."""
    signature = signature_of(fp32)
    feed = make_feed(signature, [sample])
    named = named_dims(fp32, {name: value.shape for name, value in feed.items()})
    dims = {name: sizes for name, sizes in named.items() if all(isinstance(size, int) for size in sizes)}
    unknown = {f"{_PREFIX}{index}": tap.tensor for index, tap in enumerate(taps) if tap.tensor not in dims}
    if unknown:
        nodes = [helper.make_node("Shape", [tensor], [name]) for name, tensor in unknown.items()]
        session = Session(tapped_model(fp32, unknown, nodes), threads=threads, optimization="none")
        values = run_group(session, signature, [sample], [*unknown])
        dims |= {tensor: tuple(values[name]) for name, tensor in unknown.items()}
    return [tuple(int(size) for size in dims[tap.tensor]) for tap in taps]


def _thinned(
    fp32: onnx.ModelProto,
    int8: Index,
    taps: Sequence[LayerTap],
    dims: Sequence[Sequence[int]],
    value_bytes: Sequence[int],
    room: int,
    factors: Mapping[str, tuple[int, Float64]],
) -> dict[str, Thinning]:
    """Choose what is compared of tensors that take too many passes whole; of inputs all, which are held anyway."""
    sizes = [math.prod(own) * each for own, each in zip(dims, value_bytes, strict=True)]
    if sum(sizes) <= _MOST_CHUNKS * room or not slices_with_steps(fp32):
        return {}
    padded = real_channels(int8.model)
    axes = []  # of channels that are scaled back or left out one by one
    for tap in taps:
        names = (tap.quantize.input[0], tap.tensor)
        axes.append({factors[name][0] for name in names if name in factors} | ({1} if names[0] in padded else set()))
    whole = [() if tap.op_type == "Input" else own for tap, own in zip(taps, dims, strict=True)]
    cuts = thinnings(whole, fair_share(sizes, room), value_bytes, axes)
    return {tap.tensor: cut for tap, cut in zip(taps, cuts, strict=True) if cut is not None}


def _value_bytes(int8: onnx.ModelProto | Index, taps: Sequence[LayerTap]) -> list[int]:
    """Bytes that one value of each tensor takes as outputs of both models: a float32, and its code or another float."""
    constants = Constants(Index.of(int8))
    return [4 + (4 if _codes(constants, tap.quantize) is None else 1) for tap in taps]


def _chunks(
    taps: Sequence[LayerTap], counts: Sequence[int], value_bytes: Sequence[int], limit: int
) -> list[list[LayerTap]]:
    """Cut the taps into runs whose tensors fit the memory limit together; a tensor beyond it stands alone."""
    chunks: list[list[LayerTap]] = []
    room = 0
    for tap, count, each in zip(taps, counts, value_bytes, strict=True):
        size = each * count
        if not chunks or size > room:
            chunks.append([])
            room = limit
        chunks[-1].append(tap)
        room -= size
    return chunks
