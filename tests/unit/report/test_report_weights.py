from __future__ import annotations

import json
from dataclasses import replace

import pytest
from made_reports import json_of

from int8cal.calibration.ranges import TensorEntry
from int8cal.errors import ConfigError
from int8cal.evaluation.result import LayerScales
from int8cal.graph.embeddings import Embedding
from int8cal.graph.layers import Layer, Recurrent
from int8cal.graph.plan import Plan
from int8cal.quantization.table import CalibrationTable, TableSettings, WeightEntry
from int8cal.report.document import document_of, report_to_json, scales_of
from int8cal.report.files import load_report
from int8cal.report.plots import layer_scales

SCALES = (0.5, 0.125, 4.0, 1.0)


def entry(*scales):
    return WeightEntry("int8", 0, "s7", scales)


def plan_of(*layers):
    recurrent = (Recurrent("lstm", "LSTM", "W", "R", 8, ""),)
    return Plan(tensors=(), layers=layers, integer_nodes=frozenset(), unquantized=(), recurrent=recurrent)


def test_every_layer_finds_its_scales_also_where_two_share_a_weight():
    layers = [Layer(node, "Conv", weight, None, 0, "x", f"{node}_out", 4) for node, weight in ("aw", "bw", "cv")]
    table = CalibrationTable(
        {}, {}, TableSettings(), {}, {"w@a": entry(1.0), "w@b": entry(2.0), "v": entry(3.0), "W": entry(4.0)}
    )
    found = layer_scales(plan_of(*layers), table)
    assert [(each.node, each.tensor, each.entry.scales) for each in found] == [
        ("a", "a_out", (1.0,)),
        ("b", "b_out", (2.0,)),
        ("c", "c_out", (3.0,)),
        ("lstm", "", (4.0,)),
    ]


def test_an_embedding_in_int8_has_its_scales_in_the_report_and_one_in_float_has_none():
    words, places = (
        Embedding(node, "Gather", weight, (3, 16), gathers=(node,)) for node, weight in (("a", "W"), ("b", "P"))
    )
    plan = replace(plan_of(), recurrent=(), embeddings=(words, places))
    table = CalibrationTable({}, {}, TableSettings(), {}, {"W": entry(1.0, 2.0, 3.0)})
    assert layer_scales(plan, table) == (LayerScales("a", "Gather", "W", "", entry(1.0, 2.0, 3.0)),)


def test_the_document_says_how_far_scales_are_apart():
    found = scales_of(LayerScales("conv", "Conv", "w", "y", entry(*SCALES)))
    assert (found.scales, found.scale_min, found.scale_median, found.scale_max) == (4, 0.125, 0.75, 4.0)


def test_channels_that_are_all_but_zero_do_not_count_for_the_spread():
    found = scales_of(LayerScales("conv", "Conv", "w", "y", entry(2.0, 1e-17, 0.5, 4.0)))
    assert (found.scales, found.scale_min, found.scale_median, found.scale_max) == (4, 0.5, 2.0, 4.0)
    assert found.spread == 8.0
    assert scales_of(LayerScales("conv", "Conv", "w", "y", entry(0.0, 0.0))).spread is None


def test_layers_say_type_and_range_where_a_table_is_known(report, tmp_path):
    first, second = report.evaluation.layers[:2]
    known = TensorEntry("uint8", 0.5, 3, -1.5, 126.0, "kl", 130.0, (-2.0, 130.0), 0.001, "calibrated")
    whole = replace(
        report, tensors={first.tensor: known}, weights=(LayerScales("c", "Conv", "w", first.tensor, entry(*SCALES)),)
    )
    layers = json_of(whole)["layers"]
    assert {key: layers[0][key] for key in ("dtype", "low", "high", "method")} == {
        "dtype": "uint8",
        "low": -1.5,
        "high": 126.0,
        "method": "kl",
    }
    assert "dtype" not in layers[1]
    assert layers[1]["tensor"] == second.tensor
    path = tmp_path / "report.json"
    path.write_text(report_to_json(whole), encoding="utf-8")
    assert load_report(path) == document_of(whole)


def test_a_report_with_broken_weights_is_refused(report, tmp_path):
    path = tmp_path / "report.json"
    document = json_of(report)
    path.write_text(json.dumps({**document, "weights": [{"node": 1}]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"weights\.0"):
        load_report(path)
