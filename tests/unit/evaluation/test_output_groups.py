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
    "nodes",
    [
        # as YOLOX exports: an offset to a grid, the exponential of the size, scores of all scales
        """m = Conv (x, P) o = Add(m, grid) a = Mul(o, stride) n = Conv (x, P) e = Exp(n) w = Mul(e, stride)
        c = Concat <axis = 1> (a, w, s) y = Reshape(c, rows)""",
        # as YOLOv5 does: sigmoids of all, boxes of one scale beside its scores
        """m = Conv (x, P) p = Sigmoid(m) o = Add(p, grid) a = Mul(o, stride) n = Conv (x, P) q = Sigmoid(n)
        e = Mul(q, q) w = Mul(e, stride) c = Concat <axis = 1> (a, w, s) y = Reshape(c, rows)""",
    ],
)
def test_centres_and_sizes_that_are_computed_apart_are_boxes(bench, nodes):
    places = {"P": (2, 3, 1, 1), "stride": np.array(32.0, np.float32), "grid": np.arange(80.0).reshape(1, 2, 5, 8)}
    boxes, scores = groups(bench, f"{HEAD} {nodes}", "1,10,40", **places)
    assert boxes[:4] == ("boxes", 1, 0, 4)
    assert scores == ("probabilities", 1, 4, 10, "s")


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


SERIES = {"W": (1, 1, 3), "V": (1, 2, 3), "M": (8, 4), "bias": (4,), "T": (1, 1, 16), "U": (1, 2, 16), "S": (2, 1, 3)}


def kinds(bench, model, feed, **weights):
    """The kind of each output of a model, all of it one group."""
    found = bench.text(model, **{**SERIES, **weights})
    feed = {name: np.asarray(value, np.float32) for name, value in feed.items()}
    groups = GroupFinder(found, threads=1)(Sample(feed, ""), Session(found, threads=1).run(feed))
    return {name: each[0].kind for name, each in groups.items()}


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ("p = Softmax <axis = -1> (y)", "class scores"),
        ("i = Identity(y) p = LogSoftmax <axis = 2> (i)", "boxes"),  # of a copy that another output may be
        ("p = ArgMax <axis = 2> (y)", "class scores"),
        ("p = Softmax <axis = 0> (y)", "boxes"),
        ("p = Relu(y)", "boxes"),
    ],
)
def test_four_scores_a_step_are_no_boxes_where_a_softmax_reads_them(bench, reader, kind):
    kind_of_p = "int64[50,1]" if "ArgMax" in reader else "float[50,1,4]"
    model = f"g (float[50,1,8] x) => (float[50,1,4] y, {kind_of_p} p) {{ m = MatMul(x, M) y = Add(bias, m) {reader} }}"
    assert kinds(bench, model, {"x": np.random.default_rng(0).normal(size=(50, 1, 8))})["y"] == kind


@pytest.mark.parametrize("heads", [2, 3])
def test_keys_that_a_decoder_reads_again_are_neither_scores_nor_pictures(bench, heads):
    model = f"""g (float[N,{heads},5,8] past, float[N,{heads},1,8] new) => (float[N,{heads},6,8] present) {{
        present = Concat <axis = 2> (past, new)
    }}"""
    rng = np.random.default_rng(0)
    feed = {"past": rng.normal(size=(1, heads, 5, 8)), "new": rng.normal(size=(1, heads, 1, 8))}
    assert kinds(bench, model, feed)["present"] == "values"


def test_a_softmax_may_read_scores_before_they_are_copied_into_the_output(bench):
    model = """g (float[50,1,8] x) => (float[50,1,4] y, float[50,1,4] p) {
        m = MatMul(x, M) y = Identity(m) p = Softmax <axis = -1> (m)
    }"""
    assert kinds(bench, model, {"x": np.random.default_rng(0).normal(size=(50, 1, 8))})["y"] == "class scores"


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        # two speakers out of a mixture, each by a decoder with one channel
        (
            """a = ConvTranspose <strides = [8]> (x, T) b = ConvTranspose <strides = [8]> (n, T)
            y = Concat <axis = 1> (a, b)""",
            "waveform",
        ),
        ("c = Concat <axis = 0> (x, n) d = ConvTranspose <strides = [8]> (c, T) y = Reshape(d, rows)", "waveform"),
        ("y = ConvTranspose <strides = [8]> (x, U)", "class scores"),  # two classes a step
        ("a = ConvTranspose <strides = [8]> (x, T) y = Conv <pads = [1, 1]> (a, S)", "class scores"),
    ],
)
def test_rows_of_a_decoder_with_one_channel_are_waveforms(bench, nodes, kind):
    model = f"g (float[1,1,400] x) => (float[1,2,3208] y) {{ n = Neg(x) {nodes} }}"
    feed = {"x": np.random.default_rng(0).normal(size=(1, 1, 400))}
    assert kinds(bench, model, feed, rows=np.array([1, 2, -1]))["y"] == kind


def test_one_plane_of_a_wide_picture_is_no_waveform(bench):
    model = "g (float[1,1,8,2100] x) => (float[1,1,8,2100] y) { y = Conv(x, K) }"
    feed = {"x": np.random.default_rng(0).normal(size=(1, 1, 8, 2100))}
    assert kinds(bench, model, feed, K=np.full((1, 1, 1, 1), -1.0, np.float32))["y"] == "image"


ROW = np.random.default_rng(0).uniform(size=(1, 64))
PICTURE = np.random.default_rng(0).uniform(size=(1, 1, 8, 8))
CALLED = {"Gemm": "y = Gemm(x, D)", "Sigmoid": "s = Mul(x, four) t = Sub(s, two) y = Sigmoid(t)"}


@pytest.mark.parametrize(
    ("x", "nodes", "kind"),
    [
        pytest.param(ROW, CALLED["Gemm"], "signal", id="a row"),
        pytest.param(ROW, CALLED["Sigmoid"], "signal", id="a row of probabilities"),
        pytest.param(ROW, "y = Gemm(x, E)", "class scores", id="a row that is another one"),
        pytest.param(ROW, "d = Gemm(x, D) y = Softmax(d)", "class scores", id="a softmax"),
        pytest.param(ROW > 0.8, CALLED["Gemm"], "class scores", id="flags"),
        pytest.param(ROW[:, :8], "y = Mul(x, two) ", "values", id="few values"),
        pytest.param(PICTURE, CALLED["Sigmoid"], "image", id="a picture"),
        pytest.param(PICTURE, "h = Sub(x, half) s = Mul(h, steep) y = Sigmoid(s)", "probabilities", id="its mask"),
    ],
)
def test_what_repeats_the_input_is_neither_scores_nor_probabilities(bench, x, nodes, kind):
    shape = ",".join(map(str, x.shape))
    noise = np.random.default_rng(1).normal(scale=0.01, size=(64, 64))
    one = {"two": 2.0, "four": 4.0, "half": 0.5, "steep": 60.0}
    weights = {"D": np.eye(64) + noise, "E": noise, **one}
    weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    model = f"g (float[{shape}] x) => (float[{shape}] y) {{ {nodes} }}"
    assert kinds(bench, model, {"x": x}, **weights)["y"] == kind


@pytest.mark.parametrize(
    ("added", "kind"),
    [
        ("s = Slice(x, last, end, one) y = Add(f, s)", "signal"),  # as forecasts go on from the last value
        ("s = ReduceMean <axes = [1], keepdims = 1> (x) y = Add(s, f)", "signal"),
        ("s = Slice(x, from, end, one) y = Add(f, s)", "values"),  # a mask, say, has a value for each
        ("s = Gemm(x, V) y = Add(f, s)", "values"),  # the value of a state, to which those of actions are added
        ("s = Slice(x, last, end, one) a = Add(f, s) p = Softmax(a) y = Identity(a)", "class scores"),
    ],
)
def test_a_forecast_goes_on_from_its_history(bench, added, kind):
    model = f"g (float[1,64] x) => (float[1,24] y) {{ f = Gemm(x, F) {added} }}"
    ends = {"last": np.array([-1]), "from": np.array([40]), "end": np.array([64]), "one": np.array([1])}
    assert kinds(bench, model, {"x": ROW}, F=(64, 24), V=(64, 1), **ends)["y"] == kind


def test_rows_that_sum_to_one_are_class_scores_and_rows_of_length_one_are_embeddings():
    values = np.random.default_rng(0).random((1, 32))
    assert kind_of("y", values / values.sum(), 1, "Div") == "class scores"
    assert kind_of("y", values / np.linalg.norm(values), 1, "Div") == "embedding"


def test_an_output_without_values_has_no_kind(bench):
    model = "g (float[N,4] x) => (float[N,4] y) { m = MatMul(x, Q) y = Add(m, x) }"
    assert kinds(bench, model, {"x": np.zeros((0, 4))}, Q=(4, 4)) == {"y": "values"}


def test_a_single_number_has_no_channels(bench):
    nodes = (
        "c = Conv(x, B) f = Flatten <axis = 0> (c) m = Gather <axis = 0> (f, first) y = Gather <axis = 0> (m, first)"
    )
    (found,) = groups(bench, nodes, "", first=np.array(0))
    assert found[1] is None
