"""Which weights oneDNN's kernels without VNNI multiply in one instruction; OpenVINO reads the QDQ models."""

import pytest
from harness import has_integer_products
from pair_probe import Layer, expected_pairs, probe, saturated_pairs

from int8cal.runtime.targets import any_two_meet, links_of

pytestmark = pytest.mark.emulated

ISAS = ("AVX2", "AVX512_CORE")


def conv(channels, kernel, **more):
    return Layer("Conv", channels, kernel, quantized=False, **more)


def deconv(channels, kernel, **more):
    return Layer("ConvTranspose", channels, kernel, quantized=False, **more)


# layer -> the order that AVX2 and AVX512_CORE take
LAYERS = {
    **{conv(channels, (3, 3)): ("channels", "channels") for channels in (2, 3, 4)},
    **{conv(channels, (2, 2)): ("channels", "channels") for channels in (5, 7, 8)},
    **{conv(channels, (1, 1)): ("channels", "channels") for channels in (3, 7, 16)},
    **{conv(channels, (5,)): ("channels", "channels") for channels in (3, 4)},
    **{conv(channels, (2, 2, 2)): ("channels", "channels") for channels in (3, 4)},
    conv(3, (7, 7), stride=2, extra=57, reach=44): ("channels", "channels"),
    conv(3, (3, 3), extra=60): ("channels", "channels"),
    conv(3, (3, 3), dilation=2, extra=20): ("channels", "channels"),
    conv(3, (3, 3), pad=1, extra=20): ("channels", "channels"),
    conv(65, (3, 3), extra=0, reach=3): ("channels", "channels"),
    conv(3, (3, 3), per_channel=False): ("channels", "channels"),
    conv(3, (3, 3), sign=-1): ("channels", "channels"),
    # OpenVINO does not take oneDNN's way out, halved weights, for s8 activations
    conv(3, (3, 3), x="int8"): ("channels", "channels"),
    conv(4, (3, 3), x="int8"): ("channels", "channels"),
    # groups: with odd channels AVX2 multiplies matrices, and they have the flat order
    **{conv(channels, (3, 2), groups=2): ("channels", "channels") for channels in (2, 4)},
    **{conv(channels, (3, 2), groups=2, extra=14): ("flat", "channels") for channels in (3, 5)},
    # depthwise
    **{conv(1, kernel, outputs=1): ("none", "none") for kernel in ((3, 3), (5, 5), (3,), (2, 2, 2))},
    conv(1, (3, 3), outputs=1, x="int8"): ("none", "none"),
    **{deconv(channels, (2, 2)): ("channels", "channels") for channels in (2, 3, 4)},
    **{deconv(channels, (3,), stride=2): ("channels", "channels") for channels in (2, 3)},
    deconv(3, (2, 2, 2)): ("channels", "channels"),
    deconv(1, (2, 2)): ("none", "none"),
    **{
        Layer(op, k, rows=rows, x=x, quantized=False): ("flat", "flat")
        for op in ("MatMul", "Gemm")
        for k, x in ((7, "uint8"), (16, "uint8"), (7, "int8"))
        for rows in (1, 5)
    },
    Layer("Gemm", 7, transposed=True, quantized=False): ("flat", "flat"),
    Layer("MatMul", 7, columns=1, quantized=False): ("flat", "flat"),
}
# One input channel: AVX-512 kernels turn rows, or columns, of the kernel into channels; which, follows from the image's size.
SINGLE_CHANNEL = {
    conv(1, (3, 3)): ("none", "rows"),
    conv(1, (3, 3), extra=30): ("none", "columns"),
    conv(1, (5, 5), extra=30, reach=24): ("none", "columns"),
    conv(1, (10, 4), extra=10, stride=2): ("none", "columns"),
    conv(1, (3, 3), dilation=2, extra=20): ("none", "none"),
    conv(1, (2, 2, 2)): ("none", "none"),
    conv(1, (3, 3), outputs=2): ("flat", "rows"),
    conv(1, (3, 3), outputs=2, extra=30): ("flat", "columns"),
    conv(1, (5,), outputs=2): ("flat", "flat"),
}
ALL = {**LAYERS, **SINGLE_CHANNEL}


@pytest.fixture(scope="module", params=ISAS)
def measured(onednn, request):
    results = onednn(request.param).run(map(probe, ALL))
    return ISAS.index(request.param), dict(zip(ALL, results, strict=True))


@pytest.mark.parametrize("layer", ALL, ids=str)
def test_weights_meet_in_the_order_of_the_layer(measured, layer):
    isa, results = measured
    result = results[layer]
    assert has_integer_products(result.kernels)
    assert saturated_pairs(layer, result.first) == expected_pairs(layer, ALL[layer][isa])


def links(layer):
    return links_of("portable", layer.length // layer.channels, layer.channels, depthwise=layer.outputs == 1)


def test_the_portable_target_knows_every_pair(measured):
    for layer in LAYERS:
        for i, j in saturated_pairs(layer, measured[1][layer].first):
            assert j == i + 1, f"{layer}: {i} meets {j}"
            assert links(layer)[i], f"{layer}: {i} meets {j}"


def test_the_portable_target_knows_every_pair_of_a_single_channel(measured):
    for layer in SINGLE_CHANNEL:
        if any_two_meet("portable", layer.kernel, layer.channels, depthwise=layer.outputs == 1):
            continue
        for i, j in saturated_pairs(layer, measured[1][layer].first):
            assert j == i + 1, f"{layer}: {i} meets {j}"
            assert links(layer)[i], f"{layer}: {i} meets {j}"


def test_nothing_saturates_with_vnni(onednn, vnni):
    for layer, result in zip(ALL, onednn("").run(map(probe, ALL)), strict=True):
        assert not saturated_pairs(layer, result.first), layer
