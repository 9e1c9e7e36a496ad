"""Layers without a calibrated range through the commands: `--activations auto` and `--weights-only`."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.slow

NET = """<ir_version: 9, opset_import: ["" : 17]>
net (float[N,8,16] x) => (float[N,5] y) {
    [first] a = MatMul (x, A)
    [norm] b = LayerNormalization <axis = -1> (a, gain, shift)
    [second] c = MatMul (b, B)
    [act] d = Tanh (c)
    [pool] e = ReduceMean <axes = [1], keepdims = 0> (d)
    [head] y = Gemm <transB = 1> (e, C, bias)
}"""
PICTURES = """<ir_version: 9, opset_import: ["" : 17]>
pictures (float[N,4,8,8] x) => (float[N,5] y) {
    [conv] a = Conv <pads = [1, 1, 1, 1]> (x, K, p)
    [relu] b = Relu (a)
    [up] c = ConvTranspose <strides = [2, 2]> (b, T)
    [pool] d = GlobalAveragePool (c)
    [flat] e = Flatten (d)
    [head] y = Gemm (e, C, bias)
}"""


def save(path, text, values):
    model = onnx.parser.parse_model(text)
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    onnx.save(model, path)


def save_net(folder):
    """A model whose samples differ in size by up to 1000: what is behind the normalization sees the quiet ones too."""
    rng = np.random.default_rng(7)
    # neighbours of one sign, as large as they come: saturation's worst case
    first = np.abs(rng.normal(size=(16, 24))) + 1
    values = {"A": first * np.sign(rng.normal(size=24)), "gain": np.ones(24), "shift": np.zeros(24)}
    values |= {"B": rng.normal(size=(24, 16)), "C": rng.normal(size=(5, 16)), "bias": rng.normal(size=5)}
    save(folder / "net.onnx", NET, values)
    x = rng.normal(size=(48, 8, 16)) * 10.0 ** rng.uniform(-2, 1, size=(48, 1, 1))
    np.savez(folder / "data.npz", x=x.astype(np.float32))


def save_pictures(folder):
    rng = np.random.default_rng(8)
    size = 2.0 ** np.arange(6)[:, None, None, None]  # one scale for all channels would be coarse
    values = {
        "K": rng.normal(size=(6, 4, 3, 3)) / size,
        "p": rng.normal(size=6),
        "T": rng.normal(size=(6, 4, 2, 2)) * size,
    }
    save(folder / "net.onnx", PICTURES, values | {"C": rng.normal(size=(4, 5)), "bias": rng.normal(size=5)})
    np.savez(folder / "data.npz", x=rng.normal(size=(24, 4, 8, 8)).astype(np.float32))


def calibrate(call, *more, out="out"):
    return call("calibrate", "net.onnx", "--data", "data.npz", "-o", out, "--no-latency", *more)


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def results(shared, tmp_path_factory):
    """One run for all tests that need its files: `auto` beside the default."""
    folder = tmp_path_factory.mktemp("forms")
    save_net(folder)
    for out, more in (("out", ("--activations", "auto")), ("static", ())):
        done = calibrate(lambda *each: shared(folder, *each), *more, out=out)
        assert done.code == 0, done.err
    return folder


def initializers(path):
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}


def test_a_range_at_run_time_is_taken_where_samples_differ_in_size(calibrated):
    table = read(calibrated, "out/net.table.json")
    assert table["settings"]["activations"] == "auto"
    assert table["settings"]["forms"]["first"] == "dynamic"
    assert "x" not in table["tensors"]
    assert table["weights"]["A"]["range"] == "paired"
    ops = {node.name: node.op_type for node in onnx.load(calibrated / "out" / "net.int8.onnx").graph.node}
    assert ops["first"] == "MatMulInteger"
    auto, static = (read(calibrated, f"{out}/report.json") for out in ("out", "static"))
    assert auto["metrics"]["sqnr_db"] > static["metrics"]["sqnr_db"] + 6
    assert any("ranges at run time" in line and "kept" in line for line in auto["decisions"])
    assert auto["saturation"]["unsafe_channels"] == 0
    assert "forms" not in read(calibrated, "static/net.table.json")["settings"]


def test_quantize_writes_the_same_bytes(call, calibrated):
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (calibrated / "again.onnx").read_bytes() == (calibrated / "out" / "net.int8.onnx").read_bytes()


def test_a_dynamic_product_is_what_the_formula_says(calibrated):
    names = initializers(calibrated / "out" / "net.int8.onnx")
    codes, scales = names["A_quantized"].astype(np.float64), names["A_scale"].astype(np.float64)
    model = onnx.load(calibrated / "out" / "net.int8.onnx")
    (product,) = (node for node in model.graph.node if "a" in node.output)
    model.graph.output.append(onnx.ValueInfoProto(name="a"))
    assert product.op_type == "Mul"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in np.load(calibrated / "data.npz")["x"][:4]:
        (actual,) = session.run(["a"], {"x": x[np.newaxis]})
        scale = (max(x.max(), 0) - min(x.min(), 0)) / 255
        zero = np.clip(np.rint(-min(x.min(), 0) / scale), 0, 255)
        real = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
        expected = real @ (codes * scales)
        # a value on the edge between two codes may fall to either side
        assert np.abs(actual[0] - expected).max() <= 2 * scale * np.abs(codes * scales).max()
        assert np.median(np.abs(actual[0] - expected)) <= 1e-5 * np.abs(expected).max()


def test_no_two_neighbours_of_a_dynamic_layer_can_saturate(call, calibrated):
    codes = initializers(calibrated / "out" / "net.int8.onnx")["A_quantized"].astype(np.int64)
    high, low = np.maximum(codes, 0), np.minimum(codes, 0)
    for part in (high, low):
        assert (255 * np.abs(part[0::2] + part[1::2])).max() <= 32767
    assert np.abs(codes).max() > 63  # as large as that allows
    done = call("audit", "out/net.int8.onnx", "--gate", "unsafe_channels<=0")
    assert done.code == 0, done.err
    # the same weights as s8 would
    table = read(calibrated, "out/net.table.json")
    table["settings"]["weights"] = "s8"
    table["corrections"].pop("rounding", None)  # codes of other weights, where rounding was worth it
    (calibrated / "s8.table.json").write_text(json.dumps(table))
    assert call("quantize", "net.onnx", "--table", "s8.table.json", "-o", "s8.onnx").code == 0
    done = call("audit", "s8.onnx", "--gate", "unsafe_channels<=0")
    assert done.code == 7
    assert "first" in done.out


@pytest.mark.parametrize(
    ("forms", "message"),
    [
        ({"nowhere": "dynamic"}, "names the node 'nowhere', which the model does not have"),
        ({"first": "slow"}, "expected node names with dynamic or weights"),
        ({"norm": "dynamic"}, "is dynamic for node 'norm', but it has no weights"),
    ],
)
def test_an_edited_form_that_cannot_be_ends_with_6(call, calibrated, forms, message):
    table = read(calibrated, "out/net.table.json")
    table["settings"]["forms"] = forms
    (calibrated / "edited.table.json").write_text(json.dumps(table))
    done = call("quantize", "net.onnx", "--table", "edited.table.json", "-o", "again.onnx")
    assert done.code == 6
    assert message in done.message


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--activations", "auto", "--target", "openvino"), "target openvino takes activations u8 or s8, not auto"),
        (
            ("--weights-only", "--recipe", "accurate"),
            "weights_only leaves all activations in float, so there is nothing",
        ),
        (("--weights-only", "--activations", "u16"), "nothing for activations u16 to do"),
        (("--weights-only", "--method", "kl"), "nothing for method kl to do"),
        (("--weights-only", "--percentile", "99.9"), "nothing for percentile 99.9 to do"),
        (("--weights-only", "--target", "tensorrt"), "target tensorrt takes weights of 8 bits only beside activations"),
    ],
)
def test_what_a_target_cannot_have_is_told(call, tmp_path, more, message):
    save_net(tmp_path)
    done = calibrate(call, *more)
    assert done.code == 2
    assert message in done.message


@pytest.mark.parametrize("save_model", [save_net, save_pictures])
def test_weights_alone_are_int8_and_activations_stay_float(call, tmp_path, save_model):
    save_model(tmp_path)
    done = calibrate(call, "--weights-only")
    assert done.code == 0, done.err
    table, report = read(tmp_path, "out/net.table.json"), read(tmp_path, "out/report.json")
    assert not table["tensors"]
    assert {each["range"] for each in table["weights"].values()} == {"s8"}
    assert len(table["weights"]) == 3
    assert report["metrics"]["sqnr_db"] > 33
    names = initializers(tmp_path / "out" / "net.int8.onnx")
    floats = {each.name for each in onnx.load(tmp_path / "net.onnx").graph.initializer if len(each.dims) > 1}
    assert not floats & names.keys()
    assert {"QuantizeLinear", "DynamicQuantizeLinear"}.isdisjoint(
        node.op_type for node in onnx.load(tmp_path / "out" / "net.int8.onnx").graph.node
    )
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "net.int8.onnx").read_bytes()


def test_patterns_choose_layers_of_which_only_the_weights_become_int8(call, tmp_path):
    save_pictures(tmp_path)
    job = {"model": "net.onnx", "data": "data.npz", "quantization": {"weights_only": ["op:ConvTranspose", "he*"]}}
    job |= {"output": {"dir": "out"}, "evaluation": {"latency": False}}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = call("run", "job.yaml")
    assert done.code == 0, done.err
    table = read(tmp_path, "out/net.table.json")
    assert table["settings"]["weights_only"] == ["op:ConvTranspose", "he*"]
    assert {name: each["range"] for name, each in table["weights"].items()} == {"K": "paired", "T": "s8", "C": "s8"}
    assert "x" in table["tensors"]
    job["quantization"]["weights_only"] = ["haed"]
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = call("run", "job.yaml")
    assert done.code == 2
    assert "pattern 'haed' matches no node; did you mean 'head'?" in done.err


def test_a_conversion_tells_of_layers_without_a_range(call, calibrated):
    done = call("table", "out/net.table.json", "--to", "tensorrt", "-o", "net.cache")
    assert done.code == 0, done.err
    assert "no calibrated range (settings.forms)" in done.out + done.err


# samples that differ in size by 1000 leave the quiet ones few of 16 bits; else the noise is that of weights alone
@pytest.mark.parametrize(("save_model", "below_alone"), [(save_net, 9.0), (save_pictures, 1.5)])
def test_activations_of_16_bits_are_nearly_as_good_as_float_ones(call, tmp_path, save_model, below_alone):
    save_model(tmp_path)
    done = calibrate(call, "--activations", "u16")
    assert done.code == 0, done.err
    assert "activations of 16 bits" in done.err
    table, report = read(tmp_path, "out/net.table.json"), read(tmp_path, "out/report.json")
    assert {each["dtype"] for each in table["tensors"].values()} == {"uint16"}
    assert {each["range"] for each in table["weights"].values()} == {"s8"}
    assert any("activations of 16 bits" in line for line in report["warnings"])
    assert report["saturation"]["unsafe_channels"] == 0
    model = onnx.load(tmp_path / "out" / "net.int8.onnx")
    onnx.checker.check_model(model)
    assert model.opset_import[0].version == 21
    assert {node.domain for node in model.graph.node} == {""}
    assert calibrate(call, "--weights-only", out="alone").code == 0
    assert report["metrics"]["sqnr_db"] > read(tmp_path, "alone/report.json")["metrics"]["sqnr_db"] - below_alone
    # 16 bits, one of which is for values that were not seen
    x = table["tensors"]["x"]
    low, high = x["observed"]
    assert x["scale"] == pytest.approx(2 * (max(high, 0) - min(low, 0)) / 65535)
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "net.int8.onnx").read_bytes()
    done = call("table", "out/net.table.json", "--to", "tensorrt", "-o", "net.cache")
    assert done.code == 6
    assert "has activations of 16 bits ('x')" in done.message
    done = call("audit", "out/net.int8.onnx", "--gate", "unsafe_channels<=0")
    assert done.code == 0, done.err
    assert call("inspect", "out/net.table.json").code == 0


def test_16_bits_are_refused_where_the_target_has_none(call, tmp_path):
    save_net(tmp_path)
    done = calibrate(call, "--activations", "u16", "--target", "tensorrt")
    assert done.code == 2
    assert "target tensorrt takes activations s8, not u16" in done.message


RESIDUAL = """<ir_version: 9, opset_import: ["" : 17]>
net (float[N,S,16] x) => (float[N,S,16] y) {
    [product] a = MatMul (x, A)
    [shift] b = Add (a, bias)
    [residual] c = Add (x, b)
    [norm] y = LayerNormalization <axis = -1> (c, gain, offset)
}"""


def test_a_dynamic_product_with_a_residual_keeps_the_kernels_behind_it(call, tmp_path):
    rng = np.random.default_rng(9)
    values = {"A": rng.normal(size=(16, 16)), "bias": rng.normal(size=16), "gain": np.ones(16), "offset": np.zeros(16)}
    save(tmp_path / "net.onnx", RESIDUAL, values)
    x = rng.normal(size=(48, 8, 16)) * 10.0 ** rng.uniform(-2, 1, size=(48, 1, 1))
    np.savez(tmp_path / "data.npz", x=x.astype(np.float32))
    done = calibrate(call, "--activations", "auto")
    assert done.code == 0, done.err
    assert read(tmp_path, "out/net.table.json")["settings"]["forms"] == {"product": "dynamic"}
    assert read(tmp_path, "out/report.json")["metrics"]["sqnr_db"] > 30
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(tmp_path / "out" / "net.int8.onnx"), options, providers=["CPUExecutionProvider"]
    )
    ops = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert "SkipLayerNormalization" not in ops
    assert ops & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    # any batch and length
    (y,) = session.run(None, {"x": np.ones((3, 5, 16), np.float32)})
    assert y.shape == (3, 5, 16)
