"""The audit of one int8 model, from its file to what `int8cal audit` prints and writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from int8cal.audit.on_data import measure_on_data
from int8cal.audit.repair import Repair, bias_codes, repair
from int8cal.audit.simulate import zero_point
from int8cal.audit.worst_case import S32_MAX, headroom, saturation_of, worst_cases
from int8cal.data.opening import open_feeds
from int8cal.errors import ConfigError, ModelError
from int8cal.evaluation.fusion import audit_fusion, with_names
from int8cal.evaluation.gates import ParsedGate, hold, parse_gate
from int8cal.evaluation.pixel_feeds import pixels_of_model
from int8cal.graph.load import blaming, is_quantized, load_model, save_model
from int8cal.graph.signature import signature_of
from int8cal.io.paths import require_apart, require_free
from int8cal.job import DEFAULT_TARGET
from int8cal.progress import track

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from int8cal.audit.on_data import LayerOnData, OnData
    from int8cal.audit.worst_case import WorstCase
    from int8cal.data.feeds import Feeds
    from int8cal.evaluation.result import Fusion, LayerSaturation, Saturation
    from int8cal.evaluation.result_parts import Gate
    from int8cal.job import DataSettings


@dataclass(frozen=True)
class AuditedLayer:
    """One layer.

    Attributes:
        saturation: Worst case of the pair sums.
        codes: Smallest and largest code of the weights; None without int8 weights.
        accumulator: Largest possible |sum| + |bias| as a fraction of 2^31 - 1, whatever the activations; above 1 the
            s32 sum could wrap around. None where it is not computed.
    """

    saturation: LayerSaturation
    codes: tuple[int, int] | None
    accumulator: float | None


@dataclass(frozen=True)
class Repaired:
    """The model that --fix wrote.

    Attributes:
        path: Where.
        repairs: What was changed, layer by layer.
        audit: The audit of that model, on the same data; gates judge it.
    """

    path: str
    repairs: tuple[Repair, ...]
    audit: Audit


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        model: The file.
        target: What it was audited for.
        layers: Every node that multiplies by weights, float ones too, in graph order.
        saturation: Figures over those that multiply integers.
        fusion: What onnxruntime really runs; None where it cannot tell, and `fusion_reason`.
        on_data: What samples showed; None without data.
        repaired: The model that was written; None without --fix.
        gates: Verdicts.
    """

    model: str
    target: str
    layers: tuple[AuditedLayer, ...]
    saturation: Saturation
    fusion: Fusion | None
    fusion_reason: str = ""
    on_data: OnData | None = None
    repaired: Repaired | None = None
    gates: tuple[Gate, ...] = ()

    def layer_on_data(self, node: str) -> LayerOnData | None:
        """Return what the samples showed of a layer; None where it was not simulated since it is safe."""
        found = self.on_data.layers if self.on_data else ()
        return next((layer for layer in found if layer.node == node), None)


# What a gate of `int8cal audit` may name, also with "saturation." before it.
FIGURES: dict[str, Callable[[Audit], float | None]] = {
    "unsafe_channels": lambda audit: audit.saturation.unsafe_channels,
    "unsafe_pairs": lambda audit: audit.saturation.unsafe_pairs,
    "unsafe_layers": lambda audit: sum(layer.verdict == "unsafe" for layer in audit.saturation.layers),
    "channels": lambda audit: audit.saturation.channels,
    "layers": lambda audit: len(audit.saturation.layers),
    "data_dependent_layers": lambda audit: sum(layer.verdict == "data" for layer in audit.saturation.layers),
    "worst_sum": lambda audit: max((layer.worst_sum or 0 for layer in audit.saturation.layers), default=0),
    "accumulator": lambda audit: max((layer.accumulator or 0.0 for layer in audit.layers), default=0.0),
    "saturated_on_data": lambda audit: audit.on_data.saturated if audit.on_data else None,
    "saturated_channels_on_data": lambda audit: audit.on_data.channels if audit.on_data else None,
    "fusion.integer": lambda audit: audit.fusion.integer if audit.fusion else None,
    "fusion.float": lambda audit: audit.fusion.float_ if audit.fusion else None,
}
PREFIX = "saturation."
GATE_NAMES = (*FIGURES, *(f"{PREFIX}{name}" for name in FIGURES if "." not in name))
ON_DATA = frozenset({"saturated_on_data", "saturated_channels_on_data"})


def audit_file(
    path: Path,
    *,
    target: str = DEFAULT_TARGET,
    data: DataSettings | None = None,
    gates: Sequence[str] = (),
    fix: Path | None = None,
    overwrite: bool = False,
    threads: int = 0,
) -> Audit:
    """Audit an int8 model of any tool, and repair it where asked.

    Args:
        path: The model.
        target: A name in runtime.targets.TARGETS.
        data: Samples for the simulation, as the model takes them; None for the worst case alone.
        gates: 'NAME<=VALUE' over `FIGURES`; with `fix` those of the repaired model.
        fix: Where to write the repaired model; None to write nothing.
        overwrite: Replace that file if it exists.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        The audit; a failed gate is in it. The repaired model is written though a gate fails.

    Raises:
        ModelError: The model is missing, corrupt, or a float model: it holds nothing to audit.
        ConfigError: A gate names an unknown figure, or one that needs data.
        DataError: The samples do not fit.
        OutputError: `fix` cannot be written.
    """
    parsed = [_gate(text, with_data=data is not None) for text in gates]
    if fix is not None:
        require_free(fix, overwrite=overwrite)
        require_apart((fix,), (path,))
    model = load_model(path)
    source: Path | onnx.ModelProto = path
    if model.functions:  # their nodes multiply too; inside functions nobody would see them
        try:
            source = model = inline_local_functions(model)
        except (onnx.checker.ValidationError, RuntimeError) as error:  # the latter of a call with too many inputs
            what = f"its functions cannot be inlined ({str(error).splitlines()[0]})"
            raise ModelError(what, where=str(path), do="export it again") from error
    if not is_quantized(model):
        raise ModelError(
            "is a float model: nothing in it is multiplied on integers, so there is nothing to audit",
            where=str(path),
            do="give the int8 model that was made from it",
        )
    feeds = None if data is None else _open(model, data)
    audit = _audit(path, source, model, target, feeds, threads)
    if fix is not None:
        fixed, repairs = repair(model, target, audit.fusion)
        save_model(fixed, fix)
        audit = replace(
            audit,
            repaired=Repaired(str(fix), repairs, _audit(fix, fix, fixed, target, feeds, threads)),
        )
    subject = audit.repaired.audit if audit.repaired else audit
    return replace(audit, gates=tuple(hold(gate, FIGURES[gate.name.removeprefix(PREFIX)](subject)) for gate in parsed))


def _gate(text: str, *, with_data: bool) -> ParsedGate:
    gate = parse_gate(text, GATE_NAMES, "unsafe_channels<=0")
    if gate.name.removeprefix(PREFIX) in ON_DATA and not with_data:
        raise ConfigError(f'gate "{text}" needs samples', do="give --data, or remove the gate", gate=text)
    return gate


def _open(model: onnx.ModelProto, data: DataSettings) -> Feeds:
    """Open samples as the model takes them; one that takes raw pixels does the scaling itself."""
    if data.preprocess is not None and pixels_of_model(model) is not None:
        data = replace(data, preprocess=replace(data.preprocess, scale=1.0, mean=(), std=()))
    return open_feeds(data, signature_of(model))


def _audit(
    path: Path,
    source: Path | onnx.ModelProto,
    model: onnx.ModelProto,
    target: str,
    feeds: Feeds | None,
    threads: int,
) -> Audit:
    """Audit one model: `source` is what the runtime opens, `model` the same in memory."""
    fusion, reason = None, ""
    try:
        fusion = audit_fusion(source, with_names(model), threads=threads)
    except ModelError as error:
        reason = f"the runtime could not write its optimized graph: {error.what}"
    with blaming(source, str(path), reason):
        cases = worst_cases(model, target, fusion)
        layers = tuple(_audited(case) for case in cases)
    on_data = None
    if feeds is not None:
        found = measure_on_data(model, cases, target, track(feeds, feeds.count, "samples"), threads=threads)
        on_data = replace(found, skipped=len(feeds.skipped))
    return Audit(str(path), target, layers, saturation_of(target, cases), fusion, reason, on_data)


def _audited(case: WorstCase) -> AuditedLayer:
    layer, rows = case.layer, case.rows
    if rows is None or layer.weight is None or not rows.values.size:
        return AuditedLayer(case.result, None, None)
    values = rows.values
    codes = (int(values.min()), int(values.max()))
    # one row per output channel, those of a group after another
    by_output = values.swapaxes(0, 1).reshape(-1, values.shape[2])
    zeros = layer.weight.zero_point.reshape(-1)
    zeros = np.tile(zeros, values.shape[1]) if zeros.size > 1 else zeros
    if zeros.size not in (1, len(by_output)):
        what = f"node {layer.name!r} has {len(by_output)} output channels, and zero points for {zeros.size}"
        raise ModelError(what, do="quantize the model again")
    bias = bias_codes(layer)
    span = (-128, 127) if layer.data.kind == "int8" else (0, 255)
    added = bias.reshape(-1) if bias is not None and bias.size in (1, len(by_output)) else 0
    left = headroom(by_output, added, codes=span, zero_point=zero_point(layer), weight_zero_point=zeros)
    return AuditedLayer(case.result, codes, float(1 - left.min() / S32_MAX))
