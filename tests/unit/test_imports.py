"""The stations import one way, and only runtime/ knows the runtime."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import int8cal

PACKAGE = Path(int8cal.__file__).parent

# A module may import from its own station and from stations of a lower level. Stations of one level are unknown_tensor_warnings.
LEVELS = {
    "__init__": 99,  # loads its names lazily
    "__main__": 99,
    "errors": 0,
    "job": 0,
    "crash_log": 1,
    "declared": 1,
    "locks": 1,
    "atomic": 2,
    "input_paths": 1,
    "progress": 1,
    "protos": 1,
    "output_paths": 2,
    "numerics": 2,
    "graph": 3,
    "runtime": 4,
    "data": 4,
    "calibration": 5,
    "quantization": 6,
    "interop": 6,
    "evaluation": 7,
    "report": 8,
    "search": 8,
    "identity": 7,
    "config": 9,
    "gating": 9,
    "evaluating": 10,
    "finishing": 10,
    "describe": 10,
    "auditing": 10,
    "converting": 10,
    "merging": 10,
    "quantizing": 10,
    "pipeline": 11,
    "api": 12,
    "batch": 12,
    "cli": 13,
}
RUNTIMES = {"onnxruntime", "openvino"}


def station(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "int8cal"}
    return names


def violations(path: Path, module: str) -> list[str]:
    own = station(module)
    found = []
    for name in imports_of(path):
        if name.split(".")[0] in RUNTIMES and own != "runtime":
            found.append(f"{module} imports {name}; only runtime/ may")
        if not name.startswith("int8cal."):
            continue
        other = station(name)
        if other == own or other not in LEVELS or own == "__init__":
            continue
        if LEVELS[other] >= LEVELS[own]:
            found.append(f"{module} imports {name}, which is not below it")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    module = ".".join(["int8cal", *path.relative_to(PACKAGE).with_suffix("").parts])
    assert station(module) in LEVELS, f"say in tests/unit/test_imports.py where {station(module)} stands"
    assert violations(path, module) == []


def test_an_import_that_goes_up_is_found(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from int8cal.report.write import write_reports\nimport onnxruntime\n")
    assert len(violations(bad, "int8cal.numerics.bad")) == 2


def test_no_file_is_longer_than_500_lines():
    assert [str(path) for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > 500] == []


def test_the_package_never_asserts_on_input():
    asserting = [
        str(path)
        for path in MODULES
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert asserting == []


def test_importing_int8cal_loads_nothing_heavy():
    code = "import int8cal, sys; print([m for m in ('numpy', 'onnx', 'onnxruntime', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_exist():
    for name in int8cal.__all__:
        assert callable(getattr(int8cal, name)), name
