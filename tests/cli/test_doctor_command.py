"""`int8cal doctor`."""

import json


def test_the_lines_of_the_pipeline_are_printed(here):
    done = here("doctor")
    assert (done.code, done.out, done.err) == (0, "version: 1\nproviders: CPU\n", "")


def test_json_is_one_object_of_the_same_facts(here, pipeline):
    pipeline.lines = ("CPU: x86 (avx2: yes)", "onnxruntime: 1.31")
    assert json.loads(here("doctor", "--json").out) == {"CPU": "x86 (avx2: yes)", "onnxruntime": "1.31"}


def test_a_real_machine_is_described(call):
    done = call("doctor")
    assert (done.code, done.err) == (0, "")
    assert "onnxruntime" in done.out


def test_a_real_machine_is_described_in_json(call):
    facts = json.loads(call("doctor", "--json").out)
    assert all(isinstance(value, str) for value in facts.values())
    assert facts
