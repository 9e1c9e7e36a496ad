"""What moves values into a body moves codes: onnxruntime aborts the process where a DQ in front of it would be taken past."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from control_flow import model

from int8cal.quantization.moves import MOVES

pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes

RUN = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
CONSTANTS = {"axes": np.array([3]), "shape": np.array([1, 6, 8]), "from": np.array([0]), "to": np.array([4])}
CASES = {
    # name -> (how the convolution's result of (1, 6, 8, 1) gets into the body, ops between codes)
    "Squeeze": ("s = Squeeze (c, axes)", ["Squeeze"]),
    "Reshape": ("s = Reshape (c, shape)", ["Reshape"]),
    "Transpose": ("s = Transpose <perm = [0, 1, 3, 2]> (c)", ["Transpose"]),
    "Unsqueeze": ("s = Unsqueeze (c, axes)", ["Unsqueeze"]),
    "MaxPool": ("s = MaxPool <kernel_shape = [2, 1]> (c)", ["MaxPool"]),
    "Slice": ("s = Slice (c, from, to)", ["Slice"]),
    "two": ("r = Squeeze (c, axes) s = Transpose <perm = [0, 2, 1]> (r)", ["Squeeze", "Transpose"]),
    "a Relu in front, which goes to the layer": ("r = Squeeze (c, axes) s = Relu (r)", ["Squeeze"]),
}


def test_all_ops_that_the_runtime_takes_a_dq_past_are_here():
    assert {each for _, ops in CASES.values() for each in ops} == set(MOVES)


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_loads_the_model_and_it_computes_the_same(bench, name, tmp_path):
    body, moves = CASES[name]
    used = {key: value for key, value in CONSTANTS.items() if key in body}
    text = f"""net (float[1,4,8,1] x, bool flag) => (float[A,B,C] y) {{
        [layer] c = Conv (x, W) {body}
        y = If (flag) < then_branch = one () => (float[D] a) {{ a = Tanh (s) }},
                        else_branch = two () => (float[E] b) {{ b = Abs (s) }}> }}"""
    rng = np.random.default_rng(0)
    net = model(text, W=rng.normal(size=(6, 4, 1, 1)).astype(np.float32), **used)
    for value in [
        *net.graph.output,
        *(out for node in net.graph.node for item in node.attribute for out in item.g.output),
    ]:
        value.type.tensor_type.ClearField("shape")
    _, _, _, built = bench.quantized(net)
    onnx.save(built.model, tmp_path / "int8.onnx")
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path / "int8.onnx")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    producers = {output: node for node in built.model.graph.node for output in node.output}
    node, found = producers["s"], []
    assert node.op_type == "DequantizeLinear"
    while producers[node.input[0]].op_type != "QuantizeLinear":
        node = producers[node.input[0]]
        found.insert(0, node.op_type)
    assert found == moves
    for flag in (True, False):
        feed = {"x": rng.normal(size=(1, 4, 8, 1)).astype(np.float32), "flag": np.array(flag)}
        expected, got = (bench.run(each, feed, "all")["y"] for each in (net, built.model))
        assert np.square(expected - got).mean() < 0.01 * np.square(expected).mean()  # of four samples
