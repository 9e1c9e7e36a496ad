"""Layers of decoders as exporters write them: every product becomes int8, and masks and caches cost nothing."""

import numpy as np
import pytest
from attention_networks import DECODERS, LAYERS, NEW_DECODERS

import int8cal
from int8cal.errors import DataError
from int8cal.graph.index import Index

FORMS = [
    *(pytest.param(each, id=name) for name, each in DECODERS.items()),
    *(pytest.param(each, id=name, marks=pytest.mark.newest) for name, each in NEW_DECODERS.items()),
]
pytestmark = pytest.mark.filterwarnings("ignore:with 12 samples")


@pytest.mark.parametrize("decoder", FORMS)
def test_a_decoder_is_int8_where_it_has_weights_and_float_where_it_hands_its_cache_out(decoder):
    model, feeds = decoder.model(), list(decoder.samples())
    table = int8cal.calibrate(model, feeds, threads=1)
    int8 = int8cal.quantize(model, table)
    report = int8cal.evaluate(model, int8, feeds, threads=1, latency=False)
    figures = report.evaluation
    layers = {each.node for each in table.weights.values()}
    assert len(layers) == LAYERS
    assert layers.isdisjoint(each.node for each in figures.fusion.nodes)
    assert figures.metrics.sqnr_db > 31
    # what reads a mask is never given a range, so the lowest float is in none
    assert all(-100 < each.low <= 0 <= each.high < 100 for each in table.tensors.values())
    assert table.warnings == ()
    assert report.findings == ()
    assert set(figures.outputs) == {value.name for value in model.graph.output}
    producers = Index(int8).producer
    for name in set(figures.outputs) - {"y"}:
        assert producers[name].op_type != "DequantizeLinear"
        assert figures.outputs[name].sqnr_db > 35


# what a decoder makes of its cache alone: keys of compressed ones, or those of an encoder
BEHIND_A_CACHE = """g (float[1,L,8] x, float[1,P,8] past) => (float[1,L,4] y, float[1,P,4] keys) {
    y = MatMul(x, A) keys = MatMul(past, B) }"""


def cached(lengths):
    rng = np.random.default_rng(2)
    return [
        {name: rng.normal(size=(1, n, 8)).astype(np.float32) for name, n in (("x", 3), ("past", n))} for n in lengths
    ]


def behind_a_cache(bench, lengths, **settings):
    model = bench.text(BEHIND_A_CACHE, A=(8, 4), B=(8, 4))
    return model, int8cal.calibrate(model, cached(lengths), threads=1, **settings)


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
def test_a_cache_that_is_empty_at_times_has_the_range_of_its_values(bench, recipe):
    _, some = behind_a_cache(bench, [0, 5, 0, 2] * 4, recipe=recipe)
    assert some.tensors["past"].observed[1] > 1
    assert not some.warnings


def test_a_layer_that_no_sample_fed_a_value_stays_float(bench):
    model, table = behind_a_cache(bench, [0] * 16)
    assert list(table.tensors) == ["x"]
    (warning,) = table.warnings
    assert "no sample has a value of its input past" in warning
    int8 = int8cal.quantize(model, table)
    (later,) = cached([6])
    exact, found = (bench.run(each, later)["keys"] for each in (model, int8))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"weights_only": ["op:MatMul"]}, {"weights_only": True}, {"ranges": {"past": (-4.0, 4.0)}}]
)
def test_a_layer_that_no_sample_fed_a_value_is_int8_where_it_needs_none(bench, settings):
    model, table = behind_a_cache(bench, [0] * 16, **settings)
    assert table.weights.keys() == {"A", "B"}
    assert not table.warnings
    (later,) = cached([6])
    exact, found = (bench.run(each, later)["keys"] for each in (model, int8cal.quantize(model, table)))
    assert 0 < np.abs(found - exact).max() < 0.1


def test_samples_of_zero_size_alone_are_refused(bench):
    model = bench.text("g (float[1,P,8] past) => (float[1,P,4] keys) { keys = MatMul(past, B) }", B=(8, 4))
    feeds = [{"past": np.zeros((1, 0, 8), np.float32)}] * 4
    with pytest.raises(DataError, match="holds no value for any layer"):
        int8cal.calibrate(model, feeds, threads=1)
