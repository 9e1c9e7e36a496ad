"""Reading the file: syntax, duplicate keys, environment variables, aliases, positions."""

import re
from pathlib import Path

import pytest

from int8cal.config.load import load_jobs
from int8cal.config.yaml_file import key_path, read_yaml
from int8cal.errors import ConfigError

JOB = "model: a.onnx\ndata: photos\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (JOB + "model: b.onnx\n", 'job.yaml:3:1: key "model" is given twice, first on line 1; keep one of them'),
        (JOB + "output: {dir: a, dir: b}\n", 'job.yaml:3:18: key "dir" is given twice, first on line 3'),
        ("a: b: c\n", "job.yaml:1:5: is not valid YAML: mapping values are not allowed here"),
        ("data: [1\n", "job.yaml:2:1: is not valid YAML"),
        ("\tmodel: a\n", "job.yaml:1:1: is not valid YAML"),
        ("model: a\n---\nmodel: b\n", "job.yaml:2:1: is not valid YAML"),
        ("", "job.yaml: the file is empty"),
        ("# only a comment\n", "job.yaml: the file is empty"),
        ("- model: a\n", "job.yaml:1:1: expected a mapping"),
        ("model: !!python/name:os.system x\n", "job.yaml:1:8: is not valid YAML"),
        ("data: !set {path: x}\n", "job.yaml:1:7: the tag !set has no meaning here"),
        ("? [a]\n: 1\n", "job.yaml:1:3: a key must be plain text"),
        ("name: &a [*a]\n", "job.yaml:1:7: an alias (*) points to a value that contains it"),
        ("name: 2024-99-99\n", "job.yaml:1:7: the value cannot be read"),
        ("name: " + "9" * 5000 + "\n", "job.yaml:1:7: the whole number is too large"),
        ("[" * 20000, "job.yaml: is nested too deeply"),
        ("model: \0\n", "job.yaml: is not a YAML text file"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_text_that_is_no_configuration_is_refused_with_its_line(refused, text, message):
    assert message in refused(text)


def test_bytes_that_are_no_text_are_refused(folder):
    (folder / "job.yaml").write_bytes(b"model: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not a YAML text file"):
        load_jobs(Path("job.yaml"))


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused(folder, name):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_jobs(Path(name))


def test_environment_variables_are_replaced_in_text(load, monkeypatch):
    monkeypatch.setenv("PHOTOS", "/mnt/photos")
    (job,) = load('model: a.onnx\ndata: {path: "${PHOTOS}/train", samples: 5}\n')
    assert job.data.path == "/mnt/photos/train"


def test_a_plain_variable_may_stand_for_a_number_and_a_quoted_one_is_text(load, refused, monkeypatch):
    monkeypatch.setenv("SAMPLES", "64")
    text = "model: a.onnx\ndata:\n  path: d\n  samples: "
    (job,) = load(text + "${SAMPLES}\n")
    assert job.data.samples == 64
    assert 'expected a whole number, got "64"' in refused(text + '"${SAMPLES}"\n')


def test_the_text_of_a_variable_is_never_read_as_yaml(load, monkeypatch):
    monkeypatch.setenv("NAME", "a: {b: [c]} # d")
    (job,) = load(JOB + "name: ${NAME}\n")
    assert job.name == "a: {b: [c]} # d"


def test_an_undefined_variable_is_an_error_with_its_place(refused, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    message = refused(JOB + "output:\n  dir: ${NOT_SET}/out\n")
    assert "job.yaml:4:8: environment variable NOT_SET is not defined; export NOT_SET=VALUE first" in message


@pytest.mark.parametrize("text", ["${}", "${a b}", "${1X}"])
def test_what_is_no_variable_name_is_an_error(refused, text):
    assert "names no environment variable" in refused(JOB + f'name: "{text}"\n')


def test_two_dollars_keep_the_braces(load):
    (job,) = load(JOB + 'name: "$${HOME}"\n')
    assert job.name == "${HOME}"


def test_anchors_and_merge_keys_work_and_errors_inside_are_placed_where_they_stand(load, refused):
    text = "defaults: &base\n  data: d\n  calibration: &cal {method: kl}\njobs:\n- {model: a.onnx, calibration: {<<: *cal, threads: 2}}\n"
    (job,) = load(text)
    assert (job.calibration.method, job.calibration.threads) == ("kl", 2)
    assert "job.yaml:3:30: defaults.calibration.method" in refused(text.replace("method: kl", "method: kk"))


def test_a_document_places_keys_and_values(folder):
    path = folder / "x.yaml"
    path.write_text("a:\n  b: [10, 20]\n")
    document = read_yaml(path)
    value, key = document.place(("a", "b", 1)), document.place(("a", "b"), at_key=True)
    assert (value.line, value.column, key.line, key.column) == (2, 11, 2, 3)
    assert re.fullmatch(r".*x\.yaml:2:11: a\.b\[1\]", value.text)
    assert document.has(("a", "b", 1))
    assert not document.has(("a", "b", 2))


def test_key_paths_read_as_users_write_them():
    assert key_path(("jobs", 0, "data", "path")) == "jobs[0].data.path"
    assert key_path(()) == ""


def test_an_error_carries_its_position_as_fields(load):
    with pytest.raises(ConfigError) as caught:
        load(JOB + "calibration: {method: 1}\n")
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (3, 23)
    assert caught.value.fields["key"] == "calibration.method"


def test_a_key_of_its_own_wins_over_a_merged_one_wherever_the_merge_stands(load):
    text = "defaults: {data: d, calibration: &c {method: kl}}\njobs: [{model: a.onnx, calibration: {%s}}]\n"
    assert load(text % "<<: *c, method: mse")[0].calibration.method == "mse"
    assert load(text % "method: mse, <<: *c")[0].calibration.method == "mse"
