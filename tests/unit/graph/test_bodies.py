import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_flow import SIZE, bodies_of, branches, feeds, function, loop, model, nested, ops, scan, weight
from onnx import numpy_helper

from int8cal.errors import ModelError
from int8cal.graph.bodies import put_back
from int8cal.graph.edit import tensor_names
from int8cal.graph.prepare import plan_bodies, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.runtime.sessions import simplify

pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes


def prepared(net):
    return prepare(net, simplify)


def outputs(net, feed):
    return ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)


def test_a_body_is_a_model_of_what_it_reads():
    bodies = {body.path: body for body in prepared(branches()).bodies}
    assert set(bodies) == {"choice/then_branch", "choice/else_branch"}
    first = bodies["choice/then_branch"]
    assert (first.parent, first.node, first.slot, first.formals, first.outer) == (
        "",
        "choice",
        "then_branch",
        (),
        ("f",),
    )
    front = np.random.default_rng(0).normal(size=(3, SIZE)).astype(np.float32)
    (given,) = outputs(first.model, {"f": front})
    expected = np.maximum(front @ weight(1), 0) @ weight(4)
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


def test_what_a_body_is_fed_is_one_sample_whatever_its_axes():
    assert all(body.signature.batch is None for body in prepared(branches()).bodies)


def test_a_body_comes_behind_the_one_that_it_is_in():
    paths = [body.path for body in prepared(nested()).bodies]
    assert paths == ["outer/then_branch", "outer/then_branch/inner/then_branch"]  # the others hold no layer


def test_a_loop_hands_over_round_condition_and_what_it_carries():
    (body,) = prepared(loop()).bodies
    assert body.formals == ("number", "going", "h")
    types = {spec.name: spec.dtype for spec in body.signature.inputs}
    assert types == {"number": np.int64, "going": np.bool_, "h": np.float32}


def test_bodies_that_hold_a_layer_somewhere_inside_are_planned():
    net = prepared(nested())
    plan = require_layers(net, Selection())
    assert not plan.layers
    assert {path: [layer.node for layer in each.plan.layers] for path, each in plan.bodies.items()} == {
        "outer/then_branch": ["before", "after"],
        "outer/then_branch/inner/then_branch": ["deepest"],
    }
    bodies, _ = plan_bodies(net, Selection(include=("deepest",)))
    assert set(bodies) == {"outer/then_branch", "outer/then_branch/inner/then_branch"}
    bodies, _ = plan_bodies(net, Selection(exclude=("deepest",)))
    assert set(bodies) == {"outer/then_branch"}


def test_patterns_may_be_about_nodes_inside_and_must_match_somewhere():
    net = prepared(branches())
    plan = require_layers(net, Selection(exclude=("front", "one")))
    assert not plan.layers
    assert [layer.node for layer in plan.bodies["choice/then_branch"].plan.layers] == ["three"]
    with pytest.raises(Exception, match="'nobody' matches no node"):
        require_layers(net, Selection(exclude=("nobody",)))


def test_a_model_without_a_layer_in_any_scope_is_refused():
    with pytest.raises(ModelError, match="has no Conv"):
        require_layers(prepared(loop()), Selection(exclude=("layer",)))


def test_bodies_put_back_unchanged_give_what_the_model_gave():
    for net, feed in (
        (branches(), feeds(1, flag=False)[0]),
        (nested(), feeds(1, flag=True, deep=True)[0]),
        (loop(), feeds(1, rounds=np.int64(3))[0]),
    ):
        ready = prepared(net)
        rebuilt = onnx.ModelProto()
        rebuilt.CopyFrom(ready.model)
        put_back(rebuilt, [(body, body.model) for body in ready.bodies])
        onnx.checker.check_model(rebuilt, full_check=True)
        for expected, given in zip(outputs(net, feed), outputs(rebuilt, feed), strict=True):
            np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


def test_names_that_a_body_makes_anew_do_not_hide_those_around_it():
    ready = prepared(branches())
    (first, _) = ready.bodies
    changed = onnx.ModelProto()
    changed.CopyFrom(first.model)
    changed.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "x"))
    changed.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["flag"], name="new"))
    changed.graph.output.append(onnx.ValueInfoProto(name="flag"))
    rebuilt = onnx.ModelProto()
    rebuilt.CopyFrom(ready.model)
    put_back(rebuilt, [(first, changed)])
    body = bodies_of(rebuilt.graph)[first.path]
    assert not {"x", "flag"} & set(tensor_names(body))
    assert body.output[1].name == body.node[-1].output[0] == "flag_1"


@pytest.mark.parametrize("inside", [False, True])
def test_weights_that_branches_share_are_in_the_model_once(inside):
    text = f"""net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{ [one] a = MatMul (x, w) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [two] h = MatMul (x, w) [three] b = Relu (h) }}> }}"""
    own = [("first", "w", weight(1)), ("second", "w", weight(1))]
    net = model(text, own) if inside else model(text, w=weight(1))
    ready = prepared(net)
    rebuilt = onnx.ModelProto()
    rebuilt.CopyFrom(ready.model)
    put_back(rebuilt, [(body, body.model) for body in ready.bodies])
    assert [tensor.name for tensor in rebuilt.graph.initializer] == ["w_shared" if inside else "w"]
    assert not any(graph.initializer for graph in bodies_of(rebuilt.graph).values())
    feed = feeds(1, flag=False)[0]
    np.testing.assert_allclose(outputs(rebuilt, feed)[0], outputs(net, feed)[0], rtol=1e-6, atol=1e-6)


def test_a_body_that_reads_what_is_no_tensor_stays_float():
    text = f"""net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
        s = SequenceConstruct (x, x)
        [front] f = MatMul (x, w)
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{ zero = Constant <value_int = 0> ()
                h = SequenceAt (s, zero) [one] a = MatMul (h, w) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [two] b = Relu (f) }}> }}"""
    plan = require_layers(prepared(model(text, w=weight(1))), Selection())
    assert not plan.bodies
    (left,) = [each for each in plan.unquantized if each.op_type == "body"]
    assert left.node == "choice/then_branch"
    assert "is no tensor but a sequence" in left.reason


def test_a_function_becomes_its_nodes():
    net = prepared(function())
    assert ops(net.model.graph) == ["MatMul", "Relu"]
    assert len(require_layers(net, Selection()).layers) == 1


def test_a_branch_on_a_size_that_is_known_takes_the_place_of_its_if():
    text = f"""net (float[2,N,{SIZE}] x) => (float[M,N,{SIZE}] y) {{
        shape = Shape (x) size = Gather (shape, zero) given = Cast <to = 9> (size)
        [choice] y = If (given) <
            then_branch = first () => (float[2,N,{SIZE}] a) {{ [one] a = MatMul (x, w) }},
            else_branch = second () => (float[2,N,{SIZE}] b) {{ [two] b = Relu (x) }}> }}"""
    net = prepared(model(text, w=weight(1), zero=np.array(0)))
    assert "MatMul" in ops(net.model.graph)
    assert "If" not in ops(net.model.graph)


def test_a_branch_on_a_size_that_the_feed_decides_stays_one():
    text = f"""net (float[N,{SIZE}] x) => (float[N,{SIZE}] y) {{
        shape = Shape (x) size = Gather (shape, zero) given = Cast <to = 9> (size)
        [choice] y = If (given) <
            then_branch = first () => (float[N,{SIZE}] a) {{ [one] a = MatMul (x, w) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [two] b = Relu (x) }}> }}"""
    net = prepared(model(text, w=weight(1), zero=np.array(0)))
    assert "If" in ops(net.model.graph)


def test_the_body_of_a_scan_knows_state_and_slice():
    (body,) = prepared(scan()).bodies
    assert body.formals == ("h", "s")
    assert [layer.node for layer in require_layers(prepared(scan()), Selection()).bodies[body.path].plan.layers] == [
        "read"
    ]
