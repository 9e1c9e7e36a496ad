"""The keywords of the Python API are the settings that int8cal.job declares, with their types and defaults."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args, get_origin

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import int8cal
from int8cal import api, job
from int8cal.data.checks import DataWarning
from int8cal.declared import alternatives, declared, keywords
from int8cal.errors import Int8calError, ModelError, UsageError
from int8cal.progress import Event
from int8cal.search.recipes import RECIPES

# Left out, it follows the target.
FOLLOWING = {"activations"}


def expected(setting):
    """What stands in a signature for a setting: its annotation and default."""
    kind, *_ = alternatives(setting.hint)
    default = None if setting.name in FOLLOWING or setting.default == {} else setting.default
    if setting.form == "nodes":
        annotation = bool | Sequence[str]
    elif setting.form == "metric":  # a function itself will do
        annotation = str | Callable[..., object]
    elif setting.section is job.DataSettings or (setting.form and kind in (str, Path)):
        annotation = str | Path
    elif setting.section:  # preprocessing may be a named set
        annotation = str | Mapping[str, object]
    elif get_origin(kind) is tuple:
        annotation = Sequence[alternatives(get_args(kind)[0])[0]]
    elif get_origin(kind) is dict:
        annotation = Mapping[str, alternatives(get_args(kind)[1])[0]]
    else:
        annotation = kind
    return (annotation | None if default is None else annotation), default


@pytest.mark.parametrize("name", ["calibrate", "evaluate"])
def test_the_signature_has_every_keyword_that_is_declared_with_its_type_and_default(name):
    """Where this fails, change the parameters in int8cal/api.py; a setting is declared in int8cal/job.py."""
    function = getattr(int8cal, name)
    types = vars(job) | {"Sequence": Sequence, "Model": None, "Data": None, "CalibrationTable": None, "Report": None}
    types |= {"Callable": Callable, "Event": Event}
    annotations = inspect.get_annotations(function, eval_str=True, locals=types)
    parameters = inspect.signature(function).parameters.values()
    found = {each.name: (annotations[each.name], each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert found.pop("progress") == (
        Callable[[Event], object] | None,
        None,
    )  # no setting: who watches, not what is done
    assert found == {keyword: expected(setting) for keyword, setting in keywords(name).items()}


def test_all_settings_but_those_of_files_and_machines_are_keywords():
    sections = [each for each in declared() if each.name in ("data", "calibration", "quantization", "evaluation")]
    direct = {each.path for part in sections for each in declared(part.section, f"{part.name}.")}
    taken = {each.path for function in ("calibrate", "evaluate") for each in keywords(function).values()}
    assert direct - taken == {"data.path", "data.labels"} | {
        f"calibration.{name}" for name in ("engine", "address", "shard", "resume", "checkpoint")
    }


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="methd"):
        int8cal.calibrate("m.onnx", "d", methd="kl")


@pytest.mark.parametrize(
    ("keyword", "value", "told"),
    [("percentile", 0.0, "a number of at least 50"), ("method", "klm", 'did you mean "kl"?')],
)
def test_a_bad_value_is_named_by_its_keyword(keyword, value, told):
    with pytest.raises(Int8calError) as caught:
        int8cal.calibrate("m.onnx", "d", **{keyword: value})
    assert f"config: {keyword}: expected" in str(caught.value)
    assert told in str(caught.value)


def test_paths_tuples_and_none_stand_for_what_the_yaml_has(monkeypatch):
    jobs = []

    def stop(job, *_args, **_more):
        jobs.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "calibrate_model", stop)
    settings = {"eval_data": Path("val"), "statistics": Path("a.stats.npz"), "ranges": {"x": (0, 1)}, "method": None}
    with pytest.raises(KeyboardInterrupt):
        int8cal.calibrate("m.onnx", Path("d"), target="tensorrt", **settings)
    (made,) = jobs
    assert made.evaluation.data.path == "val"
    assert made.calibration == job.CalibrationSettings(statistics=Path("a.stats.npz"))
    assert made.quantization == job.QuantizationSettings(target="tensorrt", activations="s8", ranges={"x": (0.0, 1.0)})


def product():
    """A model of one product, and feeds for it."""
    weight = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, [{"x": row[None]} for row in np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)]


def test_a_table_may_be_a_file(tmp_path):
    model, feeds = product()
    table = int8cal.calibrate(model, feeds)
    table.save(tmp_path / "m.table.json")
    expected = int8cal.quantize(model, table)
    assert int8cal.quantize(model, tmp_path / "m.table.json") == int8cal.quantize(model, str(tmp_path / "m.table.json"))
    assert int8cal.quantize(model, tmp_path / "m.table.json") == expected
    with pytest.raises(Int8calError, match=r"none\.json"):
        int8cal.quantize(model, tmp_path / "none.json")


@pytest.mark.parametrize(
    ("function", "settings", "told"),
    [
        ("calibrate", {"preprocess": {"scale": 0.1}}, "preprocess is for data from files, and feeds are taken as they"),
        ("calibrate", {"columns": ["x"]}, "columns is for data from files"),
        ("evaluate", {"preprocess": {"scale": 0.1}}, "preprocess is for data from files"),
        (
            "evaluate",
            {"labels": "labels.csv"},
            "labels is for data from files.*; yield them in each feed under the key",
        ),
    ],
)
@pytest.mark.parametrize("form", [iter, lambda feeds: lambda: feeds], ids=["iterator", "function"])
def test_what_has_no_effect_on_feeds_is_told(function, settings, told, form):
    model, feeds = product()
    models = (model,) if function == "calibrate" else (model, model)
    with pytest.warns(DataWarning, match=told):
        getattr(int8cal, function)(*models, form(feeds), **settings)
    with pytest.raises(UsageError, match=told):
        getattr(int8cal, function)(*models, form(feeds), **settings, strict=True)


def test_preprocessing_of_other_data_is_not_told_of(recwarn):
    model, feeds = product()
    int8cal.calibrate(model, feeds, uint8_input=False)
    assert not [each for each in recwarn if "for data from files" in str(each.message)]


def test_a_metric_that_decides_nothing_is_refused():
    model, feeds = product()
    with pytest.raises(UsageError, match="a metric without a budget decides nothing"):
        int8cal.calibrate(model, feeds, metric=lambda outputs, labels: 1.0)


def test_a_model_in_memory_without_its_external_data_is_told(tmp_path):
    model, feeds = product()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    table = int8cal.calibrate(tmp_path / "m.onnx", feeds)
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    calls = (
        lambda: int8cal.calibrate(bare, feeds),
        lambda: int8cal.quantize(bare, table),
        lambda: int8cal.evaluate(bare, int8cal.quantize(tmp_path / "m.onnx", table), feeds),
    )
    for call in calls:
        with pytest.raises(ModelError, match=r'they are in "m\.bin", which was not loaded'):
            call()


@pytest.mark.parametrize("wrong", [None, 3, b"m.onnx", {}])
def test_what_is_no_model_and_no_table_is_told(wrong):
    model, feeds = product()
    table = int8cal.calibrate(model, feeds)
    calls = (
        ("the model", lambda: int8cal.calibrate(wrong, feeds)),
        ("the model", lambda: int8cal.quantize(wrong, table)),
        ("the model", lambda: int8cal.evaluate(model, wrong, feeds)),
        ("table", lambda: int8cal.quantize(model, wrong)),
    )
    kind = "None" if wrong is None else f"of the type {type(wrong).__name__}"
    for what, call in calls:
        with pytest.raises(UsageError, match=f"^usage: {what} is {kind}; give "):
            call()


@pytest.mark.parametrize("wrong", [None, 5, b"samples", {"x": np.zeros((4, 16), np.float32)}, object()])
def test_what_is_no_data_is_told(wrong):
    model, _ = product()
    with pytest.raises(UsageError, match=r"^usage: the data is .*; give "):
        int8cal.calibrate(model, wrong)
    with pytest.raises(UsageError, match=r"^usage: the data is .*; give "):
        int8cal.evaluate(model, model, wrong)


class _Place:
    """A path of another library's kind."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def test_whatever_leads_to_a_path_is_one(tmp_path):
    model, feeds = product()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    table = int8cal.calibrate(_Place(str(tmp_path / "m.onnx")), _Place(str(tmp_path / "feeds.npz")))
    table.save(tmp_path / "m.table.json")
    assert int8cal.calibrate(_Place(bytes(tmp_path / "m.onnx")), _Place(bytes(tmp_path / "feeds.npz"))) == table
    assert int8cal.quantize(model, _Place(str(tmp_path / "m.table.json"))) == int8cal.quantize(model, table)


class _MapStyle:
    """Feeds by their number, as a dataset of torch has them: never an IndexError."""

    def __init__(self, feeds):
        self.feeds = feeds

    def __len__(self):
        return len(self.feeds)

    def __getitem__(self, index):
        return self.feeds[index % len(self.feeds)]


def test_a_dataset_that_gives_feeds_by_number_is_data():
    model, feeds = product()
    table = int8cal.calibrate(model, feeds)
    assert int8cal.calibrate(model, _MapStyle(feeds)) == table
    assert int8cal.calibrate(model, lambda: _MapStyle(feeds)) == table


def test_numbers_of_numpy_are_numbers():
    model, feeds = product()
    given = {"samples": np.int64(8), "seed": np.uint8(3), "threads": np.int32(1), "ranges": {"x": np.array([-3, 3])}}
    plain = {"samples": 8, "seed": 3, "threads": 1, "ranges": {"x": [-3, 3]}}
    assert int8cal.calibrate(model, feeds, **given) == int8cal.calibrate(model, feeds, **plain)


def test_a_metric_may_be_a_lambda():
    model, feeds = product()
    report = int8cal.evaluate(model, model, feeds, metric=lambda outputs, _: float(len(outputs["y"])), latency=False)
    assert (report.evaluation.metric.name, report.evaluation.metric.int8) == ("metric", 16.0)


def test_a_callback_sees_every_stage():
    model, feeds = product()
    events = []
    table = int8cal.calibrate(model, feeds, samples=16, progress=events.append)
    int8cal.evaluate(model, int8cal.quantize(model, table), feeds, progress=events.append)
    stages = dict.fromkeys(event.stage for event in events)
    assert list(stages) == ["prepare", "", "calibrate", "thresholds", "quantize", "evaluate"]
    assert {event.detail for event in events if event.stage == "evaluate"} >= {
        "outputs",
        "speed",
        "layers",
        "saturation",
    }
    assert [event.done for event in events if event.detail == "samples"] == list(range(17))
    steps = [event.total for event in events if event.stage == "quantize" and event.total]
    assert set(steps) >= {len(RECIPES["fast"].steps)}
