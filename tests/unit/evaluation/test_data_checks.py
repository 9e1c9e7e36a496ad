"""Findings of an evaluation, and of the samples that ranges come from."""

import pytest

from int8cal.data.checks import Finding
from int8cal.errors import DataError
from int8cal.evaluation.data_checks import Findings, drift, few_judged, few_samples, near_chance, one_sample
from int8cal.evaluation.result import Drop, LayerMetrics
from int8cal.numerics.intervals import proportion_interval


def accuracy(fp32, samples):
    return Drop(fp32, fp32, 0.0, (-1.0, 1.0), samples)


@pytest.mark.parametrize(
    ("fp32", "samples", "classes"),
    [(0.218, 400, 10), (0.11, 1000, 10), (0.0, 5, 10), (0.52, 1000, 2), (0.001, 500, 1000)],
)
def test_accuracy_near_chance_is_told(fp32, samples, classes):
    (found,) = near_chance(accuracy(fp32, samples), classes)
    assert found.check == "chance"
    assert f"{samples} samples" in found.text


@pytest.mark.parametrize(
    ("fp32", "samples", "classes"),
    # real models; few samples, which are no verdict; no classes
    [(0.757, 400, 10), (0.713, 1000, 10), (0.3, 1000, 1000), (0.0, 3, 10), (0.5, 2, 10), (0.8, 50, 2), (0.1, 100, 0)],
)
def test_accuracy_above_chance_is_not_told(fp32, samples, classes):
    assert near_chance(accuracy(fp32, samples), classes) == ()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            {(0, 2): 19, (0, 0): 1, (1, 0): 20, (2, 1): 20},
            "label 0 is its class 2, label 1 is its class 0, label 2 is its class 1",
        ),
        ({(0, 1): 20, (1, 0): 20, (2, 2): 2, (2, 0): 18}, ""),  # two labels are one class of the model
        ({(0, 1): 9, (0, 0): 8, (1, 2): 9, (1, 1): 8, (2, 0): 9, (2, 2): 8}, ""),  # right on half of them, by chance
        ({(0, 1): 2, (1, 2): 2, (2, 0): 2}, ""),  # too few to tell
        ({}, ""),
    ],
)
def test_labels_that_are_numbered_otherwise_are_told(answers, told):
    (found,) = near_chance(accuracy(0.02, 60), 3, answers)
    assert (told in found.text) if told else ("other numbers" not in found.text)
    assert ("--labels FILE" in found.do) == bool(told)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({(0, 3): 24, (0, 0): 1, (1, 1): 25, (2, 2): 25, (3, 0): 25}, "label 0 is its class 3, label 3 is its class 0"),
        ({(0, 3): 12, (0, 0): 10, (1, 1): 25, (2, 2): 25, (3, 0): 13, (3, 3): 11}, ""),  # two that are hard to tell
        ({(0, 0): 25, (1, 1): 25, (2, 2): 20, (2, 3): 5, (3, 3): 25}, ""),
    ],
)
def test_two_labels_that_are_exchanged_are_told_though_half_of_all_are_right(answers, told):
    found = near_chance(accuracy(0.5, 100), 4, answers)
    assert [each.check for each in found] == (["class-order"] if told else [])
    assert all(told in each.text and "--labels FILE" in each.do for each in found)


def test_without_labels_nothing_is_told():
    assert near_chance(None, 10) == ()


@pytest.mark.parametrize(("uncertainty", "told"), [(0.13, True), (0.09, False), (None, False)])
def test_ranges_of_few_samples_say_how_uncertain_they_are(uncertainty, told):
    found = few_samples(5, uncertainty)
    assert bool(found) == told
    if told:
        assert "with 5 samples ranges are uncertain by 13 %" in found[0].text
        assert "15 further ones would halve it" in found[0].do


def test_figures_of_few_samples_say_how_uncertain_they_are():
    (found,) = few_judged(12)
    assert "a share of 12 samples, such as agreement or top-1, is known to 26 points at best" in found.text
    assert found.do == "judge on more: 36 for 10 points, 368 for one"
    assert few_judged(35) != ()
    assert few_judged(36) == ()
    assert few_judged(12, shares=False) == ()
    for samples, points in ((36, 0.1), (368, 0.01)):  # the interval that the report gives for agreement
        assert proportion_interval(samples - 1, samples - 1)[0] < 1 - points <= proportion_interval(samples, samples)[0]


def test_one_finding_says_what_few_samples_mean_for_ranges_and_figures():
    (found,) = few_samples(5, 0.13, judged=True)
    assert "with 5 samples ranges are uncertain by 13 %" in found.text
    assert "a share of 5 samples" in found.text
    assert few_samples(12, 0.01, judged=True) == few_judged(12)
    assert few_samples(12, 0.01) == ()
    assert few_samples(1, None, judged=True) == ()


@pytest.mark.parametrize(("samples", "told"), [(1, True), (2, False), (None, False)])
def test_one_sample_is_told(samples, told):
    assert [each.check for each in one_sample(samples)] == (["one-sample"] if told else [])


def layer(op_type, outside, used, clipped=0.0):
    return LayerMetrics("t", "n", op_type, 30.0, clipped, outside=outside, used=used)


RIGHT = (layer("Input", 0.0044, 1.0), layer("Conv", 0.001, 1.0), layer("Conv", 0.1, 1.0), layer("Add", 0.0, 0.9))


def test_data_like_those_of_calibration_are_not_told():
    assert drift(RIGHT) == ()
    assert drift(()) == ()
    # ranges that cut off as much of the calibration's own values
    assert drift((layer("Input", 0.06, 1.0, 0.05), layer("Conv", 0.02, 1.0, 0.02))) == ()
    assert drift((LayerMetrics("t", "n", "Conv", 30.0, None),)) == ()
    assert drift((layer("Input", 0.0, 0.0), *RIGHT)) == ()  # an input of zeros, as it was when its range was made


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((layer("Input", 0.18, 1.0), *RIGHT[1:]), '18.0 % of the values of input "t" lie outside'),
        (
            (layer("Conv", 0.05, 1.0), layer("Conv", 0.03, 1.0), *RIGHT[1:2]),
            "in half of the tensors 3.0 % of the values or more lie outside",
        ),
        ((layer("Input", 0.0, 0.1), *RIGHT[1:]), 'input "t" uses only 10 %'),
    ],
)
def test_drift_says_where_values_lie(layers, said):
    (found,) = drift(layers)
    assert found.check == "drift"
    assert said in found.text


def test_findings_are_told_once_and_stop_a_strict_job():
    told = []
    findings = Findings(told.append, strict=True)
    findings.require_none()
    finding = Finding("grey", "all are grey", "give colour")
    findings.add([finding, finding])
    findings.add([Finding("drift", "elsewhere", "look")], told=True)
    assert told == ["warning: all are grey; give colour"]
    assert [each.check for each in findings.found] == ["grey", "drift"]
    with pytest.raises(DataError):
        findings.require_none()
    Findings(told.append).require_none()
