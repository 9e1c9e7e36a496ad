"""No function of the package calls itself, directly or around a corner of its module: graphs are deeper than the stack."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import int8cal

PACKAGE = Path(int8cal.__file__).parent
# The stations that hold graphs, or what was made of them; the others handle YAML, options and arrays.
STATIONS = (
    "io",
    "graph",
    "runtime",
    "data",
    "calibration",
    "quantization",
    "interop",
    "probe",
    "evaluation",
    "report",
    "search",
    "audit",
)
MODULES = sorted(
    [path for station in STATIONS for path in (PACKAGE / station).rglob("*.py")]
    + [path for path in PACKAGE.glob("*.py") if path.name not in {"__init__.py", "__main__.py"}]
)
# Module -> the functions that may, and why: what they recurse over is never deep, or it is another class's method.
ALLOWED = {
    "api.py": ({"_plain"}, "nesting of settings"),
    "calibration/collector.py": ({"add", "count", "result"}, "a counter of another kind in each thread"),
    "calibration/body_samples.py": ({"_feed", "hand_out"}, "nesting of subgraphs, which protobuf limits to 32"),
    "calibration/statistics.py": ({"histogram"}, "a property that calls the function of this name"),
    "declared.py": ({"all_declared", "alternatives"}, "sections in a job's sections, and the nesting of a type"),
    "quantization/table.py": ({"_plain"}, "nesting of settings"),
    "calibration/engines/local.py": ({"collected", "take"}, "the methods of what counts"),
    "calibration/engines/parts.py": ({"of"}, "the method of what is packed"),
    "calibration/engines/ray.py": ({"add"}, "the sums' method"),
    "data/audio.py": ({"_whole", "feeds", "read"}, "the stream's methods and those of its parts"),
    "data/file_stream.py": ({"numbered", "read"}, "the methods of the source and its files"),
    "data/hub.py": ({"_kind"}, "the types within a list's type"),
    "data/shards.py": ({"slice"}, "a property that makes a slice"),
    "data/find.py": ({"visible_files"}, "nesting of folders, which the length of a path limits"),
    "evaluation/decision_metrics.py": ({"add", "figures"}, "the methods of each figure's accumulator"),
    "evaluation/detections.py": ({"add"}, "the accumulators' methods"),
    "evaluation/output_faults.py": ({"add"}, "the accumulators' methods"),
    "evaluation/outputs.py": ({"_add_groups", "_decide", "add"}, "the accumulators' methods"),
    "evaluation/runtimes.py": ({"add", "reasons", "warnings"}, "the comparison's methods"),
    "audit/layer.py": ({"restore", "rows"}, "the reduction's methods"),
    "audit/read_layers.py": ({"_inside"}, "nesting of subgraphs, which protobuf limits to 32"),
    "graph/passes/affine.py": (
        {"_absorb", "_into_concat", "_into_product", "_into_step", "_into_sum", "_rebuilt", "_through", "_through_clip"}
        | {"absorb"},
        "a factor goes through DEEPEST nodes at most",
    ),
    "graph/edit.py": ({"constant", "node"}, "the function of this name, and the names' method"),
    "graph/index.py": (
        {"outer_references", "references_of", "walk"},
        "nesting of subgraphs, which protobuf limits to 32",
    ),
    "probe/probe.py": ({"_measured", "noise"}, "the reference's method"),
    "evaluation/recalled.py": ({"run"}, "the session's method"),
    "inputs.py": ({"file_digest", "flatten"}, "hashlib's function; nesting of settings"),
    "interop/foreign.py": ({"read_bytes"}, "the path's method"),
    "io/paths.py": ({"exists"}, "the path's method"),
    "protos.py": ({"graphs_within"}, "nesting of subgraphs, which protobuf limits to 32"),
    "report/document.py": ({"_plain", "_sorted"}, "nesting of a report"),
    "report/reading.py": ({"setting_rows"}, "nesting of a report"),
    "report/screen.py": ({"aligned"}, "the function of this name in wording"),
    "runtime/batching.py": ({"run"}, "the session's method"),
    "runtime/sessions.py": ({"_run_parts", "end_profiling", "run"}, "the runtime's methods"),
    "threads.py": ({"put"}, "the queue's method"),
}


def recursive_functions(source: str) -> set[str]:
    """Name the functions of a module that can reach themselves by calls to names of functions of this module."""
    definitions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            definitions.setdefault(node.name, []).append(node)
    calls = {
        name: {_called(call) for each in several for call in ast.walk(each) if isinstance(call, ast.Call)}
        & definitions.keys()
        for name, several in definitions.items()
    }
    return {name for name in calls if name in _reached(calls, name)}


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):  # whatever the object, but for the base class and numpy
        return "" if ast.unparse(function.value) in {"super()", "np", "os"} else function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _reached(calls: dict[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = [*calls[name]]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += calls[each]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_function_recurses_over_a_graph(path):
    allowed, _ = ALLOWED.get(path.relative_to(PACKAGE).as_posix(), (set(), ""))
    assert recursive_functions(path.read_text(encoding="utf-8")) - allowed == set()


def test_every_exception_is_still_needed():
    needed = {path.relative_to(PACKAGE).as_posix(): recursive_functions(path.read_text("utf-8")) for path in MODULES}
    assert {module: names - needed[module] for module, (names, _) in ALLOWED.items() if names - needed[module]} == {}


@pytest.mark.parametrize(
    "source",
    [
        "def depth(node):\n    return 1 + max(depth(each) for each in node.inputs)",
        "def up(node):\n    yield from down(node)\ndef down(node):\n    yield from up(node.inputs[0])",
        "class Walk:\n    def go(self, node):\n        self.step(node)\n    def step(self, node):\n        self.go(node)",
        "class Scope:\n    def value(self, name):\n        return self.outer.value(name)",
        "def walk(node):\n    def inner(each):\n        return walk(each)\n    return map(inner, node.inputs)",
    ],
    ids=["direct", "mutual", "methods", "another object's method", "through an inner function"],
)
def test_a_recursion_is_found(source):
    assert recursive_functions(source) != set()
