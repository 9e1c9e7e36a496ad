"""What is made of the runtime's profile."""

from pathlib import Path

import numpy as np
import pytest

from int8cal.runtime.profile import kernel_times, middle_mean, profile_kernels


def event(name, dur, cat="Node"):
    return {"cat": cat, "name": name, "dur": dur}


def test_a_kernel_counts_with_the_middle_of_its_runs():
    runs = [event("c_kernel_time", dur) for dur in (900, 4, 5, 5, 6, 5, 4, 1)]
    others = [event("c_fence_before", 7), *(event("model_run", 99, cat="Session") for _ in runs)]
    assert kernel_times([*runs, *others]) == {"c": 4.75}


def test_a_kernel_of_a_loop_counts_for_all_rounds_of_an_inference():
    rounds = [event("c_kernel_time", 5) for _ in range(12)]
    assert kernel_times([*rounds, *(event("model_run", 99, cat="Session") for _ in range(4))]) == {"c": 15.0}


def test_few_runs_are_averaged():
    assert middle_mean([3, 5]) == pytest.approx(4)


def test_a_profile_names_the_nodes_of_the_optimized_graph(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = bench.text("g (float[N,4] x) => (float[N,8] y) { c = Gemm(x, W, B) y = Relu(c) }", W=(4, 8), B=(8,))
    (profile,) = profile_kernels([model], [{"x": np.zeros((1, 4), np.float32)}], budget_s=0.0)
    assert set(profile.kernels) == {node.name for node in profile.optimized.graph.node}
    assert list(Path().iterdir()) == []
