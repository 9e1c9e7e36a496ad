from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.calibration.ranges import TensorEntry
from int8cal.evaluation.result import (
    FloatNode,
    Fusion,
    LayerMetrics,
    LayerSaturation,
    LayerScales,
    Saturation,
)
from int8cal.quantization.table import WeightEntry
from int8cal.report.document import document_of
from int8cal.report.tables import layer_rows


@pytest.fixture
def rows(report):
    """Rows of two layers: a Conv whose output is the Clip behind it, and an Add without weights."""

    def rows(fusion, saturated=(), weights=True, names=("clip", "add")):
        layers = tuple(LayerMetrics(f"{name}_out", name, "Op", 30.0 - i, 0.0) for i, name in enumerate(names))
        whole = replace(
            report,
            evaluation=replace(
                report.evaluation, layers=layers, fusion=fusion, saturation=Saturation("portable", 1, 8, 1, saturated)
            ),
            tensors={"clip_out": TensorEntry("uint8", 1.0, 0, -1.0, 2.0, "kl", 2.0, (-1.0, 2.0), 0.0, "calibrated")},
            weights=(LayerScales("conv", "Conv", "w", "clip_out", WeightEntry("int8", 0, "s7", (0.5, 2.0))),)
            if weights
            else (),
        )
        return {row.layer.node: row for row in layer_rows(document_of(whole), {"add_out": 4})}

    return rows


def found(node, verdict, unsafe=0):
    return LayerSaturation(
        node=node,
        op_type="Conv",
        weight="w",
        verdict=verdict,
        why="",
        channels=8,
        unsafe_channels=unsafe,
        unsafe_pairs=unsafe,
        worst_sum=None,
    )


def test_a_layer_is_float_where_the_node_of_its_weights_is(rows):
    fusion = Fusion(1, 1, (FloatNode("conv", "Conv", "its input is float"),))
    clip, add = rows(fusion)["clip"].kernel, rows(fusion)["add"].kernel
    assert (clip.text, clip.why, clip.band) == ("float", "its input is float", "fair")
    assert add.text == "integer"


def test_nothing_is_said_of_kernels_that_were_not_audited_or_of_nodes_without_a_name(rows):
    assert rows(None)["clip"].kernel.text == ""
    assert rows(Fusion(1, 0, ()), names=("", "add"))[""].kernel.text == ""


@pytest.mark.parametrize(
    ("verdict", "text"), [("safe", "safe"), ("exact", "exact"), ("data", "depends on data"), ("float", "")]
)
def test_saturation_is_told_in_words(rows, verdict, text):
    assert rows(None, (found("conv", verdict),))["clip"].saturation.text == text


def test_a_layer_that_can_saturate_says_in_how_many_channels(rows):
    mark = rows(None, (found("conv", "unsafe", 3),))["clip"].saturation
    assert (mark.text, mark.band) == ("can saturate", "poor")
    assert mark.why.startswith("3 of 8 channels")
    assert rows(None, (found("conv", "unsafe", 3),))["add"].saturation.text == ""


def test_ranges_and_weights_are_those_of_the_table_where_there_is_one(rows):
    clip, add = rows(None)["clip"], rows(None)["add"]
    assert (clip.layer.low, clip.layer.high, clip.layer.dtype, clip.layer.method) == (-1.0, 2.0, "uint8", "kl")
    assert (clip.weights.dtype, clip.weights.range, clip.weights.spread, clip.weights_at) == ("int8", "s7", 4.0, 0)
    assert (add.layer.low, add.layer.high, add.layer.dtype, add.weights) == (None, None, "", None)
    assert (clip.histogram, add.histogram) == (None, 4)
    assert rows(None, weights=False)["clip"].weights is None
