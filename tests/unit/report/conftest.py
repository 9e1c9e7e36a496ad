"""Reports to draw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from made_reports import make_report

from int8cal.evaluation.result import Evaluation, Gate, LayerMetrics, Metrics, OutputMetrics, Report, Saturation

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def with_origin() -> Callable[[Report], Report]:
    """Add to a report what int8 model, evaluation data and versions it is of."""

    def with_origin(report: Report) -> Report:
        judged = {"path": "photos/val", "samples": 900, "labels": "folders", "preprocess": {"resize": 224}}
        return replace(
            report,
            model={**report.model, "int8": "mobilenetv2.int8.onnx"},
            settings={
                **report.settings,
                "evaluation": {"data": judged},
                "versions": {"int8cal": "0.1.0", "onnxruntime": "1.31.0"},
            },
        )

    return with_origin


@pytest.fixture
def report() -> Report:
    return make_report(12)


@pytest.fixture
def build() -> Callable[[int], Report]:
    return make_report


@pytest.fixture
def empty_report() -> Report:
    """Nothing could be measured, and only some of it says why."""
    return Report(
        model={},
        settings={},
        evaluation=Evaluation(
            samples=0,
            metrics=Metrics(None, None, None, None, None, None),
            outputs={"logits": OutputMetrics(None, None)},
            layers=(LayerMetrics("conv1_out", "conv1", "Conv", None, None),),
            fusion=None,
            saturation=Saturation("portable", None),
            size=(0, 0),
            latency=None,
            reasons={"metrics": "the output is empty", "metrics.top1": "no labels", "latency_ms": "switched off"},
        ),
        timing_s={},
        gates=(Gate("top1.drop<=1.0", None, False),),
    )
