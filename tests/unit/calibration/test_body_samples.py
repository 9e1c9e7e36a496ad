"""What bodies are fed, against what onnxruntime itself collects of the nodes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from control_flow import SIZE, branches, feeds, loop, model, nested, scan, weight

from int8cal import pipeline
from int8cal.calibration.body_samples import feed_bodies
from int8cal.data.sample import Sample
from int8cal.graph.index import Index, walk
from int8cal.graph.prepare import prepare
from int8cal.job import CalibrationSettings, DataSettings, Job
from int8cal.pipeline import calibrate_model
from int8cal.runtime.sessions import Session, simplify

JOB = Job(Path("net.onnx"), DataSettings("data"), CalibrationSettings(threads=1))
pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes


def runs(net, items):
    """The runs of every body, by path."""
    ready = prepare(net, simplify)
    samples = [Sample(feed, f"sample {number}") for number, feed in enumerate(items)]
    found = {body.path: [] for body in ready.bodies}
    feed_bodies(
        ready.model, ready.signature, samples, ready.bodies, lambda runs: found[runs.body.path].extend(runs), threads=1
    )
    return found


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


def chain_of_branches(count):
    """Ifs one behind the other, each with a layer in its branch; each reads what the one before gave."""
    nodes, own, last = [], [], "x"
    for number in range(count):
        nodes.append(f"""[if{number}] x{number} = If (flag) <
            then_branch = yes{number} () => (float[N,{SIZE}] a) {{ [one] h = MatMul ({last}, w) a = Tanh (h) }},
            else_branch = no{number} () => (float[N,{SIZE}] b) {{ b = Neg ({last}) }}>""")
        own.append((f"yes{number}", "w", weight(number)))
        last = f"x{number}"
    text = f"net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] {last}) {{ {' '.join(nodes)} }}"
    return model(text, own)


def test_parts_of_runs_are_counted_as_one(monkeypatch):
    items = feeds(9, flag=True, deep=True) + feeds(3, flag=True, deep=False)
    whole = calibrate_model(JOB, nested(), stream=lambda: items)
    monkeypatch.setattr("int8cal.calibration.body_samples.HELD_BYTES", 200)
    parts = calibrate_model(JOB, nested(), stream=lambda: items)
    assert parts.result.table == whole.result.table
    assert parts.result.model == whole.result.model


def test_many_bodies_take_as_much_work_as_there_are_bodies(monkeypatch, tmp_path):
    items, work = feeds(3, flag=True), Counter()

    def counted(owner, name, size):
        true = getattr(owner, name)

        def call(*args, **options):
            work[name] += size(*args)
            return true(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(Index, "__init__", lambda _, model: sum(1 for _ in walk(model.graph)))
    counted(Session, "__init__", lambda *_: 1)
    counted(Session, "run", lambda *_: 1)
    counted(pipeline, "load_statistics", lambda *_: 1)
    figures = []
    for count in (6, 12):
        work.clear()
        net, path = chain_of_branches(count), tmp_path / f"{count}.stats.npz"
        found = calibrate_model(JOB, net, stream=lambda: items)
        assert len(found.statistics.bodies) == count
        found.statistics.save(path)
        again = replace(JOB, calibration=replace(JOB.calibration, statistics=path))
        assert calibrate_model(again, net, stream=lambda: items).result.table.bodies == found.result.table.bodies
        figures.append(Counter(work))
    few, many = figures
    assert few.pop("load_statistics") == many.pop("load_statistics") == 1
    assert min(few.values()) > 6
    assert all(many[what] < 2.1 * few[what] for what in few), figures
