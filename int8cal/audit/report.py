"""An audit as JSON and as lines for the terminal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from int8cal.audit.audit import FIGURES
from int8cal.errors import printable
from int8cal.numerics.pairs import SAFE_SUM
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.screen import PIPE
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from int8cal.audit.audit import Audit, AuditedLayer
    from int8cal.audit.repair import Repair
    from int8cal.evaluation.result import LayerSaturation
    from int8cal.report.screen import Screen

FORMAT = "int8cal/audit"
VERSION = 1
_Cells = tuple[str, ...]


def audit_to_json(audit: Audit) -> str:
    """Write an audit as JSON.

    Returns:
        {"format", "version", "model", "target", "layers": [{"node", "op_type", "weight", "verdict", "why", "channels",
        "unsafe_channels", "unsafe_pairs", "worst_sum", "codes", "accumulator", "on_data"}], "totals": the figures that
        gates may name, "fusion": {"integer", "float", "nodes"} or null, "fusion_reason", "on_data": null or {"samples",
        "exact", "saturated", "channels", "skipped"}, "fixed": null or {"path", "layers", "unsafe_channels",
        "unsafe_pairs", "totals"}, "gates"}. Indented by 1, with a final newline. "totals" are those of the audited
        model, and those of "fixed" of the model that was written, which is what gates judge then.
    """
    data, fixed, fusion = audit.on_data, audit.repaired, audit.fusion
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": audit.model,
        "target": audit.target,
        "layers": [_layer(audit, layer) for layer in audit.layers],
        "totals": _totals_of(audit),
        "fusion": fusion
        and {
            "integer": fusion.integer,
            "float": fusion.float_,
            "nodes": [{"node": node.node, "op_type": node.op_type, "reason": node.reason} for node in fusion.nodes],
        },
        "fusion_reason": audit.fusion_reason or None,
        "on_data": data
        and {name: getattr(data, name) for name in ("samples", "exact", "saturated", "channels", "skipped")},
        "fixed": fixed
        and {
            "path": fixed.path,
            "layers": [asdict(each) for each in fixed.repairs],
            "unsafe_channels": fixed.audit.saturation.unsafe_channels,
            "unsafe_pairs": fixed.audit.saturation.unsafe_pairs,
            "totals": _totals_of(fixed.audit),
        },
        "gates": [{"gate": gate.gate, "value": gate.value, "passed": gate.passed} for gate in audit.gates],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _layer(audit: Audit, layer: AuditedLayer) -> dict[str, object]:
    found = audit.layer_on_data(layer.saturation.node)
    runtimes = {each.runtime: asdict(each) for each in found.runtimes} if found else {}
    for told in runtimes.values():
        del told["runtime"]
    on_data = found and {"why": found.why or None, "runtimes": runtimes}
    return {
        **asdict(layer.saturation),
        "codes": layer.codes,
        "accumulator": layer.accumulator,
        "on_data": on_data,
    }


def _totals_of(audit: Audit) -> dict[str, float | None]:
    return {name: figure(audit) for name, figure in FIGURES.items()}


def audit_lines(audit: Audit, screen: Screen = PIPE) -> list[str]:
    """Show an audit in a terminal.

    Returns:
        A table of the layers that multiply integers, in graph order, then totals, what stays in float, what the data
        showed, what was repaired, gates, and a verdict that says what to do.
    """
    lines = [f"{printable(audit.model)}, target {audit.target}: {TARGETS[audit.target].what}", ""]
    integer = [layer for layer in audit.layers if layer.saturation.verdict != "float"]
    if integer:
        lines += [*_table(audit, integer, screen), ""]
    rows = [*_totals(audit), *_float_row(audit), *_data_rows(audit), *_repair_rows(audit), *_gate_rows(audit)]
    rows.append(("Verdict", _verdict(audit)))
    return lines + screen.aligned(rows)


def _table(audit: Audit, layers: list[AuditedLayer], screen: Screen) -> list[str]:
    heads: _Cells = ("unsafe", "channels", "pairs", "worst sum", "codes", "s32 used")
    heads += ("saturated", "max error") if audit.on_data else ()
    rows = [(*_cells(audit, layer), _named(layer.saturation)) for layer in layers]
    return screen.table([(*heads, "layer"), *rows], right=range(len(heads)), name=len(heads))


def _cells(audit: Audit, layer: AuditedLayer) -> _Cells:
    found = layer.saturation
    counted = found.worst_sum is not None
    cells: _Cells = (
        str(found.unsafe_channels) if counted else "-",
        str(found.channels) if found.channels else "-",
        str(found.unsafe_pairs) if counted else "-",
        f"{found.worst_sum}/{SAFE_SUM}" if counted else found.verdict,
        f"{layer.codes[0]}..{layer.codes[1]}" if layer.codes else "-",
        wording.fraction(layer.accumulator) if layer.accumulator is not None else "-",
    )
    return cells + _data_cells(audit, layer) if audit.on_data else cells


def _data_cells(audit: Audit, layer: AuditedLayer) -> _Cells:
    found = audit.layer_on_data(layer.saturation.node)
    if found is None:
        return "0", "0"
    if not found.runtimes:
        return "-", "-"
    worst = max(found.runtimes, key=lambda each: each.saturated)
    if not worst.saturated:
        return "0", "0"
    steps = f"{worst.max_error_steps:.1f} steps" if worst.max_error_steps is not None else f"{worst.max_error} in s32"
    return str(worst.saturated), steps


def _named(layer: LayerSaturation) -> str:
    return f"{wording.shortened(printable(layer.node))} ({printable(layer.op_type)})" + (
        f", {printable(layer.why)}" if layer.why else ""
    )


def _totals(audit: Audit) -> list[tuple[str, str]]:
    found = audit.saturation
    unsafe = sum(layer.verdict == "unsafe" for layer in found.layers)
    text = (
        f"{found.unsafe_channels} of {counted(found.channels or 0, 'channel')} can saturate, in {unsafe} of "
        f"{counted(len(found.layers), 'integer layer')}; {counted(found.unsafe_pairs or 0, 'pair')}"
    )
    return [("Saturation", text)]


def _float_row(audit: Audit) -> list[tuple[str, str]]:
    kinds = Counter(layer.saturation.op_type for layer in audit.layers if layer.saturation.verdict == "float")
    rows = []
    if kinds:
        listed = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        rows.append(("Float layers", f"{sum(kinds.values())} ({listed}); they cannot saturate"))
    if audit.fusion is None:
        reason = audit.fusion_reason
        rows.append(("Fusion", f"{wording.NOT_MEASURED}: {reason}; every layer that could run on integers counts"))
    else:
        total = audit.fusion.integer + audit.fusion.float_
        rows.append(("Fusion", f"onnxruntime runs {audit.fusion.integer} of {total} compute nodes on integers"))
    return rows


def _data_rows(audit: Audit) -> list[tuple[str, str]]:
    found = audit.on_data
    if found is None:
        return []
    text = f"{counted(found.saturated, 'pair sum')} saturated in {counted(found.channels, 'channel')}"
    rows = [("On data", f"{text}, over {counted(found.samples, 'sample')}")]
    if found.skipped:
        rows.append(("", f"{counted(found.skipped, 'unreadable file')} left out"))
    if not found.exact:
        told = "this machine has no VNNI: inputs of later layers come from layers that may have saturated themselves"
        rows.append(("", told))
    skipped = [layer for layer in found.layers if layer.why]
    rows += [("", f"not simulated: {layer.node}: {layer.why}") for layer in skipped]
    return rows


def _repair_rows(audit: Audit) -> list[tuple[str, str]]:
    fixed = audit.repaired
    if fixed is None:
        return []
    changed = counted(sum(each.channels for each in fixed.repairs), "channel")
    left = fixed.audit.saturation.unsafe_channels
    text = f"{changed} quantized again; {left} can saturate in {fixed.path}"
    rows = [("Repaired", text), *(("", _repair(each)) for each in fixed.repairs)]
    found = fixed.audit.on_data
    if found is not None:
        rows.append(("", f"on the same data {counted(found.saturated, 'pair sum')} saturated"))
    return rows


def _repair(each: Repair) -> str:
    if each.how is None:
        return f"{each.node}: not repaired, {each.why}"
    what = "new scales and codes" if each.how == "scales" else "new codes under the same scales"
    kept = f", weights kept to {wording.decibel(each.sqnr_db)}" if each.sqnr_db is not None else ""
    return f"{each.node}: {counted(each.channels, 'channel')}, {what}{kept}"


def _gate_rows(audit: Audit) -> list[tuple[str, str]]:
    return [
        (
            "" if index else "Gates",
            f"{'pass' if gate.passed else 'FAIL'}  {gate.gate}  (value {wording.plain(gate.value)})",
        )
        for index, gate in enumerate(audit.gates)
    ]


def _verdict(audit: Audit) -> str:
    target = TARGETS[audit.target]
    found = audit.repaired.audit.saturation if audit.repaired else audit.saturation
    if not found.layers:
        return "nothing is multiplied on integers, so nothing can saturate"
    depends = sum(layer.verdict == "data" for layer in found.layers)
    products = f"{counted(depends, 'product')} of two activations"
    more = f"; whether {products} can saturate depends on the data (see --data)" if depends else ""
    if not target.orders:
        return f"safe: {audit.target} sums products exactly{more}"
    if found.unsafe_channels == 0:
        weights = "all products with weights are " if depends else ""
        return f"{weights}safe whatever the activations{more}"
    advice = "quantize again with --target portable, or repair it: --fix -o OUT.onnx"
    return f"UNSAFE on x86 CPUs without VNNI; {'see above' if audit.repaired else advice}{more}"
