import sys

import jinja2
import pytest

from int8cal.report import compiled_templates
from int8cal.report.compiled_templates import CompiledTemplates


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_templates, "__file__", str(tmp_path / "compiled_templates.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found = tmp_path / "__pycache__"
    found.mkdir()
    return found


class Compiling(jinja2.Environment):
    """Counts what it compiles."""

    compiled = 0

    def compile(self, *args, **named):
        self.compiled += 1
        return super().compile(*args, **named)


def render(text="a {{ b }}"):
    """Return the text, and how many templates were compiled for it."""
    environment = Compiling(loader=jinja2.DictLoader({"t": text}), bytecode_cache=CompiledTemplates())
    return environment.get_template("t").render(b=1), environment.compiled


def test_a_template_is_compiled_once_until_it_changes(folder):
    assert [render(), render(), render("b {{ b }}"), render("b {{ b }}")] == [
        ("a 1", 1),
        ("a 1", 0),
        ("b 1", 1),
        ("b 1", 0),
    ]


def test_a_damaged_file_is_compiled_again(folder):
    render()
    (file,) = folder.iterdir()
    for kept in (0, 10, -1):
        file.write_bytes(file.read_bytes()[:kept])
        assert render() == ("a 1", 1)


def test_nothing_is_written_where_python_writes_nothing(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [render(), render()] == [("a 1", 1)] * 2
    assert not list(folder.iterdir())


@pytest.mark.parametrize("how", ["absent", "a file"])
def test_a_folder_that_cannot_be_written_to_costs_time_alone(folder, how):
    folder.rmdir()
    if how == "a file":
        folder.write_text("")
    assert [render(), render()] == [("a 1", 1)] * 2
