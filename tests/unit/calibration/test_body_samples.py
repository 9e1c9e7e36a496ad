"""What bodies are fed, against what onnxruntime itself collects of the nodes."""

import numpy as np
import onnxruntime as ort
import pytest
from control_flow import SIZE, branches, feeds, loop, model, nested, scan, weight

from int8cal.calibration.body_samples import BodySamples
from int8cal.data.sample import Sample
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import simplify

pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes


def runs(net, items):
    """The runs of every body, by path."""
    ready = prepare(net, simplify)
    samples = [Sample(feed, f"sample {number}") for number, feed in enumerate(items)]
    places = {"": (ready.model, ready.signature, samples)}
    found = {}
    for body in ready.bodies:
        found[body.path] = BodySamples(*places[body.parent][:2], body, places[body.parent][2])
        places[body.path] = body.model, body.signature, found[body.path]
    return {path: [*each] for path, each in found.items()}


def reference(net, feed):
    return ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)


def test_a_branch_is_fed_the_samples_that_take_it():
    taken, other = feeds(3, flag=True), feeds(2, seed=8, flag=False)
    found = runs(branches(), [taken[0], other[0], *taken[1:], other[1]])
    assert [each.origin for each in found["choice/then_branch"]] == ["sample 0", "sample 2", "sample 3"]
    assert [each.origin for each in found["choice/else_branch"]] == ["sample 1", "sample 4"]
    np.testing.assert_allclose(
        found["choice/else_branch"][0].feed["f"], other[0]["x"] @ weight(3), rtol=1e-5, atol=1e-5
    )


def test_a_branch_inside_a_branch_is_fed_by_it():
    items = feeds(2, flag=True, deep=True) + feeds(1, flag=True, deep=False) + feeds(1, flag=False, deep=True)
    found = runs(nested(), items)
    assert [len(each) for each in found.values()] == [3, 2]
    (inner, _) = found["outer/then_branch/inner/then_branch"]
    np.testing.assert_allclose(inner.feed["m"], items[0]["x"] @ weight(1), rtol=1e-5, atol=1e-5)


def test_a_loop_feeds_its_body_what_the_runtime_carries():
    (feed,) = feeds(1, rounds=np.int64(4))
    _, collected = reference(loop(), feed)
    found = runs(loop(), [feed])["walk/body"]
    assert [int(each.feed["number"]) for each in found] == [0, 1, 2, 3]
    np.testing.assert_array_equal(found[0].feed["h"], feed["x"])
    for before, each in zip(collected, found[1:], strict=False):
        np.testing.assert_allclose(each.feed["h"], before, rtol=1e-6, atol=1e-6)
    assert found[2].origin == "sample 0, round 3 of walk"


def test_a_loop_of_no_rounds_runs_nothing():
    assert runs(loop(), feeds(2, rounds=np.int64(0)))["walk/body"] == []


def test_a_loop_ends_where_its_condition_does():
    text = f"""net (float[1,{SIZE}] x, bool start) => (float[1,{SIZE}] y) {{
        [walk] y = Loop (, start, x) <
            body = step (int64 number, bool going, float[1,{SIZE}] h) => (bool on, float[1,{SIZE}] g) {{
                [layer] g = MatMul (h, w) on = Less (number, two) }}> }}"""
    net = model(text, w=weight(1), two=np.array(2))
    assert len(runs(net, feeds(1, start=True))["walk/body"]) == 3  # the one in which the number is 2 is the last
    assert runs(net, feeds(1, start=False))["walk/body"] == []


def test_a_scan_feeds_its_body_slices_in_their_direction():
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("start", SIZE), ("steps", (3, SIZE)))}
    last, _ = reference(scan(), feed)
    found = runs(scan(), [feed])["walk/body"]
    np.testing.assert_array_equal([each.feed["s"] for each in found], feed["steps"][::-1])
    np.testing.assert_array_equal(found[0].feed["h"], feed["start"])
    state = np.tanh(found[-1].feed["s"] @ weight(1) + found[-1].feed["h"])
    np.testing.assert_allclose(last, state, rtol=1e-5, atol=1e-5)
