"""What a search starts from, for a small model: method max, no steps, sixteen samples to score on."""

from pathlib import Path

import pytest

from int8cal.job import CalibrationSettings, DataSettings, Job, QuantizationSettings
from int8cal.quantization.table import blank_table
from int8cal.search import precision, search
from int8cal.search.candidate import Inputs
from int8cal.search.recipes import Recipe
from int8cal.search.scorer import Holdout, Scorer


@pytest.fixture
def bytes_are_free(monkeypatch):
    """Let no step have to gain anything for its bytes: in nets of a few weights each is a large part of the file."""
    monkeypatch.setattr(search, "bytes_worth_db", lambda saved, index, plan: 0.0)
    monkeypatch.setattr(precision, "byte_worth_db", lambda index, plan: 0.0)


@pytest.fixture
def search_inputs(bench):
    def search_inputs(text, counted=16, **weights):
        prepared = bench.prepared(bench.text(text, **weights))
        plan = bench.plan(prepared.model)
        samples = list(bench.samples(prepared.model, 16))
        statistics = bench.statistics(prepared, plan, bench.samples(prepared.model, counted))
        job = Job(Path("net.onnx"), DataSettings("."), CalibrationSettings(method="max"), QuantizationSettings())
        scorer = Scorer(prepared.model, prepared.signature, samples, threads=1)
        holdout = Holdout(prepared.signature, (), scorer, samples)
        blank = blank_table(job, prepared, statistics)
        return Inputs(prepared.model, plan, statistics, job, blank, holdout, Recipe((), 16))

    return search_inputs
