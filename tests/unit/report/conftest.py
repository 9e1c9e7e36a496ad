"""Reports to draw."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from made_reports import json_of, make_report

from int8cal.evaluation.result import (
    Drop,
    Evaluation,
    FloatNode,
    Fusion,
    Gate,
    Latency,
    LayerMetrics,
    Metrics,
    OutputMetrics,
    Report,
    Saturation,
    Size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# What comparisons change.
REPORT = Report(
    model={"name": "net.onnx", "sha256": "ab" * 32},
    settings={
        "recipe": "fast",
        "evaluation": {"data": {"path": "val", "samples": None}},
        "versions": {"int8cal": "0.1.0", "onnxruntime": "1.22.0"},
    },
    evaluation=Evaluation(
        samples=400,
        metrics=Metrics(
            sqnr_db=31.5,
            cosine=0.999,
            max_abs_error=0.25,
            agreement=0.98,
            top1=Drop(0.92, 0.91, 1.0, (-0.4, 2.4), 400),
            top5=Drop(0.99, 0.99, 0.0, (-0.9, 0.9), 400),
            sqnr_db_ci95=(30.5, 32.5),
            agreement_ci95=(0.96, 0.991),
        ),
        outputs={"y": OutputMetrics(sqnr_db=31.5, cosine=0.999, sqnr_db_ci95=(30.5, 32.5))},
        layers=(
            LayerMetrics("a", "conv_a", "Conv", 40.0, 0.0),
            LayerMetrics("b", "conv_b", "Conv", 25.0, 0.001),
            LayerMetrics("c", "add", "Add", None, None),
        ),
        fusion=Fusion(12, 1, (FloatNode("softmax", "Softmax", "feeds an output"),)),
        saturation=Saturation("portable", 0),
        size=Size(4000, 1000),
        latency=Latency(2.0, 1.0, 2.0, (1.9, 2.1)),
        reasons={"layers.2": "the int8 model lacks it"},
    ),
    timing_s={"evaluate": 2.0},
    gates=(Gate("sqnr_db>=30", 31.5, True, (30.5, 32.5)),),
)


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
            metrics=Metrics(sqnr_db=None, cosine=None, max_abs_error=None, agreement=None, top1=None, top5=None),
            outputs={"logits": OutputMetrics(sqnr_db=None, cosine=None)},
            layers=(LayerMetrics("conv1_out", "conv1", "Conv", None, None),),
            fusion=None,
            saturation=Saturation("portable", None),
            size=Size(0, 0),
            latency=None,
            reasons={"metrics": "the output is empty", "metrics.top1": "no labels", "latency_ms": "switched off"},
        ),
        timing_s={},
        gates=(Gate("top1.drop<=1.0", None, False),),
    )


@pytest.fixture
def old() -> dict[str, Any]:
    return json_of(REPORT)


@pytest.fixture
def new(old) -> dict[str, Any]:
    return copy.deepcopy(old)


@pytest.fixture
def evaluation() -> Evaluation:
    return REPORT.evaluation
