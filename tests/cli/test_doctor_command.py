"""`int8cal doctor`."""

import json

import pytest

from int8cal.describe import describe_machine
from int8cal.extras import extra_hint
from int8cal.runtime import machine, openvino


def test_the_lines_of_the_pipeline_are_printed(here):
    done = here("doctor")
    assert (done.code, done.out, done.err) == (0, "version: 1\nproviders: CPU\n", "")


def test_json_is_one_object_of_the_same_facts(here, pipeline):
    pipeline.lines = ("CPU: x86 (avx2: yes)", "onnxruntime: 1.31")
    assert json.loads(here("doctor", "--json").out) == {"CPU": "x86 (avx2: yes)", "onnxruntime": "1.31"}


def test_lines_fit_the_terminal(here, pipeline, terminal):
    terminal(40)
    pipeline.lines = ("faster runtime: openvino is installed, and calibrate says where a model is fastest",)
    lines = here("doctor").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == pipeline.lines[0]


def test_a_real_machine_is_described(call):
    done = call("doctor")
    assert (done.code, done.err) == (0, "")
    assert "onnxruntime" in done.out


def test_a_real_machine_is_described_in_json(call):
    facts = json.loads(call("doctor", "--json").out)
    assert all(isinstance(value, str) for value in facts.values())
    assert facts


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"avx2", "avx512_vnni", "amx_int8"}, "had 1.4 to 2.6 times onnxruntime's speed"),
        ({"avx2", "avx512_vnni"}, "had 0.86 to 1.30 times onnxruntime's speed"),
        ({"avx2"}, "was not measured on a CPU like this one"),
        (set(), "was not measured on a CPU like this one"),
    ],
)
def test_a_faster_runtime_that_is_missing_is_told_with_what_was_measured_and_how_it_is_installed(
    monkeypatch, flags, said
):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(openvino, "is_installed", lambda: False)
    (line,) = (line for line in describe_machine() if line.startswith("faster runtime: "))
    assert said in line
    assert extra_hint("openvino") in line


def test_nothing_is_to_be_installed_where_every_runtime_is(monkeypatch):
    monkeypatch.setattr(openvino, "is_installed", lambda: True)
    (line,) = (line for line in describe_machine() if line.startswith("faster runtime: "))
    assert "is installed" in line
    assert "pip" not in line


@pytest.mark.parametrize(
    ("flags", "told", "silent"),
    [
        ({"asimd", "asimddp", "i8mm"}, ["asimddp: yes", "i8mm: yes", "sve: no"], "avx2"),
        ({"avx2", "avx512_vnni"}, ["avx2: yes", "avx_vnni: no"], "asimddp"),
    ],
)
def test_the_features_of_its_own_kind_of_cpu_are_told(monkeypatch, flags, told, silent):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    lines = describe_machine()
    assert set(told) <= set(lines)
    assert not any(line.startswith(silent) for line in lines)


def test_a_cpu_that_is_wrong_for_the_lowest_weight_alone_is_told(monkeypatch):
    monkeypatch.setattr(machine, "measured_product", lambda activation=255, weight=127: (weight < 0, 0))
    (line,) = (line for line in describe_machine() if line.startswith("int8 products: "))
    assert "exact here, but for weights of -128" in line
