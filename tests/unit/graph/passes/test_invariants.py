"""What a Loop or Scan carries and never changes is read from around it: the outputs and their names stay."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_flow import SIZE, bodies_of, model, weight

from int8cal.graph.passes.invariants import outside_invariants
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import simplify

pytestmark = pytest.mark.newest

ROW = f"float[1,{SIZE}]"
SQUARE = f"float[{SIZE},{SIZE}]"
HEAD = f"net ({ROW} x, int64 rounds)"


def carrying(result="k", *, outputs="y, w2", inside="[layer] m = MatMul (h, k)", more=""):
    """A Loop whose weight is carried beside the state, as `result` of what the body makes of it."""
    text = f"""{HEAD} => ({ROW} y, {SQUARE} w2) {{
        [walk] {outputs} = Loop (rounds, , x, w) <
            body = step (int64 number, bool going, {ROW} h, {SQUARE} k) => (bool on, {ROW} g, {SQUARE} {result}) {{
                on = Identity (going) {inside} [squash] g = Tanh (m) {more} }}> }}"""
    return model(text, w=weight(1))


def scanning():
    """A Scan whose state is one that changes and a weight that does not."""
    text = f"""net (float[{SIZE}] start, float[T,{SIZE}] steps) => (float[{SIZE}] last, {SQUARE} w2, float[T,{SIZE}] all) {{
        [walk] last, w2, all = Scan <num_scan_inputs = 1,
            body = cell (float[{SIZE}] h, {SQUARE} k, float[{SIZE}] s) => (float[{SIZE}] g, {SQUARE} same, float[{SIZE}] o) {{
                row = Unsqueeze (s, zero) [read] a = MatMul (row, k) [add] b = Add (a, h)
                flat = Squeeze (b, zero) [squash] g = Tanh (flat) same = Identity (k) o = Identity (g) }}>
            (start, w, steps) }}"""
    return model(text, w=weight(1), zero=np.array([0]))


def nested():
    """A weight that an outer Loop hands on to an inner one."""
    text = f"""{HEAD} => ({ROW} y, {SQUARE} w2) {{
        [walk] y, w2 = Loop (rounds, , x, w) <
            body = outer (int64 number, bool going, {ROW} h, {SQUARE} k) => (bool on, {ROW} g, {SQUARE} k2) {{
                on = Identity (going) k2 = Identity (k)
                [run] g, last = Loop (two, , h, k) <
                    body = inner (int64 n, bool goes, {ROW} i, {SQUARE} l) => (bool on2, {ROW} t, {SQUARE} l2) {{
                        on2 = Identity (goes) [layer] m = MatMul (i, l) [squash] t = Tanh (m) l2 = Identity (l) }}> }}> }}"""
    return model(text, w=weight(1), two=np.array(2))


def called_w(number):
    """A Loop whose body's input of this number is called like the weight outside."""
    net = carrying("k2", more="k2 = Identity (k)")
    (body,) = bodies_of(net.graph).values()
    name = body.input[number].name
    body.input[number].name = "w"
    for node in body.node:
        node.input[:] = ["w" if each == name else each for each in node.input]
    return net


# made when they are asked for: older versions of onnx do not parse the names of nodes
TAKEN = {
    "as it came": (carrying, {"walk/body": 3}),
    "behind an Identity": (lambda: carrying("k2", more="k2 = Identity (k)"), {"walk/body": 3}),
    "behind two of them": (lambda: carrying("k3", more="k2 = Identity (k) k3 = Identity (k2)"), {"walk/body": 3}),
    "by the same name, as Paddle does": (lambda: called_w(3), {"walk/body": 3}),
    "in a Scan": (scanning, {"walk/body": 2}),
    "in a loop in a loop": (nested, {"walk/body": 3, "walk/body/run/body": 3}),
}
KEPT = {
    "changed": lambda: carrying("k2", inside="[layer] m = MatMul (h, k) k2 = Add (k, k)"),
    "given by another": lambda: carrying("k2", more="k2 = Mul (k, k)"),
    "its name is that of another inside": lambda: called_w(2),
}


def feed_of(net, rng, rounds):
    sizes = {"x": (1, SIZE), "start": (SIZE,), "steps": (rounds, SIZE)}
    feed = {value.name: rng.normal(size=sizes[value.name]) for value in net.graph.input if value.name in sizes}
    feed = {name: value.astype(np.float32) for name, value in feed.items()}
    return feed | ({"rounds": np.array(rounds)} if any(v.name == "rounds" for v in net.graph.input) else {})


def run(net, feed):
    return ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)


def taken_out(net):
    copy = onnx.ModelProto()
    copy.CopyFrom(net)
    outside_invariants(copy)
    return copy


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("rounds", [0, 3])
def test_outputs_stay_and_bodies_have_fewer_inputs(name, rounds):
    if name == "in a Scan" and not rounds:
        pytest.skip("the runtime runs no Scan over nothing")
    made, inputs = TAKEN[name]
    net = made()
    changed = taken_out(net)
    assert {path: len(body.input) for path, body in bodies_of(changed.graph).items()} == inputs
    feed = feed_of(net, np.random.default_rng(0), rounds)
    for before, after in zip(run(net, feed), run(changed, feed), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)  # products of constants are packed otherwise
    assert [value.name for value in changed.graph.output] == [value.name for value in net.graph.output]


@pytest.mark.parametrize("name", KEPT)
def test_what_may_not_be_read_from_outside_stays_carried(name):
    assert taken_out(KEPT[name]()) == KEPT[name]()


def test_a_carried_weight_is_that_of_a_layer():
    (body,) = prepare(carrying(), simplify).bodies
    assert body.formals == ("number", "going", "h")
    assert {tensor.name for tensor in body.model.graph.initializer} == {"w"}


def test_what_starts_with_another_rank_than_the_body_declares_has_none():
    text = f"""{HEAD} => ({ROW} y, {ROW} z) {{
        [walk] y, z = Loop (rounds, , x, start) <
            body = step (int64 number, bool going, {ROW} h, {ROW} last) => (bool on, {ROW} g, {ROW} m) {{
                on = Identity (going) [layer] m = MatMul (h, w) [squash] g = Tanh (m) }}> }}"""
    (body,) = prepare(model(text, w=weight(1), start=np.float32(0)), simplify).bodies
    shapes = {value.name: value.type.tensor_type.HasField("shape") for value in body.model.graph.input}
    assert shapes == {"number": True, "going": True, "h": True, "last": False}


@pytest.mark.parametrize("field", ["input", "output"])
def test_a_loop_that_fits_no_body_is_left_for_others_to_refuse(field):
    net = carrying()
    (body,) = bodies_of(net.graph).values()
    del getattr(body, field)[-1]
    assert taken_out(net) == net


def test_a_loop_that_changes_nothing_goes():
    text = f"""{HEAD} => ({ROW} y) {{
        [walk] v = Loop (rounds, , w) <
            body = step (int64 number, bool going, {SQUARE} k) => (bool on, {SQUARE} k2) {{
                on = Identity (going) k2 = Identity (k) }}>
        [layer] y = MatMul (x, v) }}"""
    changed = taken_out(model(text, w=weight(1)))
    assert [node.op_type for node in changed.graph.node] == ["Identity", "MatMul"]
    assert len(prepare(changed, simplify).model.graph.node) == 1


def test_what_is_no_tensor_stays_carried():
    text = f"""{HEAD} => ({ROW} y) {{
        s = SequenceConstruct (x)
        [walk] y, t = Loop (rounds, , x, s) <
            body = step (int64 number, bool going, {ROW} h, seq({ROW}) k) => (bool on, {ROW} g, seq({ROW}) k2) {{
                on = Identity (going) [layer] m = MatMul (h, w) [squash] g = Tanh (m) k2 = Identity (k) }}> }}"""
    net = model(text, w=weight(1))
    assert taken_out(net) == net
