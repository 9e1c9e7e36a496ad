"""ncnn's table: text as ncnn2table writes it, names as pnnx gives them, and what the real runtime makes of the scales."""

import struct
from pathlib import Path

import numpy as np
import pytest

from int8cal.errors import TableError
from int8cal.interop.ncnn import (
    NcnnLayer,
    layers_of_model,
    layers_of_table,
    parse_ncnn,
    read_ncnn,
    renamed,
    to_ncnn,
)
from int8cal.numerics.affine import S8, U8, Affine
from int8cal.quantization.table import WeightEntry

ROOT = Path(__file__).parents[3]
PARAM = ROOT / "tests" / "golden" / "sample.ncnn.param"  # pnnx 20261020 wrote it, of sample_data/model.onnx
# numbers as fprintf("%f ") writes them, a trailing blank and all
WRITTEN = b"conv1_param_0 156.639840 536.133057 \nfc_param_0 87.0 \nconv1 63.500000 \nfc 127.000000 \n"

NET = """net (float[N,4,8,8] x) => (float[N,6,4,4] y)
{ a = Conv <pads = [1,1,1,1]> (x, W3)
  b = Relu (a)
  c = Conv <group = 2, strides = [2,2], pads = [1,1,1,1]> (b, WG)
  y = Conv (c, W1) }"""
SHAPES = {"W3": (8, 4, 3, 3), "WG": (6, 4, 3, 3), "W1": (6, 6, 1, 1)}


@pytest.fixture
def net(bench):
    model = bench.text(NET, **SHAPES)
    prepared = bench.prepared(model)
    plan = bench.plan(model)
    return layers_of_model(prepared.model, plan), plan


def table_for(make, layers, scale=0.125):
    tensors = {layer.input: Affine(0.25, 0, S8) for layer in layers}
    weights = {
        layer.key: WeightEntry("int8", 0, "s8", tuple(scale * (1 + k) for k in range(layer.channels)))
        for layer in layers
    }
    return make.table(tensors, weights)


def test_a_table_of_ncnn2table_is_read():
    parsed = parse_ncnn(WRITTEN, "t")
    assert parsed.inputs == {"conv1": 63.5, "fc": 127.0}
    assert parsed.weights == {"conv1": (156.63984, 536.133057), "fc": (87.0,)}


def test_scales_are_turned_around_and_belong_to_layers(make):
    layer = NcnnLayer("conv", "conv", "W", "x", 0, 2)
    converted = to_ncnn(make.small(), [layer])
    inverse = 1 / make.f32(0.01)
    assert converted.content.decode() == f"conv_param_0 {inverse!r} 4.0\nconv {1 / make.f32(64 / 127)!r}\n"
    assert any("no layer of ncnn reads them: 'relu: a b', 's8'" in loss for loss in converted.losses)
    assert any(loss.startswith("1 of 1 tensor becomes symmetric") for loss in converted.losses)


def test_weights_come_first_as_in_ncnns_own_tables(make, net):
    layers, _ = net
    lines = to_ncnn(table_for(make, layers), layers).content.decode().splitlines()
    assert [line.split()[0].endswith("_param_0") for line in lines] == [True] * 3 + [False] * 3


def test_3x3_convolutions_of_stride_1_get_codes_up_to_31(make, net):
    layers, _ = net
    assert [layer.winograd for layer in layers] == [True, False, False]
    converted = to_ncnn(table_for(make, layers), layers)
    parsed = parse_ncnn(converted.content, "t")
    assert parsed.weights[layers[0].name][0] == pytest.approx(31 / 127 / 0.125)
    assert parsed.weights[layers[2].name][0] == 8.0
    assert any("codes up to 31" in loss for loss in converted.losses)


def test_codes_of_s7_reach_64(make, net):
    layers, _ = net
    table = table_for(make, layers)
    weights = {layers[0].key: WeightEntry("int8", 0, "s7", (0.125,) * 8)}
    converted = to_ncnn(make.table({"x": Affine(0.25, 0, S8)}, weights, settings=table.settings), layers[:1])
    assert parse_ncnn(converted.content, "t").weights[layers[0].name][0] == pytest.approx(31 / 64 / 0.125)


def test_a_group_has_one_scale_the_largest_of_its_channels(make, net):
    layers, _ = net
    converted = to_ncnn(table_for(make, layers), layers)
    assert parse_ncnn(converted.content, "t").weights[layers[1].name] == (1 / 0.375, 1 / 0.75)
    assert any("one weight scale per group" in loss for loss in converted.losses)


def test_layers_come_back(make, net):
    layers, _ = net
    table = table_for(make, layers)
    foreign = read_ncnn(to_ncnn(table, layers).content, "t", layers)
    assert foreign.tensors == {name: entry.affine for name, entry in table.tensors.items()}
    assert foreign.weights[layers[2].key].scales == table.weights[layers[2].key].scales
    np.testing.assert_allclose(foreign.weights[layers[0].key].scales, table.weights[layers[0].key].scales, rtol=1e-6)
    assert foreign.weights[layers[1].key].scales == (0.375,) * 3 + (0.75,) * 3


def test_a_table_names_its_layers_without_the_model(make):
    (layer,) = layers_of_table(make.small(), "t")
    assert (layer.name, layer.input, layer.key) == ("conv", "x", "W")
    old = make.table({"x": Affine(1.0, 0, S8)}, {"W": WeightEntry("int8", 0, "s8", (1.0, 1.0))})
    with pytest.raises(TableError, match="--model"):
        layers_of_table(old, "t")


def test_layers_without_an_int8_form_are_left_out(bench, make):
    model = bench.text(
        "net (float[N,4,8,8] x) => (float[N,3,8,8] y) { t = ConvTranspose (x, W)\n y = Conv (t, V) }",
        W=(4, 5, 1, 1),
        V=(3, 5, 1, 1),
    )
    layers = layers_of_model(bench.prepared(model).model, bench.plan(model, target="openvino"))
    assert [layer.quantizable for layer in layers] == [False, True]
    converted = to_ncnn(table_for(make, layers), layers)
    assert len(converted.content.splitlines()) == 2
    assert any("without an int8 form" in loss for loss in converted.losses)


def test_the_names_of_pnnx_are_matched_in_order(bench):
    prepared = bench.prepared(ROOT / "sample_data" / "model.onnx")
    layers = layers_of_model(prepared.model, bench.plan(prepared.model))
    names = {layer.node: layer.name for layer in renamed(layers, PARAM.read_bytes(), "p")}
    assert names["/stem/Conv"] == "convclip_0"
    assert names["/block3/depthwise/Conv"] == "convdwclip_0"
    assert names["/block3/project/Conv"] == "conv_5"
    assert names["/head/Gemm"] == "linear_8"
    assert len(names) == len(layers) == 9
    # the first one stays float for speed, and so has no line, but its place in the file
    assert [layer.node for layer in layers if not layer.quantizable] == ["/stem/Conv"]


def test_a_param_file_of_another_model_is_refused(net):
    layers, _ = net
    with pytest.raises(TableError, match=r"p:5: layer 'convclip_0' \(Conv, 32 outputs, 1 groups, 288 weights"):
        renamed(layers, PARAM.read_bytes(), "p")


def test_onnx_layers_that_ncnn_does_not_have_are_passed_over(net):
    layers, _ = net
    text = "7767517\n2 2\nInput in0 0 1 in0\nConvolution only 1 1 in0 1 0=6 1=1 6=36\n"
    assert [(each.name, each.quantizable) for each in renamed(layers, text.encode(), "p")] == [
        (layers[0].node, False),
        (layers[1].node, False),
        ("only", True),
    ]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "p:1"),
        ("x\n", "p:1"),
        ("7767517\n1 1\nConvolution c\n", "p:3"),
        ("7767517\n1 1\nConvolution c 1 1 a b\n", "p:3"),
    ],
)
def test_a_malformed_param_file_is_refused_with_its_line(net, text, where):
    with pytest.raises(TableError) as caught:
        renamed(net[0], text.encode(), "p")
    assert str(caught.value).startswith(f"table: {where}")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"", "t:1: is empty"),
        (b"conv 1.0\nconv\n", "t:2: "),
        (b"conv one\n", "t:1: "),
        (b"conv 1.0 2.0\n", "t:1: has 2 numbers"),
        (b"conv 1.0\n\nconv 1.0\n", "t:3: 'conv' is on line 1 already"),
        (b"\xff 1.0\n", "t:1: is not UTF-8"),
    ],
)
def test_a_malformed_table_is_refused_with_its_line(text, where):
    with pytest.raises(TableError) as caught:
        parse_ncnn(text, "t")
    assert str(caught.value).startswith(f"table: {where}")


def test_infinite_scales_of_ncnn2table_are_named():
    # ncnn2table divides by the threshold, which is 0 for a channel of zeros
    layers = [NcnnLayer("a", "a", "W", "x", 0, 1), NcnnLayer("b", "b", "V", "z", 0, 1)]
    read = read_ncnn(b"a_param_0 inf \na inf \nb 2.0 \n", "t", layers)
    assert (read.unusable, read.weights, list(read.tensors)) == (("x",), {}, ["z"])


def test_a_table_of_other_names_says_what_to_do(net):
    with pytest.raises(TableError, match="--param"):
        read_ncnn(b"convrelu_0 3.0\n", "t", net[0])


def test_another_number_of_channels_is_refused(net):
    name = net[0][0].name
    with pytest.raises(TableError, match="has 2 weight scales, the model expects 8"):
        read_ncnn(f"{name} 3.0\n{name}_param_0 1.0 2.0\n".encode(), "t", net[0])


@pytest.mark.parametrize("name", ["a b", "tab\tbed", "", "x_param_0", "n" * 300])
def test_names_that_ncnn_cannot_read_are_refused(make, name):
    layer = NcnnLayer(name, "conv", "W", "x", 0, 2)
    with pytest.raises(TableError, match=r"name|layer"):
        to_ncnn(make.small(), [layer])


def test_the_real_runtime_computes_with_these_scales(make, tmp_path):
    """A convolution of ncnn's with our scales gives what Q, integer products and DQ give."""
    ncnn = pytest.importorskip("ncnn", reason="ncnn's runtime, an extra check: pip install ncnn")
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 16)).astype(np.float32)
    bias, x = rng.normal(size=4).astype(np.float32), np.abs(rng.normal(size=(16, 5, 5))).astype(np.float32)
    scales = tuple(float(np.float32(value)) for value in np.abs(weight).max(1) / 127)
    table = make.table(
        {"x": Affine(make.f32(x.max() / 255), 0, U8)}, {"W": WeightEntry("int8", 0, "s8", scales, "c", "x")}
    )
    parsed = parse_ncnn(to_ncnn(table, layers_of_table(table, "t")).content, "t")
    inverse = np.array(parsed.weights["c"], np.float32)
    codes = np.rint(weight * inverse[:, None]).astype(np.int8)
    # what ncnn2int8 writes: int8_scale_term in the .param; codes, bias, scales of weights and input in the .bin
    (tmp_path / "n.param").write_text(
        "7767517\n2 2\nInput in0 0 1 in0\nConvolution c 1 1 in0 out0 0=4 1=1 5=1 6=64 8=2\n"
    )
    (tmp_path / "n.bin").write_bytes(
        struct.pack("<I", 0x000D4B38)
        + codes.tobytes()
        + bias.tobytes()
        + inverse.tobytes()
        + struct.pack("<f", parsed.inputs["c"])
    )
    net = ncnn.Net()
    assert net.load_param(str(tmp_path / "n.param")) == net.load_model(str(tmp_path / "n.bin")) == 0
    extractor = net.create_extractor()
    extractor.input("in0", ncnn.Mat(x))
    _, out = extractor.extract("out0")
    scale = make.f32(255 * make.f32(x.max() / 255) / 127)
    x_hat = np.clip(np.rint(x / scale), -127, 127) * scale
    w_hat = codes * np.array(scales)[:, None]
    expected = np.einsum("oi,ihw->ohw", w_hat, x_hat) + bias[:, None, None]
    np.testing.assert_allclose(np.array(out), expected, atol=1e-5)


def test_a_table_without_a_layer_for_ncnn_is_refused(make):
    with pytest.raises(TableError, match="no layer that ncnn has an int8 form of"):
        to_ncnn(make.small(), [NcnnLayer("c", "c", "W", "x", 0, 2, quantizable=False)])
