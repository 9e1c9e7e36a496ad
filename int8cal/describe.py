"""What a file or this machine is, in lines for the terminal: behind `inspect` and `doctor`."""

from __future__ import annotations

import collections
import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from int8cal.graph.signature import TensorSpec

_LIBRARIES = ("onnx", "onnxruntime", "numpy", "numba", "click", "tqdm", "PyYAML", "pydantic", "Pillow", "Jinja2")
_OPTIONAL = ("ray", "openvino")
# what decides how u8 x s8 products are added up (NUMERICS 3)
_CPU_FLAGS = ("avx2", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_BAR = 24


def describe_file(path: Path) -> list[str]:
    """Describe a model, table, statistics file or report.

    Raises:
        Int8calError: The file is missing or of none of these kinds.
    """
    if not path.is_file():
        raise ModelError("does not exist" if not path.exists() else "is a directory", where=str(path), do="give a file")
    kind = _kind(path)
    if kind is None:
        raise UsageError(
            "is no ONNX model, calibration table, statistics file or report",
            where=str(path),
            do="give one of the files that `int8cal calibrate` reads or writes",
        )
    return kind(path)


def _kind(path: Path) -> Callable[[Path], list[str]] | None:
    with path.open("rb") as stream:
        start = stream.read(2048)
    if start.startswith(b"PK"):
        return _statistics
    if start.lstrip().startswith(b"{"):
        return _table if b'"int8cal/table"' in start else _report
    return _model if path.suffix == ".onnx" else None


def _model(path: Path) -> list[str]:
    from int8cal.graph.load import is_quantized, load_model
    from int8cal.graph.signature import signature_of

    model = load_model(path)
    signature = signature_of(model)
    ops = collections.Counter(node.op_type for node in model.graph.node)
    opsets = ", ".join(f"{item.domain or 'ai.onnx'} {item.version}" for item in model.opset_import)
    quantized = is_quantized(model)
    lines = [
        f"model        {path.name}, {path.stat().st_size:,} bytes, {'int8' if quantized else 'float'}",
        f"made by      {model.producer_name or 'unknown'} {model.producer_version}".rstrip(),
        f"opset        {opsets}",
        *(f"input        {_spec(spec)}" for spec in signature.inputs),
        *(f"output       {_spec(spec)}" for spec in signature.outputs),
        f"weights      {len(model.graph.initializer)} tensors",
        f"nodes        {len(model.graph.node)}",
    ]
    width = max((len(name) for name in ops), default=0)
    lines += [f"  {name:<{width}}  {count}" for name, count in ops.most_common()]
    for entry in model.metadata_props:
        lines.append(f"metadata     {entry.key}: {entry.value[:80]}{'…' if len(entry.value) > 80 else ''}")
    if not quantized:
        lines += _plan_lines(path, width)
    return lines


def _plan_lines(path: Path, width: int) -> list[str]:
    from int8cal.graph.plan import make_plan
    from int8cal.graph.prepared import prepare
    from int8cal.graph.select import Selection
    from int8cal.runtime.simplify import simplify

    plan = make_plan(prepare(path, simplify).model, Selection())
    lines = [f"would be quantized: {len(plan.layers) + len(plan.recurrent)} layers, {len(plan.points)} tensors"]
    lines += [f"  {layer.op_type:<{width}}  {layer.node}" for layer in plan.layers]
    lines += [f"  {each.op_type:<{width}}  {each.node}" for each in plan.recurrent]
    if plan.left:
        lines.append("would stay float")
        lines += [f"  {left.op_type:<{width}}  {left.node}: {left.reason}" for left in plan.left]
    return lines


def _spec(spec: TensorSpec) -> str:
    shape = "unknown shape" if spec.shape is None else "(" + ", ".join(str(dim or "?") for dim in spec.shape) + ")"
    return f"{spec.name}  {spec.dtype}  {shape}"


def _table(path: Path) -> list[str]:
    from int8cal.calibration.table_file import load_table

    table = load_table(path)
    width = max((len(name) for name in table.tensors), default=0)
    lines = [
        f"table        {path.name} for {table.model.get('name')} (sha256 {str(table.model.get('sha256'))[:12]})",
        f"calibrated   on {table.data.get('samples')} samples"
        if table.data.get("samples") != 0
        else f"converted    from {table.settings.get('method')}, its ranges were not measured here",
        "settings     " + ", ".join(f"{key} {value}" for key, value in table.settings.items() if value),
        f"{'tensor':<{width}}  {'type':<6} {'scale':>12} {'zero':>5} {'low':>11} {'high':>11} {'clipped':>9}  method",
    ]
    for name, entry in table.tensors.items():
        source = "" if entry.source in ("calibrated", entry.method) else f", {entry.source}"
        lines.append(
            f"{name:<{width}}  {entry.dtype:<6} {entry.scale:12.6g} {entry.zero_point:5d} {entry.low:11.5g} "
            f"{entry.high:11.5g} {entry.clipped:9.2e}  {entry.method}{source}"
        )
    for name, weight in table.weights.items():
        axis = "per tensor" if weight.axis is None else f"axis {weight.axis}"
        lines.append(
            f"weight {name}  {weight.dtype} {weight.range}, {len(weight.scales)} scales ({axis}), "
            f"{min(weight.scales):.4g} to {max(weight.scales):.4g}"
        )
    for correction, changed in table.corrections.items():
        what = f"raw pixels at {changed['input']}" if correction == "uint8_input" else f"{len(changed)} entries"
        lines.append(f"correction   {correction}: {what}")
    return [*lines, *(f"warning      {warning}" for warning in table.warnings)]


def _statistics(path: Path) -> list[str]:
    from int8cal.calibration.statistics_file import load_statistics

    statistics = load_statistics(path)
    width = max((len(name) for name in statistics.tensors), default=0)
    lines = [
        f"statistics   {path.name} of a model with sha256 {statistics.model_sha256[:12]}",
        f"samples      {statistics.samples} (fingerprint {statistics.fingerprint:032x})",
        f"{'tensor':<{width}}  {'values':>13} {'zeros':>6} {'min':>11} {'max':>11}  octaves, largest first",
    ]
    for name, tensor in statistics.tensors.items():
        zeros = tensor.zeros / tensor.count if tensor.count else 0.0
        lines.append(
            f"{name:<{width}}  {tensor.count:13,} {zeros:6.1%} {tensor.minimum:11.5g} {tensor.maximum:11.5g}  "
            + _octaves(tensor.bins, tensor.counts)
        )
    return lines


def _octaves(bins: np.ndarray, counts: np.ndarray) -> str:
    """Draw one character per octave, from the largest magnitude down; height is the share of the fullest one."""
    if not len(bins):
        return ""
    octave = (bins & ((1 << 18) - 1)) >> 10
    sums = np.bincount(octave.max() - octave, weights=counts)[:_BAR]
    return "".join(" ▁▂▃▄▅▆▇█"[int(np.ceil(8 * share))] for share in sums / sums.max())


def _report(path: Path) -> list[str]:
    from int8cal.report.load import load_report
    from int8cal.report.terminal import report_lines

    return report_lines(load_report(path))


def describe_machine() -> list[str]:
    """Describe the machine, one "name: value" line each."""
    from int8cal.runtime.cpu import cpu_flags
    from int8cal.runtime.providers import providers
    from int8cal.runtime.sessions import cpu_count

    flags = cpu_flags()
    lines = [
        f"int8cal: {_version('int8cal')}",
        f"python: {platform.python_version()}",
        f"system: {platform.system()} {platform.machine()}",
        f"cpus: {cpu_count()} of {os.cpu_count()}",
        *(f"{flag}: {'yes' if flag in flags else 'no'}" for flag in _CPU_FLAGS if flags),
        f"int8 products: {_verdict()}",
        f"providers: {', '.join(providers())}",
    ]
    lines += [f"{name}: {_version(name)}" for name in _LIBRARIES]
    return lines + [f"{name} (optional): {_version(name)}" for name in _OPTIONAL]


def _verdict() -> str:
    from int8cal.runtime.cpu import measured_product

    found, exact = measured_product()
    if found == exact:
        return "exact here, so that weights of any range are safe; for other CPUs see --target"
    return f"saturate here ({found} for {exact}): models for this machine need --target portable, which is the default"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
