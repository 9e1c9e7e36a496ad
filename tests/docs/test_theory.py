"""The theory page quotes what docs/figures.py computes, and shows the figures that it draws."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/theory.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.newest  # folding is the runtime's: another one may round a weight differently


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_computed_number_is_the_one_on_the_page(figures):
    page = PAGE.replace("\N{MINUS SIGN}", "-")
    assert {name: fact for name, fact in figures.facts().items() if fact not in page} == {}


def test_a_number_that_is_not_on_the_page_is_found(figures):
    assert figures.facts()["mse gain"] not in PAGE.replace("5.3 dB", "6.3 dB")


def test_the_page_shows_every_figure_that_is_drawn(figures):
    drawn = set(re.findall(r'"(theory-[a-z]+)"', (ROOT / "docs/figures.py").read_text(encoding="utf-8")))
    assert drawn == set(re.findall(r"images/(theory-[a-z]+)\.svg", PAGE))
    assert {name for name in drawn if not (figures.IMAGES / f"{name}.svg").is_file()} == set()


def test_two_planes_leave_a_sixteenth_of_the_error(figures):
    affine = figures.affine_from_range(*figures.EXAMPLE, figures.U8)
    x = figures.np.linspace(0.0, 2.9, 5001)
    first = figures.rounded(x, affine)
    assert abs(first - x).max() == pytest.approx(affine.scale / 2, rel=1e-2)
    assert abs(figures.two_planes(x, affine) - x).max() == pytest.approx(affine.scale / 32, rel=1e-2)
