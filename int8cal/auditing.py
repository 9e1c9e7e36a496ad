"""The audit of one int8 model, from its file to what `int8cal audit` prints and writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onnx.inliner import inline_local_functions

from int8cal.data.feeds import open_feeds
from int8cal.errors import ConfigError, ModelError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.evaluation.gates import ParsedGate, hold, parse_gate
from int8cal.evaluation.pixel_feeds import pixels_of_model
from int8cal.evaluation.saturation.audit import FIGURES, GATE_NAMES, ON_DATA, PREFIX, Audit, Repaired, audit_of
from int8cal.evaluation.saturation.layers import with_names
from int8cal.evaluation.saturation.on_data import measure_on_data
from int8cal.evaluation.saturation.repair import repair
from int8cal.evaluation.saturation.worst_case import judge_layers
from int8cal.graph.load import is_quantized, load_model, save_model
from int8cal.graph.signature import signature_of
from int8cal.job import DEFAULT_TARGET
from int8cal.output_paths import require_apart, require_free

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnx

    from int8cal.data.feeds import Feeds
    from int8cal.evaluation.result import Fusion
    from int8cal.evaluation.saturation.on_data import OnData
    from int8cal.evaluation.saturation.worst_case import Judged
    from int8cal.job import DataSettings
    from int8cal.progress import Progress


def audit_file(
    path: Path,
    *,
    target: str = DEFAULT_TARGET,
    data: DataSettings | None = None,
    gates: Sequence[str] = (),
    fix: Path | None = None,
    overwrite: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit an int8 model of any tool, and repair it where asked.

    Args:
        path: The model.
        target: A name in runtime.targets.TARGETS.
        data: Samples for the simulation, as the model takes them; None for the worst case alone.
        gates: 'NAME<=VALUE' over `evaluation.saturation.audit.FIGURES`; with `fix` those of the repaired model.
        fix: Where to write the repaired model; None to write nothing.
        overwrite: Replace that file if it exists.
        threads: Threads of the runtime; 0 for all CPUs.
        progress: Shows each pass over the data; with `fix` there is a second one, for the repaired model.

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
        source = model = inline_local_functions(model)
    if not is_quantized(model):
        raise ModelError(
            "is a float model: nothing in it is multiplied on integers, so there is nothing to audit",
            where=str(path),
            do="give the int8 model that was made from it",
        )
    feeds = None if data is None else _open(model, data)
    fusion, reason = _fusion(source, model, threads)
    judged = judge_layers(model, target, fusion)
    audit = audit_of(str(path), target, judged, fusion, reason)
    if feeds is not None:
        audit = replace(audit, on_data=_on_data(model, judged, target, feeds, threads, progress))
    if fix is not None:
        fixed, repairs = repair(model, target, fusion)
        save_model(fixed, fix)
        fusion, reason = _fusion(fix, fixed, threads)
        judged = judge_layers(fixed, target, fusion)
        after = audit_of(str(fix), target, judged, fusion, reason)
        if feeds is not None:
            after = replace(after, on_data=_on_data(fixed, judged, target, feeds, threads, progress))
        audit = replace(audit, repaired=Repaired(str(fix), repairs, after))
    subject = audit.repaired.audit if audit.repaired else audit
    return replace(audit, gates=tuple(hold(gate, FIGURES[gate.name.removeprefix(PREFIX)](subject)) for gate in parsed))


def _gate(text: str, *, with_data: bool) -> ParsedGate:
    gate = parse_gate(text, GATE_NAMES, "unsafe_channels<=0")
    if gate.name.removeprefix(PREFIX) in ON_DATA and not with_data:
        raise ConfigError(f'gate "{text}" needs samples', do="give --data, or remove the gate", gate=text)
    return gate


def _fusion(source: Path | onnx.ModelProto, model: onnx.ModelProto, threads: int) -> tuple[Fusion | None, str]:
    try:
        return audit_fusion(source, with_names(model), threads=threads), ""
    except ModelError as error:
        return None, f"the runtime could not write its optimized graph: {error.what}"


def _open(model: onnx.ModelProto, data: DataSettings) -> Feeds:
    """Open samples as the model takes them; one that takes raw pixels does the scaling itself."""
    if data.preprocess is not None and pixels_of_model(model) is not None:
        data = replace(data, preprocess=replace(data.preprocess, scale=1.0, mean=(), std=()))
    return open_feeds(data, signature_of(model))


def _on_data(
    model: onnx.ModelProto, judged: list[Judged], target: str, feeds: Feeds, threads: int, progress: Progress | None
) -> OnData:
    samples = feeds if progress is None else progress(feeds, feeds.count, "audit")
    found = measure_on_data(model, judged, target, samples, threads=threads)
    return replace(found, skipped=len(feeds.skipped))
