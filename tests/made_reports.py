"""Reports to draw: made of whole cloth, shaped like real ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from int8cal.evaluation.result import (
    Drop,
    Evaluation,
    FloatNode,
    Fusion,
    Gate,
    Latency,
    LayerMetrics,
    LayerSaturation,
    Metrics,
    OutputMetrics,
    Report,
    Saturation,
    Size,
    TensorHistogram,
)
from int8cal.report.comparison import Comparison, compare_documents
from int8cal.report.document import document_from, report_to_json

# an evaluation in which nothing was measured
NOTHING = Evaluation(
    Metrics(**dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "agreement", "top1", "top5"))),
    {},
    (),
    None,
    Saturation("portable", None),
    Size(0, 0),
    None,
    samples=0,
)


def json_of(report: Report) -> dict[str, Any]:
    """What report.json holds, for tests that change it."""
    return json.loads(report_to_json(report))


def compared(old: dict[str, Any], new: dict[str, Any]) -> Comparison:
    return compare_documents(document_from(old), document_from(new))


def layer_saturation(node, op_type, weight="", verdict="safe", **figures) -> LayerSaturation:
    """What an audit says of a layer: nothing can saturate, unless figures say so."""
    nothing = {"why": "", "channels": 0, "unsafe_channels": 0, "unsafe_pairs": 0, "worst_sum": None}
    return LayerSaturation(node=node, op_type=op_type, weight=weight, verdict=verdict, **nothing | figures)


UNSAFE = layer_saturation(
    "conv|1", "Conv", "w", "unsafe", channels=16, unsafe_channels=3, unsafe_pairs=7, worst_sum=254
)
SAFE = layer_saturation("fc", "Gemm", "v", channels=10, worst_sum=120)
FOUND = Saturation("portable", 3, channels=26, unsafe_pairs=7, layers=(UNSAFE, SAFE))
CLEAN = Saturation(
    "portable", 0, channels=26, unsafe_pairs=0, layers=(replace(UNSAFE, verdict="safe", unsafe_channels=0), SAFE)
)


def make_histogram(tensor: str, place: int, bins: int = 256) -> TensorHistogram:
    low, high = (0.0, 6.0 + place % 9) if place % 2 else (-4.0 - place % 5, 5.0 + place % 7)
    edges = tuple(low + (high - low) * i / bins for i in range(bins + 1))
    counts = tuple(
        int(1e5 * math.exp(-abs(edge) * (1.2 + place % 3)) * (1 + 0.4 * math.sin(7 * edge))) for edge in edges[1:]
    )
    chosen = (low * 0.7, high * 0.6)
    ranges = {"max": (low, high), "percentile": (low * 0.8, high * 0.7), "mse": (low * 0.6, high * 0.5), "kl": chosen}
    return TensorHistogram(tensor, edges, counts, *chosen, method="kl", candidates=ranges)


def make_report(layers: int) -> Report:
    ops = ("Conv", "Add", "Relu", "Gemm", "GlobalAveragePool")
    names = [f"/features/features.{i // 3}/block.{i % 3}/{ops[i % 4]}_output_0" for i in range(layers)]
    measured = tuple(
        LayerMetrics(
            name,
            name.removesuffix("_output_0"),
            ops[i % 4],
            None if i == 5 else 38.0 - 27 * i / max(layers, 1) + 6 * math.sin(2.1 * i),
            None if i == 7 else abs(math.sin(i)) * 10.0 ** -(2 + i % 5),
        )
        for i, name in enumerate(names)
    )
    return Report(
        model={"name": "mobilenetv2", "sha256": "9f2b" * 16, "opset": 17, "ir": 8},
        settings={
            "calibration": {"method": "auto", "percentile": 99.99, "batch_size": 1},
            "quantization": {
                "recipe": "fast",
                "target": "x86-vnni",
                "exclude": ["/head/*"],
                "ranges": {"input": [-2.2, 2.7]},
            },
            "data": {"path": "photos/train", "samples": 512, "labels": None, "skip_bad": False},
        },
        evaluation=Evaluation(
            samples=900,
            metrics=Metrics(
                sqnr_db=24.613,
                cosine=0.998612,
                max_abs_error=1.3371,
                agreement=0.9922,
                top1=Drop(0.98111, 0.97888, 0.2222, (-0.3333, 0.7777), 900),
                top5=None,
                sqnr_db_ci95=(24.1, 25.12),
                agreement_ci95=(0.984, 0.9968),
            ),
            outputs={"logits": OutputMetrics(sqnr_db=24.613, cosine=0.998612, sqnr_db_ci95=(24.1, 25.12))},
            layers=measured,
            fusion=Fusion(
                integer=53,
                float_=2,
                nodes=(
                    FloatNode("/head/Softmax", "Softmax", "feeds a graph output, so no integer kernel would be used"),
                    FloatNode("/up/Resize", "Resize", "linear resize has no integer kernel in this runtime"),
                ),
            ),
            saturation=Saturation("x86-vnni", 0),
            size=Size(13_998_211, 3_655_120),
            latency=Latency(4.812, 2.411, 1.996, (1.9, 2.1)),
            reasons={
                "metrics.top5": "the model has fewer than 6 classes",
                "layers.5.sqnr_db": "the runtime fused this tensor away",
                f"layers.{names[7] if layers > 7 else ''}.clipped": "its range was given by the user",
            },
        ),
        timing_s={"evaluate": 12.5, "prepare": 0.62, "calibrate": 31.4, "thresholds": 2.2, "quantize": 1.1},
        gates=(Gate("top1.drop<=1.0", 0.2222, True, (-0.3333, 0.7777)), Gate("sqnr_db>=30", 24.613, False)),
        warnings=("3 samples were skipped: unreadable images",),
        decisions=(
            "/head/Softmax stays in float: it feeds a graph output",
            "Clip(0, 6) became the range of its Q node",
        ),
        histograms=tuple(make_histogram(name, i) for i, name in enumerate(names)),
    )
