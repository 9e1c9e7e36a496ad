"""Advice under a failed gate is about that gate."""

from dataclasses import replace

import pytest
from made_reports import FOUND

from int8cal.evaluation.gates import check_gates, parse_gate
from int8cal.evaluation.result import (
    Drop,
    FloatNode,
    Fusion,
    Latency,
    LayerMetrics,
    Machine,
    MixedGate,
    MixedLayer,
    MixedPoint,
    MixedPrecision,
    Optimization,
    Origin,
    Saturation,
)
from int8cal.report.advice import advice, advice_below, advice_on_all
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.junit import suite_of_report
from int8cal.report.markdown import report_to_markdown

SQNR = "sqnr_db>=40"


@pytest.fixture
def held(report):
    """Hold a report to gates; returns it with their verdicts."""

    def hold(*texts, settings=None, **changes):
        own = {name: changes.pop(name) for name in ("optimize", "mixed", "origin") if name in changes}
        evaluation = replace(report.evaluation, **{"layers": (), "fusion": None, **changes})
        gates = check_gates([parse_gate(text, reachable=False) for text in texts], evaluation)
        return replace(report, evaluation=evaluation, gates=gates, settings=settings or {}, **own)

    return hold


def said(report):
    return advice(document_of(report), 0)


def test_a_gate_that_held_or_has_no_value_gets_none(held):
    assert said(held("sqnr_db>=20")) == ""
    assert said(held("top5.drop<=1")) == ""


def test_a_gate_that_this_version_cannot_read_gets_none(held):
    report = held(SQNR)
    assert said(report)
    (gate,) = report.gates
    assert said(replace(report, gates=(replace(gate, gate="of_tomorrow ~ 40"),))) == ""


def test_speed_is_about_layers_that_int8_makes_slower(held):
    speed = "latency.speedup>=3"
    assert "--optimize latency leaves" in said(held(speed))
    assert "--recipe" not in said(held(speed, settings={"recipe": "fast"}))
    left = Optimization(2.0, 3.0, 1.5, {"a": "slow", "b": "slow"}, ())
    assert "has left 2 layers in float already" in said(held(speed, optimize=left))
    assert "2 of 55 nodes stay in float" in said(held(speed, fusion=Fusion(53, 2)))
    assert "contains the bound" not in said(held(speed))
    assert "contains the bound" in said(held(speed, latency=Latency(2.0, 1.0, 2.0, (1.5, 3.5))))
    assert "check that data" in said(held("latency.fp32<=1"))


@pytest.mark.parametrize(
    ("target", "flags", "told"),
    [
        ("x86-vnni", ("avx2", "avx512_vnni"), ""),
        ("x86-vnni", ("avx2",), "this machine is not of the target x86-vnni"),
        ("arm64", ("avx2",), "this machine is not of the target arm64"),
        ("portable", (), ""),
        ("tensorrt", (), "measure in tensorrt"),
    ],
)
def test_speed_beside_the_target_says_so(held, target, flags, told):
    machine = Machine(
        cpu="c", flags=flags, physical_cores=1, logical_cores=1, threads=1, system="", python="", runtimes={}
    )
    origin = Origin("", "", machine)
    text = said(held("latency.speedup>=3", saturation=Saturation(target, 0), origin=origin))
    assert told in text
    assert ("measure" in text) == bool(told)


def test_size_names_the_options_that_left_layers_in_float(held):
    size = "size.ratio<=0.1"
    assert "are int8" in said(held(size))
    assert "less --exclude makes it smaller" in said(held(size, settings={"exclude": ["/head/*"], "include": []}))


def test_saturation_names_the_layers_and_the_weights(held):
    text = said(held("saturation.unsafe_channels<=0", saturation=FOUND))
    assert "conv|1 (3 of 16)" in text
    assert "--weights paired" in text
    assert "--recipe" not in text


def test_fusion_names_the_nodes(held):
    fusion = Fusion(1, 1, (FloatNode("soft", "Softmax", "feeds an output"),))
    assert said(held("fusion.float<=0", fusion=fusion)) == "in float are soft (Softmax: feeds an output)"


def layer(name, sqnr):
    return LayerMetrics(name, name, "Conv", sqnr, None)


def test_accuracy_names_the_layers_where_the_sqnr_falls(held):
    layers = tuple(
        layer(name, sqnr) for name, sqnr in (("a", 40.0), ("b", 25.0), ("c", None), ("d", 25.5), ("e", 18.0))
    )
    text = said(held(SQNR, settings={"recipe": "fast"}, layers=layers))
    assert "SQNR falls most at e (25.5 to 18.0 dB), b (40.0 to 25.0 dB)" in text
    assert "a (" not in text
    assert "--exclude" not in text  # it is not known what these nodes are in the user's model
    assert "--recipe accurate" in text
    assert "--budget" in text
    assert "--recipe" not in said(held(SQNR, settings={"recipe": "accurate"}, layers=layers))


def test_a_layer_behind_an_exact_one_falls_from_exact(held):
    layers = (layer("a", 320.0), layer("b", 25.0))
    text = said(held(SQNR, settings={"recipe": "fast"}, layers=layers))
    assert "SQNR falls most at b (exact to 25.0 dB)" in text
    of_another_tool = said(held(SQNR, layers=layers))
    assert "--budget" not in of_another_tool
    assert "leave such layers in float" in of_another_tool
    assert said(held(SQNR, layers=())) == "leave the worst layers in float, or calibrate with --recipe accurate"


def test_a_budget_that_was_spent_says_what_it_came_to(held):
    point = MixedPoint(
        layers_left=1,
        planes=0,
        estimated_percent=2.0,
        gates={SQNR: MixedGate(30.0, passed=False)},
        sqnr_db=30.0,
        kept=True,
    )
    mixed = MixedPrecision(
        budget_percent=5.0,
        fallback="float",
        needed_percent=12.3,
        outcome="5 % do not suffice",
        layers=(MixedLayer("a", "Conv", 0.7, 2.0, "float"), MixedLayer("b", "Conv", 0.01, 2.0, "int8")),
        curve=(point,),
    )
    assert said(held(SQNR, mixed=mixed)) == "5 % do not suffice; give --budget 13, or relax the gate"
    unknown = said(held(SQNR, mixed=replace(mixed, needed_percent=None)))
    assert unknown == "5 % do not suffice; relax the gate"
    more = (*mixed.layers, MixedLayer("c", "Conv", 0.2, 30.0, "int8, beyond the budget"))  # by estimate of no use
    assert said(held(SQNR, mixed=replace(mixed, needed_percent=None, layers=more))) == unknown
    of_labels = replace(point, gates={"top1.drop<=1": MixedGate(3.0, passed=False)})
    text = said(held(SQNR, mixed=replace(mixed, needed_percent=None, curve=(of_labels,))))
    assert text == "5 % do not suffice; try a larger --budget, or relax the gate"
    enough = replace(point, gates={SQNR: MixedGate(41.0, passed=True)})
    text = said(held(SQNR, mixed=replace(mixed, curve=(enough,))))
    assert "most noise is made by a (0.70 of it)" in text


@pytest.mark.parametrize(
    ("drop", "told"),
    [
        (Drop(0.9, 0.88, 2.0, (0.5, 3.5), 200), "200 samples do not decide: more would, about 450 if the figure stays"),
        (Drop(0.9, 0.88, 2.0, (1.5, 2.5), 200), ""),
    ],
)
def test_an_interval_with_the_bound_in_it_asks_for_more_samples(held, report, drop, told):
    text = said(held("top1.drop<=1", metrics=replace(report.evaluation.metrics, top1=drop)))
    assert told in text
    assert ("samples" in text) == bool(told)


def test_an_interval_that_ends_where_figures_do_asks_for_as_many_samples_as_its_wider_side_needs(held, report):
    metrics = replace(report.evaluation.metrics, agreement=0.98, agreement_ci95=(0.95, 1.0))
    text = said(held("agreement>=0.99", metrics=metrics))
    samples = document_of(report).samples
    assert f"about {9 * samples:,} if the figure stays" in text


def test_several_gates_are_advised_one_by_one(held):
    both = document_of(held(SQNR, "size.ratio<=0.1", "size.int8_bytes<=1", settings={"recipe": "fast"}))
    text = advice_on_all(both)
    assert text.startswith("for sqnr_db>=40: try --recipe accurate")
    assert text.count("for ") == 2 + text.count("for /")
    assert "for size.ratio<=0.1: " in text


def test_every_view_shows_it(held):
    report = held("fusion.float<=0", fusion=Fusion(1, 1, (FloatNode("soft", "Softmax", "x"),)))
    told = "in float are soft (Softmax: x)"
    assert told in report_to_markdown(report)
    assert told in report_to_html(report)
    assert told in suite_of_report("job", report, action="calibrate").cases[1].message


def test_what_two_gates_have_in_common_is_advised_once(held):
    document = document_of(held("sqnr_db>=90", "cosine>=0.9999999"))
    first, second = (advice(document, index) for index in range(2))
    shared = "leave the worst layers in float, or calibrate with --recipe accurate"
    assert shared in first
    assert shared in second
    assert advice_on_all(document).count(shared) == 1
    assert advice_below(document, 0) == first
    assert shared not in advice_below(document, 1)
    assert advice_below(document, 1).endswith("as above")
