"""Execution providers: names, and sessions that really run on them."""

import numpy as np
import onnxruntime as ort
import pytest

from int8cal.errors import UsageError
from int8cal.runtime import machine
from int8cal.runtime.machine import providers, resolve, short_name
from int8cal.runtime.sessions import CPU, Session


@pytest.fixture
def offered(monkeypatch):
    names = ("TensorrtExecutionProvider", "CUDAExecutionProvider", CPU)
    monkeypatch.setattr(machine, "providers", lambda: names)


@pytest.mark.usefixtures("offered")
def test_names_are_short_or_whole_in_any_case_and_keep_their_order():
    assert resolve(["cuda", "cpu"]) == ("CUDAExecutionProvider", CPU)
    assert resolve(["CPUExecutionProvider", "tensorrt"]) == (CPU, "TensorrtExecutionProvider")
    assert resolve(["CUDAEXECUTIONPROVIDER", " Cuda "]) == ("CUDAExecutionProvider",)


def test_none_means_cpu():
    assert resolve([]) == (CPU,)


@pytest.mark.usefixtures("offered")
def test_one_that_is_not_installed_is_refused_with_what_is():
    with pytest.raises(UsageError, match="is not in the installed onnxruntime") as caught:
        resolve(["cpu", "coreml"])
    assert "'coreml'" in str(caught.value)
    assert "tensorrt (TensorrtExecutionProvider), cuda (CUDAExecutionProvider), cpu" in caught.value.do


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "said"), [("cudda", "did you mean 'cuda'"), ("abacus", "no provider"), ("", "no provider")]
)
def test_an_unknown_one_is_refused(name, said):
    with pytest.raises(UsageError, match=said):
        resolve([name])


def test_every_provider_here_has_a_short_name():
    assert resolve(short_name(name) for name in providers()) == providers()


@pytest.fixture
def model(bench):
    return bench.text("net (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")


FEED = {"x": np.ones((1, 4), np.float32)}


def test_cpu_by_name_is_the_default(model):
    np.testing.assert_array_equal(Session(model, providers=(CPU,)).run(FEED)["y"], Session(model).run(FEED)["y"])


def test_a_provider_that_does_not_start_is_an_error_and_no_silent_cpu(model, capsys):
    missing = next(name for name in ort.get_all_providers() if name not in providers())
    with pytest.warns(UserWarning, match=missing), pytest.raises(UsageError, match="did not start") as caught:
        Session(model, providers=(missing, CPU))
    assert missing in str(caught.value)
    assert capsys.readouterr().out == ""


needs_azure = pytest.mark.skipif("AzureExecutionProvider" not in providers(), reason="no provider beside CPU")


@needs_azure
def test_nodes_go_to_the_cpu_provider_only_where_it_is_named(model):
    with pytest.raises(UsageError, match="the CPU provider is not named"):
        Session(model, providers=("AzureExecutionProvider",))
    session = Session(model, providers=("AzureExecutionProvider", CPU))
    np.testing.assert_array_equal(session.run(FEED)["y"], -FEED["x"])


def test_a_kernel_that_fails_does_not_start_again_on_the_cpu(model, monkeypatch):
    """onnxruntime's own session would print that it falls back, and go on."""
    session = Session(model, providers=(CPU,))
    assert session._parts[0].session._enable_fallback is False
