from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.calibration.table import TensorEntry, WeightEntry
from int8cal.evaluation.result import FloatNode, Fusion, LayerMetrics, LayerSaturation, LayerWeights, Saturation
from int8cal.report.document import document_of
from int8cal.report.page_layers import layer_rows


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
            weights=(LayerWeights("conv", "Conv", "w", "clip_out", WeightEntry("int8", 0, "s7", (0.5, 2.0))),)
            if weights
            else (),
        )
        return {row.node: row for row in layer_rows(document_of(whole), {"add_out": 4})}

    return rows


def found(node, verdict, unsafe=0):
    return LayerSaturation(node, "Conv", "w", verdict, "", 8, unsafe, unsafe, None)


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
    assert (clip.range_text, clip.dtype, clip.method, clip.width) == ("-1 to 2", "uint8", "kl", 3.0)
    assert (clip.weight_text, clip.spread, clip.weights) == ("int8 s7", 4.0, 0)
    assert (add.range_text, add.dtype, add.width, add.weight_text, add.spread) == ("", "", None, "", None)
    assert (clip.histogram, add.histogram) == (None, 4)
    assert rows(None, weights=False)["clip"].weight_text == ""
