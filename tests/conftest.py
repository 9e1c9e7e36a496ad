"""The golden files, text that is compared with a stored copy and rewritten by `pytest --regen-golden`; the marker quick; the zoo.

Real pretrained models, where they are at hand: INT8CAL_ZOO names their folder, by default ../shared/zoo.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# test files are imported one by one, without their folder: quantized_models.py and made_reports.py are for all of them
sys.path.append(str(Path(__file__).parent))

# no deadline: nothing is timed in tests; the same examples in every run of CI, new ones at every desk
settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
# for a night: pytest tests/fuzz/test_graphs.py --hypothesis-profile deep
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile("ci" if os.environ.get("CI") else "default")

ZOO = Path(os.environ.get("INT8CAL_ZOO", Path(__file__).parents[2] / "shared" / "zoo"))


# `pytest -m quick`: two minutes on two cores hold these folders, without what these markers say of a test
QUICK_FOLDERS = ("unit", "property")
NOT_QUICK = {"slow", "long", "zoo", "emulated", "browser"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as quick what is fast and tells most."""
    folders = [Path(__file__).parent / name for name in QUICK_FOLDERS]
    for item in items:
        own = {mark.name for mark in item.iter_markers()}
        if not own & NOT_QUICK and any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.quick)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regen-golden", action="store_true", help="rewrite the files under tests/golden; review the diff"
    )


@pytest.fixture(autouse=True, scope="session")
def _loops_at_once() -> None:
    """Compile loops on their first call: twins in their place would be compared with themselves."""
    from int8cal.numerics import compiled

    compiled.PATIENCE_S = 0.0


@dataclass(frozen=True)
class Golden:
    """Compares text with files under `root`; called with the file's name and the text."""

    root: Path
    regen: bool

    def __call__(self, name: str, text: str) -> None:
        path = self.root / name
        if self.regen:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        if not path.is_file():
            pytest.fail(f"golden file {name} does not exist; create it with pytest --regen-golden", pytrace=False)
        stored = path.read_text(encoding="utf-8")
        if text != stored:
            changes = difflib.unified_diff(
                stored.splitlines(keepends=True), text.splitlines(keepends=True), f"golden/{name}", "now"
            )
            pytest.fail(
                "".join(changes) + "\nif this is meant: pytest --regen-golden, and review the diff", pytrace=False
            )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(Path(__file__).parent / "golden", regen=request.config.getoption("--regen-golden"))


@pytest.fixture
def shallow_stack(request):
    """Only some frames more than there are now: a walk that recurses over a graph fails on a small one already.

    How many: `pytest.mark.parametrize("shallow_stack", [220], indirect=True)`, by default 25.
    """
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + getattr(request, "param", 25))
    yield
    sys.setrecursionlimit(limit)


@pytest.fixture(scope="session")
def zoo():
    if not (ZOO / "zoo.py").is_file():
        pytest.skip("the zoo of pretrained models is not here (INT8CAL_ZOO)")
    spec = importlib.util.spec_from_file_location("zoo", ZOO / "zoo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module
    spec.loader.exec_module(module)
    return module
