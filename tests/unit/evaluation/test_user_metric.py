"""Where a metric comes from, and what is refused before any work."""

import functools
import importlib.metadata
import re

import pytest

from int8cal.errors import ConfigError, UsageError
from int8cal.evaluation.user_metric import open_metric
from int8cal.extras import extra_hint


def mine(outputs, labels):
    return 0.5


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    return write


def test_a_function_is_found_by_its_module_and_called_by_its_last_name(module):
    module("my_metrics", "class Scores:\n    @staticmethod\n    def hits(outputs, labels):\n        return 1.0\n")
    metric = open_metric("my_metrics:Scores.hits")
    assert (metric.name, metric.extras, metric.higher_is_better) == ("hits", (), True)
    assert metric.function({}, None) == 1.0
    assert len(metric.digest) == 64


def test_parameters_tell_what_else_it_gets():
    assert open_metric(lambda outputs, labels, origins: 0.0).extras == ("origins",)
    assert open_metric(lambda outputs, labels, *, reference, origins=(): 0.0).extras == ("origins", "reference")
    assert open_metric(functools.partial(lambda outputs, labels, level: 0.0, level=3)).extras == ()


def test_a_function_says_which_way_is_better():
    def error(outputs, labels):
        return 0.0

    error.higher_is_better = False
    assert not open_metric(error).higher_is_better
    error.higher_is_better = "no"
    with pytest.raises(ConfigError, match="its higher_is_better is 'no', expected True or False"):
        open_metric(error)


@pytest.mark.parametrize(
    "function", [lambda outputs: 0.0, lambda outputs, labels, threshold: 0.0, lambda *, outputs, labels: 0.0]
)
def test_a_function_that_cannot_take_outputs_and_labels_is_refused(function):
    with pytest.raises(ConfigError, match="cannot be called with outputs and labels: "):
        open_metric(function)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_such_module:f", 'module "no_such_module" cannot be imported'),
        ("math:tau", '"tau" is float, expected a function'),
        ("math:f", 'module "math" has no "f"'),
        ("f2", 'no installed package has a metric "f2"'),
    ],
)
def test_what_cannot_be_found_is_an_error_of_the_configuration(text, told):
    with pytest.raises(ConfigError, match=told):
        open_metric(text)


@pytest.mark.parametrize("name", ["top1", "cosine", "latency", "outputs", "drop_ci95"])
def test_a_metric_does_not_take_the_name_of_another_figure(module, name):
    module(f"with_{name}", f"def {name}(outputs, labels): return 0.0\n")
    with pytest.raises(ConfigError, match=f'the metric is called "{name}", as a figure'):
        open_metric(f"with_{name}:{name}")


def test_an_installed_metric_is_found_by_its_bare_name(module, monkeypatch):
    module("installed_metric", "def own_figure(outputs, labels): return 0.25\n")
    point = importlib.metadata.EntryPoint("own_figure", "installed_metric:own_figure", "int8cal.metrics")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    metric = open_metric("own_figure")
    assert (metric.name, metric.function({}, None)) == ("own_figure", 0.25)


def test_a_library_that_is_missing_is_told_with_its_extra():
    def speech(outputs, labels):
        return 0.0

    speech.needs = ("no_such_library",)
    with pytest.raises(UsageError, match=f'metric "speech" needs no_such_library.*{re.escape(extra_hint("metrics"))}'):
        open_metric(speech)
