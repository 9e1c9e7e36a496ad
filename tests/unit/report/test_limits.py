import pytest
from made_reports import compared

from int8cal.errors import ConfigError
from int8cal.report.regressions import judge_limits, judge_regressions, parse_limit, why_unknown


def judged(text, old, new):
    (gate,) = judge_limits([parse_limit(text)], compared(old, new))
    return gate.value, gate.passed


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("sqnr_db.drop<=0.5", 1.5, False),
        ("sqnr_db.rise>=-2", -1.5, True),
        ("sqnr_db_ci95.lo.drop <= 2", 1.5, True),
        ("top1.drop.rise<=0.2", 1.0, False),
        ("top1.int8.drop<=0.02", 0.01, True),
        ("size.int8_bytes.ratio<=1.05", 1.1, False),
        ("size.int8_bytes.rise<=100", 100, True),
        ("latency.speedup.ratio>=0.9", 0.75, False),
        ("saturation.unsafe_channels.ratio<=1", 1.0, True),
        ("saturation.unsafe_channels.rise<=0", 0.0, True),
        ("layers.worst_sqnr_db.drop<=1", 5.0, False),
        ("layers.largest_drop_db<=6", 5.0, True),
        ("layers.to_float<=0", 1, False),
        ("outputs.y.sqnr_db.drop<=1", 1.5, False),
    ],
)
def test_a_limit_is_held_against_what_changed(old, new, text, value, passed):
    new["metrics"].update(sqnr_db=30.0, sqnr_db_ci95=[29.0, 31.0])
    new["metrics"]["top1"].update(drop=2.0, int8=0.90)
    new["size"]["int8_bytes"] = 1100
    new["latency_ms"]["speedup"] = 1.5
    new["layers"][1]["sqnr_db"] = 20.0
    new["outputs"]["y"]["sqnr_db"] = 30.0
    new["fusion"]["nodes"].append({"node": "conv_a", "op_type": "Conv", "reason": "not quantized"})
    found, verdict = judged(text, old, new)
    assert found == pytest.approx(value)
    assert verdict is passed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sqnr_db.drop<=0.5", "the new report lacks sqnr_db"),
        ("top5.drop.rise<=1", "the old report lacks top5.drop"),
        ("outputs.no.sqnr_db.drop<=1", "neither report has outputs.no.sqnr_db"),
        ("saturation.unsafe_channels.ratio<=1", "the old value is 0"),
        ("layers.to_float<=0", "the new report lacks a fusion audit"),
        ("layers.largest_drop_db<=1", "the reports have no layer in common"),
    ],
)
def test_a_change_that_cannot_be_told_fails_its_limit_and_says_why(old, new, text, why):
    new["metrics"]["sqnr_db"] = None
    old["metrics"]["top5"] = None
    new["saturation"]["unsafe_channels"] = 2
    new["fusion"] = None
    new["layers"] = []
    assert judged(text, old, new) == (None, False)
    assert why_unknown(text, compared(old, new)) == why


@pytest.mark.parametrize(
    ("text", "message", "do"),
    [
        ("sqnr_db<=0.5", "about a figure itself", "sqnr_db.drop or sqnr_db.rise or sqnr_db.ratio"),
        ("sqnr<=0.5", "unknown figure", 'did you mean "sqnr_db.drop"?'),
        ("top1<=0.5", "unknown figure", 'did you mean "top1.drop.rise"?'),
        ("size<=0.5", "unknown figure", 'did you mean "size.int8_bytes.rise"?'),
        ("sqnr_db.dorp<=0.5", "unknown figure", 'did you mean "sqnr_db.drop"?'),
        ("top1.drop<=0.5", "about a figure itself", "top1.drop.rise or top1.drop.ratio or top1.drop.drop"),
        ("xyz<=0.5", "unknown figure", "sqnr_db.drop<=0.5"),
        ("sqnr_db.drop", "not of the form", "sqnr_db.drop<=0.5"),
        ("sqnr_db.drop<=2dB", "expected a finite number", "without a unit"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_with_advice(text, message, do):
    with pytest.raises(ConfigError, match="limit") as caught:
        parse_limit(text)
    assert message in caught.value.what
    assert do in caught.value.do


def failed(old, new):
    return [gate.gate for gate in judge_regressions(compared(old, new)) if not gate.passed]


def test_equal_reports_have_no_regression(old, new):
    verdicts = judge_regressions(compared(old, new))
    assert len(verdicts) == 9
    assert all(gate.passed for gate in verdicts)


@pytest.mark.parametrize(
    ("change", "regression"),
    [
        (lambda d: d["metrics"].update(sqnr_db=29.0, sqnr_db_ci95=[28.0, 30.0]), "sqnr_db not worse"),
        (lambda d: d["metrics"].update(agreement=0.9, agreement_ci95=[0.87, 0.93]), "agreement not worse"),
        (lambda d: d["metrics"]["top1"].update(drop=5.0, drop_ci95=[3.0, 7.0]), "top1.drop not worse"),
        (lambda d: d["latency_ms"].update(speedup=1.7, speedup_ci95=[1.65, 1.75]), "latency.speedup not worse"),
        (lambda d: d["size"].update(int8_bytes=1051), "size.int8_bytes not worse"),
        (lambda d: d["saturation"].update(unsafe_channels=1), "saturation.unsafe_channels not worse"),
        (lambda d: d["fusion"].update(float=2), "fusion.float not worse"),
        (lambda d: d["gates"][0].update(passed=False), "gate sqnr_db>=30"),
        (lambda d: d["metrics"].update(top1=None), "top1.drop not worse"),
        (lambda d: d.update(latency_ms=None), "latency.speedup not worse"),
    ],
)
def test_each_regression_is_found(old, new, change, regression):
    change(new)
    assert failed(old, new) == [regression]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["metrics"].update(sqnr_db=30.6, sqnr_db_ci95=[29.6, 31.6]),
        lambda d: d["metrics"].update(sqnr_db=40.0, sqnr_db_ci95=[39.0, 41.0]),
        lambda d: d["metrics"]["top1"].update(drop=2.0, drop_ci95=[0.0, 4.0]),
        lambda d: d["latency_ms"].update(speedup=1.85, speedup_ci95=[1.849, 1.851]),
        lambda d: d["latency_ms"].update(speedup=0.9, speedup_ci95=None, rounds=3),
        lambda d: d["size"].update(int8_bytes=1049),
        lambda d: d["fusion"].update(float=0),
        lambda d: d.update(gates=[]),
        lambda d: d["metrics"].update(cosine=0.9, max_abs_error=9.0),
    ],
)
def test_noise_improvements_and_changed_gates_are_no_regression(old, new, change):
    change(new)
    assert failed(old, new) == []


def test_what_the_old_report_lacks_cannot_regress(old, new):
    old["latency_ms"] = None
    old["metrics"]["top1"] = None
    assert failed(old, new) == []


def test_two_exact_models_have_no_regression(old, new):
    old["metrics"].update(sqnr_db=310.0, sqnr_db_ci95=[309.0, 311.0])
    new["metrics"].update(sqnr_db=200.0, sqnr_db_ci95=[199.0, 201.0])
    assert failed(old, new) == []
