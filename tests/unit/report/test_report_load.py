from __future__ import annotations

import json

import pytest
from made_reports import json_of

from int8cal.errors import ConfigError
from int8cal.report.document import document_of, part_as_json, report_to_json
from int8cal.report.files import load_report


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "report.json"
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return path

    return write


def test_what_was_written_is_read_back(report, write):
    assert load_report(write(report_to_json(report))) == document_of(report)


def test_a_report_in_which_nothing_was_measured_is_read_back(empty_report, write):
    assert load_report(write(report_to_json(empty_report))) == document_of(empty_report)


def test_a_report_without_exact_outputs_is_read(report, write):
    document = json_of(report)
    del document["metrics"]["exact_outputs"]
    assert load_report(write(document)).metrics.exact_outputs == ()


def test_parts_beyond_the_contract_may_be_missing(report, write):
    document = json_of(report)
    for key in ("samples", "reasons", "warnings", "decisions"):
        del document[key]
    loaded = load_report(write(document))
    assert (loaded.samples, loaded.reasons, loaded.warnings, loaded.decisions) == (None, {}, (), ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="int8cal/table"), '"format" is not "int8cal/report"'),
        (lambda d: d.update(version=2), "report version is 2, this int8cal reads version 1"),
        (lambda d: d.pop("metrics"), "metrics is missing"),
        (lambda d: d["metrics"].update(sqnr_db="24"), 'metrics.sqnr_db is "24", expected int or float or null'),
        (lambda d: d["metrics"].update(sqnr_db=True), "metrics.sqnr_db is true"),
        (lambda d: d["metrics"]["top1"].update(drop_ci95=[1.0]), "metrics.top1.drop_ci95 has 1 values, expected 2"),
        (lambda d: d["metrics"]["top1"].update(int8=None), "metrics.top1.int8 is null while others"),
        (lambda d: d["metrics"]["top1"].update(fp32=None, drop=None), "metrics.top1.fp32 is null while others"),
        (lambda d: d["metrics"].update(sqnr_db=10**400), "is not valid JSON (a whole number of 401 digits)"),
        (lambda d: d["settings"].update(x=-(10**340)), "a whole number of 342 digits"),
        (lambda d: d["metrics"].update(exact_outputs="y"), 'metrics.exact_outputs is "y", expected list'),
        (lambda d: d["metrics"].update(exact_outputs=[1]), "metrics.exact_outputs.0 is 1, expected str"),
        (lambda d: d["size"].update(int8_bytes=1e308), "1e+308 is too large a number"),
        (lambda d: d["layers"][3].pop("tensor"), "layers.3.tensor is missing"),
        (lambda d: d["layers"].append(7), "layers.12 is 7, expected dict"),
        (lambda d: d.update(fusion=[]), "fusion is [], expected dict or null"),
        (lambda d: d["gates"][0].update(passed=1), "gates.0.passed is 1, expected bool"),
        (lambda d: d.update(warnings="none"), 'warnings is "none", expected list'),
        (lambda d: d["reasons"].update(x=1), "reasons.x is 1, expected str"),
        (lambda d: d.update(optimize={"fp32_us": 1.0}), "optimize.plain_int8_us is missing"),
        (lambda d: d["size"].update(fp32_bytes=0.5), "size.fp32_bytes is 0.5, expected int"),
        (lambda d: d["metrics"].update(agreement=2.5), "metrics.agreement is 2.5, expected at most 1 or null"),
        (lambda d: d["metrics"].update(max_abs_error=-1.0), "metrics.max_abs_error is -1.0, expected at least 0"),
        (lambda d: d["metrics"]["top1"].update(int8=1.25), "metrics.top1.int8 is 1.25, expected at most 1"),
        (lambda d: d["layers"][3].update(clipped=-0.1), "layers.3.clipped is -0.1, expected at least 0 or null"),
        (lambda d: d["size"].update(int8_bytes=-5), "size.int8_bytes is -5, expected at least 0; evaluate again"),
        (lambda d: d["saturation"].update(unsafe_channels=-3), "saturation.unsafe_channels is -3, expected at least 0"),
        (lambda d: d["latency_ms"].update(int8=-1), "latency_ms.int8 is -1, expected at least 0 or null"),
    ],
)
def test_an_unsound_report_is_refused_with_the_place(report, write, change, message):
    document = json_of(report)
    change(document)
    path = write(document)
    with pytest.raises(ConfigError) as caught:
        load_report(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"format": NaN}', "[" * 100_000, '{"format": 1e999}'])
def test_what_is_not_a_json_report_is_refused_in_one_line(write, text):
    with pytest.raises(ConfigError) as caught:
        load_report(write(text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_report(tmp_path / "none.json")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a\xff\xfe")
    with pytest.raises(ConfigError, match="not valid JSON"):
        load_report(tmp_path / "model.onnx")


def test_a_report_from_before_there_were_intervals_is_read(report, write):
    document = json_of(report)
    for part, key in (("metrics", "sqnr_db_ci95"), ("metrics", "agreement_ci95"), ("latency_ms", "speedup_ci95")):
        del document[part][key]
    del document["outputs"]["logits"]["sqnr_db_ci95"]
    del document["gates"][0]["ci95"]
    loaded = load_report(write(document))
    found = (loaded.metrics.sqnr_db_ci95, loaded.metrics.agreement_ci95, loaded.latency.speedup_ci95)
    assert found == (None, None, None)
    assert (loaded.outputs["logits"].sqnr_db_ci95, loaded.gates[0].ci95) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["metrics"].update(sqnr_db_ci95=[1.0]), "metrics.sqnr_db_ci95 has 1 values, expected 2"),
        (lambda d: d["latency_ms"].update(speedup_ci95=2), "latency_ms.speedup_ci95 is 2, expected list"),
        (lambda d: d["outputs"]["logits"].update(sqnr_db_ci95=["a", 1]), 'outputs.logits.sqnr_db_ci95.0 is "a"'),
        (lambda d: d["gates"][1].update(ci95=[1, 2, 3]), "gates.1.ci95 has 3 values"),
    ],
)
def test_an_unsound_interval_is_refused_with_the_place(report, write, change, message):
    document = json_of(report)
    change(document)
    with pytest.raises(ConfigError) as caught:
        load_report(write(document))
    assert message in str(caught.value)


def with_weights(document):
    spread = {"scales": 3, "scale_min": 0.5, "scale_median": 1, "scale_max": 2.0}
    row = {"node": "n", "op_type": "Conv", "weight": "w", "tensor": "t", "dtype": "int8", "range": "s8", "axis": 0}
    none = dict.fromkeys(("scale_min", "scale_median", "scale_max"))
    return document | {"weights": [row | spread, row | spread | none | {"scales": 0}]}


def test_scales_are_read_where_there_are_some(report, write):
    document = with_weights(json_of(report))
    assert part_as_json(load_report(write(document)).weights) == document["weights"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale_max": -1.0}, "weights.0.scale_max is -1.0, expected at least"),
        ({"scale_max": None}, "weights.0.scale_max is null while others of weights.0 are not"),
        ({"scale_median": None}, "weights.0.scale_median is null while others of weights.0 are not"),
        ({"scale_min": -1}, "weights.0.scale_min is -1, expected at least 0"),
        ({"scale_min": 1e9}, "weights.0.scale_median is 1, expected at least 1e+09"),
        ({"scale_min": 0, "scale_max": 0.0}, "weights.0.scale_max is 0.0, expected at least 1"),
    ],
)
def test_scales_that_cannot_be_are_refused(report, write, values, message):
    document = with_weights(json_of(report))
    document["weights"][0].update(values)
    with pytest.raises(ConfigError) as caught:
        load_report(write(document))
    assert message in str(caught.value)


def test_keys_that_this_version_does_not_know_are_passed_over(report, write):
    document = json_of(report)
    for part in (document, document["metrics"], document["layers"][0], document["gates"][0]):
        part["of a later version"] = {"x": 1}
    assert load_report(write(document)) == document_of(report)


def test_what_is_read_cannot_be_changed(report, write):
    loaded = load_report(write(json_of(report)))
    with pytest.raises(AttributeError, match="cannot assign"):
        loaded.metrics.sqnr_db = 99.0
