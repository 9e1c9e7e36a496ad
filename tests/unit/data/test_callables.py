from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from int8cal.errors import DataError, StatisticsError

_names = (f"feeds_module_{index}" for index in itertools.count())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the working directory and name it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body: str) -> str:
        name = next(_names)
        (tmp_path / f"{name}.py").write_text("import numpy as np\n" + body)
        return name

    return write


_ROWS = "def rows():\n    for i in range(5):\n        yield {'x': np.full(3, i, np.float32)}\n"


def test_function_is_called_anew_for_every_pass(module, vector, feeds):
    opened = feeds(f"{module(_ROWS)}:rows", vector)
    for _ in range(2):
        assert [sample.feed["x"][0, 0] for sample in opened] == [0, 1, 2, 3, 4]
    assert opened.count is None


def test_origin_names_function_feed_and_row(module, vector, feeds):
    name = module("def f():\n    return [{'x': np.zeros(3)}, {'x': np.zeros((2, 3))}]\n")
    assert [s.origin for s in feeds(f"{name}:f", vector)] == [f"{name}:f[0]", f"{name}:f[1][0]", f"{name}:f[1][1]"]


def test_samples_takes_the_first_ones_and_does_not_pull_more(module, vector, feeds):
    body = "pulled = []\ndef f():\n    for i in range(9):\n        pulled.append(i)\n        yield {'x': np.full((2, 3), i)}\n"
    name = module(body.replace("np.full((2, 3), i)", "np.full((2, 3), i, np.float32)"))
    opened = feeds(f"{name}:f", vector, samples=3)
    sys.modules[name].pulled.clear()
    assert [sample.feed["x"][0, 0] for sample in opened] == [0, 0, 1]
    assert sys.modules[name].pulled == [0, 1]


def test_labels_come_with_the_feeds(module, vector, feeds):
    name = module(
        "def f():\n    yield {'x': np.zeros((2, 3)), 'labels': [4, 2]}\n    yield {'x': np.zeros(3), 'labels': 1}\n"
    )
    opened = feeds(f"{name}:f", vector, require_labels=True)
    assert opened.labelled
    assert [sample.label for sample in opened] == [4, 2, 1]


def test_a_masked_array_without_masked_values_is_an_array(module, vector, feeds):
    name = module("def f():\n    yield {'x': np.ma.array(np.ones(3), mask=[0, 0, 0])}\n")
    assert len(list(feeds(f"{name}:f", vector))) == 1


def test_missing_labels_are_an_error_when_required(module, vector, feeds):
    with pytest.raises(DataError, match="has no labels"):
        feeds(f"{module(_ROWS)}:rows", vector, require_labels=True)


def test_label_file_for_a_function_is_refused(module, vector, feeds):
    with pytest.raises(DataError, match='yield them under the key "labels"'):
        feeds(f"{module(_ROWS)}:rows", vector, labels="truth.csv")


def test_plain_lists_are_arrays(module, signature, feeds):
    name = module("def f():\n    yield {'ids': [[1, 2], [3, 4]]}\n")
    assert len(list(feeds(f"{name}:f", signature(ids=(("N", 2), np.int32))))) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f = 3\n", '"f" is int, expected a function'),
        ("g = 3\n", 'has no "f"'),
        ("def f():\n    return 3\n", "returns int, expected an iterable"),
        ("def f():\n    return {'x': np.zeros(3)}\n", "returns dict, expected an iterable"),
        (
            "def f():\n    yield np.zeros(3)\n",
            r"f\[0\]: yields ndarray, expected a dict; yield one dict per sample or batch: {\"x\": array}, and",
        ),
        ("def f():\n    yield from ()\n", "yields no sample"),
        ("def f():\n    return None\n", "returns NoneType"),
        ("def f():\n    raise KeyError('lost')\n", "raises KeyError: 'lost'"),
        ("def f():\n    yield from open('lost.txt')\n", "raises FileNotFoundError"),
        ("def f(path):\n    yield path\n", "raises TypeError"),
        ("def f():\n    yield {'y': np.zeros(3)}\n", 'nearest input is "x"'),
        ("def f():\n    yield {'x': np.zeros(4)}\n", r"has shape \(4,\)"),
        ("def f():\n    yield {'x': np.zeros(3, np.uint8)}\n", "has dtype uint8"),
        ("def f():\n    yield {'x': [[1.0], [1.0, 2.0]]}\n", '"x" is no array'),
        ("def f():\n    yield {'x': np.ma.array(np.zeros(3), mask=[0, 1, 1])}\n", '"x" has 2 masked values'),
        ("import lost_module\n", "cannot be imported: No module named 'lost_module'"),
        ("def f(:\n", "cannot be imported: SyntaxError"),
        ("import sys\nsys.exit(0)\n", r"cannot be imported: RuntimeError: it calls sys.exit\(0\)"),
        ("def f():\n    raise SystemExit\n", r"raises RuntimeError: it calls sys.exit\(\)"),
    ],
)
def test_mistake_in_the_function_is_found_when_opened(module, vector, feeds, body, message):
    with pytest.raises(DataError, match=message):
        feeds(f"{module(body)}:f", vector)


def test_module_that_is_not_there_is_named(module, vector, feeds):
    module("")
    with pytest.raises(DataError, match=r'module "nowhere\.to\.be\.found" cannot be imported'):
        feeds("nowhere.to.be.found:feeds", vector)


def test_wrong_feed_later_in_the_stream_is_named(module, vector, feeds):
    name = module("def f():\n    yield {'x': np.zeros(3)}\n    yield {'x': np.array([0, np.nan, 0])}\n")
    with pytest.raises(StatisticsError, match=rf"{name}:f\[1\]"):
        list(feeds(f"{name}:f", vector))


def test_function_that_gives_the_same_exhausted_generator_twice_is_found(module, vector, feeds):
    name = module("once = iter([{'x': np.zeros(3)}, {'x': np.zeros(3)}])\ndef f():\n    return once\n")
    opened = feeds(f"{name}:f", vector)
    list(opened)
    with pytest.raises(DataError, match="start anew at every call"):
        list(opened)


def test_module_in_a_package_of_the_working_directory_is_found(module, tmp_path, vector, feeds):
    package = next(_names)
    (tmp_path / "jobs" / package).mkdir(parents=True)
    (tmp_path / "jobs" / package / "inner.py").write_text("import numpy as np\n" + _ROWS)
    assert len(list(feeds(f"{package}.inner:rows", vector, base=tmp_path / "jobs"))) == 5


def test_file_with_a_colon_in_its_name_is_a_file(module, tmp_path, vector, feeds):
    (tmp_path / "a:b").mkdir()
    np.save(tmp_path / "a:b/x.npy", np.zeros(3, np.float32))
    assert feeds("a:b", vector).count == 1
