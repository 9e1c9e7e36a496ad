import pytest

from int8cal.errors import ConfigError
from int8cal.evaluation.gates import FIGURES, UNITS, hold, judge, parse_gate, require_measurable
from int8cal.evaluation.result import Drop, Evaluation, Fusion, Latency, Metrics, Saturation

EVALUATION = Evaluation(
    samples=100,
    metrics=Metrics(31.5, 0.999, 0.25, 0.98, Drop(0.92, 0.91, 1.0, (-0.4, 2.4), 100), None),
    outputs={},
    layers=(),
    fusion=Fusion(12, 3, ()),
    saturation=Saturation("portable", None),
    size=(4000, 1000),
    latency=Latency(2.0, 1.0, 2.1),
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
        ("fusion.float<=3", 3, True),
        ("fusion.integer>12", 12, False),
    ],
)
def test_a_gate_holds_its_figure_against_its_bound(text, value, passed):
    (gate,) = judge([parse_gate(text)], EVALUATION)
    assert gate.gate == text
    assert gate.value == pytest.approx(value)
    assert gate.passed is passed


@pytest.mark.parametrize("text", ["top5.drop<=1", "saturation.unsafe_channels<=0", "saturation.unsafe_channels>=0"])
def test_a_figure_that_was_not_computed_fails_its_gate(text):
    (gate,) = judge([parse_gate(text)], EVALUATION)
    assert gate.value is None
    assert not gate.passed


def test_gates_without_fusion_or_latency_fail_rather_than_break():
    bare = Evaluation(0, Metrics(*[None] * 6), {}, (), None, Saturation("portable", None), (0, 0), None)
    sizes = {"size.fp32_bytes", "size.int8_bytes"}
    verdicts = judge([parse_gate(f"{name}>=0") for name in FIGURES if name not in sizes], bare)
    assert all(gate.value is None and not gate.passed for gate in verdicts)


def test_gates_are_judged_in_the_order_given():
    verdicts = judge([parse_gate("cosine>0"), parse_gate("agreement>2")], EVALUATION)
    assert [gate.passed for gate in verdicts] == [True, False]


def test_zero_is_a_value_and_not_a_missing_one():
    still = Evaluation(1, EVALUATION.metrics, {}, (), Fusion(0, 0, ()), EVALUATION.saturation, (1, 1), None)
    assert judge([parse_gate("fusion.float<=0")], still)[0].passed


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("sqnr>=20", "sqnr_db"),
        ("top1.dorp<=1", "top1.drop"),
        ("TOP1.drop<=1", "top1.drop"),
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


@pytest.mark.parametrize("number", ["20dB", "1,5", "nan", "inf", "-inf", "1%"])
def test_a_bound_that_is_no_finite_number_is_refused(number):
    with pytest.raises(ConfigError, match="expected a finite number"):
        parse_gate(f"sqnr_db>={number}")


def test_every_figure_has_a_unit():
    assert set(UNITS) == set(FIGURES)


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
