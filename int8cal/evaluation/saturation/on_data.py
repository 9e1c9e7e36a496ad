"""Whether pair sums saturate on given data: exact integer simulation of the layers that could.

The model runs on this machine, sample by sample, and hands out the codes that go into each such layer. The layer is
then computed twice with numerics.reference: exactly, and as VPMADDUBSW saturates. A layer that is safe whatever the
activations is not computed: it has no saturated sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.evaluation.saturation.simulate import compute, is_padded, zero_point
from int8cal.evaluation.saturation.taps import CodeTaps
from int8cal.evaluation.saturation.worst_case import Judged, orders_of
from int8cal.graph.index import attribute
from int8cal.graph.signature import signature_of
from int8cal.numerics.pairs import pair_starts
from int8cal.runtime.batching import run_samples
from int8cal.runtime.cpu import exact_products
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt
    import onnx

    from int8cal.evaluation.saturation.linear import Linear, Runtime
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

    runtime: Runtime
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

    judged: Judged
    runtime: Runtime
    starts: npt.NDArray[np.int64] | None
    steps: npt.NDArray[np.float64] | None
    pair_sums: int = 0
    saturated: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    errors: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, arrays: Mapping[str, npt.NDArray[Any]], taps: tuple[str, str]) -> None:
        layer, data = self.judged.layer, arrays[taps[0]]
        starts = pair_starts("flat", 1, data.shape[-1]) if self.starts is None else self.starts
        sums, axis = compute(layer, data, arrays.get(taps[1]), starts, self.runtime)
        lost = np.abs(sums.sums.astype(np.int64) - sums.wide.astype(np.int64))
        errors = np.moveaxis(lost, axis, 0).reshape(len(sums.saturated), -1).max(axis=1, initial=0)
        if not self.errors.size:
            self.saturated, self.errors = np.zeros_like(sums.saturated), np.zeros_like(errors)
        self.saturated = self.saturated + sums.saturated
        self.errors = np.maximum(self.errors, errors)
        self.pair_sums += sums.wide.size * len(starts)

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
    judged: list[Judged],
    target: str,
    samples: Iterable[SampleLike],
    *,
    threads: int = 0,
) -> OnData:
    """Run samples and simulate each layer that could saturate.

    Args:
        model: An int8 model.
        judged: Its layers, from `judge_layers` with the same target.
        target: Whose runtimes are simulated.
        samples: As the model takes them; read once, one is held at a time.
        threads: Threads of the runtime; 0 for all CPUs.

    Raises:
        ModelError: The model does not load with its inner tensors handed out.
        StatisticsError: A kernel failed on a sample.
    """
    risky = [each for each in judged if each.result.verdict in {"unsafe", "data"}]
    left = {each.layer.name: _not_simulated(each.layer) for each in risky}
    tapped = CodeTaps(model)
    tallies: list[tuple[_Tally, tuple[str, str]]] = []
    for each in risky:
        if left[each.layer.name]:
            continue
        names = (tapped.codes(each.layer), tapped.direct(each.layer.second_data))
        tallies += [(tally, names) for tally in _tallies(each, target)]
    session = Session(tapped.graft, threads=threads)
    signature, count = signature_of(model), 0
    for group, arrays in run_samples(session, signature, samples, sorted(tapped.names) or None):
        count += len(group)
        for tally, names in tallies:
            tally.add(arrays, names)
    results: dict[int, list[RuntimeOnData]] = {}
    for tally, _ in tallies:
        results.setdefault(id(tally.judged), []).append(tally.result())
    layers = tuple(
        LayerOnData(each.layer.name, tuple(results.get(id(each), ())), left[each.layer.name]) for each in risky
    )
    return OnData(count, exact_products(), layers)


def _not_simulated(layer: Linear) -> str:
    if layer.inside:
        return INSIDE
    if layer.form.kind == "Recurrent":
        return RECURRENT
    if not layer.data or (layer.second and not layer.second_data):
        return MOVED
    return ""


def _tallies(judged: Judged, target: str) -> list[_Tally]:
    """Prepare the runtimes to simulate: oneDNN only where it can differ from onnxruntime."""
    layer, rows = judged.layer, judged.rows
    orders = orders_of(layer, target)
    matrices = layer.form.kind in {"MatMul", "Gemm"}
    found: list[_Tally] = []
    steps = _steps(layer)
    wanted: list[tuple[Runtime, Order]] = []
    if "onnxruntime" in layer.runtimes and "flat" in orders:
        wanted.append(("onnxruntime", "flat"))
    if "onednn" in layer.runtimes and "channels" in orders:
        wanted.append(("onednn", "flat" if matrices else "channels"))
    if rows is None:  # a product of two activations
        return [_Tally(judged, wanted[0][0], None, None)]
    for runtime, order in wanted:
        starts = pair_starts(order, rows.positions, rows.channels)
        padded = layer.form.kind == "Conv" and zero_point(layer) != 0 and is_padded(layer)
        same = any(each.starts is not None and np.array_equal(each.starts, starts) for each in found)
        if not starts.size or (same and not padded):
            continue
        found.append(_Tally(judged, runtime, starts, steps))
    return found


def _steps(layer: Linear) -> npt.NDArray[np.float64] | None:
    """Return steps of the output's scale per s32 unit: one value, or one per output channel."""
    output = layer.output_scale()
    data = layer.constants.value(layer.data_scale)
    scale = None if layer.weight is None else layer.weight.scale
    if output is None or data is None or scale is None or data.size != 1:
        return None
    factor = float(data.reshape(-1)[0]) * float(attribute(layer.proto, "alpha", 1.0)) / output
    values = scale.reshape(-1).astype(np.float64) * factor
    return np.tile(values, layer.group) if layer.form.kind == "ConvTranspose" and values.size > 1 else values
