"""What a file or this machine is, in lines for the terminal: behind `inspect` and `doctor`."""

from __future__ import annotations

import collections
import importlib.metadata
import os
import platform
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from int8cal.errors import Int8calError, ModelError, StatisticsError, TableError, UsageError, printable
from int8cal.extras import extra_hint
from int8cal.io.paths import REPORT, STATISTICS, TABLE, exists, require_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import TensorSpec
    from int8cal.report.screen import Screen

_LIBRARIES = ("onnx", "onnxruntime", "numpy", "numba", "click", "tqdm", "PyYAML", "pydantic", "Pillow", "Jinja2")
_ERRORS = {".onnx": ModelError, TABLE: TableError, STATISTICS: StatisticsError}
_ROOM_OF_COLUMNS = 60  # fewer leave names no room beside a column of ops
_OPTIONAL = ("ray", "openvino")


def describe_file(path: Path, screen: Screen) -> list[str]:
    """Describe a model, table, statistics file, report or the directory of one, or what a batch left.

    Raises:
        Int8calError: The file is missing or of none of these kinds.
    """
    inside = path / REPORT
    path = inside if exists(inside) else path
    require_readable(path, _kind_by_name(path), "give a file")
    kind = _kind(path)
    if kind is None:
        from int8cal.graph.foreign import foreign_format

        foreign = foreign_format(path)
        if foreign and foreign.is_model:
            raise ModelError(f"is {foreign.what}, not an ONNX model", where=str(path), do=foreign.do, path=path)
        what = f"is {foreign.what}, " if foreign else "is "
        do = foreign.do if foreign else "give one of the files that `int8cal calibrate` and `int8cal run` read or write"
        beside = path.with_suffix(".json")
        if path.suffix in (".html", ".md") and exists(beside):
            do = f"give {beside}"
        raise UsageError(
            f"{what}no ONNX model, calibration table, statistics file, report, summary or job.json",
            where=str(path),
            do=do,
        )
    from int8cal.identity import mixed_with

    mixed = [f"warning      {each}" for each in mixed_with(path)]
    return [part for line in (*kind(path, screen), *mixed) for part in screen.wrap(screen.plain(line), 4)]


def _kind_by_name(path: Path) -> type[Int8calError]:
    """Choose the error for a file that cannot be read: that of its station, where its name says which."""
    return next((error for end, error in _ERRORS.items() if path.name.endswith(end)), UsageError)


def _kind(path: Path) -> Callable[[Path, Screen], list[str]] | None:
    from int8cal.graph.foreign import foreign_format

    with path.open("rb") as stream:
        start = stream.read(2048)
    if start.startswith(b"PK"):
        return None if foreign_format(path) else _statistics
    if start.lstrip().startswith(b"{"):
        if b'"int8cal/summary"' in start or b'"int8cal/job"' in start:
            return _batch_file
        return _table if b'"int8cal/table"' in start else _report
    return _model if path.suffix == ".onnx" else None


def _model(path: Path, screen: Screen) -> list[str]:
    lines, quantized, width = _file_lines(path)
    if not quantized:
        from int8cal.runtime.scratch import weights_folder

        with weights_folder():
            lines += _plan_lines(path, width, screen)
    return [printable(line) for line in lines]


def _file_lines(path: Path) -> tuple[list[str], bool, int]:
    """Describe a model as it is stored; it is in memory no more when that is done.

    Returns:
        The lines, whether it is an int8 model, and the width of the column of ops.
    """
    from int8cal.evaluation.evaluate import model_bytes
    from int8cal.graph.load import is_quantized, load_model
    from int8cal.graph.signature import signature_of
    from int8cal.phrases import counted
    from int8cal.protos import all_tensors, tensor_bytes
    from int8cal.report.wording import size

    model = load_model(path)
    apart = " with its data files" if model_bytes(path) > path.stat().st_size else ""
    weights = [*all_tensors(model.graph)]  # constant nodes hold some
    signature = signature_of(model)
    ops = collections.Counter(node.op_type for node in model.graph.node)
    opsets = ", ".join(f"{item.domain or 'ai.onnx'} {item.version}" for item in model.opset_import)
    quantized = is_quantized(model)
    lines = [
        f"model        {path.name}, {size(model_bytes(path))}{apart}, {'int8' if quantized else 'float'}",
        # tf2onnx writes "None" for a version without a revision
        f"made by      {model.producer_name or 'unknown'} {model.producer_version.removesuffix(' None')}".rstrip(),
        f"opset        {opsets}",
        *(f"input        {_spec(spec)}" for spec in signature.inputs),
        *(f"output       {_spec(spec)}" for spec in signature.outputs),
        f"weights      {counted(len(weights), 'tensor')}, {size(sum(map(tensor_bytes, weights)))}",
        f"nodes        {len(model.graph.node)}",
    ]
    width = max((len(name) for name in ops), default=0)
    lines += [f"  {name:<{width}}  {count}" for name, count in ops.most_common()]
    for entry in model.metadata_props:
        lines.append(f"metadata     {entry.key}: {entry.value[:80]}{'…' if len(entry.value) > 80 else ''}")
    return lines, quantized, width


def _plan_lines(path: Path, width: int, screen: Screen) -> list[str]:
    from int8cal.graph.planner import make_plan
    from int8cal.graph.prepare import plan_bodies, prepare
    from int8cal.graph.select import Selection
    from int8cal.graph.staying import float_nodes
    from int8cal.phrases import counted
    from int8cal.report.wording import kinds_text
    from int8cal.runtime.sessions import simplify

    prepared = prepare(path, simplify)
    plan = make_plan(prepared.model, Selection())
    bodies, apart = plan_bodies(prepared, Selection())
    lines = [] if screen.only else _family_lines(prepared.model, replace(plan, bodies=bodies))
    plans = [("", plan), *((f"{path}/", each.plan) for path, each in bodies.items())]
    layers = sum(len(each.layers) + len(each.recurrent) for _, each in plans)
    tensors = sum(len(each.tensors) for _, each in plans)
    tables = sum(len(each.embeddings) for _, each in plans)
    kinds = ((layers, "layer"), (tensors, "activation"), *([(tables, "embedding")] if tables else []))
    lines += [f"would be quantized: {', '.join(counted(*each) for each in kinds)}"]
    nodes, left = [], [(each.op_type, each.node, each.reason) for each in apart]
    for where, found in plans:
        nodes += [(layer.op_type, f"{where}{layer.node}", "") for layer in found.layers]
        nodes += [(layer.op_type, f"{where}{layer.node}", "") for layer in found.recurrent]
        nodes += [(each.op_type, f"{where}{each.node}", f": its table {each.weight}") for each in found.embeddings]
        left += [(each.op_type, f"{where}{each.node}", each.reason) for each in found.unquantized]
    _require_match(screen, path, [node for _, node, _ in (*nodes, *left)])
    lines += _nodes(nodes, width, screen)
    floats = float_nodes(prepared.model, plan)
    if floats:
        ops = collections.Counter(node.op_type for node in floats)
        of = f"{counted(len(floats), 'node')} of the model ({kinds_text(ops, len(ops))})"
        lines += screen.wrap(f"would stay float: {of}; a report counts nodes as the runtime merges them", 2)
    if left:
        from int8cal.report.terminal import float_lines

        shown = screen.chosen(left, lambda node: node[1], lambda _: 0.0)
        lines += ["why, of those that could be quantized", *float_lines(shown, screen, _columns_of_ops(width, screen))]
    return lines


def _family_lines(model: onnx.ModelProto, plan: Plan) -> list[str]:
    """Say what families the model belongs to: where, what tends to go wrong, what is done, what to look at."""
    from int8cal.graph.families import find_families
    from int8cal.graph.index import Index
    from int8cal.graph.treatments import PlannedModel

    planned, lines = PlannedModel(Index(model), plan), list[str]()
    for family in find_families(model):
        rule = family.rule
        lines += [
            f"  {rule.name}: {family.where}",
            f"    what tends to go wrong: {rule.risk}",
            f"    what int8cal does: {rule.treat(family.parts, planned)}",
            f"    what to look at: {rule.look}",
        ]
    return ["families", *lines] if lines else []


def _nodes(nodes: list[tuple[str, str, str]], width: int, screen: Screen) -> list[str]:
    shown = screen.chosen(nodes, lambda node: node[1], lambda _: 0.0)
    width = _columns_of_ops(width, screen)
    return screen.cut([f"  {op_type:<{width}} {node}{why}" for op_type, node, why in shown], "node")


def _columns_of_ops(width: int, screen: Screen) -> int:
    return width + 1 if screen.width >= _ROOM_OF_COLUMNS else 0


def _spec(spec: TensorSpec) -> str:
    shape = "unknown shape" if spec.shape is None else "(" + ", ".join(str(dim or "?") for dim in spec.shape) + ")"
    return f"{spec.name}  {spec.dtype}  {shape}"


def _table(path: Path, screen: Screen) -> list[str]:
    from int8cal.quantization.table_file import load_table
    from int8cal.report.file_lines import table_lines

    table = load_table(path)
    parts = (table, *table.bodies.values())
    _require_match(screen, path, [name for each in parts for name in (*each.tensors, *each.weights)])
    return table_lines(table, path.name, screen)


def _statistics(path: Path, screen: Screen) -> list[str]:
    from int8cal.calibration.statistics_file import load_statistics
    from int8cal.report.file_lines import statistics_lines

    statistics = load_statistics(path)
    _require_match(screen, path, [name for each in (statistics, *statistics.bodies.values()) for name in each.tensors])
    return statistics_lines(statistics, path.name, screen)


def _report(path: Path, screen: Screen) -> list[str]:
    from int8cal.report.files import load_report
    from int8cal.report.terminal import report_lines

    document = load_report(path)
    _require_match(screen, path, [layer.tensor for layer in document.layers])
    return report_lines(document, screen)


def _batch_file(path: Path, screen: Screen) -> list[str]:
    from int8cal.report.file_lines import batch_file_lines, batch_file_names, load_batch_file

    document = load_batch_file(path)
    lines = batch_file_lines(path, document, screen)
    _require_match(screen, path, batch_file_names(document))
    return lines


def _require_match(screen: Screen, path: Path, names: Iterable[str]) -> None:
    """Refuse a glob that no name matches."""
    if screen.only and not any(fnmatchcase(name, screen.only) for name in names):
        raise UsageError(
            f"has no name that matches --filter {screen.only!r}",
            where=str(path),
            do="give a glob such as '*conv*'; * matches any text, / included",
        )


def describe_machine() -> list[str]:
    """Describe the machine, one "name: value" line each."""
    from int8cal.runtime.machine import ARM_FLAGS, X86_FLAGS, cpu_flags, cpu_name, physical_cores, providers
    from int8cal.runtime.sessions import cpu_count

    flags, cores = cpu_flags(), physical_cores()
    known = ARM_FLAGS if "asimd" in flags else X86_FLAGS
    lines = [
        f"int8cal: {_version('int8cal')}",
        f"python: {platform.python_version()}",
        f"system: {platform.system()} {platform.machine()}",
        f"cpu: {cpu_name()}",
        f"cpus: {cpu_count()} of {os.cpu_count()}",
        *([f"physical cores: {cores}"] if cores is not None else []),
        *(f"{flag}: {'yes' if flag in flags else 'no'}" for flag in known if flags),
        f"int8 products: {_verdict()}",
        f"providers: {', '.join(providers())}",
        f"faster runtime: {_faster_runtime(flags)}",
    ]
    lines += [f"{name}: {_version(name)}" for name in _LIBRARIES]
    return lines + [f"{name} (optional): {_version(name)}" for name in _OPTIONAL]


def _verdict() -> str:
    from int8cal.runtime.machine import measured_product

    found, exact = measured_product()
    if found == exact:
        lowest, zero = measured_product(0, -128)
        if lowest != zero:
            return "exact here, but for weights of -128, which int8cal's models never hold; for other CPUs see --target"
        return "exact here, so that weights of any range are safe; for other CPUs see --target"
    return f"saturate here ({found} for {exact}): models for this machine need --target portable, which is the default"


def _faster_runtime(flags: frozenset[str]) -> str:
    from int8cal.runtime.openvino import GAINS, is_installed

    if is_installed():
        return "openvino is installed, and calibrate and evaluate say where a model is fastest"
    known = next(((flag, gain) for flag, gain in GAINS.items() if flag in flags), None)
    told = "was not measured on a CPU like this one"
    if known is not None:
        told = f"had {known[1]} times onnxruntime's speed for int8 models on another CPU with {known[0]}"
    return f"openvino {told}; {extra_hint('openvino')}, and calibrate says where a model is fastest"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
