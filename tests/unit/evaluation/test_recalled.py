"""What models gave while one was calibrated is not computed again, unless it is not theirs."""

from functools import partial

import numpy as np
import pytest

from int8cal.audit.worst_case import audit_saturation
from int8cal.data.sample import fingerprint_of
from int8cal.evaluation import evaluate
from int8cal.evaluation.recalled import CHECKED, KnownOutputs, Recalled, UnlikeError
from int8cal.graph.signature import signature_of
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import Session

evaluate_pair = partial(evaluate.evaluate_pair, audit=audit_saturation, latency=False)


class Counted(Session):
    """Counts its runs."""

    runs = 0

    def run(self, feed, outputs=None):
        type(self).runs += 1
        return super().run(feed, outputs)


@pytest.fixture
def samples(make_samples):
    return list(make_samples(6))


def given(model, samples):
    runs = run_each(Session(model), signature_of(model), samples)
    return {fingerprint_of(sample.feed): outputs for sample, outputs in runs}


@pytest.fixture
def known(fp32, samples):
    return given(fp32, samples)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(Counted, "runs", 0)
    return Counted


@pytest.mark.parametrize("at_once", [1, 2])
def test_only_the_first_and_the_unknown_are_run(fp32, samples, known, counted, at_once):
    unknown = samples[4]
    del known[fingerprint_of(unknown.feed)]
    recalled = Recalled(lambda: counted(fp32), known, at_once)
    found = dict(run_each(recalled, signature_of(fp32), samples))
    assert counted.runs == CHECKED + 1
    for sample, outputs in run_each(Session(fp32), signature_of(fp32), samples):
        np.testing.assert_array_equal(found[sample]["y"], outputs["y"])


def test_the_model_is_not_opened_for_what_is_known(fp32, samples, known):
    def never():
        raise AssertionError("opened")

    recalled = Recalled(never, known)
    last = samples[CHECKED:]
    assert [outputs for _, outputs in run_each(recalled, signature_of(fp32), last)] == [*known.values()][CHECKED:]


@pytest.mark.parametrize("change", [lambda y: y * 1.001, lambda y: y[:, :-1], lambda y: y * np.nan])
def test_outputs_of_another_model_are_refused(fp32, samples, known, change):
    other = {mark: {"y": change(outputs["y"])} for mark, outputs in known.items()}
    with pytest.raises(UnlikeError, match="'y'"):
        list(run_each(Recalled(lambda: Session(fp32), other), signature_of(fp32), samples))


@pytest.mark.parametrize(("of_fp32", "of_int8"), [(6, 0), (0, 6), (6, 6), (2, 4)])
def test_the_evaluation_is_that_without_and_runs_what_is_not_known(
    fp32, int8, samples, counted, monkeypatch, of_fp32, of_int8
):
    expected = evaluate_pair(fp32, int8, samples)
    known = KnownOutputs(given(fp32, samples[:of_fp32]), given(int8, samples[6 - of_int8 :]))
    monkeypatch.setattr(evaluate, "Session", counted)
    assert evaluate_pair(fp32, int8, samples, known=known) == expected
    assert counted.runs == sum(6 - count + min(count, CHECKED) for count in (of_fp32, of_int8))


def test_outputs_of_another_int8_model_are_refused(fp32, int8, samples):
    with pytest.raises(UnlikeError, match="'y'"):
        evaluate_pair(fp32, int8, samples, known=KnownOutputs(int8=given(fp32, samples)))
