"""What outputs are found to be: parts of Concats, wherever they were moved, and the kind of each."""

import numpy as np
import pytest

from int8cal.data.sample import Sample
from int8cal.evaluation.output_groups import GroupFinder, kind_of
from int8cal.runtime.sessions import Session

# boxes (4 channels, up to hundreds) and scores of 6 classes, for 40 objects
HEAD = """r = Conv <kernel_shape = [1, 1]> (x, B) b = Mul(r, size)
    l = Conv <kernel_shape = [1, 1]> (x, S) s = Sigmoid(l)"""
WEIGHTS = {
    "B": (4, 3, 1, 1),
    "S": (6, 3, 1, 1),
    "size": np.array(300.0, np.float32),
    "rows": np.array([1, 10, 40]),
    "flat": np.array([1, -1, 10]),
}


def groups(bench, nodes, shape="1,10,5,8", **weights):
    model = bench.text(f"g (float[1,3,5,8] x) => (float[{shape}] y) {{ {nodes} }}", **{**WEIGHTS, **weights})
    feed = {"x": np.random.default_rng(0).normal(size=(1, 3, 5, 8)).astype(np.float32)}
    found = GroupFinder(model, threads=1)(Sample(feed, ""), Session(model, threads=1).run(feed))
    return [(group.kind, group.axis, group.first, group.end, group.source) for group in found["y"]]


@pytest.mark.parametrize(
    ("nodes", "shape", "axis"),
    [
        ("c = Concat <axis = 1> (b, s) y = Reshape(c, rows)", "1,10,40", 1),
        ("c = Concat <axis = -3> (b, s) m = Reshape(c, rows) y = Transpose <perm = [0, 2, 1]> (m)", "1,40,10", 2),
        # three scales, joined along the objects; each of them of boxes and scores
        (
            """c = Concat <axis = 1> (b, s) m = Reshape(c, rows) t = Transpose <perm = [0, 2, 1]> (m)
            d = Concat <axis = 1> (b, s) n = Reshape(d, rows) u = Transpose <perm = [0, 2, 1]> (n)
            y = Concat <axis = 1> (t, u)""",
            "1,80,10",
            2,
        ),
        # boxes of all scales first, then scores of all scales
        (
            """rb = Reshape(b, boxes) rs = Reshape(s, scores) bb = Concat <axis = 2> (rb, rb)
            ss = Concat <axis = 2> (rs, rs) y = Concat <axis = 1> (bb, ss)""",
            "1,10,80",
            1,
        ),
    ],
)
def test_boxes_and_scores_behind_a_concat_are_two_groups(bench, nodes, shape, axis):
    sizes = {"boxes": np.array([1, 4, 40]), "scores": np.array([1, 6, 40])}
    boxes, scores = groups(bench, f"{HEAD} {nodes}", shape, **sizes)
    assert boxes[1:4] == (axis, 0, 4)
    assert scores[:4] == ("probabilities", axis, 4, 10)
    assert (boxes[0], scores[4]) == ("boxes", scores[4])


@pytest.mark.parametrize(
    ("nodes", "shape", "axis"),
    [
        ("m = Conv (x, M) y = Transpose <perm = [0, 2, 3, 1]> (m)", "1,5,8,1", 3),
        ("m = Conv (x, M) t = Transpose <perm = [0, 2, 3, 1]> (m) y = Sigmoid(t)", "1,5,8,1", 3),
        ("m = Conv (x, M) t = Transpose <perm = [0, 1, 3, 2]> (m) y = Identity(t)", "1,1,8,5", 1),
        ("y = Conv (x, S)", "1,6,5,8", 1),
        ("c = Conv (x, S) y = Transpose <perm = [0, 2, 3, 1]> (c)", "1,5,8,6", 1),  # shorter than the last
        ("p = GlobalAveragePool (x) y = Transpose <perm = [0, 2, 3, 1]> (p)", "1,1,1,3", 3),
    ],
)
def test_the_one_plane_of_a_mask_is_its_channel(bench, nodes, shape, axis):
    ((_, found, first, end, _),) = groups(bench, nodes, shape, M=(1, 3, 1, 1))
    assert found == axis
    assert (first, end) == (0, int(shape.split(",")[axis]))


def test_scales_of_one_meaning_are_one_group(bench):
    nodes = f"""{HEAD} m = Reshape(s, rows) t = Transpose <perm = [0, 2, 1]> (m) u = Sigmoid(t)
    y = Concat <axis = 1> (t, u)"""
    assert groups(bench, nodes, "1,80,6", rows=np.array([1, 6, 40])) == [("probabilities", 2, 0, 6, "")]


def test_coordinates_that_one_node_computes_with_the_scores_are_told_by_their_values(bench):
    # as YOLOv5 exports: every channel of one tensor, mapped one by one
    nodes = f"{HEAD} c = Concat <axis = 1> (r, l) p = Sigmoid(c) q = Mul(p, wide) m = Max(q, q) y = Reshape(m, rows)"
    wide = np.ones((1, 10, 1, 1), np.float32)
    wide[:, :4] = 640.0
    found = groups(bench, nodes, "1,10,40", wide=wide)
    assert [each[:4] for each in found] == [("boxes", 1, 0, 4), ("probabilities", 1, 4, 10)]


@pytest.mark.parametrize(
    ("kind", "shape", "op"),
    [
        ("class scores", (1, 10), "Gemm"),
        ("class scores", (1, 5, 16, 16), "Conv"),
        ("values", (1, 32, 16, 16), "Mul"),
        ("values", (1, 5, 16, 16), "Relu"),
        ("image", (1, 3, 16, 16), "Conv"),
        ("embedding", (1, 128), "ReduceMean"),
        ("token logits", (1, 7, 5000), "MatMul"),
        ("waveform", (1, 1, 16000), "Tanh"),
        ("waveform", (16000,), "Tanh"),
        ("values", (16,), "Tanh"),
        ("values", (), "Tanh"),
        ("probabilities", (1, 1), "Sigmoid"),
        ("boxes", (1, 100, 4), "Conv"),
        ("values", (1, 1), "Gemm"),
    ],
)
def test_kinds_follow_from_the_op_and_the_shape(kind, shape, op):
    axis = {0: None, 1: 0, 3: 2}.get(len(shape), 1)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert kind_of("y", values, 1 if kind == "waveform" and axis == 2 else axis, op) == kind


def test_rows_that_sum_to_one_are_class_scores_and_rows_of_length_one_are_embeddings():
    values = np.random.default_rng(0).random((1, 32))
    assert kind_of("y", values / values.sum(), 1, "Div") == "class scores"
    assert kind_of("y", values / np.linalg.norm(values), 1, "Div") == "embedding"


def test_a_single_number_has_no_channels(bench):
    nodes = (
        "c = Conv(x, B) f = Flatten <axis = 0> (c) m = Gather <axis = 0> (f, first) y = Gather <axis = 0> (m, first)"
    )
    (found,) = groups(bench, nodes, "", first=np.array(0))
    assert found[1] is None
