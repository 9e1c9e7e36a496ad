import numpy as np
import pytest
from made_reports import compared

from int8cal.evaluation.figures import FIGURES, figure_of, interval_of, value_of
from int8cal.numerics.intervals import difference_interval
from int8cal.report.comparison import LayerChange, value_in
from int8cal.report.comparison_views import cells
from int8cal.report.document import document_from
from int8cal.report.gate_changes import GateChange


def figure(found, name):
    return next(change for change in found.figures if change.figure == name)


@pytest.mark.parametrize("name", [*FIGURES, "outputs.y.sqnr_db", "outputs.y.cosine", "outputs.y.sqnr_db_ci95.hi"])
def test_a_figure_of_a_report_is_the_one_that_gates_are_held_against(old, evaluation, name):
    assert value_in(document_from(old), name) == value_of(name, evaluation)
    assert interval_of(name, document_from(old)) == interval_of(name, evaluation)


def test_every_interval_is_found(old):
    old["metric"] = {"name": "f1", "fp32": 0.9, "int8": 0.8, "drop": 0.1, "drop_ci95": [0.0, 0.2]}
    assert all(interval_of(name, document_from(old)) is not None for name, each in FIGURES.items() if each.interval)


@pytest.mark.parametrize("name", [*FIGURES, "outputs.y.sqnr_db", "outputs.no.sqnr_db"])
def test_what_a_report_lacks_is_none_and_no_error(old, name):
    old |= {
        "metrics": {**dict.fromkeys(old["metrics"]), "exact_outputs": []},
        "fusion": None,
        "latency_ms": None,
        "outputs": {},
        "layers": [],
    }
    old["saturation"] = {"target": "portable", "unsafe_channels": None}
    old["size"] = {"fp32_bytes": 0, "int8_bytes": 0}
    assert value_in(document_from(old), name) == (0 if name.endswith("_bytes") else None)
    assert interval_of(name, document_from(old)) is None


def test_equal_reports_differ_in_nothing(old, new):
    found = compared(old, new)
    assert {change.verdict for change in found.figures} == {"same", ""}
    assert (found.settings, found.warnings, found.to_float, found.to_integer, found.lost, found.gained) == (
        (),
        (),
        (),
        (),
        (),
        (),
    )


@pytest.mark.parametrize(
    ("part", "key", "value", "name", "worse_by"),
    [
        ("metrics", "sqnr_db", 29.5, "sqnr_db", 2.0),
        ("metrics", "agreement", 0.99, "agreement", -0.01),
        ("metrics", "max_abs_error", 0.5, "max_abs_error", 0.25),
        ("size", "int8_bytes", 900, "size.int8_bytes", -100),
        ("latency_ms", "speedup", 1.5, "latency.speedup", 0.5),
        ("saturation", "unsafe_channels", 3, "saturation.unsafe_channels", 3),
    ],
)
def test_worse_is_up_or_down_as_the_figure_has_it(old, new, part, key, value, name, worse_by):
    new[part][key] = value
    change = figure(compared(old, new), name)
    assert change.worse_by == pytest.approx(worse_by)
    assert change.verdict.startswith("worse" if worse_by > 0 else "better")


def test_a_drop_that_grows_is_worse(old, new):
    new["metrics"]["top1"].update(drop=4.0, drop_ci95=[2.0, 6.0])
    change = figure(compared(old, new), "top1.drop")
    assert change.worse_by == pytest.approx(3.0)
    assert change.worse_by_ci95 == pytest.approx((3 - np.hypot(2, 1.4), 3 + np.hypot(2, 1.4)))
    assert change.verdict == "worse"


def test_a_change_within_the_interval_of_the_difference_is_said_to_be_noise(old, new):
    new["metrics"].update(sqnr_db=30.6, sqnr_db_ci95=[29.6, 31.6])
    assert figure(compared(old, new), "sqnr_db").verdict == "worse, within noise"
    new["metrics"].update(sqnr_db=29.9, sqnr_db_ci95=[28.9, 30.9])
    assert figure(compared(old, new), "sqnr_db").verdict == "worse"


def test_decibels_of_float32_rounding_alone_do_not_count(old, new):
    old["metrics"].update(sqnr_db=320.0, sqnr_db_ci95=[320.0, 320.0])
    new["metrics"].update(sqnr_db=150.0, sqnr_db_ci95=[140.0, 160.0])
    change = figure(compared(old, new), "sqnr_db")
    assert cells(change) == ("SQNR", "exact", "150.00 dB", "0.00 dB", "same")
    new["metrics"].update(sqnr_db=100.0, sqnr_db_ci95=[99.0, 101.0])
    assert cells(figure(compared(old, new), "sqnr_db")) == ("SQNR", "exact", "100.00 dB", "-20.00 dB", "worse")


def test_a_change_that_is_shown_as_none_is_called_none(old, new):
    new["metrics"]["cosine"] = old["metrics"]["cosine"] + 1e-9
    change = figure(compared(old, new), "cosine")
    assert (change.worse_by, cells(change)[-2:]) == (0, ("0.000000", "same"))


def test_a_figure_of_one_report_alone_is_shown_without_a_way(old, new):
    new["latency_ms"] = None
    assert cells(figure(compared(old, new), "latency.speedup")) == ("Speedup", "2.00x", "not measured", "", "")


def test_a_guessed_speedup_is_shown_without_a_way_and_told(old, new):
    new["latency_ms"].update(speedup=3.0, speedup_ci95=None, rounds=3)
    told = "the speedup of the new report is a guess, since other processes had the cores: it is not compared"
    found = compared(old, new)
    assert (cells(figure(found, "latency.speedup"))[-1], found.warnings) == ("", (told,))
    old["latency_ms"].update(speedup_ci95=None, rounds=3)
    assert compared(old, new).warnings == (told.replace("new report is", "reports is"),)


def test_layers_are_listed_by_what_they_lost(old, new):
    new["layers"][0]["sqnr_db"], new["layers"][1]["sqnr_db"] = 39.0, 20.0
    new["layers"].append({"tensor": "d", "node": "d", "op_type": "Conv", "sqnr_db": 5.0, "clipped": None})
    new["layers"][2]["sqnr_db"] = 12.0
    found = compared(old, new)
    assert found.layers == (LayerChange("b", "Conv", 25.0, 20.0, 5.0), LayerChange("a", "Conv", 40.0, 39.0, 1.0))
    assert (found.lost, found.gained) == ((), ("d",))


def test_nodes_that_went_to_float_and_back_are_named(old, new):
    new["fusion"]["nodes"] = [
        {"node": "conv_a", "op_type": "Conv", "reason": "not quantized"},
        {"node": "", "op_type": "Relu", "reason": "not quantized"},
        {"node": "", "op_type": "Relu", "reason": "not quantized"},
    ]
    found = compared(old, new)
    assert found.to_float == ("conv_a", "unnamed Relu", "unnamed Relu")
    assert found.to_integer == ("softmax",)
    new["fusion"] = None
    assert compared(old, new).to_float is None


def test_gates_of_both_reports_are_listed(old, new):
    new["gates"] = [{"gate": "cosine>=1", "value": 0.9, "passed": False}]
    assert compared(old, new).gates == (
        GateChange("sqnr_db>=30", True, None),
        GateChange("cosine>=1", None, False),
    )


def test_changed_settings_and_versions_are_listed(old, new):
    new["settings"]["recipe"] = "accurate"
    new["settings"]["versions"]["onnxruntime"] = "1.31.0"
    new["settings"]["extra"] = True
    found = compared(old, new)
    assert found.settings == (
        ("recipe", "fast", "accurate"),
        ("versions.onnxruntime", "1.22.0", "1.31.0"),
    )
    assert (found.only_old, found.only_new) == ((), ("extra",))
    assert found.warnings == ()


@pytest.mark.parametrize("empty", [None, {}])
def test_a_mapping_that_was_not_given_changes_setting_by_setting(old, new, empty):
    old["settings"]["data"] = {"preprocess": empty, "gone": 1}
    new["settings"]["data"] = {"preprocess": {"resize": 224}}
    found = compared(old, new)
    assert found.settings == (("data.preprocess.resize", "none", "224"),)
    assert (found.only_old, found.only_new) == (("data.gone",), ())
    assert compared(new, old).settings == (("data.preprocess.resize", "224", "none"),)


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            lambda d: d["model"].update(sha256="cd" * 32),
            "the float models differ: sha256 abababababab… and cdcdcdcdcdcd…",
        ),
        (lambda d: d["settings"]["evaluation"]["data"].update(path="other"), "data differ: path val and other"),
        (lambda d: d["settings"]["evaluation"]["data"].update(labels="l.csv"), "data differ: labels none and l.csv"),
        (lambda d: d.update(samples=300), "data differ: 400 and 300 samples"),
        (lambda d: d["metrics"]["top1"].update(fp32=0.93), "the float model's top-1 differs, 0.9200 and 0.9300"),
        (
            lambda d: d.update(findings=[{"check": "chance", "text": "a guess", "do": "look"}]),
            "the new report's own verdict is: check the data",
        ),
    ],
)
def test_what_makes_reports_hard_to_compare_is_named(old, new, change, warning):
    change(new)
    (told,) = compared(old, new).warnings
    assert warning in told


def test_models_without_a_hash_are_told_apart_by_name(old, new):
    del old["model"]["sha256"]
    new["model"]["name"] = "other.onnx"
    assert compared(old, new).warnings == ('the float models have different names: "net.onnx" and "other.onnx"',)


def test_several_outputs_are_compared_one_by_one(old, new):
    for document in (old, new):
        document["outputs"]["z"] = {"sqnr_db": 20.0, "sqnr_db_ci95": None, "cosine": 0.9}
    new["outputs"]["z"]["sqnr_db"] = 18.0
    change = figure(compared(old, new), "outputs.z.sqnr_db")
    assert (figure_of(change.figure).label, change.worse_by) == ("SQNR of z", 2.0)


def test_a_decision_that_this_version_does_not_know_is_not_compared(old, new):
    unknown = {
        "figure": "of_tomorrow",
        "channels": None,
        "kind": "",
        "value": 1.0,
        "ci95": None,
        "samples": 4,
        "how": "",
    }
    for document in (old, new):
        document["outputs"]["y"] |= {"decisions": [unknown]}
    assert not [change for change in compared(old, new).figures if "of_tomorrow" in change.figure]


def test_the_interval_of_a_difference_covers_the_true_one():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(2000):
        first, second = rng.normal(10.0, 1.0), rng.normal(8.0, 2.0)
        low, high = difference_interval(first, (first - 1.96, first + 1.96), second, (second - 3.92, second + 3.92))
        covered += low <= 2.0 <= high
    assert 0.94 <= covered / 2000 <= 0.96


def test_a_lopsided_interval_stays_lopsided():
    low, high = difference_interval(10.0, (6.0, 11.0), 8.0, (5.0, 8.0))
    assert (low, high) == pytest.approx((-2.0, 2 + np.hypot(1, 3)))
    assert difference_interval(1.0, None, 1.0, (0.0, 2.0)) is None
