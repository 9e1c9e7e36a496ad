"""What takes raw pixels and what does not, and the int8 model that comes out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from int8cal.data.pixels import UINT8_INPUT_KEY, Pixels
from int8cal.data.sample import Sample
from int8cal.errors import ConfigError, DataError, ModelError, TableError, UsageError
from int8cal.evaluation.layerwise import measure_layers
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.job import CalibrationSettings, DataSettings, Job, QuantizationSettings
from int8cal.preprocess import Preprocess
from int8cal.progress import Clock
from int8cal.quantization import build
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.uint8_input import Uint8Input, describe, plan_uint8_input, with_raw_pixels
from int8cal.quantization.derived_tables import without_noise_of
from int8cal.quantization.table import CalibrationTable, TableSettings
from int8cal.quantization.table_file import parse_table, table_to_json
from int8cal.runtime.targets import weight_range
from int8cal.search.candidate import Inputs
from int8cal.search.recipes import RECIPES, run_recipe
from int8cal.search.scorer import Holdout, Scorer

IMAGENET = Preprocess(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
NET = """g (float[N,3,8,8] x) => (float[A,B] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, W)
    r = Relu (c)
    d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r, V, b)
    e = Relu (d)
    p = GlobalAveragePool (e)
    f = Flatten (p)
    y = Gemm (f, G)
}"""
INSIDE = NET.replace("c = Conv <pads = [1, 1, 1, 1]> (x", "s = Sub (x, m)\n t = Div (s, k)\n c = Conv <pads = [1, 1, 1, 1]> (t")  # fmt: skip
LAST = NET.replace("[N,3,8,8] x", "[N,8,8,3] x").replace("c = Conv <pads = [1, 1, 1, 1]> (x", "t = Transpose <perm = [0, 3, 1, 2]> (x)\n c = Conv <pads = [1, 1, 1, 1]> (t")  # fmt: skip


def net(bench, text=NET, scale=1.0, seed=8):
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(6, 3, 3, 3)) * np.array([1, scale, 1, 1, 1, 1 / scale]).reshape(-1, 1, 1, 1)
    second = rng.normal(size=(8, 6, 3, 3)) / np.array([1, scale, 1, 1, 1, 1 / scale]).reshape(1, -1, 1, 1)
    constants = {}
    if text == INSIDE:
        constants = {
            "m": np.float32([0.1, -0.1, 0.2]).reshape(3, 1, 1),
            "k": np.float32([0.9, 1.0, 1.1]).reshape(3, 1, 1),
        }
    return bench.text(text, W=first, V=second, b=(8,), G=(8, 5), **constants)


def pixel_samples(pixels, shape, count=12, seed=2):
    rng = np.random.default_rng(seed)
    axis = [1] * len(shape)
    if pixels.axis is not None:
        axis[pixels.axis] = -1
    for index in range(count):
        low, high = sorted(rng.integers(0, 256, 2).tolist())
        codes = rng.integers(low, high + 1, shape).astype(np.float64)
        x = codes * pixels.gain.reshape(axis) + pixels.offset.reshape(axis)
        yield Sample({pixels.input: x.astype(np.float32)}, f"sample {index}")


def made(bench, model, preprocess, *, uint8=True, samples=None, **settings):
    """The stations of pipeline.calibrate_model: (prepared, plan, samples, result, int8 model)."""
    quantization = QuantizationSettings(uint8_input=uint8, **settings)
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection((), (), pixels=True))
    taken = plan_uint8_input(prepared, plan, preprocess, replace(quantization, uint8_input=True))
    shape = [side if isinstance(side, int) else 1 for side in prepared.signature.inputs[0].shape]
    samples = samples or list(pixel_samples(taken.pixels, shape))
    statistics = bench.statistics(prepared, plan, samples)
    blank = CalibrationTable(
        {"sha256": prepared.sha256, "name": "net"},
        {"samples": len(samples)},
        TableSettings({"weights": weight_range(quantization)}),
        {},
        {},
    )
    blank, notes = with_raw_pixels(blank, taken if uint8 else None, prepared.model, plan, statistics.tensors)
    rule = RECIPES["fast"]
    job = Job(Path("net.onnx"), DataSettings("."), CalibrationSettings(method="max"), quantization)
    scorer = Scorer(prepared.model, prepared.signature, samples, threads=1)
    holdout = Holdout(prepared.signature, (), scorer)
    corrected = run_recipe(Inputs(prepared.model, plan, statistics, job, blank, holdout, rule, notes), Clock())
    return prepared, plan, samples, corrected, corrected.model


def refused(bench, model, preprocess=IMAGENET, exclude=(), **settings):
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection((), exclude, pixels=True))
    plan_uint8_input(prepared, plan, preprocess, QuantizationSettings(uint8_input=True, **settings))


def initializer(model, name):
    return onnx.numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


@pytest.mark.parametrize("text", [NET, LAST, INSIDE], ids=["channels first", "channels last", "normalized inside"])
def test_the_model_takes_pixels_and_has_no_q_at_its_input(bench, text):
    prepared, _, samples, corrected, int8 = made(bench, net(bench, text), IMAGENET)
    onnx.checker.check_model(int8, full_check=True)
    (value,) = int8.graph.input
    assert value.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    inputs = {name for node in int8.graph.node if node.op_type == "QuantizeLinear" for name in node.input}
    assert not inputs & {"x", "t"}
    pixels = Pixels.from_dict(json.loads({item.key: item.value for item in int8.metadata_props}[UINT8_INPUT_KEY]))
    feed = samples[0].feed["x"]
    for optimization in ("none", "all"):
        got = bench.run(int8, {"x": pixels.codes(feed, "")}, optimization)["y"]
        expected = bench.run(prepared.model, {"x": feed})["y"]
        assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    (pixels_note,) = [each for each in corrected.decisions if "raw pixels at x" in each]
    assert set(corrected.tensors).isdisjoint({"x", "t"})
    assert {node.op_type for node in int8.graph.node}.isdisjoint({"Sub", "Div", "Identity"})
    folded = ["Sub_s", "Div_t"] if text == INSIDE else []
    assert list(Uint8Input.of(corrected.table).folded) == folded
    assert all(name in pixels_note for name in folded)


@pytest.mark.parametrize("text", [NET, LAST, INSIDE], ids=["channels first", "channels last", "normalized inside"])
def test_codes_in_place_of_values_change_no_bit(bench, monkeypatch, text):
    prepared, plan, samples, corrected, int8 = made(bench, net(bench, text), IMAGENET)
    monkeypatch.setattr(build, "take_codes", lambda model, _: model)
    floats = build_model(prepared.model, plan, corrected.table).model
    entry = corrected.table.tensors["x"]
    pixels = Uint8Input.of(corrected.table).pixels
    for sample in samples:
        codes = pixels.codes(sample.feed["x"], "")
        values = ((codes.astype(np.float64) - entry.zero_point) * entry.scale).astype(np.float32)
        for optimization in ("none", "all"):
            first, second = bench.run(floats, {"x": values}, optimization), bench.run(int8, {"x": codes}, optimization)
            np.testing.assert_array_equal(first["y"], second["y"])


def test_the_error_is_no_larger_than_with_a_float_input(bench):
    gains = []
    for seed in range(6):
        model = net(bench, LAST if seed % 2 else NET, seed=seed)
        prepared, _, samples, _, floats = made(bench, model, IMAGENET, uint8=False)
        *_, pixels = made(bench, model, IMAGENET)
        scorer = Scorer(prepared.model, prepared.signature, samples, threads=1)
        gains.append(scorer(pixels).db - scorer(floats).db)
    # a network this small has luck: single ones differ by up to 2 dB either way
    assert np.mean(gains) > -0.5


@pytest.mark.parametrize("scale", [1.0, 64.0], ids=["plain", "equalized"])
@pytest.mark.parametrize("text", [NET, LAST, INSIDE], ids=["channels first", "channels last", "normalized inside"])
def test_the_table_gives_the_same_bytes_again(bench, text, scale):
    prepared, plan, _, corrected, int8 = made(bench, net(bench, text, scale), IMAGENET)
    assert bool(Equalization.of(corrected.table)) == (scale > 1)
    table = parse_table(table_to_json(corrected.table), "t.json")
    again = build_model(prepared.model, plan, table).model
    assert again.SerializeToString(deterministic=True) == int8.SerializeToString(deterministic=True)


def test_equalization_of_the_first_layer_still_pays(bench):
    prepared, _, samples, corrected, int8 = made(bench, net(bench, scale=64.0), IMAGENET)
    assert Equalization.of(corrected.table)
    assert Scorer(prepared.model, prepared.signature, samples, threads=1)(int8).db > 25
    layers, reasons, _ = measure_layers(prepared.model, int8, samples, threads=1)
    assert {layer.tensor for layer in layers} >= {"r", "e"}
    assert all(layer.sqnr_db > 20 for layer in layers)
    assert "layers.missing" not in reasons


def test_layers_may_stay_float_for_gates_where_channels_were_rescaled(bench):
    prepared, plan, samples, corrected, _ = made(bench, net(bench, scale=64.0), IMAGENET)
    assert Equalization.of(corrected.table)
    left = {plan.layers[-1].node: "so that the gates hold"}
    smaller = make_plan(prepared.model, Selection((), (), tuple(left.items())))
    table = without_noise_of(corrected.table, (plan, smaller), left)
    assert table.tensors.keys() < corrected.table.tensors.keys()
    built = build_model(prepared.model, smaller, table)
    assert Scorer(prepared.model, prepared.signature, samples, threads=1)(built.model).db > 25


def test_the_table_says_what_the_input_is(bench):
    *_, corrected, int8 = made(bench, net(bench), IMAGENET)
    entry = corrected.table.tensors["x"]
    assert (entry.dtype, entry.method, entry.source, entry.clipped) == ("uint8", "pixels", "calibrated", 0.0)
    assert entry.zero_point == 114
    assert entry.low == -114 * entry.scale
    assert all(name in corrected.table.tensors for name in ("x", "x_with_ones"))
    assert entry.low <= entry.observed[0] <= entry.observed[1] <= entry.high
    assert corrected.table.tensors["x_with_ones"].source == "shared"
    assert Uint8Input.of(corrected.table).to_json() == {
        "input": "x",
        "axis": 1,
        "scale": 1 / 255,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "ones": Uint8Input.of(corrected.table).ones,
        "folded": [],
    }
    # the table's scale is the one that the model holds
    assert initializer(int8, "x_with_ones_scale") == np.float32(entry.scale)


def test_statistics_do_not_know_of_it(bench):
    prepared = bench.prepared(net(bench))
    plan = make_plan(prepared.model, Selection((), (), pixels=True))
    taken = plan_uint8_input(prepared, plan, IMAGENET, QuantizationSettings(uint8_input=True))
    samples = list(pixel_samples(taken.pixels, (1, 3, 8, 8)))
    statistics = bench.statistics(prepared, plan, samples)
    before = {name: value.counts.copy() for name, value in statistics.tensors.items()}
    made(bench, net(bench), IMAGENET, samples=samples)
    assert all(np.array_equal(statistics.tensors[name].counts, counts) for name, counts in before.items())


@pytest.mark.parametrize("name", ["x", "x_with_ones"])
def test_an_edited_input_scale_keeps_the_function(bench, name):
    prepared, plan, samples, corrected, int8 = made(bench, net(bench), IMAGENET)
    document = json.loads(table_to_json(corrected.table))
    document["tensors"][name] |= {"scale": 0.25 * document["tensors"][name]["scale"], "zero_point": 100}
    edited = build_model(prepared.model, plan, parse_table(json.dumps(document), "t.json")).model
    scorer = Scorer(prepared.model, prepared.signature, samples, threads=1)
    assert scorer(edited).db > scorer(int8).db - 3


REFUSALS = {
    "Relu 'Relu_n' reads the input 'x' and is no": "n = Relu (x)\n y = Conv (n, W)",
    "Relu 'Relu_n' reads 'k', made of the input 'x', and is no": "k = Mul (x, m)\n n = Relu (k)\n y = Conv (n, W)",
    "Div 'Div_n' reads the input": "n = Div (m, x)\n y = Conv (n, W)",
    "does not depend on pixels": "n = Mul (x, zero)\n y = Conv (n, W)",
    "Mul 'Mul_n' changes the shape": "n = Mul (x, two_images)\n y = Conv (n, W)",
    "Resize 'Resize_n' reads the input": 'n = Resize <mode = "nearest"> (x, roi, two)\n y = Conv (n, W)',
    "Add 'Add_y' reads the input": "c = Conv <pads = [1, 1, 1, 1]> (x, W)\n y = Add (c, x)",
    "Concat 'Concat_n' reads the input": "n = Concat <axis = 2> (x, x)\n y = Conv (n, W)",
    "MaxPool 'MaxPool_n' reads the input": "n = MaxPool <kernel_shape = [2, 2]> (x)\n y = Conv (n, W)",
    "its weights are not constant": "n = Identity (W)\n s = Shape (x)\n v = Cast <to = 1> (s)\n z = ReduceMin <keepdims = 0> (v)\n q = Mul (W, z)\n c = Conv (x, q)\n y = Conv (c, W)",
    "mixes the image's channels": "n = Transpose <perm = [0, 3, 2, 1]> (x)\n y = Conv (n, U)",
    "passed on to output": "y = Transpose <perm = [0, 1, 3, 2]> (x)\n z = Conv (y, W)",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSALS)
def test_what_cannot_take_pixels_is_named(bench, words):
    model = bench.text(
        f"g (float[N,3,8,8] x) => (float[A,B,C,D] y{', float[E,F,G,H] z' if ' z = Conv' in REFUSALS[words] else ''}) {{ {REFUSALS[words]} }}",
        W=(3, 3, 3, 3),
        U=(3, 8, 1, 1),
        m=(1, 3, 1, 1),
        zero=np.float32([1, 0, 1]).reshape(1, 3, 1, 1),
        two_images=np.ones((2, 1, 1, 1), np.float32),
        roi=np.zeros(0, np.float32),
        two=np.float32([1, 1, 2, 2]),
    )
    with pytest.raises(ModelError, match=words):
        refused(bench, model)


def test_floats_stay_floats_unless_asked(bench):
    prepared = bench.prepared(net(bench))
    plan = make_plan(prepared.model, Selection((), ()))
    assert plan_uint8_input(prepared, plan, IMAGENET, QuantizationSettings()) is None


def test_an_excluded_first_layer_is_named_with_the_reason(bench):
    with pytest.raises(ModelError, match=r"Conv 'Conv_c' reads the input 'x' \(excluded by the user\)"):
        refused(bench, net(bench), exclude=("Conv_c",))


def test_a_product_without_bias_cannot_take_a_mean(bench):
    model = bench.text("g (float[N,8,8] x) => (float[A,B,C] y) { y = MatMul (x, W) }", W=(8, 5))
    with pytest.raises(ModelError, match="MatMul 'MatMul_y' has no bias"):
        refused(bench, model, Preprocess(mean=(3.5,)))
    refused(bench, model, Preprocess(scale=1 / 255))


def test_signed_activations_and_a_range_for_the_input_contradict_it(bench):
    with pytest.raises(UsageError, match="activations u8"):
        refused(bench, net(bench), activations="s8")
    with pytest.raises(ConfigError, match="gives a range for 'x'"):
        refused(bench, net(bench), ranges={"x": (-1.0, 1.0)})


def test_a_shape_may_be_asked_of_the_input(bench):
    model = bench.text(
        """g (float[N,3,8,8] x) => (float[A,B] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, W)
            s = Shape <end = 1> (x)
            t = Concat <axis = 0> (s, m)
            y = Reshape (c, t)
        }""",
        W=(2, 3, 3, 3),
        m=np.int64([128]),
    )
    *_, int8 = made(bench, model, IMAGENET)
    assert bench.run(int8, {"x": np.zeros((1, 3, 8, 8), np.uint8)}, "all")["y"].shape == (1, 128)


def test_values_that_are_no_pixels_are_refused(bench):
    wild = [Sample({"x": np.full((1, 3, 8, 8), 9.0, np.float32)}, "wild")]
    with pytest.raises(DataError, match="not 0 to 255"):
        made(bench, net(bench), IMAGENET, samples=wild)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": "z"}, "which is not an input"),
        ({"ones": 256}, "expected null or a code"),
        ({"ones": True}, "expected null or a code"),
        ({"std": [1.0]}, 'one "mean" and one "std"'),
    ],
)  # fmt: skip
def test_a_malformed_record_is_the_table_s_fault(bench, change, words):
    prepared, plan, _, corrected, _ = made(bench, net(bench), IMAGENET)
    record = Uint8Input.of(corrected.table).to_json() | change
    with pytest.raises(TableError, match=words):
        Uint8Input.read(record, "").readers(prepared.model, plan)


def test_a_record_for_another_selection_is_refused(bench):
    prepared, _, _, corrected, _ = made(bench, net(bench), IMAGENET)
    plan = make_plan(prepared.model, Selection((), ("Conv_c",)))
    with pytest.raises(TableError, match="Conv_c"):
        Uint8Input.of(corrected.table).readers(prepared.model, plan)


def test_nothing_is_said_about_padding_where_no_convolution_reads_the_image(bench):
    text = "g (float[N,1,4,4] x) => (float[N,2] y) { f = Flatten (x) y = Gemm (f, G, b) }"
    prepared = bench.prepared(bench.text(text, G=(16, 2), b=(2,)))
    plan = make_plan(prepared.model, Selection())
    uint8 = plan_uint8_input(prepared, plan, Preprocess(mean=(0.3,)), QuantizationSettings(uint8_input=True))
    assert (
        describe(uint8, uint8.readers(prepared.model, plan))
        == "raw pixels at x: scale, mean and std folded into Gemm_y"
    )
