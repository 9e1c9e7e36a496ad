"""Two report documents that differ as a test says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from made_reports import json_of

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
)

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
            31.5,
            0.999,
            0.25,
            0.98,
            Drop(0.92, 0.91, 1.0, (-0.4, 2.4), 400),
            Drop(0.99, 0.99, 0.0, (-0.9, 0.9), 400),
            sqnr_db_ci95=(30.5, 32.5),
            agreement_ci95=(0.96, 0.991),
        ),
        outputs={"y": OutputMetrics(31.5, 0.999, (30.5, 32.5))},
        layers=(
            LayerMetrics("a", "conv_a", "Conv", 40.0, 0.0),
            LayerMetrics("b", "conv_b", "Conv", 25.0, 0.001),
            LayerMetrics("c", "add", "Add", None, None),
        ),
        fusion=Fusion(12, 1, (FloatNode("softmax", "Softmax", "feeds an output"),)),
        saturation=Saturation("portable", 0),
        size=(4000, 1000),
        latency=Latency(2.0, 1.0, 2.0, (1.9, 2.1)),
        reasons={"layers.2": "the int8 model lacks it"},
    ),
    timing_s={"evaluate": 2.0},
    gates=(Gate("sqnr_db>=30", 31.5, True, (30.5, 32.5)),),
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
