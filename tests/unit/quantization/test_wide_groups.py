"""Groups of few channels are joined in the int8 model, with the same sums."""

import numpy as np
import pytest
from onnx import numpy_helper

from int8cal.runtime.machine import exact_products
from int8cal.runtime.sessions import Session


def made(bench, channels, group, outputs=0, taps=3, **settings):
    outputs = outputs or channels
    text = f"g (float[N,4,12,12] x) => (float[A,B,C,D] y) {{ c = Conv(x, W) d = Conv <group = {group}> (c, G) y = Conv(d, V) }}"
    shapes = {"W": (channels, 4, 3, 3), "G": (outputs, channels // group, taps, taps), "V": (4, outputs, 1, 1)}
    model = bench.text(text, **shapes)
    samples = bench.samples(model)
    return model, samples[0].feed, bench.quantized(model, samples=samples, **settings)[-1]


def middle(built):
    (node,) = [node for node in built.model.graph.node if node.output[0] == "d"]
    weight = next(each for each in built.model.graph.node if each.output[0] == node.input[1]).input[0]
    codes = next(each for each in built.model.graph.initializer if each.name == weight)
    return next(item.i for item in node.attribute if item.name == "group"), tuple(codes.dims[:2])


@pytest.mark.parametrize(
    ("channels", "group", "outputs", "expected"),
    [
        (64, 16, 64, (2, (64, 32))),  # 4 channels each
        (32, 4, 32, (1, (32, 32))),  # 8: one convolution without groups
        (48, 8, 48, (2, (48, 24))),  # 6: 32 is no multiple
        (64, 16, 32, (2, (32, 32))),
        (16, 16, 32, (1, (32, 16))),  # each channel to two
        (16, 16, 16, (16, (16, 1))),  # depthwise
        (64, 2, 64, (2, (64, 32))),  # wide enough
        (12, 4, 12, (4, (12, 3))),  # odd: other neighbours would meet
    ],
)
def test_groups_are_joined_up_to_32_channels(bench, channels, group, outputs, expected):
    assert middle(made(bench, channels, group, outputs)[2]) == expected


@pytest.mark.parametrize(("channels", "group", "outputs"), [(32, 8, 32), (16, 16, 32), (24, 12, 24)])
@pytest.mark.parametrize("weights", ["s8", "paired"])
def test_the_sums_are_those_of_the_groups(bench, monkeypatch, channels, group, outputs, weights):
    if weights == "s8" and not exact_products():
        pytest.skip("weights of this range saturate on this CPU, and other ones are neighbours in wider groups")
    _, feed, one = made(bench, channels, group, outputs, weights=weights)
    with monkeypatch.context() as patch:
        patch.setattr("int8cal.quantization.emit.groups_in_one", lambda *_: 1)
        _, _, other = made(bench, channels, group, outputs, weights=weights)
    assert middle(one) != middle(other)
    first, second = (Session(each.model, threads=1).run(feed)["y"] for each in (one, other))
    assert np.array_equal(first, second)


def test_another_runtime_gets_the_groups_as_they_were(bench):
    assert middle(made(bench, 32, 8, target="openvino")[2]) == (8, (32, 4))


@pytest.mark.parametrize(("channels", "group"), [(32, 8), (16, 8), (48, 8), (32, 32)])
def test_no_pair_of_weights_in_joined_groups_can_saturate(bench, channels, group):
    _, _, built = made(bench, channels, group, 64 if channels == group else 0, weights="paired", target="x86-avx2")
    count, dims = middle(built)
    assert count < group
    (node,) = [node for node in built.model.graph.node if node.output[0] == "d"]
    weight = next(each for each in built.model.graph.node if each.output[0] == node.input[1]).input[0]
    codes = next(numpy_helper.to_array(each) for each in built.model.graph.initializer if each.name == weight)
    # in the kernel's order: channels of one tap after those of another; two on end meet in one instruction
    flat = np.moveaxis(codes, 1, -1).reshape(dims[0], -1, 2).astype(int)
    assert np.abs(flat).max() > (32 if channels == group else 64)
    assert np.maximum(flat, 0).sum(axis=2).max() <= 128
    assert np.minimum(flat, 0).sum(axis=2).min() >= -128
