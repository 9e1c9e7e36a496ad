"""The int8 model in a second runtime: a session that is none of onnxruntime's stands for it, but for the last test."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
import pytest

from int8cal.audit.worst_case import audit_saturation
from int8cal.errors import ModelError, NonFiniteError
from int8cal.evaluation import evaluate, runtimes, speed
from int8cal.evaluation.result import Latency
from int8cal.evaluation.runtimes import further, speed_warnings, unasked
from int8cal.runtime.openvino import Executed
from int8cal.runtime.sessions import Session

evaluate_pair = partial(evaluate.evaluate_pair, audit=audit_saturation)

LAYERS = (Executed("conv", "Convolution", "u8", "brgconv_I8"), Executed("soft", "Softmax", "f32", "jit_f32"))


@dataclass
class Other:
    """onnxruntime with something done to each output."""

    at_once = 1

    model: object
    threads: int = 0
    change: object = staticmethod(lambda y: y)
    refuses: tuple = ()
    error: Exception = field(default_factory=lambda: ModelError("OpenVINO cannot load it: no Conv today"))

    def __post_init__(self):
        given = onnx.load(self.model) if isinstance(self.model, str) else self.model
        if any(given == model for model in self.refuses):
            raise self.error
        self.session = Session(self.model)
        self.outputs = self.session.outputs

    def run(self, feed, outputs=None):
        return {name: self.change(value) for name, value in self.session.run(feed, outputs).items()}

    def executed(self):
        return LAYERS


@pytest.fixture
def other(monkeypatch):
    def install(**how):
        monkeypatch.setitem(runtimes.OTHERS, "openvino", lambda model, *, threads=0: Other(model, threads, **how))
        monkeypatch.setattr(runtimes, "require_openvino", lambda: None)
        monkeypatch.setattr(runtimes, "is_installed", lambda: True)
        monkeypatch.setattr(speed, "find_crash", lambda *_, **__: None)  # a real process has none of this class

    return install


def test_onnxruntime_is_no_further_runtime_and_each_counts_once(other):
    other()
    assert further(["onnxruntime", "openvino", "openvino"]) == ("openvino",)
    assert further([]) == ()


def test_equal_runtimes_agree_exactly_and_have_the_same_error(other, fp32, int8, make_samples):
    other()
    evaluation = evaluate_pair(fp32, int8, make_samples(9), runtimes=["openvino"], latency=False)
    (found,) = evaluation.runtimes
    assert (found.metrics, found.outputs) == (evaluation.metrics, evaluation.outputs)
    assert found.against.sqnr_db > 120
    assert (found.against.agreement, found.against.max_abs_error) == (1.0, 0.0)
    assert (found.kernels.integer, found.kernels.float_, found.kernels.nodes[0].node) == (1, 1, "soft")


def test_a_difference_between_runtimes_shows(other, fp32, int8, make_samples):
    other(change=lambda y: -y)
    evaluation = evaluate_pair(fp32, int8, make_samples(9), runtimes=["openvino"], latency=False)
    (found,) = evaluation.runtimes
    assert found.against.sqnr_db == pytest.approx(-20 * np.log10(2))  # noise 2 y for a signal y
    assert found.against.agreement < 0.5
    assert found.metrics.sqnr_db < 0 < evaluation.metrics.sqnr_db


def test_what_is_not_known_has_a_reason(other, fp32, int8, make_samples):
    other()
    result = evaluate_pair(fp32, int8, make_samples(3, labels=False), runtimes=["openvino"], latency=False)
    assert result.runtimes[0].metrics.top1 is None
    assert result.reasons["runtimes.openvino.metrics.top1"] == "the samples have no labels"
    assert result.reasons["runtimes.openvino.latency_ms"] == "latency was switched off"


def test_an_fp32_model_that_the_runtime_refuses_costs_only_its_latency(other, fp32, int8, make_samples):
    other(refuses=(fp32,))
    result = evaluate_pair(fp32, int8, make_samples(3), runtimes=["openvino"])
    assert result.latency is not None
    assert result.runtimes[0].latency is None
    assert "no Conv today" in result.reasons["runtimes.openvino.latency_ms"]


def test_an_int8_model_that_the_runtime_refuses_leaves_the_figures_of_onnxruntime(other, fp32, int8, make_samples):
    other(refuses=(int8,))
    result = evaluate_pair(fp32, int8, make_samples(3), runtimes=["openvino"], latency=False)
    assert [type(error) for error in result.failures] == [ModelError]
    assert (result.samples, result.runtimes) == (3, ())
    assert "no Conv today" in result.reasons["runtimes.openvino"]


def test_nan_of_one_runtime_names_it_and_leaves_the_figures_of_onnxruntime(other, fp32, int8, make_samples):
    other(change=lambda y: y * np.float32("nan"))
    result = evaluate_pair(fp32, int8, make_samples(3), runtimes=["openvino"], latency=False)
    (error,) = result.failures
    assert isinstance(error, NonFiniteError)
    assert 'output "y" of the int8 model in OpenVINO holds NaN' in str(error)
    assert (result.samples, result.runtimes) == (3, ())


@pytest.mark.slow
def test_both_runtimes_have_a_latency(other, fp32, int8, make_samples):
    other()
    result = evaluate_pair(fp32, int8, make_samples(2), runtimes=["openvino"])
    for latency in (result.latency, result.runtimes[0].latency):
        assert latency.speedup == pytest.approx(latency.fp32 / latency.int8)


@pytest.mark.slow
def test_openvino_itself_runs_the_int8_model_like_onnxruntime(fp32, int8, make_samples):
    pytest.importorskip("openvino")
    evaluation = evaluate_pair(fp32, int8, make_samples(20), runtimes=["openvino"])
    (found,) = evaluation.runtimes
    assert found.metrics.sqnr_db > evaluation.metrics.sqnr_db - 1
    assert found.against.sqnr_db > evaluation.metrics.sqnr_db
    assert found.kernels.integer
    assert found.latency.int8 > 0


def test_a_wrong_zero_point_in_one_of_them_would_be_found(other, fp32, int8, make_samples):
    """The bounds of the test above fail on a runtime that is off by one code of the output."""
    other(change=lambda y: y + np.float32(40 / 255))
    evaluation = evaluate_pair(fp32, int8, make_samples(20), runtimes=["openvino"], latency=False)
    (found,) = evaluation.runtimes
    assert (
        found.metrics.sqnr_db <= evaluation.metrics.sqnr_db - 1 or found.against.sqnr_db <= evaluation.metrics.sqnr_db
    )


@pytest.mark.parametrize(
    ("target", "interval", "told"),
    [
        ("portable", (0.8, 0.99), True),
        ("portable", (0.8, 1.0), False),  # as fast, perhaps
        ("portable", (1.1, 1.3), False),
        ("portable", None, False),  # one round says nothing
        ("tensorrt", (0.8, 0.9), False),  # onnxruntime's speed is not the target's
    ],
)
def test_a_model_that_is_surely_slower_here_is_told(target, interval, told):
    assert bool(speed_warnings(target, Latency(1.0, 1.1, 0.9, interval))) == told
    assert speed_warnings(target, None) == ()


NOBODY_ASKED = {"latency": True, "target": "portable", "providers": ()}


@pytest.mark.parametrize(
    ("names", "how"),
    [
        (["onnxruntime"], {}),
        (["openvino"], {}),
        ([], {"latency": False}),
        ([], {"target": "tensorrt"}),
        ([], {"providers": ("azure", "cpu")}),
    ],
)
def test_nothing_is_timed_unasked_where_runtimes_are_named_or_speed_is_not_that_of_this_cpu(
    other, monkeypatch, names, how
):
    other()
    monkeypatch.setattr(runtimes, "resolve", lambda each: each or ("CPUExecutionProvider",))
    assert unasked([], **NOBODY_ASKED) == unasked([], **{**NOBODY_ASKED, "target": "openvino"}) == ("openvino",)
    assert unasked(names, **{**NOBODY_ASKED, **how}) == ()


def test_what_is_not_installed_is_not_timed(monkeypatch):
    monkeypatch.setattr(runtimes, "is_installed", lambda: False)
    assert unasked([], **NOBODY_ASKED) == ()


def test_the_other_runtime_is_timed_unasked_and_nothing_else_is_done_there(other, fp32, int8, make_samples):
    other()
    result = evaluate_pair(fp32, int8, make_samples(3))
    assert (result.runtimes, result.failures, list(result.latencies)) == ((), (), ["onnxruntime", "openvino"])
    assert result.latencies["onnxruntime"] is result.latency
    assert result.latencies["openvino"].int8 > 0
    assert {result.fastest.runtime, result.fastest.against} == {"onnxruntime", "openvino"}
    assert result.fastest.gain >= 1


def test_a_masked_output_is_no_other_one_in_another_runtime(other, tools, make_samples):
    other(change=lambda y: y * np.float32(1.001))
    model = tools.model("g (float[N,3,8,8] x) => (float[N,3,8,8] y) { r = Relu(x) y = Log(r) }")  # of zero -infinity
    assert evaluate_pair(model, model, make_samples(3)).latencies["openvino"] is not None


def test_onnxruntime_alone_is_timed_where_it_is_named(other, fp32, int8, make_samples):
    other()
    result = evaluate_pair(fp32, int8, make_samples(3), runtimes=["onnxruntime"])
    assert (list(result.latencies), result.fastest) == (["onnxruntime"], None)


def test_a_runtime_that_was_asked_for_is_among_the_speeds(other, fp32, int8, make_samples):
    other()
    result = evaluate_pair(fp32, int8, make_samples(3), runtimes=["openvino"])
    assert result.latencies["openvino"] is result.runtimes[0].latency
    assert result.fastest is not None


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({}, "OpenVINO cannot load it: no Conv today"),
        ({"error": OSError("libtbb.so is missing\nhelp")}, "OpenVINO failed: OSError: libtbb.so is missing"),
        ({"refuses": (), "change": lambda y: -y}, "others, -6.0 dB from onnxruntime's on the first sample; --runtime"),
        ({"refuses": (), "change": lambda y: y * np.float32("nan")}, "others, nan dB from onnxruntime's"),
        ({"refuses": (), "change": lambda y: y[:, 1:]}, "others, -inf dB from onnxruntime's"),
    ],
)
def test_what_goes_wrong_in_a_runtime_unasked_is_a_reason(other, fp32, int8, make_samples, how, why):
    other(**{"refuses": (int8,), **how})
    result = evaluate_pair(fp32, int8, make_samples(3))
    assert (result.failures, result.warnings, result.fastest) == ((), (), None)
    assert (list(result.latencies), result.latencies["openvino"]) == (["onnxruntime", "openvino"], None)
    assert result.latency is not None
    assert why in result.reasons["latencies_ms.openvino"]


@pytest.mark.parametrize(("at", "model"), [(0, "FP32"), (1, "int8")])
def test_a_crash_of_a_runtime_unasked_is_a_reason(other, monkeypatch, fp32, int8, make_samples, at, model):
    other()
    monkeypatch.setattr(speed, "find_crash", lambda *_, **__: (at, "SIGSEGV"))
    result = evaluate_pair(fp32, int8, make_samples(3))
    assert (result.latencies["openvino"], result.fastest) == (None, None)
    assert result.reasons["latencies_ms.openvino"] == f"OpenVINO crashes on the {model} model (SIGSEGV)"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"_LARGEST": 100}, "the model has"),
        ({"_MOST_NODES": 5}, "the int8 model has"),
        ({"_MOST_INPUTS": 2}, "a node of the int8 model has"),
    ],
)
def test_a_large_model_is_not_opened_in_another_runtime_unasked(
    other, monkeypatch, fp32, int8, make_samples, limit, said
):
    for name, value in limit.items():
        monkeypatch.setattr(speed, name, value)
    other(refuses=(fp32, int8))
    result = evaluate_pair(fp32, int8, make_samples(3))
    why = result.reasons["latencies_ms.openvino"]
    assert f"not timed unasked, since {said}" in why
    assert why.endswith("--runtime openvino measures it")
