from xml.dom import minidom

import pytest

from benchmarks.commands.calibration import floor_ratios, plain_seconds, section
from benchmarks.commands.inference import section as latency_section
from benchmarks.commands.scaling import fit
from benchmarks.machine import describe, peak_mb
from benchmarks.plot import Bar, Points, bars, chart
from benchmarks.request import Measured, Request
from benchmarks.table import Spread, markdown, optional


def test_columns_line_up_and_figures_stand_to_the_right():
    text = markdown(("tool", "x"), [("a", "1.00"), ("b|c", "12")])
    assert text.splitlines() == [
        "| tool |    x |",
        "|------|-----:|",
        "| a    | 1.00 |",
        "| b\\|c |   12 |",
    ]


def test_a_spread_is_median_and_extremes():
    assert Spread.of([3.0, 1.0, 2.0]).text() == "2.00 (1.00..3.00)"
    assert optional(None) == "-"
    assert optional(12.34, 1) == "12.3"


def request(tool, samples):
    return Request(tool, "calibrate", "net", samples, 2, ".", ".")


def plain(session, seconds, peak=100.0):
    return Measured(session + seconds, {"session": session, "pass": seconds}, peak_mb=peak)


def test_plain_inference_is_scaled_without_the_session():
    assert plain_seconds(plain(1.0, 8.0), measured=128, wanted=32) == 3.0


def test_the_floor_is_plain_inference_plus_one_read():
    measured = {
        "plain": [plain(0.5, 1.5)],
        "taps": [Measured(facts={"tapped_bytes": 1e6})],
        "read": [Measured(facts={"gb_per_s": 10.0})],
    }
    assert floor_ratios(measured, 1000) == [1.05]
    assert floor_ratios({"plain": measured["plain"]}, 1000) == []


def test_ratios_are_within_a_round_and_failures_are_lines():
    requests = {
        "plain": request("plain", 10),
        "int8cal": request("int8cal", 10),
        "ort-entropy": request("ort-entropy", 5),
    }
    measured = {
        "plain": [plain(0.0, 1.0), plain(0.0, 2.0), plain(0.0, 4.0)],
        "int8cal": [
            Measured(2.0, {"collect": 2.0}, peak_mb=150.0),
            Measured(4.0, {"collect": 4.0}),
            Measured(9.0, {"collect": 9.0}),
        ],
    }
    text = section("net", requests, measured, {"ort-entropy": "out of memory"})
    assert " 2.00 (2.00..2.25) |" in text
    assert " +50 |" in text
    assert "onnxruntime Entropy failed: out of memory" in text


def test_every_int8_model_is_compared_with_the_fp32_runs_beside_it():
    series = {"fp32:int8cal": [4.0, 8.0, 6.0], "int8cal": [2.0, 2.0, 2.0]}
    text = latency_section("net", series, {"fp32": 100, "int8cal": 26}, {"nncf": "no"})
    assert "3.00 (2.00..4.00)" in text
    assert "0.26" in text
    assert "NNCF failed: no" in text


def test_the_line_is_least_squares():
    line = fit({count: [Measured(1.0 + 0.5 * count)] for count in (1, 2, 4)})
    assert (line.start, line.slope, line.r2) == pytest.approx((1.0, 0.5, 1.0))
    assert fit({1: [Measured(1.0)], 2: [Measured(3.0)], 3: [Measured(1.0)]}).r2 < 0.1


def parts(drawing, tag):
    """Parse as XML, which fails on anything malformed."""
    return minidom.parseString(drawing).getElementsByTagName(tag)  # noqa: S318 - drawn here


def test_plots_are_well_formed_and_carry_every_point():
    panels = [Points("s", ((1, 1), (2, 2)), (0.0, 1.0), "R²"), Points("MB", ((1, 0),))]
    assert len(parts(chart("a < b", "samples", panels), "circle")) == 3
    rows = [Bar("a", 1.4, 1.3, 1.5, own=True), Bar("b", 20.0, 18.0, 24.0)]
    assert len(parts(bars("t", "ratio", rows), "rect")) == 3  # two bars and the paper


def test_the_machine_is_one_line():
    assert "onnxruntime" in describe(2)
    assert "\n" not in describe(2)
    assert peak_mb() is None or peak_mb() > 1
