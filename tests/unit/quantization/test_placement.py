"""Where int8cal puts Q and DQ against what onnxruntime makes of them: every pair ends in an integer kernel or is named here.

Graphs are small: an op behind a layer, in front of one, between two, or between float ops. What onnxruntime has
optimized must hold no Q whose codes only a DQ reads, no constant codes that are dequantized at every inference, and no
float op between a DQ and a Q but those of STAYS.
"""

import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from int8cal.runtime.sessions import Session

pytestmark = pytest.mark.newest  # which ops have integer kernels is the runtime's matter, and changes with its versions

MOVES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice"})
NO_CODES = "codes for float ops alone"
EVERY_TIME = "constants dequantized at every inference"

# op -> (how it is written over the tensor "i", its constants, channels that it leaves)
IMAGE_OPS = {
    "Relu": ("m = Relu(i)", {}, 8),
    "Clip": ("m = Clip(i, low, high)", {"low": np.float32(0), "high": np.float32(6)}, 8),
    "Sigmoid": ("m = Sigmoid(i)", {}, 8),
    "LeakyRelu": ("m = LeakyRelu <alpha = 0.1> (i)", {}, 8),
    "Softmax": ("m = Softmax <axis = 1> (i)", {}, 8),
    "Add": ("m = Add(i, i)", {}, 8),
    "Mul": ("m = Mul(i, i)", {}, 8),
    "Concat": ("m = Concat <axis = 2> (i, i)", {}, 8),
    "AveragePool": ("m = AveragePool <kernel_shape = [2, 2]> (i)", {}, 8),
    "GlobalAveragePool": ("m = GlobalAveragePool(i)", {}, 8),
    "MaxPool": ("m = MaxPool <kernel_shape = [2, 2]> (i)", {}, 8),
    "Reshape": ("m = Reshape(i, to)", {"to": np.array([0, 8, -1, 1])}, 8),
    "Transpose": ("m = Transpose <perm = [0, 1, 3, 2]> (i)", {}, 8),
    "Slice": ("m = Slice(i, a, b, d)", {"a": np.array([0]), "b": np.array([4]), "d": np.array([2])}, 8),
    "DepthToSpace": ("m = DepthToSpace <blocksize = 2> (i)", {}, 2),
    "HardSigmoid": ("m = HardSigmoid(i)", {}, 8),
    "Pad": ("m = Pad(i, to)", {"to": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, 8),
    "Resize": ('m = Resize <mode = "linear"> (i, , by)', {"by": np.array([1, 1, 2, 2], np.float32)}, 8),
    "nearest Resize": ('m = Resize <mode = "nearest"> (i, , by)', {"by": np.array([1, 1, 2, 2], np.float32)}, 8),
    "Split and Add": ("k, n = Split <axis = 2> (i) m = Add(n, k)", {}, 8),
    "Split and Concat": ("k, n = Split <axis = 1> (i) m = Concat <axis = 1> (n, k)", {}, 8),
    "ReduceMean": ("m = ReduceMean <axes = [2, 3]> (i)", {}, 8),
}
FROM_IMAGE, FROM_LAYER = "g (float[N,4,8,8] x)", "g (float[N,8,6,6] x)"
# where the op is -> (inputs, what is around it, reading x and giving y and z)
IMAGE_PLACES = {
    "behind a layer, a float op follows": (FROM_IMAGE, "i = Conv(x, W, B) {op} y = Tanh(m)"),
    "behind a layer and its Relu": (FROM_IMAGE, "c = Conv(x, W, B) i = Relu(c) {op} y = Tanh(m)"),
    "behind a float op, a layer follows": (FROM_LAYER, "i = Tanh(x) {op} y = Conv(m, V)"),
    "on the input, a layer follows": (FROM_LAYER, "t = Relu(x) i = Neg(t) {op} y = Conv(m, V)"),
    "between float ops": (FROM_IMAGE, "c = Conv(x, W, B) s = Softplus(c) i = Neg(s) {op} y = Tanh(m)"),
    "between layers": (FROM_IMAGE, "i = Conv(x, W, B) {op} y = Conv(m, V)"),
    "between layers, a float op reads it": (FROM_IMAGE, "i = Conv(x, W, B) {op} y = Conv(m, V) z = Tanh(m)"),
    "between layers, a float op reads its input": (FROM_IMAGE, "i = Conv(x, W, B) {op} y = Conv(m, V) z = Tanh(i)"),
    "in front of a ConvTranspose": (FROM_IMAGE, "i = Conv(x, W, B) {op} y = ConvTranspose(m, T)"),
    "behind a ConvTranspose": (FROM_IMAGE, "i = ConvTranspose(x, U) {op} y = Conv(m, V)"),
}
# (op, place) -> what stays, and why
STAYS = {
    # both neighbours need codes, and a Conv cannot write anything else: the op in the middle costs a DQ
    **{("Resize", place): {"Resize between DQ and Q"} for place in IMAGE_PLACES if place.startswith("between layers")},
    # the codes of its input have another scale than its own: one range clips, the other does not
    **{(op, "between layers, a float op reads its input"): {f"{op} between DQ and Q"} for op in ("Relu", "Clip")},
}

ROW_OPS = {
    "Relu": ("m = Relu(i)", {}),
    "Clip": ("m = Clip(i, low, high)", {"low": np.float32(-1), "high": np.float32(1)}),
    "Sigmoid": ("m = Sigmoid(i)", {}),
    "Add": ("m = Add(i, i)", {}),
    "residual Add": ("m = Add(i, x)", {}),
    "Concat": ("m = Concat <axis = -1> (i, i)", {}),
    "Transpose": ("k = Transpose(i) l = Neg(k) m = Transpose(l)", {}),
}
ROW_LAYERS = {
    "MatMul": ("i = MatMul(x, W)", {"W": (8, 8)}),
    "MatMul and bias": ("p = MatMul(x, W) i = Add(p, B)", {"W": (8, 8), "B": (8,)}),
    "Gemm": ("i = Gemm(x, W, B)", {"W": (8, 8), "B": (8,)}),
    "Gemm without bias": ("i = Gemm(x, W)", {"W": (8, 8)}),
}
ROW_PLACES = {
    "a float op follows": "{layer} {op} y = Tanh(m)",
    "a layer follows": "{layer} {op} y = MatMul(m, V)",
    "two float ops follow": "{layer} {op} t = Tanh(m) s = Neg(m) y = Add(t, s)",
    "a layer and a float op follow": "{layer} {op} y = MatMul(m, V) z = Tanh(m)",
    "a layer reads the product as well": "{layer} {op} z = Tanh(m) y = MatMul(i, V)",
    "a layer follows, a float op reads the product": "{layer} {op} y = MatMul(m, V) z = Tanh(i)",
    "the product is an output": "{layer} {op} y = MatMul(m, V) z = Identity(i)",
}


def run_time_costs(bench, text, weights):
    """What the optimized graph of the int8 model of a text still has that is only cost."""
    model = bench.text(text, **weights)
    built = bench.quantized(model)[3]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(built.model, threads=1, optimization="all", optimized_path=path)
        return costs(onnx.load(path).graph)


def costs(graph):
    constants = {tensor.name for tensor in graph.initializer}
    uses = {}
    for node in graph.node:
        for name in node.input:
            uses.setdefault(name, []).append(node)

    def readers(name):
        """Those that compute; what only moves values is looked through."""
        found, ways = [], [name]
        while ways:
            for node in uses.get(ways.pop(), []):
                if node.op_type in MOVES:
                    ways += node.output
                else:
                    found.append(node)
        return found

    found = set()
    for node in graph.node:
        behind = readers(node.output[0])
        kinds = {each.op_type for each in behind}
        if node.op_type == "QuantizeLinear" and kinds <= {"DequantizeLinear"}:
            found.add(NO_CODES)
        if node.op_type != "DequantizeLinear":
            continue
        if node.input[0] in constants:
            found.add(EVERY_TIME)
            continue
        if "QuantizeLinear" in kinds:  # what was between them, the Q clips
            found.add("a range between DQ and Q")
        found |= {
            f"{each.op_type} between DQ and Q"
            for each in behind
            if any(reader.op_type == "QuantizeLinear" for name in each.output for reader in readers(name))
        }
    return found


def used(weights, text):
    names = set(re.findall(r"\w+", text))
    return {name: value for name, value in weights.items() if name in names}


@pytest.mark.parametrize("place", IMAGE_PLACES)
@pytest.mark.parametrize("op", IMAGE_OPS)
def test_what_is_quantized_around_convolutions_pays(bench, op, place):
    written, constants, channels = IMAGE_OPS[op]
    head, around = IMAGE_PLACES[place]
    body = around.format(op=written)
    outputs = ", ".join(
        f"float[{dims}] {name}" for dims, name in (("A,C,D,E", "y"), ("P,Q,R,S", "z")) if f"{name} =" in body
    )
    weights = {"W": (8, 4, 3, 3), "B": (8,), "V": (3, channels, 1, 1), "T": (channels, 3, 1, 1), "U": (4, 8, 1, 1)}
    found = run_time_costs(bench, f"{head} => ({outputs}) {{ {body} }}", used(weights | constants, body))
    expected = STAYS.get((op, place), set())
    if op in ("Relu", "Clip") and expected:
        expected = {"a range between DQ and Q"}
    assert found == expected


@pytest.mark.parametrize("place", ROW_PLACES)
@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize(
    ("layer", "dims"),
    [(layer, dims) for layer in ROW_LAYERS for dims in ("8", "N,8", "N,6,8") if "MatMul" in layer or dims == "N,8"],
)
def test_what_is_quantized_around_products_pays(bench, op, layer, dims, place):
    (written, constants), (product, weights) = ROW_OPS[op], ROW_LAYERS[layer]
    body = ROW_PLACES[place].format(layer=product, op=written)
    shape = ",".join("ABC"[: dims.count(",") + 1])
    outputs = ", ".join(f"float[{shape}] {name}" for name in "yz" if f"{name} =" in body)
    width = 16 if op == "Concat" and "MatMul(m, V)" in body else 8
    constants = weights | constants | {"V": (width, 8)}
    assert run_time_costs(bench, f"g (float[{dims}] x) => ({outputs}) {{ {body} }}", used(constants, body)) == set()


def test_the_comparison_notices_a_model_that_pays_nothing_back(bench):
    weights = {"W": (4, 3, 2, 2)}
    built = bench.quantized(
        bench.text("g (float[N,4,8,8] x) => (float[A,C,D,E] y) { y = ConvTranspose(x, W) }", **weights),
        target="openvino",
    )[3]
    assert costs(built.model.graph) == {NO_CODES, EVERY_TIME}
