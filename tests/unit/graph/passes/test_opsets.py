"""Models of old opsets compute what they did before."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from int8cal.errors import ModelError
from int8cal.graph.prepare import normalize
from int8cal.runtime.sessions import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


CONSTANTS = {
    "larger": np.array([1, 1, 2, 3], np.float32),
    "smaller": np.array([1, 1, 0.5, 0.6], np.float32),
    "both": np.array([1, 1, 0.5, 2], np.float32),
    "back": np.array([1, 1, 2, 0.5], np.float32),
    "count": np.array([2]),
    "a": normal(3),
    "b": normal(3),
    "v": np.array([1, 2, 0.5], np.float32),
    "slope": normal(3, 1, 1),
    "ends": normal(5),
    "row": np.array([6, 4, 5]),
    "W": normal(1, 8, 5),
    "R": normal(1, 8, 2),
    "G": normal(7, 60),
    "g": normal(7),
}
# whatever changed its form or meaning between opset 7 and 13
NODES = {
    "softmax": "y = Softmax (x)",
    "softmax of all": "y = Softmax <axis = 0> (x)",
    "softmax inside": "y = LogSoftmax <axis = 2> (x)",
    "hardmax": "y = Hardmax (x)",
    "hardmax of all": "y = Hardmax <axis = 0> (x)",
    "hardmax of the last": "y = Hardmax <axis = 3> (x)",
    "clip": "y = Clip <min = -0.5, max = 0.5> (x)",
    "dropout": "y = Dropout <ratio = 0.5> (x)",
    "pad": "y = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1], value = 1.5> (x)",
    "slice": "y = Slice <axes = [2, 3], starts = [1, -3], ends = [3, 1000]> (x)",
    "upsample 7": 'y = Upsample <mode = "nearest", scales = [1.0, 1.0, 1.5, 3.0]> (x)',
    "upsample": 'y = Upsample <mode = "linear"> (x, larger)',
    "resize": "y = Resize (x, larger)",
    "resize to less": "y = Resize (x, smaller)",
    "resize both ways": "y = Resize (x, both)",
    "resize linear": 'y = Resize <mode = "linear"> (x, both)',
    "topk": "y, i = TopK <k = 2, axis = 1> (x)",
    "topk 10": "y, i = TopK (x, count)",
    "split": "y, z = Split <axis = 3, split = [2, 3]> (x)",
    "squeeze": "u = Slice <axes = [1], starts = [0], ends = [1]> (x) y = Squeeze (u)",
    "unsqueeze": "y = Unsqueeze <axes = [1, 3]> (x)",
    "reduce": "u = ReduceSum <axes = [1, -1], keepdims = 0> (x) m = ReduceMax (x) y = Add (u, m)",
    "pool": "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)",
    "norm": "y = BatchNormalization (x, a, b, a, v)",
    "prelu": "y = PRelu (x, slope)",
    "max": "y = Max (x, ends)",
    "gemm": "f = Flatten (x) y = Gemm <transB = 1> (f, G, g)",
    "lstm": "u = Reshape (x, row) y = LSTM <hidden_size = 2> (u, W, R)",
    "in a branch": """y = If (flag) <then_branch = yes () => (float[] p) { p = Hardmax (x) },
        else_branch = no () => (float[] q) { s = Resize (x, both) q = Resize (s, back) }>""",
}


def made(text, opset, shape):
    header = f"net (float{shape} x{', bool flag' if 'flag' in text else ''}) => (float[] y)"
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> {header} {{ {text} }}')
    known = (name for name in CONSTANTS if re.search(rf"\b{name}\b", text))
    model.graph.initializer.extend(numpy_helper.from_array(CONSTANTS[name], name) for name in known)
    return model


@pytest.mark.parametrize("shape", ["[2, 3, 4, 5]", "[N, 3, H, W]", "[]"])
@pytest.mark.parametrize("text", NODES.values(), ids=NODES)
def test_an_op_computes_what_it_did(text, shape):
    ran = 0
    for opset in range(7, 13):
        model = made(text, opset, shape)
        for flag in (True, False) if "flag" in text else (True,):
            feed = {"x": X} | ({"flag": np.array(flag)} if "flag" in text else {})
            try:
                expected = Session(model, threads=1).run(feed)["y"]
            except Exception:  # noqa: BLE001, S112 - the op has another form at this opset
                continue
            given = Session(normalize(model, "net"), threads=1).run(feed)["y"]
            np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6, err_msg=str(opset))
            ran += 1
    assert ran


def test_slopes_of_opset_6_belong_to_channels_whatever_the_last_axis_is():
    nodes = "r = PRelu (x, s) y = PRelu (r, one)"
    slopes = np.array([0.1, 0.2, 0.3], np.float32)
    x = RNG.normal(size=(2, 3, 4, 3)).astype(np.float32)
    model = made(nodes, 6, "[N, 3, H, W]")
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in (("s", slopes), ("one", np.ones(1, np.float32)))
    )
    given = Session(normalize(model, "net")).run({"x": x})["y"]
    np.testing.assert_allclose(given, np.where(x < 0, x * slopes[:, None, None], x), rtol=1e-6)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="slope per channel, and the rank of 'x' is unknown"):
        normalize(model, "net")


def test_what_broadcasts_below_opset_7_needs_fixed_sizes():
    text = "g ({0} x) => ({0} y) <float[4,4] w = {{{1}}}, float[4] b = {{0, 0, 0, 0}}> {{ y = Gemm <broadcast = 1> (x, w, b) }}"
    text = f'<ir_version: 3, opset_import: ["" : 6]> {text}'
    ones = ", ".join(["1"] * 16)
    normalize(onnx.parser.parse_model(text.format("float[1,4]", ones)), "net")
    with pytest.raises(
        ModelError, match="opset 6 cannot be raised to 13: below opset 7 that takes tensors of fixed sizes"
    ):
        normalize(onnx.parser.parse_model(text.format("float[N,4]", ones)), "net")


def test_scan_of_opset_8_is_refused():
    scan = "Scan <num_scan_inputs = 1, body = step (float[3] s) => (float[3] o) { o = Relu (s) }> (x, x)"
    net = f"net (float[2,4,3] x) => (float[2,4,3] y) {{ y = {scan} }}"
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 8]> {net}')
    with pytest.raises(ModelError, match="opset 8 cannot be raised to 13: Scan of opset 8 takes a batch"):
        normalize(model, "net")


def test_graphs_of_the_backend_tests_compute_what_their_data_say():
    ran = 0
    for case in [
        each for kind in ("simple", "pytorch-operator", "pytorch-converted") for each in load_model_tests(kind=kind)
    ]:
        folder = Path(case.model_dir or "")
        if case.model_dir is None or not (folder / "model.onnx").is_file():
            continue
        model = onnx.load(folder / "model.onnx")
        if model.opset_import[0].version >= 13 or len(model.opset_import) > 1:
            continue
        given = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in given]
        read = [
            [
                numpy_helper.to_array(onnx.load_tensor(folder / f"test_data_set_0/{what}_{number}.pb"))
                for number in range(count)
            ]
            for what, count in (("input", len(names)), ("output", len(model.graph.output)))
        ]
        if any(each.dtype == object for each in read[0] + read[1]):
            continue
        outputs = Session(normalize(model, case.name), threads=1).run(dict(zip(names, read[0], strict=True)))
        for value, expected in zip(outputs.values(), read[1], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5, err_msg=case.name)
        ran += 1
    assert ran > 50
