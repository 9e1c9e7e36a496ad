"""The keywords of the Python API are the settings that int8cal.job declares, with their types and defaults."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args, get_origin

import pytest

import int8cal
from int8cal import api, job
from int8cal.declared import alternatives, declared, keywords
from int8cal.errors import Int8calError

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
    elif setting.section:
        annotation = Mapping[str, object]
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
    types["Callable"] = Callable
    annotations = inspect.get_annotations(function, eval_str=True, locals=types)
    parameters = inspect.signature(function).parameters.values()
    found = {each.name: (annotations[each.name], each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert found == {keyword: expected(setting) for keyword, setting in keywords(name).items()}


def test_all_settings_but_three_are_keywords():
    sections = [each for each in declared() if each.name in ("data", "calibration", "quantization", "evaluation")]
    direct = {each.path for part in sections for each in declared(part.section, f"{part.name}.")}
    taken = {each.path for function in ("calibrate", "evaluate") for each in keywords(function).values()}
    assert direct - taken == {"data.path", "data.labels", "calibration.engine"}


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="methd"):
        int8cal.calibrate("m.onnx", "d", methd="kl")


@pytest.mark.parametrize(
    ("keyword", "value", "told"), [("percentile", 0.0, "a number above 0"), ("method", "klm", 'did you mean "kl"?')]
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
