"""Corrections as a table holds them: read, written, cut down, and applied by the list of them alone."""

import json
from dataclasses import replace

import numpy as np
import pytest

from int8cal.data.pixels import Pixels
from int8cal.graph.select import Selection
from int8cal.quantization import build
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections import (
    CORRECTIONS,
    Bias,
    ChannelCopies,
    Equalization,
    FineChannels,
    ResidualCodes,
    Rounding,
    Uint8Input,
)
from int8cal.quantization.corrections.correction import OfNodes
from int8cal.quantization.table import CalibrationTable, TableSettings
from int8cal.quantization.table_file import parse_table, table_to_json

RECORDS = (
    Uint8Input(Pixels("x", 1, 0.5, (0.25, 0.5), (1.0, 2.0)), 255, ("Sub_t",)),
    Equalization({"r": (1, -2.5)}),
    Bias({"a": (0.1, -1e-17), "b": (2.0,)}),
    Rounding({"a": "eJw=", "b": "eJw="}),
    ResidualCodes({"a": 16}),
    ChannelCopies({"a": (3, 3, 7)}),
    FineChannels({"a": (2, 5)}),
)
TWO = "g (float[N,4] x) => (float[N,3] y) { h = Gemm(x, W, B) r = Relu(h) y = Gemm(r, V, C) }"
SHAPES = {"W": (4, 6), "B": (6,), "V": (6, 3), "C": (3,)}


def empty():
    return CalibrationTable({}, {}, TableSettings(), {}, {})


def test_every_kind_is_tried_here():
    assert {type(record) for record in RECORDS} == set(CORRECTIONS)
    assert len({kind.key for kind in CORRECTIONS}) == len(CORRECTIONS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key)
def test_a_record_is_what_its_json_says(record):
    content = json.loads(json.dumps(record.to_json()))
    assert type(record).read(content, "t") == record
    assert parse_table(table_to_json(empty().corrected(record)), "t").corrections == (record,)


def test_the_file_keeps_the_order_of_corrections_and_empty_ones():
    document = json.loads(table_to_json(replace(empty(), corrections=RECORDS[::-1])))
    document["corrections"]["bias"] = {}
    again = json.loads(table_to_json(parse_table(json.dumps(document), "t")))
    assert list(again["corrections"].items()) == list(document["corrections"].items())


@pytest.mark.parametrize(
    ("content", "summary"), [({"a": 1, "b": 2}, "2 entries"), ([1], "1 entries"), (5, "5"), (None, "None")]
)
def test_an_unknown_correction_stays_and_is_summed_up_whatever_it_is(content, summary):
    document = json.loads(table_to_json(empty()))
    document["corrections"]["later"] = content
    table = parse_table(json.dumps(document), "t")
    assert [each.summary for each in table.corrections] == [summary]
    assert json.loads(table_to_json(table))["corrections"] == {"later": content}


def test_a_correction_takes_the_place_of_one_of_its_kind_and_an_empty_one_goes():
    table = empty().corrected(*RECORDS)
    changed = table.corrected(Bias({"c": (1.0,)}), Equalization())
    assert [each.key for each in changed.corrections] == [
        each.key for each in RECORDS if not isinstance(each, Equalization)
    ]
    assert Bias.of(changed).values == {"c": (1.0,)}
    assert not Equalization.of(changed)
    assert Uint8Input.of(empty()) is None


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key)
def test_nodes_that_stay_float_take_their_own_corrections_with_them(record):
    left = record.without({"a"})
    if isinstance(record, OfNodes):
        assert dict(left.values) == {node: value for node, value in record.values.items() if node != "a"}
    else:
        assert left == record


class Doubled(OfNodes[float]):
    """A correction as one might add it: it doubles what is added to biases."""

    key = "doubled"

    @classmethod
    def _read_value(cls, value, place):
        return float(value)

    def apply(self, draft):
        deltas = {node: np.full(6, value) for node, value in self.values.items()}
        return replace(draft, bias_deltas=draft.bias_deltas | deltas)


def test_building_goes_by_the_list(bench, monkeypatch):
    prepared, plan, table, before = bench.quantized(bench.text(TWO, **SHAPES))
    node = plan.layers[0].node
    table = table.corrected(Doubled({node: 3.0}))
    assert (build_model(prepared.model, plan, table).layers[node].bias == before.layers[node].bias).all()
    monkeypatch.setattr(build, "CORRECTIONS", (*CORRECTIONS, Doubled))
    moved = build_model(prepared.model, plan, table).layers[node]
    step = table.tensors["x"].scale * moved.scales
    np.testing.assert_allclose((moved.bias - before.layers[node].bias) * step, 3.0, atol=step.max())


def test_settings_that_were_taken_out_have_defaults():
    bare = TableSettings({"method": "auto"})
    assert (bare.target, bare.weights, bare.recurrent, bare.steps) == ("portable", "paired", {}, [])
    assert bare.selection == Selection()


def test_the_selection_has_every_kind_of_node_that_is_left_float():
    settings = TableSettings({"include": ["a*"], "exclude": ["op:Softmax"], "target": "arm64"})
    for number, key in enumerate(("left_without_range", "left_for_gates", "left_for_accuracy", "left_for_latency")):
        settings = settings.with_left(key, {f"n{number}": key})
    left = {"n3": "left_for_latency", "n2": "left_for_accuracy", "n1": "left_for_gates", "n0": "left_without_range"}
    assert settings.selection == Selection(("a*",), ("op:Softmax",), tuple(left.items()), "arm64")
