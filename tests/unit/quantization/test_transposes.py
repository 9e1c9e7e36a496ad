"""Transposes of pairs are computed in float, wherever codes stand beside them."""

import numpy as np
import onnx
import pytest

from int8cal.runtime.sessions import Session

pytestmark = pytest.mark.newest  # past which ops Q and DQ are moved is the runtime's matter

# patches of two columns, as MobileViT unfolds an image, and the same way back
UNFOLD = """g (float[N,32,8,8] x) => (float[A,C,D,E] y) {
    c = Conv(x, W)
    r = Reshape(c, rows) t = Transpose <perm = [0, 2, 1, 3]> (r) f = Reshape(t, image)
    n = Tanh(f)
    s = Reshape(n, rows) u = Transpose <perm = [0, 2, 1, 3]> (s) g = Reshape(u, image)
    y = Conv(g, W)
}"""
CONSTANTS = {"W": (32, 32, 3, 3), "image": np.array([-1, 32, 6, 6])}


def transposed(bench, tmp_path, *rows):
    """What the Transposes of the graph move once the runtime has optimized it; those that it adds are left out."""
    *_, built = bench.quantized(bench.text(UNFOLD, rows=np.array(rows), **CONSTANTS))
    path = tmp_path / "optimized.onnx"
    Session(built.model, threads=1, optimization="all", optimized_path=path)
    graph = onnx.load(path).graph
    codes: set[str] = set()
    found = []
    for node in graph.node:
        moves = node.op_type in ("Reshape", "Transpose") and node.input[0] in codes
        if moves or node.op_type in ("QuantizeLinear", "QLinearConv"):
            codes.update(node.output)
        if node.op_type == "Transpose" and list(node.attribute[0].ints) == [0, 2, 1, 3]:
            found.append("codes" if node.input[0] in codes else "float")
    return found


def test_transposes_of_pairs_read_no_codes(bench, tmp_path):
    assert transposed(bench, tmp_path, -1, 2, 3, 2) == ["float", "float"]


@pytest.mark.parametrize("rows", [(-1, 2, 2, 3), (8, 24, 3, 2)], ids=["three values at a time", "few rows"])
def test_other_transposes_move_codes(bench, tmp_path, rows):
    assert transposed(bench, tmp_path, *rows) == ["codes", "codes"]


def test_a_reshape_that_copies_a_size_of_its_input_gets_no_flatten(bench):
    """Behind a Flatten it would copy another one."""
    rows = np.array([0, 16, 36, 2])
    *_, built = bench.quantized(bench.text(UNFOLD, rows=rows, **CONSTANTS))
    flattened = {node.output[0] for node in built.model.graph.node if node.op_type == "Flatten"}
    reshapes = [node for node in built.model.graph.node if node.op_type == "Reshape"]
    assert [node.input[0] in flattened for node in reshapes if node.output[0] in ("r", "g")] == [False, True]
