"""The stations import one way, and only runtime/ knows the runtime."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import int8cal

PACKAGE = Path(int8cal.__file__).parent

# A module may import from its own station and from those of the lines above. Stations of one line know nothing of each other.
# docs/architecture.md shows the same lines.
STATIONS = (
    ("errors", "extras", "phrases", "setting", "threads"),
    ("stored",),
    ("preprocess",),
    ("data_settings",),
    ("job",),
    ("declared", "io", "progress", "protos"),
    ("numerics",),
    ("graph",),
    ("data", "metrics", "runtime"),
    ("calibration",),
    ("quantization",),
    ("probe",),
    ("evaluation", "identity"),
    ("report", "search"),
    ("audit", "config", "gating", "interop"),
    ("body_calibration", "describe", "evaluating", "quantizing"),
    ("inputs", "pipeline"),
    ("api", "calibrating"),
    ("batch",),
    ("cli",),
    ("__init__", "__main__"),  # the first loads its names lazily
)
LEVELS = {name: level for level, names in enumerate(STATIONS) for name in names}
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
        if own in (other, "__init__") or other == "__version__":
            continue
        if other not in LEVELS:
            found.append(f"{module} imports {name}, and STATIONS does not say where {other} stands")
        elif LEVELS[other] >= LEVELS[own]:
            found.append(f"{module} imports {name}, which is not below it")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    module = ".".join(["int8cal", *path.relative_to(PACKAGE).with_suffix("").parts])
    assert station(module) in LEVELS, f"say in tests/unit/test_imports.py where {station(module)} stands"
    assert violations(path, module) == []


# Beside the core: package -> who may import it, and what of it.
APART = {
    "audit": {"evaluating": {"worst_case"}, "calibrating": {"worst_case"}, "cli": {"audit", "report"}},
    "interop": {"cli": {"", "convert"}},
}


@pytest.mark.parametrize("package", APART)
def test_what_stands_beside_the_core_has_few_entries(package):
    found: dict[str, set[str]] = {}
    for path in MODULES:
        own = station(".".join(["int8cal", *path.relative_to(PACKAGE).with_suffix("").parts]))
        parts = [name.split(".") for name in imports_of(path) if own != package]
        entries = {"".join(each[2:3]) for each in parts if each[:2] == ["int8cal", package]}
        if entries:
            found[own] = found.get(own, set()) | entries
    assert found == APART[package]


def test_an_import_that_goes_up_is_found(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from int8cal.report.files import write_reports\nimport onnxruntime\n")
    assert len(violations(bad, "int8cal.numerics.bad")) == 2


def test_an_import_of_a_station_without_a_level_is_found(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from int8cal import __version__\nfrom int8cal.tools import anything\n")
    assert violations(bad, "int8cal.cli.bad") == [
        "int8cal.cli.bad imports int8cal.tools, and STATIONS does not say where tools stands"
    ]


def test_the_architecture_page_shows_the_same_order():
    page = Path(__file__).parents[2] / "docs" / "architecture.md"
    shown = next(
        each
        for each in page.read_text(encoding="utf-8").split("\n\n")
        if each.startswith("errors, extras, phrases, setting, threads →")
    )
    levels = [tuple(name.strip() for name in level.split(",")) for level in shown.split("→")]
    assert levels == list(STATIONS[:-1])


def names_of(text: str) -> set[str]:
    """The public functions, classes and aliases of types that a module declares; type variables have one letter."""
    body = ast.parse(text).body
    body += [each for part in body if isinstance(part, ast.If) for each in part.body]
    targets = (target for each in body if isinstance(each, ast.Assign) for target in each.targets)
    names = {each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if re.fullmatch("[A-Za-z]\\w*[a-z]\\w*", name)}


# Entries of one kind, each in a file or a table of its own: commands, steps, and what families are known by and treated.
ENTRIES = {("cli",), ("search", "steps"), ("graph", "treatments")}


def test_a_name_means_one_thing():
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        place = path.relative_to(PACKAGE).with_suffix("").parts
        if place[:1] not in ENTRIES and place[:2] not in ENTRIES:
            for name in names_of(path.read_text(encoding="utf-8")):
                homes.setdefault(name, []).append("/".join(place))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_names_are_functions_classes_and_aliases_wherever_they_are_declared():
    text = (
        "class Kept: ...\ndef _own(): ...\ndef made(): ...\nMOST = 3\nif TYPE_CHECKING:\n    Alias = dict[str, int]\n"
    )
    assert names_of(text) == {"Kept", "made", "Alias"}


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
