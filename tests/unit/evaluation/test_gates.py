import math

import pytest
from made_reports import NOTHING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import FIGURES
from int8cal.evaluation.gates import (
    check_gates,
    figure_named,
    hold,
    never_failing,
    on_outputs,
    parse_gate,
    require_classes,
    require_measurable,
    require_outputs,
)
from int8cal.evaluation.result import (
    Drop,
    Evaluation,
    Fusion,
    Latency,
    LayerMetrics,
    Metrics,
    OutputMetrics,
    Saturation,
    Size,
)

EVALUATION = Evaluation(
    samples=100,
    metrics=Metrics(
        sqnr_db=31.5,
        cosine=0.999,
        max_abs_error=0.25,
        agreement=0.98,
        top1=Drop(0.92, 0.91, 1.0, (-0.4, 2.4), 100),
        top5=None,
        sqnr_db_ci95=(30.5, 32.5),
        agreement_ci95=(0.93, 0.997),
    ),
    outputs={
        "logits": OutputMetrics(sqnr_db=31.0, cosine=0.998, sqnr_db_ci95=(30.0, 32.0)),
        "/head/a<=b. c": OutputMetrics(sqnr_db=12.0, cosine=0.9, sqnr_db_ci95=None),
    },
    layers=(
        LayerMetrics("a", "a", "Conv", 40.0, None),
        LayerMetrics("b", "b", "Conv", 18.0, None),
        LayerMetrics("c", "c", "Conv", None, None),
    ),
    fusion=Fusion(12, 3, ()),
    saturation=Saturation("portable", None),
    size=Size(4000, 1000),
    latency=Latency(2.0, 1.0, 2.1, (1.9, 2.3)),
)


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("sqnr_db>=31.5", 31.5, True),
        ("sqnr_db>31.5", 31.5, False),
        ("cosine >= 0.99", 0.999, True),
        ("max_abs_error<0.25", 0.25, False),
        ("agreement<=0.98", 0.98, True),
        ("top1.fp32>=0.9", 0.92, True),
        ("top1.int8 > 0.9", 0.91, True),
        ("top1.drop<=1.0", 1.0, True),
        ("top1.drop<1e0", 1.0, False),
        ("top1.drop_ci95.lo>=-0.5", -0.4, True),
        ("top1.drop_ci95.hi<=2", 2.4, False),
        ("latency.speedup>=2", 2.1, True),
        ("latency.int8<=1", 1.0, True),
        ("size.ratio<=0.25", 0.25, True),
        ("size.int8_bytes<1000", 1000, False),
        ("sqnr_db_ci95.lo>=30", 30.5, True),
        ("sqnr_db_ci95.hi>=33", 32.5, False),
        ("agreement_ci95.lo>=0.95", 0.93, False),
        ("drop_ci95.hi<=2.4", 2.4, True),
        ("drop_ci95.lo > 0", -0.4, False),
        ("latency.speedup_ci95.lo>=2", 1.9, False),
        ("latency.speedup_ci95.hi>=2", 2.3, True),
        ("layers.worst_sqnr_db>=20", 18.0, False),
        ("outputs.logits.sqnr_db>=31", 31.0, True),
        ("outputs.logits.sqnr_db_ci95.lo>=30.5", 30.0, False),
        ("outputs.logits.cosine >= 0.9", 0.998, True),
        ("outputs./head/a<=b. c.sqnr_db>=12", 12.0, True),
        ("fusion.float<=3", 3, True),
        ("fusion.integer>12", 12, False),
    ],
)
def test_a_gate_holds_its_figure_against_its_bound(text, value, passed):
    (gate,) = check_gates([parse_gate(text)], EVALUATION)
    assert gate.gate == text
    assert gate.value == pytest.approx(value)
    assert gate.passed is passed


@pytest.mark.parametrize("text", ["top5.drop<=1", "saturation.unsafe_channels<=0", "saturation.unsafe_channels>=0"])
def test_a_figure_that_was_not_computed_fails_its_gate(text):
    (gate,) = check_gates([parse_gate(text)], EVALUATION)
    assert gate.value is None
    assert not gate.passed


def test_gates_without_fusion_or_latency_fail_rather_than_break():
    sizes = {"size.fp32_bytes", "size.int8_bytes"}
    verdicts = check_gates([parse_gate(f"{name}>=0") for name in FIGURES if name not in sizes], NOTHING)
    assert all(gate.value is None and not gate.passed for gate in verdicts)


def test_gates_are_judged_in_the_order_given():
    verdicts = check_gates([parse_gate("cosine>0"), parse_gate("agreement>0.99")], EVALUATION)
    assert [gate.passed for gate in verdicts] == [True, False]


def test_zero_is_a_value_and_not_a_missing_one():
    still = Evaluation(EVALUATION.metrics, {}, (), Fusion(0, 0, ()), EVALUATION.saturation, Size(1, 1), None, samples=1)
    assert check_gates([parse_gate("fusion.float<=0")], still)[0].passed


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("sqnr>=20", "sqnr_db"),
        ("top1.dorp<=1", "top1.drop"),
        ("TOP1.drop<=1", "top1.drop"),
        ("top1<=1", "top1.drop"),
        ("latency_ms.speedup>1", "latency.speedup"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(text, nearest):
    with pytest.raises(ConfigError, match="unknown figure") as caught:
        parse_gate(text)
    assert f'did you mean "{nearest}"?' in str(caught.value)


def test_a_name_like_no_other_gets_the_whole_list():
    with pytest.raises(ConfigError) as caught:
        parse_gate("zzzzzz<=1")
    assert "sqnr_db" in caught.value.do


@pytest.mark.parametrize(
    "text", ["", "sqnr_db", "sqnr_db=20", "sqnr_db==20", "sqnr_db>==20", "sqnr_db>=", ">=20", "a b>=1"]
)
def test_a_gate_that_is_no_comparison_is_refused(text):
    with pytest.raises(ConfigError, match="form NAME<=VALUE"):
        parse_gate(text)


@pytest.mark.parametrize("number", ["20dB", "1,5", "nan", "inf", "-inf", "1%", "1_0", "\u0663"])
def test_a_bound_that_is_no_finite_number_is_refused(number):
    with pytest.raises(ConfigError, match="expected a finite number"):
        parse_gate(f"sqnr_db>={number}")


def test_every_figure_has_a_unit():
    assert all(figure.unit for figure in FIGURES.values())


def test_a_gate_on_saturation_is_held_against_the_audit():
    gate = parse_gate("saturation.unsafe_channels<=0")
    require_measurable([gate], latency=True)
    assert [hold(gate, value).passed for value in (0, 3, None)] == [True, False, False]


def test_gates_over_other_figures_name_the_nearest_of_those():
    assert parse_gate("pairs<=0", {"pairs", "layers"}).name == "pairs"
    with pytest.raises(ConfigError) as caught:
        parse_gate("pair<=0", ("pairs", "layers"), "pairs<=0")
    assert 'did you mean "pairs"' in caught.value.do


@pytest.mark.parametrize("name", ["latency.fp32", "latency.int8", "latency.speedup"])
def test_a_gate_on_latency_needs_it_measured(name):
    gates = [parse_gate(f"{name}>=1")]
    require_measurable(gates, latency=True)
    with pytest.raises(ConfigError, match="measuring latency is switched off") as caught:
        require_measurable(gates, latency=False)
    assert "--no-latency" in str(caught.value)


def test_all_other_gates_can_be_measured():
    others = [name for name in FIGURES if not name.startswith("latency.")]
    require_measurable([parse_gate(f"{name}<=1") for name in others], latency=False)


def test_the_short_name_of_an_interval_is_that_of_top1_and_the_text_stays_as_written():
    assert parse_gate("drop_ci95.hi<=1.0").name == "top1.drop_ci95.hi"
    assert parse_gate("drop_ci95.hi<=1.0").text == "drop_ci95.hi<=1.0"


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("sqnr_db>=1", (30.5, 32.5)),
        ("agreement>=1", (0.93, 0.997)),
        ("top1.drop<=1", (-0.4, 2.4)),
        ("latency.speedup>=1", (1.9, 2.3)),
        ("outputs.logits.sqnr_db>=1", (30.0, 32.0)),
        ("sqnr_db_ci95.lo>=1", None),
        ("cosine>=1", None),
        ("outputs.logits.cosine>=1", None),
        ("top5.drop<=1", None),
    ],
)
def test_a_verdict_carries_the_interval_of_its_figure(text, interval):
    assert check_gates([parse_gate(text)], EVALUATION)[0].ci95 == interval


@pytest.mark.parametrize("text", ["outputs.logits>=1", "outputs.logits.sqnr>=20", "outputs.sqnr_db>=20"])
def test_a_figure_that_outputs_do_not_have_is_refused_with_those_that_they_have(text):
    with pytest.raises(ConfigError, match="unknown figure") as caught:
        parse_gate(text)
    assert "outputs.NAME" in caught.value.do


def test_an_output_that_the_model_lacks_is_refused_before_any_work():
    gate = parse_gate("outputs.logit.sqnr_db>=20")
    with pytest.raises(ConfigError, match="does not have") as caught:
        require_outputs([gate], lambda: ("logits", "boxes"))
    assert 'did you mean "logits"' in caught.value.do
    with pytest.raises(ConfigError) as caught:
        require_outputs([parse_gate("outputs.zzz.cosine>=0")], lambda: ("logits", "boxes"))
    assert '"logits", "boxes"' in caught.value.do
    require_outputs([parse_gate("outputs.boxes.cosine>=0")], lambda: ("logits", "boxes"))


def test_the_model_is_not_opened_for_gates_that_are_about_no_output():
    require_outputs([parse_gate("sqnr_db>=20")], lambda: pytest.fail("opened"))


def test_a_budget_is_not_spent_on_what_layers_or_the_machine_show():
    texts = ["layers.worst_sqnr_db>=1", "latency.speedup_ci95.lo>=1", "size.ratio<=1", "fusion.float<=1"]
    assert on_outputs([parse_gate(text) for text in texts]) == ()
    assert len(on_outputs([parse_gate("outputs.a.sqnr_db>=1"), parse_gate("agreement_ci95.lo>=0.9")])) == 2


def test_a_figure_is_named_even_in_a_gate_that_cannot_be_read():
    assert figure_named("drop_ci95.hi<=1") == "top1.drop_ci95.hi"
    assert figure_named("unsafe_channels <= 0") == "unsafe_channels"
    assert figure_named("outputs.a<b.sqnr_db>=3") == "outputs.a<b.sqnr_db"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agreement>=99", 'from 0 to 1; write "agreement>=0.99" or "agreement>=99%"'),
        ("agreement>=101%", "from 0 to 1; give another bound"),
        ("agreement_ci95.lo>=99", "from 0 to 1"),
        ("agreement>1", "from 0 to 1"),
        ("sqnr_db>=400", "at most 320"),
        ("cosine>1", "from -1 to 1"),
        ("size.ratio<0", "above 0"),
        ("size.ratio<=0", "above 0"),
        ("latency.speedup<=0", "above 0"),
        ("max_abs_error<0", "0 or more"),
        ("top1.drop<-100", "from -100 to 100"),
        ("saturation.unsafe_channels<0", "0 or more"),
        ("outputs.logits.cosine>1", "from -1 to 1"),
    ],
)
def test_a_bound_that_no_model_reaches_is_refused_with_what_the_figure_can_be(text, told):
    with pytest.raises(ConfigError, match="can never hold") as caught:
        parse_gate(text)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("operator", ["<=", ">="])
def test_a_bound_that_a_figure_just_reaches_is_taken(name, operator):
    for bound in FIGURES[name].possible:
        if math.isfinite(bound):
            assert parse_gate(f"{name}{operator}{bound!r}").bound == bound


def test_a_fraction_may_be_written_in_percent():
    gate = parse_gate("agreement>=99%")
    assert (gate.text, gate.bound) == ("agreement>=99%", 0.99)
    assert parse_gate("top1.int8>=97.5%").bound == 0.975
    with pytest.raises(ConfigError, match="expected a finite number"):
        parse_gate("top1.drop<=1%")  # of what: points, or of the FP32 accuracy?


def test_gates_that_no_value_passes_both_are_refused_before_any_work():
    for texts in (["agreement>=1", "agreement<=50%"], ["sqnr_db>30", "sqnr_db<=30"], ["cosine<0.9", "cosine>0.9"]):
        with pytest.raises(ConfigError, match="cannot hold together") as caught:
            require_measurable([parse_gate(text) for text in texts], latency=True)
        assert all(text in str(caught.value) for text in texts)
    fine = ["sqnr_db>=30", "sqnr_db<=30", "sqnr_db>=20", "cosine>0.9", "agreement<0.9", "latency.fp32<=1"]
    require_measurable([parse_gate(text) for text in fine], latency=True)


def test_a_gate_on_fusion_needs_the_cpu_provider_alone():
    gates = [parse_gate("fusion.float<=3")]
    require_measurable(gates, latency=False)
    with pytest.raises(ConfigError, match="only the CPU provider's graph is audited"):
        require_measurable(gates, latency=False, audited=False)


def test_a_gate_on_top5_needs_more_than_five_classes():
    gate = parse_gate("top5.drop<=1")
    require_classes([gate], lambda: 6)
    require_classes([gate], lambda: None)
    with pytest.raises(ConfigError, match="only 5 classes"):
        require_classes([gate], lambda: 5)
    require_classes([parse_gate("top1.drop<=1")], lambda: pytest.fail("opened"))


def test_a_gate_that_nothing_fails_is_told():
    gates = [parse_gate(text) for text in ("cosine<=1", "agreement>=0", "size.ratio>0", "cosine<1", "sqnr_db<=400")]
    told = never_failing(gates)
    assert [text.split('"')[1] for text in told] == ["cosine<=1", "agreement>=0", "size.ratio>0", "sqnr_db<=400"]
    assert told[0] == 'gate "cosine<=1" decides nothing: cosine is always from -1 to 1'
