"""Whether pair sums saturate on given data: exact integer simulation of the layers that could.

The model runs on this machine, sample by sample, and hands out the codes that go into each such layer. What
VPMADDUBSW's saturation would take from its sums is then computed. A layer that is safe whatever the activations is not:
it has no saturated sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.audit.simulate import lost_sums, zero_point
from int8cal.audit.worst_case import WorstCase, orders_of
from int8cal.graph.edit import Names
from int8cal.graph.index import attribute
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import tapped_model
from int8cal.numerics.pairs import pair_starts
from int8cal.protos import copied
from int8cal.runtime.batching import run_samples
from int8cal.runtime.machine import exact_products
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from int8cal.audit.layer import KernelLibrary, Linear
    from int8cal.numerics import Array, Float64, Int64
    from int8cal.numerics.pairs import Order
    from int8cal.runtime.batching import SampleLike

RECURRENT = "its hidden state stays inside the kernel"
INSIDE = "it is inside an If, Loop or Scan"
MOVED = "its codes are those of a tensor further up"


@dataclass(frozen=True)
class RuntimeOnData:
    """One layer under one runtime, over all samples.

    Attributes:
        runtime: Whose order of neighbours.
        pair_sums, saturated: How many sums of two products were formed, and how many s16 could not hold.
        channels: Output channels with a saturated sum, ascending.
        max_error: Largest error of an s32 sum.
        max_error_steps: The same in steps of the output's scale; None where the output is not quantized.
    """

    runtime: KernelLibrary
    pair_sums: int
    saturated: int
    channels: tuple[int, ...]
    max_error: int
    max_error_steps: float | None


@dataclass(frozen=True)
class LayerOnData:
    """One layer on the data; no runtimes where it was not computed, and why."""

    node: str
    runtimes: tuple[RuntimeOnData, ...]
    why: str = ""


@dataclass(frozen=True)
class OnData:
    """What the data showed.

    Attributes:
        samples: How many.
        exact: Whether this machine sums exactly, so that the codes are what a CPU with VNNI computes.
        layers: Those that could saturate.
        skipped: Files that could not be read and were left out.
    """

    samples: int
    exact: bool
    layers: tuple[LayerOnData, ...]
    skipped: int = 0

    @property
    def saturated(self) -> int:
        """Saturated sums over all layers, under the runtime that has more of them in each."""
        return sum(max((each.saturated for each in layer.runtimes), default=0) for layer in self.layers)

    @property
    def channels(self) -> int:
        """Output channels with saturated sums, counted alike."""
        return sum(max((len(each.channels) for each in layer.runtimes), default=0) for layer in self.layers)


@dataclass
class _Tally:
    """Counts of one layer under one runtime while samples come in; starts None: from the data's own length."""

    case: WorstCase
    runtime: KernelLibrary
    starts: Int64 | None
    steps: Float64 | None
    pair_sums: int = 0
    saturated: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))
    errors: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))

    def add(self, arrays: Mapping[str, Array], taps: tuple[str, str]) -> None:
        layer, data = self.case.layer, arrays[taps[0]]
        starts = pair_starts("flat", 1, data.shape[-1]) if self.starts is None else self.starts
        lost = lost_sums(layer, data, arrays.get(taps[1]), starts, self.runtime)
        self.saturated = self.saturated + lost.saturated
        self.errors = np.maximum(self.errors, np.abs(lost.sums.astype(np.int64)).max(axis=1, initial=0))
        self.pair_sums += lost.sums.size * len(starts)

    def result(self) -> RuntimeOnData:
        steps = None
        if self.steps is not None:
            steps = float((self.errors * self.steps).max(initial=0.0))
        return RuntimeOnData(
            self.runtime,
            self.pair_sums,
            int(self.saturated.sum()),
            tuple(np.flatnonzero(self.saturated).tolist()),
            int(self.errors.max(initial=0)),
            steps,
        )


def measure_on_data(
    model: onnx.ModelProto,
    cases: list[WorstCase],
    target: str,
    samples: Iterable[SampleLike],
    *,
    threads: int = 0,
) -> OnData:
    """Run samples and simulate each layer that could saturate.

    Args:
        model: An int8 model.
        cases: Its layers, from `worst_cases` with the same target.
        target: Whose runtimes are simulated.
        samples: As the model takes them; read once, one is held at a time.
        threads: Threads of the runtime; 0 for all CPUs.

    Raises:
        ModelError: The model does not load with its inner tensors handed out.
        DataError: A kernel failed on a sample.
    """
    risky = [each for each in cases if each.result.verdict in {"unsafe", "data"}]
    left = {each.layer.name: _not_simulated(each.layer) for each in risky}
    tapped = _CodeTaps(model)
    tallies: list[tuple[_Tally, tuple[str, str]]] = []
    for each in risky:
        if left[each.layer.name]:
            continue
        names = (tapped.codes(each.layer), tapped.direct(each.layer.second.codes if each.layer.second else ""))
        tallies += [(tally, names) for tally in _tallies(each, target)]
    shown = sorted(tapped.names)
    session = Session(tapped_model(model, shown, tapped.nodes, keep_outputs=True), threads=threads)
    signature, count = signature_of(model), 0
    for group, arrays in run_samples(session, signature, samples, shown or None):
        count += len(group)
        for tally, names in tallies:
            tally.add(arrays, names)
    results: dict[int, list[RuntimeOnData]] = {}
    for tally, _ in tallies:
        results.setdefault(id(tally.case), []).append(tally.result())
    layers = tuple(
        LayerOnData(each.layer.name, tuple(results.get(id(each), ())), left[each.layer.name]) for each in risky
    )
    return OnData(count, exact_products(), layers)


def _not_simulated(layer: Linear) -> str:
    if layer.inside:
        return INSIDE
    if layer.form.kind == "Recurrent":
        return RECURRENT
    if not layer.data.codes or (layer.second and not layer.second.codes):
        return MOVED
    return ""


def _tallies(case: WorstCase, target: str) -> list[_Tally]:
    """Prepare the runtimes to simulate: oneDNN only where it can differ from onnxruntime."""
    layer, rows = case.layer, case.rows
    orders = orders_of(layer, target)
    matrices = layer.form.kind in {"MatMul", "Gemm"}
    found: list[_Tally] = []
    steps = _steps(layer)
    wanted: list[tuple[KernelLibrary, Order]] = []
    if "onnxruntime" in layer.runtimes and "flat" in orders:
        wanted.append(("onnxruntime", "flat"))
    if "onednn" in layer.runtimes and "channels" in orders:
        wanted.append(("onednn", "flat" if matrices else "channels"))
    if rows is None:  # a product of two activations
        return [_Tally(case, wanted[0][0], None, None)]
    for runtime, order in wanted:
        starts = pair_starts(order, rows.positions, rows.channels)
        padded = layer.form.kind == "Conv" and zero_point(layer) != 0 and _is_padded(layer)
        same = any(each.starts is not None and np.array_equal(each.starts, starts) for each in found)
        if not starts.size or (same and not padded):
            continue
        found.append(_Tally(case, runtime, starts, steps))
    return found


def _is_padded(layer: Linear) -> bool:
    """Whether a convolution may read beyond the edges."""
    return any(attribute(layer.proto, "pads", ())) or attribute(layer.proto, "auto_pad", b"") not in (b"", b"VALID")


def _steps(layer: Linear) -> Float64 | None:
    """Return steps of the output's scale per s32 unit: one value, or one per output channel."""
    output = layer.output_scale()
    data = layer.constants.value(layer.data.scale)
    scale = None if layer.weight is None else layer.weight.scale
    if output is None or data is None or scale is None or data.size != 1:
        return None
    factor = float(data.reshape(-1)[0]) * float(attribute(layer.proto, "alpha", 1.0)) / output
    values = scale.reshape(-1).astype(np.float64) * factor
    return np.tile(values, layer.group) if layer.form.kind == "ConvTranspose" and values.size > 1 else values


class _CodeTaps:
    """Nodes and names of the tensors that a model has to show, so that it runs on integers as before.

    Args:
        model: An int8 model; not changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.inputs = {value.name for value in model.graph.input}
        self.free = Names(model.graph)
        self.nodes: list[onnx.NodeProto] = []
        self.names: set[str] = set()
        self.known: dict[tuple[str, ...], str] = {}

    def codes(self, layer: Linear) -> str:
        """Return the output that holds what a layer reads, in the layout in which it reads it."""
        name = layer.data.codes
        for node in layer.data.path:
            key = (name, node.output[0])
            if key not in self.known:
                copy = copied(node)
                copy.name = f"{node.name or node.op_type}_of_codes"
                copy.input[0] = name
                copy.output[0] = self.known[key] = self.free.tensor(f"{node.output[0]}_codes")
                self.nodes.append(copy)
            name = self.known[key]
        return self.direct(name)

    def direct(self, name: str) -> str:
        """Return the output that holds a tensor; "" for none."""
        if not name:
            return ""
        if name in self.inputs:  # a graph input cannot be an output as well
            key = (name,)
            if key not in self.known:
                self.known[key] = self.free.tensor(f"{name}_codes")
                self.nodes.append(onnx.helper.make_node("Identity", [name], [self.known[key]]))
            name = self.known[key]
        self.names.add(name)
        return name
