"""Weights of a large model are held by the sessions that compute with them, and not once more for each model made of it."""

import os

import pytest

from benchmarks.commands import endurance

# A float session for what a layer does, one for what errors do, an int8 session: 2.5 times the weights. Another copy of
# the weights in float would be more than this.
MOST = 3.3


@pytest.mark.slow
@pytest.mark.skipif(
    endurance.memory_mb(os.getpid()) is None, reason="the system does not tell memory and mapped files apart"
)
def test_memory_grows_by_some_times_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(endurance, "WIDTH", 1000)
    monkeypatch.setattr(endurance, "POLL_SECONDS", 0.02)
    found = []
    for gigabytes in (0.004, 0.1):
        folder = tmp_path / str(gigabytes)
        folder.mkdir()
        found.append(endurance.endure(*endurance.large_model(gigabytes, folder), folder / "out", 1))
    small, large = found
    ratio = (large.peak_mb - small.peak_mb) / (large.model_mb - small.model_mb)
    assert 1.0 < ratio < MOST
