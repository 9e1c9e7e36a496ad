"""The JSON Schema says what the loader says: the same files pass, the same are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from int8cal.config.json_schema import config_schema
from int8cal.config.layers import validate
from int8cal.config.schema import ConfigFile, JobLayer
from int8cal.config.yaml_file import read_yaml
from int8cal.declared import all_declared
from int8cal.errors import ConfigError
from int8cal.evaluation.figures import FIGURES, OUTPUT_UNITS, SHORT
from int8cal.job import Method, RecipeName, TargetName

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[3]
SHIPPED = [*sorted((ROOT / "configs").glob("*.yaml")), ROOT / "sample_data" / "sample.yaml"]


@pytest.fixture(scope="module")
def schema():
    return config_schema()


@pytest.fixture(scope="module")
def passes(schema):
    validator = jsonschema.Draft202012Validator(schema)
    return validator.is_valid


def loads(values):
    """Ask the loader what it says of a file's structure."""
    from int8cal.config.yaml_file import SettingPlace

    def place(loc, at_key):
        return SettingPlace("file", ".".join(map(str, loc)))

    try:
        config = validate(ConfigFile, values, place)
        for path, entries in config.matrix.items():
            for value in entries:
                nested = value
                for key in reversed(path.split(".")):
                    nested = {key: nested}
                validate(JobLayer, nested, place)
    except ConfigError:
        return False
    held = config.model_fields_set
    if not held.isdisjoint({"models", "gates"}):
        return "models" in held and held <= {"models", "defaults", "gates"}
    alone = held.isdisjoint({"jobs", "defaults"})
    return alone or ("jobs" in held and held <= {"jobs", "defaults", "matrix"})


def test_it_is_a_schema_of_its_draft(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    json.dumps(schema, allow_nan=False)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_pass(passes, path):
    assert passes(read_yaml(path).values)


def test_every_key_is_described_and_knows_its_default(schema):
    sections = {"": schema} | {name: part for name, part in schema["$defs"].items() if "properties" in part}
    keys = {(name, key): value for name, part in sections.items() for key, value in part["properties"].items()}
    assert [key for key, value in keys.items() if len(value.get("description", "")) < 8] == []
    assert keys["CalibrationSection", "percentile"]["default"] == 99.99
    assert keys["CalibrationSection", "percentile"]["anyOf"][0] == {
        "minimum": 50,
        "maximum": 100,
        "type": "number",
    }
    assert keys["", "model"]["description"] == "The FP32 ONNX file."


def test_every_setting_that_is_declared_is_a_key_with_its_description(schema):
    paths = schema["properties"]["matrix"]["properties"]
    said = {path: value["items"]["description"] for path, value in paths.items()}
    assert said == {each.path: each.option.about for each in all_declared()}


def test_a_matrix_names_every_key_path(schema):
    paths = schema["properties"]["matrix"]["properties"]
    assert {"model", "data", "data.preprocess.resize", "evaluation.data.samples", "quantization.weights"} <= set(paths)


BAD = [
    {"calibraton": {}},
    {"calibration": {"methd": "kl"}},
    {"calibration": None},
    {"calibration": {"method": "klm"}},
    {"calibration": {"percentile": 0}},
    {"calibration": {"percentile": "99"}},
    {"calibration": {"threads": 1.5}},
    {"calibration": {"threads": True}},
    {"calibration": {"batch_size": 0}},
    {"calibration": {"shard": "0/3"}},
    {"calibration": {"shard": 3}},
    {"data": 7},
    {"data": ""},
    {"data": {"path": " "}},
    {"data": {"samples": 0}},
    {"data": {"preprocess": {"resize": [1, 2, 3]}}},
    {"data": {"preprocess": {"scale": 0}}},
    {"data": {"preprocess": {"scale": "1/0"}}},
    {"data": {"preprocess": {"scale": "0.5"}}},
    {"data": {"preprocess": {"std": [0]}}},
    {"quantization": {"exclude": "*"}},
    {"quantization": {"ranges": {"x": [1]}}},
    {"quantization": {"budget": 0}},
    {"quantization": {"weights": "s9"}},
    {"evaluation": {"gates": ["top1.drop"]}},
    {"evaluation": {"gates": ["top1.dorp<=1"]}},
    {"evaluation": {"gates": ["top1.drop<=1%"]}},
    {"evaluation": {"gates": ["size.ratio<1_0"]}},
    {"evaluation": {"gates": "sqnr_db>=1"}},
    {"output": {"overwrite": "yes"}},
    {"name": "a/b"},
    {"name": ""},
    {"name": ".."},
    {"name": "."},
    {"jobs": []},
    {"jobs": {}},
    {"jobs": [{"model": "m"}], "quiet": True},
    {"defaults": {}},
    {"defaults": {}, "model": "m"},
    {"jobs": [{"jobs": []}]},
    {"matrix": {"calibration.methd": ["kl"]}},
    {"matrix": {"calibration.method": []}},
    {"matrix": {"calibration.method": "kl"}},
    {"matrix": {"calibration.method": ["kl", "max", "kl"]}},
    {"matrix": {"calibration": [{"method": "kl", "percentile": 99}, {"percentile": 99.0, "method": "kl"}]}},
    {"matrix": {"calibration.method": ["klm"]}},
    {"matrix": {"calibration.method.x": ["kl"]}},
    {"matrix": {"": ["kl"]}},
    [],
    None,
    "text",
]


@pytest.mark.parametrize("values", BAD, ids=json.dumps)
def test_what_the_loader_refuses_the_schema_refuses(passes, values):
    assert not (isinstance(values, dict) and loads(values))
    assert not passes(values)


GOOD = [
    {"model": "m", "data": "d"},
    {"data": {"path": "d", "preprocess": None}},
    {"data": {"preprocess": {"resize": 8, "crop": [8, 9], "color": None}}},
    {"evaluation": {"data": None, "gates": [" sqnr_db >= 1e1 ", "top1.drop_ci95.hi<=.5", "size.ratio<1."]}},
    {"quantization": {"ranges": {"x": [0, 1.5]}, "optimize": "latency", "weights": None}},
    {"jobs": [{"model": "m"}], "defaults": {"data": "d"}, "matrix": {"calibration": [{"method": "kl"}]}},
    {"matrix": {"quantization.ranges.x": [[0, 1]], "data": ["a", {"path": "b"}], "data.preprocess": [None]}},
]


@pytest.mark.parametrize("values", GOOD, ids=json.dumps)
def test_what_the_loader_takes_the_schema_takes(passes, values):
    assert loads(values)
    assert passes(values)


def test_a_variable_may_stand_for_any_value(passes):
    assert passes({"data": {"path": "${A}", "samples": "${N}"}, "calibration": {"method": "${M}"}, "quiet": "${Q}"})
    assert passes({"evaluation": {"gates": ["top1.drop<=${MAX}"]}})
    assert passes({"output": {"dir": "${HOME}/{name}"}})
    assert not passes({"data": {"path": "d", "samples": "${}"}})
    assert not passes({"calibration": "${C}"})


# JSON knows no difference between 1 and 1.0, and nothing of NaN or of what is printable: numbers and text without these.
NUMBERS = st.one_of(st.integers(-3, 400), st.sampled_from([-1.5, 0.5, 99.9, 100.5, 1e6]))
TEXTS = st.sampled_from(
    [
        "",
        " ",
        ".",
        "..",
        "...",
        "a",
        "a/b",
        "1/255",
        "photos/*",
        "x\0",
        "folders",
        "top1.drop<=1",
        "sqnr_db>=",
        "1",
        "true",
    ]
)
CHOICES = st.sampled_from(
    [*Method.__args__, *RecipeName.__args__, *TargetName.__args__, "u8", "s8", "s7", "RGB", "NCHW", "ray"]
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, CHOICES)
NAMES = [*FIGURES, *SHORT, "outputs.a", "outputs..sqnr_db", *(f"outputs.a <= b.{name}" for name in OUTPUT_UNITS)]
LISTS = st.lists(st.one_of(NUMBERS, TEXTS, st.sampled_from([f"{name}<=1" for name in NAMES])), max_size=3)


def keys_of(section):
    return [key for key in section.model_fields if key != "ranges"]


def sections(depth):
    known = ["path", "samples", "preprocess", "resize", "scale", "std", "method", "threads", "weights", "gates", "x"]
    values = st.one_of(SCALARS, LISTS)
    if depth:
        values = st.one_of(values, sections(depth - 1))
    return st.dictionaries(st.sampled_from(known), values, max_size=3)


FILES = st.dictionaries(
    st.sampled_from([*keys_of(ConfigFile), "other"]),
    st.one_of(
        SCALARS,
        sections(2),
        st.lists(
            st.dictionaries(st.sampled_from(keys_of(JobLayer)), st.one_of(SCALARS, sections(2)), max_size=3), max_size=2
        ),
        st.dictionaries(st.sampled_from(["calibration.method", "data.samples", "name", "x"]), LISTS, max_size=2),
    ),
    max_size=4,
)


@given(FILES)
@example({"gates": []})
def test_schema_and_loader_agree_on_any_file(values):
    assert jsonschema.Draft202012Validator(config_schema()).is_valid(values) == loads(values)


@given(st.sampled_from(sorted(JobLayer.model_fields)).flatmap(lambda key: st.tuples(st.just(key), sections(2))))
def test_schema_and_loader_agree_on_any_section(entry):
    values = dict([entry])
    assert jsonschema.Draft202012Validator(config_schema()).is_valid(values) == loads(values)
