"""Depthwise convolutions get channels of zeros up to whole blocks of 16, and everything stays the same."""

import json

import numpy as np
import onnx
import pytest

from int8cal.errors import ModelError
from int8cal.evaluation.layerwise import measure_layers
from int8cal.graph.index import attribute
from int8cal.protos import metadata_of, set_metadata
from int8cal.quantization.laid_out import laid_out
from int8cal.quantization.whole_blocks import WIDE_KEY, in_whole_blocks, real_channels
from int8cal.runtime.sessions import Session

BLOCK = 16
# Each with a convolution of 4 channels to 24 in front, and what follows a depthwise one of 24.
INVERTED = "c = Conv(x, W) r = Relu(c) d = Conv<group=24, pads=[1, 1, 1, 1]>(r, D, B) e = Relu(d) y = Conv(e, V)"
SQUEEZED = (
    "c = Conv(x, W) d = Conv<group=24, pads=[1, 1, 1, 1]>(c, D, B) m = GlobalAveragePool(d) s = Conv(m, S) t = Relu(s)"
    " u = Conv(t, T) h = HardSigmoid<alpha=0.1666667>(u) e = Mul(h, d) y = Conv(e, V)"
)
RESIDUAL = (
    "c = Conv(x, W) d = Conv<group=24, pads=[1, 1, 1, 1]>(c, D, B) p = Conv(d, P) a = Add(c, p) e = Relu(a)"
    " y = Conv(e, V)"
)
TWICE = (
    "c = Conv(x, W) d = Conv<group=24>(c, D, B) q = MaxPool<kernel_shape=[2, 2]>(d) e = Conv<group=24>(q, E)"
    " y = Conv(e, V)"
)
WINDOW = "c = Conv(x, W) d = Conv<group=24>(c, D, B) y = Conv(d, K)"
WIDER = (  # as networks for faces do it: a Pad adds channels
    "c = Conv(x, W) d = Conv<group=24, pads=[1, 1, 1, 1]>(c, D, B) p = Conv(d, G) o = Pad(c, pads)"
    " a = Add(o, p) e = Relu(a) f = Conv<group=28>(e, F) y = Conv(f, H)"
)
SHAPES = {
    "W": (24, 4, 1, 1),
    "D": (24, 1, 3, 3),
    "B": (24,),
    "E": (24, 1, 2, 2),
    "F": (28, 1, 3, 3),
    "G": (28, 24, 1, 1),
    "H": (4, 28, 1, 1),
    "K": (4, 24, 3, 3),
    "P": (24, 24, 1, 1),
    "S": (8, 24, 1, 1),
    "T": (24, 8, 1, 1),
    "V": (4, 24, 1, 1),
}
PADS = np.array([0, 0, 0, 0, 0, 4, 0, 0], np.int64)
FITS = {
    "inverted": INVERTED,
    "squeezed": SQUEEZED,
    "residual": RESIDUAL,
    "twice": TWICE,
    "window": WINDOW,
    "wider": WIDER,
}


def built(bench, nodes, shapes=SHAPES, channels=4, **settings):
    used = {name: shape for name, shape in shapes.items() if f" {name})" in nodes or f" {name}," in nodes}
    constants = {"pads": PADS} if "pads)" in nodes else {}
    text = f"g (float[N,{channels},10,10] x) => (float[A,B,C,D] y) {{ {nodes} }}"
    model = bench.text(text, **used, **constants)
    samples = bench.samples(model)
    prepared, *_, result = bench.quantized(model, samples=samples, **settings)
    return prepared.model, samples, result.model


def groups(model):
    return [attribute(node, "group", 1) for node in model.graph.node if attribute(node, "group", 1) > 1]


@pytest.mark.parametrize("nodes", FITS.values(), ids=FITS)
@pytest.mark.parametrize("weights", ["s8", "paired"])
def test_blocks_are_whole_and_every_bit_is_the_same(bench, nodes, weights):
    _, samples, model = built(bench, nodes, weights=weights)
    before = model.SerializeToString(deterministic=True)
    wide = in_whole_blocks(model, BLOCK)
    assert groups(model)
    assert groups(wide) == [32] * len(groups(model))
    onnx.checker.check_model(wide, full_check=True)
    first, second = ([Session(each, threads=1).run(sample.feed)["y"] for sample in samples] for each in (model, wide))
    assert np.abs(first).max() > 0
    assert np.array_equal(first, second)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("nodes", FITS.values(), ids=FITS)
def test_layers_are_compared_without_the_zeros(bench, nodes):
    prepared, samples, model = built(bench, nodes)
    wide = in_whole_blocks(model, BLOCK)
    plain, reasons, _ = measure_layers(prepared, model, samples)
    assert len(plain) > 3
    assert measure_layers(prepared, wide, samples)[:2] == (plain, reasons)
    assert set(real_channels(wide).values()) <= {24, 28}
    assert real_channels(wide).keys() & {"d", "e"}


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Conv(x, W) y = Conv<group=24>(c, D, B)",  # the model's output
        "c = Conv(x, W) d = Conv<group=24>(c, D, B) e = Softmax<axis=1>(d) y = Conv(e, V)",
        "c = Conv(x, W) d = Conv<group=24>(c, D, B) n = LpNormalization<axis=1>(d) y = Conv(n, V)",
        "c = Conv(x, W) d = Conv<group=24>(c, D, B) s = Shape(d) r = Reshape(d, s) y = Conv(r, V)",
        "c = Conv(x, W) d = Conv<group=24>(c, D, B) e = Concat<axis=1>(d, d) y = Conv(e, L)",
        # sigmoids of nothing are no zeros, and the next layer would read them as its own
        (
            "c = Conv(x, W) d = Conv<group=24, pads=[1, 1, 1, 1]>(c, D, B) s = Sigmoid(d) o = Pad(s, pads)"
            " f = Conv<group=28>(o, F) y = Conv(f, H)"
        ),
    ],
)
def test_what_treats_channels_unlike_each_other_keeps_its_own(bench, nodes):
    model = built(bench, nodes, {**SHAPES, "L": (4, 48, 1, 1)})[2]
    assert in_whole_blocks(model, BLOCK) is model


def test_another_runtime_gets_the_channels_that_there_are(bench):
    model = built(bench, INVERTED, target="openvino")[2]
    assert laid_out(model, "openvino") is model


@pytest.mark.parametrize(
    ("count", "whole"), [(4, 16), (8, 16), (12, 16), (16, 16), (20, 32), (32, 32), (40, 48), (48, 48)]
)
def test_whole_blocks_stay_and_others_are_filled(bench, count, whole):
    shapes = {"W": (count, 4, 1, 1), "D": (count, 1, 3, 3), "B": (count,), "V": (4, count, 1, 1)}
    model = built(bench, INVERTED.replace("24", str(count)), shapes)[2]
    wide = in_whole_blocks(model, BLOCK)
    assert groups(wide) == [whole]
    assert (wide is model) == (count == whole)


def test_an_odd_number_of_channels_stays_where_windows_are_read(bench):
    """Codes of two taps meet there in one instruction, which have been chosen for each other."""
    shapes = {"W": (25, 4, 1, 1), "D": (25, 1, 3, 3), "B": (25,), "K": (4, 25, 3, 3), "V": (4, 25, 1, 1)}
    window = built(bench, WINDOW.replace("24", "25"), shapes)[2]
    assert in_whole_blocks(window, BLOCK) is window
    point = built(bench, INVERTED.replace("24", "25"), shapes)[2]
    assert groups(in_whole_blocks(point, BLOCK)) == [32]


def test_constants_that_others_read_stay(bench):
    """Two layers share weights; one of them is beside a depthwise convolution."""
    nodes = (
        "c = Conv(x, W) d = Conv<group=24, pads=[1, 1, 1, 1]>(c, D, B) e = Conv(d, V)"
        " f = Conv(x, W) g = Softmax<axis=1>(f) h = Conv(g, V) y = Concat<axis=2>(e, h)"
    )
    _, samples, model = built(bench, nodes)
    wide = in_whole_blocks(model, BLOCK)
    assert groups(wide) == [32]
    first, second = (Session(each, threads=1).run(samples[0].feed)["y"] for each in (model, wide))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("text", ["{", '["d"]', '{"d": "24"}', "24"])
def test_a_damaged_record_is_told(text):
    model = onnx.ModelProto()
    set_metadata(model, WIDE_KEY, text)
    with pytest.raises(ModelError, match=WIDE_KEY):
        real_channels(model)


def test_the_record_says_what_is_real(bench):
    wide = in_whole_blocks(built(bench, WIDER)[2], BLOCK)
    record = json.loads(metadata_of(wide, WIDE_KEY))
    assert (record["d"], record["e"]) == (24, 28)
