"""Models with weights inside If, Loop and Scan through the commands."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_flow import SIZE, bodies_of, branches, feeds, loop, model, nested, ops, save_feeds, scan, sharp, weight
from onnx import numpy_helper

from int8cal.cli.main import main
from int8cal.search.goals import latency

pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes


def job(call, folder, net, items, *more, out="out"):
    onnx.save(net, folder / "net.onnx")
    save_feeds(folder / "data", items)
    return call("calibrate", "net.onnx", "--data", "data", "-o", out, "--no-latency", *more)


def report(folder, out="out"):
    return json.loads((folder / out / "report.json").read_text())


def table(folder, out="out"):
    return json.loads((folder / out / "net.table.json").read_text())


def is_int8(graph):
    return "DequantizeLinear" in ops(graph)


def sqnr_db(folder, items, int8="out/net.int8.onnx"):
    """The worst output's, by onnxruntime alone."""
    pair = [ort.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"]) for name in ("net.onnx", int8)]
    exact, found = ([each.run(None, feed) for feed in items] for each in pair)
    figures = []
    for number in range(len(exact[0])):
        noise = sum(float(np.square(a[number] - b[number]).sum()) for a, b in zip(exact, found, strict=True))
        figures.append(10 * np.log10(sum(float(np.square(a[number]).sum()) for a in exact) / noise))
    return min(figures)


def both():
    return feeds(8, flag=True) + feeds(8, seed=8, flag=False)


def test_both_branches_are_calibrated_and_counted(call, tmp_path):
    done = job(call, tmp_path, branches(), both()[:12])
    assert done.code == 0, done.err
    graphs = bodies_of(onnx.load(tmp_path / "out/net.int8.onnx").graph)
    assert all(is_int8(each) for each in graphs.values())
    document = table(tmp_path)
    assert document["data"]["bodies"] == {"choice/then_branch": 8, "choice/else_branch": 4}
    part = document["bodies"]["choice/then_branch"]
    assert list(part["tensors"]) == ["f", "r"]
    assert part["tensors"]["r"]["low"] == 0.0  # behind the Relu of this branch, the other has a Tanh
    assert document["bodies"]["choice/else_branch"]["tensors"]["r"]["low"] < -0.9
    assert sqnr_db(tmp_path, both()) > 20
    assert report(tmp_path)["fusion"]["integer"] > 4


def test_the_audit_of_fusion_looks_inside(call, tmp_path):
    assert job(call, tmp_path, branches(), both(), "--exclude", "two", "--exclude", "three").code == 0
    floats = {node["node"] for node in report(tmp_path)["fusion"]["nodes"]}
    assert {"choice/then_branch/three", "choice/else_branch/three"} <= floats
    assert "choice" not in floats
    assert not any(name.endswith("/one") for name in floats)


def test_a_branch_that_no_sample_took_is_told_and_stays_float(call, tmp_path):
    done = job(call, tmp_path, branches(), feeds(8, flag=True))
    assert done.code == 0, done.err
    graphs = bodies_of(onnx.load(tmp_path / "out/net.int8.onnx").graph)
    assert is_int8(graphs["choice/then_branch"])
    assert not is_int8(graphs["choice/else_branch"])
    (warning,) = [each for each in report(tmp_path)["warnings"] if "was run by no sample" in each]
    assert warning.startswith("choice/else_branch was run by no sample, so its layers stay float")
    assert warning.endswith("give samples for which the condition of 'choice' is false")
    assert table(tmp_path)["data"]["bodies"]["choice/else_branch"] == 0


@pytest.mark.parametrize(("chosen", "weights"), [(True, {"one", "three"}), (["one"], {"one"}), (["front"], None)])
def test_weights_alone_need_no_sample_that_takes_a_branch(call, tmp_path, chosen, weights):
    onnx.save(branches(), tmp_path / "net.onnx")
    save_feeds(tmp_path / "data", feeds(8, flag=True))
    settings = {"model": "net.onnx", "data": "data", "quantization": {"weights_only": chosen}}
    settings |= {"output": {"dir": "out"}, "evaluation": {"latency": False}}
    (tmp_path / "job.yaml").write_text(json.dumps(settings))
    done = call("run", "job.yaml")
    assert done.code == 0, done.err
    untaken = table(tmp_path)["bodies"].get("choice/else_branch")
    if weights is None:
        assert untaken is None
    else:
        assert {each["node"] for each in untaken["weights"].values()} == weights
        assert not untaken["tensors"]
    assert table(tmp_path)["data"]["bodies"]["choice/else_branch"] == 0
    (warning,) = [each for each in report(tmp_path)["warnings"] if "was run by no sample" in each]
    assert ("but those of weights_only stay float" in warning) == (weights is not None)
    assert is_int8(bodies_of(onnx.load(tmp_path / "out/net.int8.onnx").graph)["choice/else_branch"]) == bool(weights)
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()
    if chosen is True:
        assert sqnr_db(tmp_path, feeds(8, seed=8, flag=False)) > 30
    for name in ("net.table.json", "net.stats.npz"):
        assert call("inspect", f"out/{name}").code == 0


def test_a_pattern_may_be_about_nodes_outside_while_steps_plan_a_body_anew(call, tmp_path):
    items = feeds(16, flag=True)
    for number, feed in enumerate(items):  # loud and quiet ones, so that ranges at run time are worth an offer
        feed.update({name: value * np.float32(10.0 ** -(number % 4)) for name, value in feed.items() if value.ndim})
    done = job(call, tmp_path, branches(), items, "--activations", "auto", "--exclude", "front")
    assert done.code == 0, done.err
    decisions = (tmp_path / "out" / "report.json").read_text()
    assert "choice/then_branch: ranges at run time for 1 layers" in decisions


def test_data_that_run_no_branch_with_a_layer_are_refused(call, tmp_path):
    done = job(call, tmp_path, nested(), feeds(4, flag=False, deep=False))
    assert done.code == 4
    assert "runs none of the branches and loops that hold layers" in done.message
    assert "the condition of 'outer' is true" in done.message


@pytest.mark.parametrize(
    ("net", "items"),
    [
        (branches, both()),
        (nested, feeds(8, flag=True, deep=True) + feeds(4, seed=1, flag=True, deep=False)),
        (loop, [each for rounds in (1, 3, 5) for each in feeds(4, seed=rounds, rounds=np.int64(rounds))]),
    ],
)
def test_quantize_makes_the_same_bytes_of_the_table(call, tmp_path, net, items):
    done = job(call, tmp_path, net(), items)
    assert done.code == 0, done.err
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()
    assert sqnr_db(tmp_path, items) > 30


@pytest.mark.parametrize("option", ["--activations=auto", "--weights-only", "--recipe=accurate"])
def test_what_steps_decide_inside_is_in_the_table(call, tmp_path, option):
    done = job(call, tmp_path, nested(), feeds(8, flag=True, deep=True), option)
    assert done.code == 0, done.err
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()


def test_a_table_for_another_runtime_says_what_it_lacks(call, tmp_path):
    assert job(call, tmp_path, branches(), both()).code == 0
    done = call("table", "out/net.table.json", "--to", "tensorrt", "-o", "net.cache", "--model", "net.onnx")
    assert done.code == 0, done.err
    assert "4 tensors inside If, Loop and Scan are left out" in done.err


def test_a_range_for_a_tensor_inside_is_the_bodys(call, tmp_path):
    onnx.save(branches(), tmp_path / "net.onnx")
    save_feeds(tmp_path / "data", both())
    text = "model: net.onnx\ndata: {path: data}\nquantization: {ranges: {r: [0, 3]}}\nevaluation: {latency: false}\n"
    (tmp_path / "job.yaml").write_text(text + "output: {dir: out}\n")
    done = call("calibrate", "--config", "job.yaml")
    assert done.code == 0, done.err
    assert {part["tensors"]["r"]["source"] for part in table(tmp_path)["bodies"].values()} == {"user"}
    assert table(tmp_path)["tensors"]["x"]["source"] == "calibrated"


def test_an_edit_of_a_range_inside_reaches_the_model(call, tmp_path):
    assert job(call, tmp_path, branches(), both()).code == 0
    document = table(tmp_path)
    document["bodies"]["choice/then_branch"]["tensors"]["r"]["high"] /= 4
    (tmp_path / "edited.json").write_text(json.dumps(document))
    assert call("quantize", "net.onnx", "--table", "edited.json", "-o", "edited.onnx").code == 0
    taken, other = feeds(8, flag=True), feeds(8, seed=8, flag=False)
    assert sqnr_db(tmp_path, taken, "edited.onnx") < sqnr_db(tmp_path, taken) - 10
    assert sqnr_db(tmp_path, other, "edited.onnx") == sqnr_db(tmp_path, other)


def test_statistics_of_shards_add_up_to_those_of_all(call, tmp_path):
    items = both()
    assert job(call, tmp_path, branches(), items).code == 0
    for name, part in (("a", items[:6]), ("b", items[6:])):  # the first has only one of the branches
        save_feeds(tmp_path / name, part)
        assert call("calibrate", "net.onnx", "--data", name, "-o", f"out-{name}", "--no-latency").code == 0
    shards = [f"out-{name}/net.stats.npz" for name in "ab"]
    assert call("merge", *shards, "-o", "all.stats.npz").code == 0
    assert (tmp_path / "all.stats.npz").read_bytes() == (tmp_path / "out/net.stats.npz").read_bytes()
    done = call("calibrate", "net.onnx", "--data", "data", "--stats", "all.stats.npz", "-o", "stored", "--no-latency")
    assert done.code == 0, done.err
    assert (tmp_path / "stored/net.int8.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()


def test_rounds_of_a_loop_count_and_none_is_no_error(call, tmp_path):
    items = [each for rounds in (0, 2, 3) for each in feeds(4, seed=rounds, rounds=np.int64(rounds))]
    done = job(call, tmp_path, loop(), items)
    assert done.code == 0, done.err
    assert table(tmp_path)["data"]["bodies"] == {"walk/body": 20}
    assert "walk/body: calibrated on 20 runs" in report(tmp_path)["decisions"]
    assert is_int8(bodies_of(onnx.load(tmp_path / "out/net.int8.onnx").graph)["walk/body"])


def test_a_scan_is_quantized(call, tmp_path):
    rng = np.random.default_rng(0)
    shapes = [{"start": (SIZE,), "steps": (length, SIZE)} for length in (3, 4, 5, 6, 7)]
    items = [{name: rng.normal(size=shape).astype(np.float32) for name, shape in each.items()} for each in shapes]
    done = job(call, tmp_path, scan(), items)
    assert done.code == 0, done.err
    assert is_int8(bodies_of(onnx.load(tmp_path / "out/net.int8.onnx").graph)["walk/body"])
    assert sqnr_db(tmp_path, items) > 30


def test_inspect_audit_and_evaluate_know_bodies(call, tmp_path):
    items = both()
    assert job(call, tmp_path, branches(), items).code == 0
    shown = call("inspect", "out/net.table.json").out
    assert "choice/then_branch, run 8 times" in shown
    assert "choice/then_branch" in call("inspect", "net.onnx").out
    assert "choice/else_branch, run 8 times" in call("inspect", "out/net.stats.npz").out
    audited = call("audit", "out/net.int8.onnx")
    assert audited.code == 0, audited.err
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data", "--no-latency", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["sqnr_db"] == pytest.approx(report(tmp_path)["metrics"]["sqnr_db"])
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("taken", [(True, False), (True,)], ids=["both", "one"])
def test_a_float16_table_of_both_branches_is_stored_once_and_no_larger(call, tmp_path, taken):
    branch = "[look] t = Gather (table, row) [sum] s = Add (h, t) [two] {end} = MatMul (s, w)"
    text = f"""net (float16[N,{SIZE}] x, int64[N] row, bool flag) => (float16[N,{SIZE}] y) {{
        [first] g = MatMul (x, outside) [before] u = Gather (table, row) [plus] h = Add (g, u)
        [choice] y = If (flag) <
            then_branch = first () => (float16[N,{SIZE}] a) {{ {branch.format(end="a")} }},
            else_branch = second () => (float16[N,{SIZE}] b) {{ {branch.format(end="b")} }}> }}"""
    own = [("first", "w", weight(1).astype(np.float16)), ("second", "w", weight(2).astype(np.float16))]
    outer = {"outside": weight(3).astype(np.float16), "table": weight(4, 2000, SIZE).astype(np.float16)}
    items = [
        {**each, "x": each["x"].astype(np.float16), "row": np.array([at * 7], np.int64)}
        for flag in taken
        for at, each in enumerate(feeds(8, flag=flag))
    ]
    assert job(call, tmp_path, model(text, own, **outer), items, "--exclude", "op:Gather").code == 0
    sizes = [(tmp_path / name).stat().st_size for name in ("net.onnx", "out/net.int8.onnx")]
    assert sizes[1] < sizes[0] + 10_000
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()
    assert sqnr_db(tmp_path, items) > 20


def layers(folder, out="out"):
    return {each["tensor"]: each for each in report(folder, out)["layers"]}


def test_the_report_compares_layers_inside_by_their_full_names(call, tmp_path):
    assert job(call, tmp_path, branches(), both(), "--gate", "layers.worst_sqnr_db>=20").code == 0
    found = layers(tmp_path)
    inside = {f"choice/{branch}/{name}" for branch in ("then_branch", "else_branch") for name in "fr"}
    assert found.keys() == {"x", *inside}
    assert found["choice/then_branch/r"]["node"] == "choice/then_branch/two"
    for name in inside:
        path, _, tensor = name.rpartition("/")
        entry = table(tmp_path)["bodies"][path]["tensors"][tensor]
        assert (found[name]["low"], found[name]["high"]) == (entry["low"], entry["high"])
        assert found[name]["clipped"] == entry["clipped"]
        assert 30 < found[name]["sqnr_db"] < 60
    document = report(tmp_path)
    weights = {(each["node"], each["tensor"]) for each in document["weights"]}
    assert ("choice/else_branch/three", "choice/else_branch/b") in weights
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data", "-o", "again", "--no-latency")
    assert done.code == 0, done.err
    again = layers(tmp_path, "again")
    assert {name: each["sqnr_db"] for name, each in again.items()} == {
        name: each["sqnr_db"] for name, each in found.items()
    }


@pytest.mark.parametrize(
    ("net", "items", "names"),
    [
        (nested, feeds(8, flag=True, deep=True), {"outer/then_branch/inner/then_branch/m", "outer/then_branch/i"}),
        (loop, feeds(4, rounds=np.int64(3)), {"walk/body/h"}),
    ],
)
def test_layers_of_loops_and_of_branches_inside_branches_are_compared(call, tmp_path, net, items, names):
    assert job(call, tmp_path, net(), items).code == 0
    found = layers(tmp_path)
    assert names <= found.keys()
    assert all(found[name]["sqnr_db"] > 30 for name in names)


def test_a_state_that_stays_zero_for_the_first_rounds_is_compared_in_later_ones_too(call, tmp_path):
    text = f"""net (float[1,{SIZE}] start, float[T,1,{SIZE}] steps) => (float[1,{SIZE}] last) {{
        [walk] last = Scan <num_scan_inputs = 1, scan_input_directions = [1],
            body = cell (float[1,{SIZE}] h, float[1,{SIZE}] s) => (float[1,{SIZE}] g) {{
                [read] a = MatMul (h, w) b = Add (a, s) [squash] g = Tanh (b) }}> (start, steps) }}"""
    rng = np.random.default_rng(3)
    items = []
    for length in (2, 5, 6, 7, 8, 9):  # padded to 12 steps, and read from the end
        steps = np.zeros((12, 1, SIZE), np.float32)
        steps[:length] = rng.normal(size=(length, 1, SIZE))
        items.append({"start": np.zeros((1, SIZE), np.float32), "steps": steps})
    done = job(call, tmp_path, model(text, w=weight(1)), items)
    assert done.code == 0, done.err
    state = layers(tmp_path)["walk/body/h"]
    assert state["op_type"] == "Scan"  # who evaluates has no hand in it, as with an input
    assert state["used"] > 0.5
    assert [each for each in report(tmp_path)["warnings"] if "unlike" in each] == []


def test_a_gate_on_layers_sees_those_inside(call, tmp_path):
    onnx.save(branches(), tmp_path / "net.onnx")
    assert job(call, tmp_path, branches(), both()).code == 0
    worst = min(layers(tmp_path).values(), key=lambda each: each["sqnr_db"])
    assert worst["tensor"].startswith("choice/")
    gate = f"layers.worst_sqnr_db>{worst['sqnr_db'] + 1}"
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data", "--no-latency", "--gate", gate)
    assert done.code == 7


def test_channels_that_were_rescaled_inside_are_compared_as_they_were(call, tmp_path):
    factors = np.exp2(np.linspace(-5, 5, SIZE)).astype(np.float32)
    text = f"""net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{
                [one] h = MatMul (x, w) [two] r = Relu (h) [three] a = MatMul (r, v) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [none] b = Identity (x) }}> }}"""
    own = [("first", "w", weight(1) * factors), ("first", "v", weight(2) / factors[:, None])]
    assert job(call, tmp_path, model(text, own), feeds(32, flag=True)).code == 0
    assert "equalization" in table(tmp_path)["bodies"]["choice/then_branch"]["corrections"]
    found = layers(tmp_path)["choice/then_branch/r"]
    assert found["sqnr_db"] > 30
    assert found["outside"] < 0.1


def test_a_branch_that_only_looks_up_an_embedding_is_quantized(call, tmp_path):
    text = f"""net (float[N,{SIZE}] x, int64[N] row, bool flag) => (float[N,{SIZE}] y) {{
        [front] f = MatMul (x, w)
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{ [look] t = Gather (table, row) [plus] a = Add (f, t) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [same] b = Identity (f) }}> }}"""
    items = [{**each, "row": np.array([at * 7], np.int64)} for at, each in enumerate(feeds(16, flag=True))]
    net = model(text, [("first", "table", weight(4, 3000, SIZE))], w=weight(1))
    assert job(call, tmp_path, net, items).code == 0
    sizes = [(tmp_path / name).stat().st_size for name in ("net.onnx", "out/net.int8.onnx")]
    assert sizes[0] > 3 * sizes[1]
    assert sqnr_db(tmp_path, items) > 35
    assert list(table(tmp_path)["bodies"]["choice/then_branch"]["weights"]) == ["table"]


def test_branches_three_deep_are_quantized(call, tmp_path):
    text = f"""net (float[N,{SIZE}] x, bool a, bool b, bool c) => (float[N,{SIZE}] y) {{
        [one] y = If (a) <
            then_branch = p () => (float[N,{SIZE}] o) {{
                [m1] h = MatMul (x, w1)
                [two] o = If (b) <
                    then_branch = q () => (float[N,{SIZE}] r) {{
                        [m2] g = MatMul (h, w2)
                        [three] r = If (c) <
                            then_branch = s () => (float[N,{SIZE}] t) {{ [m3] t = MatMul (g, w3) }},
                            else_branch = u () => (float[N,{SIZE}] v) {{ [m4] v = MatMul (h, w1) }}> }},
                    else_branch = k () => (float[N,{SIZE}] l) {{ [same] l = Identity (h) }}> }},
            else_branch = n () => (float[N,{SIZE}] m) {{ [minus] m = Neg (x) }}> }}"""
    net = model(text, [("p", "w1", weight(1)), ("q", "w2", weight(2)), ("s", "w3", weight(3))])
    items = feeds(8, a=True, b=True, c=True) + feeds(4, seed=3, a=True, b=True, c=False)
    assert job(call, tmp_path, net, items).code == 0
    deep = "one/then_branch/two/then_branch/three"
    assert {f"{deep}/then_branch/g", f"{deep}/else_branch/h"} <= layers(tmp_path).keys()
    assert report(tmp_path)["fusion"]["integer"] == 4
    assert sqnr_db(tmp_path, items) > 30
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()


def test_a_function_that_is_called_twice_and_branches_has_a_body_for_each_call(call, tmp_path):
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
            h = own.block (x, w, flag) y = own.block (h, v, flag) }}
        <domain: "own", opset_import: ["" : 17]> block (a, b, c) => (o) {{
            m = MatMul (a, b)
            o = If (c) <
                then_branch = t () => (float[N,{SIZE}] p) {{ q = MatMul (m, b) p = Relu (q) }},
                else_branch = e () => (float[N,{SIZE}] s) {{ s = Identity (m) }}> }}""")
    net.graph.initializer.extend(numpy_helper.from_array(weight(seed), name) for seed, name in ((1, "w"), (2, "v")))
    assert job(call, tmp_path, net, both()).code == 0
    assert report(tmp_path)["fusion"]["integer"] == 4
    assert len(table(tmp_path)["bodies"]) == 2
    assert sqnr_db(tmp_path, both()) > 30


def test_what_a_branch_computes_of_a_small_constant_is_not_stored(call, tmp_path):
    text = f"""net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
        [long] t = Tile (base, counts)
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{
                [one] h = MatMul (x, w) [wide] u = Tile (base, counts) [most] m = ReduceSum <keepdims = 0> (u)
                [all] k = MatMul (h, v) [sum] l = Add (k, m) g = Mul (l, t) a = ReduceMean <axes = [0], keepdims = 0> (g) }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [none] b = Identity (x) }}> }}"""
    outer = {"base": weight(3, 1, 1, SIZE), "counts": np.array([5000, 1, 1])}
    net = model(text, [("first", "w", weight(1)), ("first", "v", weight(2))], **outer)
    items = feeds(8, flag=True) + feeds(2, seed=8, flag=False)
    assert job(call, tmp_path, net, items).code == 0
    assert (tmp_path / "out/net.int8.onnx").stat().st_size < 20_000
    assert sqnr_db(tmp_path, items) > 30
    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out/net.int8.onnx").read_bytes()


def test_inspect_and_audit_call_layers_inside_by_their_full_names(call, tmp_path):
    assert job(call, tmp_path, branches(), both()).code == 0
    names = {f"choice/{branch}/{node}" for branch in ("then_branch", "else_branch") for node in ("one", "three")}
    for command in (("inspect", "net.onnx"), ("audit", "out/net.int8.onnx")):
        done = call(*command)
        assert done.code == 0, done.err
        assert all(name in done.out for name in names)


def test_layers_inside_that_cannot_be_compared_have_a_reason(call, tmp_path):
    assert job(call, tmp_path, branches(), both()).code == 0
    save_feeds(tmp_path / "some", feeds(4, flag=True))
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "some", "-o", "one", "--no-latency")
    assert done.code == 0, done.err
    assert report(tmp_path, "one")["reasons"]["layers.choice/else_branch"] == "no sample runs it"
    assert "choice/then_branch/r" in layers(tmp_path, "one")
    done = call("evaluate", "out/net.int8.onnx", "out/net.int8.onnx", "--data", "some", "-o", "same", "--no-latency")
    assert done.code == 0, done.err
    assert "is already quantized" in report(tmp_path, "same")["reasons"]["layers.bodies"]


def goal(call, folder, net, items, *more, out="goal"):
    """Calibrate towards a goal; gives the call, the report, and layers in float by their full names in the table."""
    if not (folder / "net.onnx").exists():
        onnx.save(net, folder / "net.onnx")
        save_feeds(folder / "data", items)
    done = call("calibrate", "net.onnx", "--data", "data", "-o", out, "--no-latency", "--latency-allowance", 0, *more)
    assert done.code in (0, 7), done.err
    document = table(folder, out)
    graphs = {"": document, **{f"{path}/": part for path, part in document["bodies"].items()}}
    left = {
        f"{path}{node}"
        for path, part in graphs.items()
        for key, nodes in part["settings"].items()
        if key in ("left_for_gates", "left_for_latency")
        for node in nodes
    }
    assert call("quantize", "net.onnx", "--table", f"{out}/net.table.json", "-o", f"{out}.onnx").code == 0
    assert (folder / f"{out}.onnx").read_bytes() == (folder / out / "net.int8.onnx").read_bytes()
    return done, report(folder, out), left


@pytest.mark.parametrize(
    ("net", "items", "body"),
    [
        (sharp(), feeds(8, flag=True) + feeds(4, seed=1, flag=False), "choice/then_branch"),
        (sharp(rounds=True), feeds(8, flag=np.int64(2)), "choice/body"),
    ],
)
def test_a_budget_leaves_the_noisy_layer_of_a_body_in_float_so_that_a_gate_holds(call, tmp_path, net, items, body):
    plain = goal(call, tmp_path, net, items, out="plain")[1]["metrics"]["sqnr_db"]
    # without the body's last layer, no budget reaches this
    rest = goal(call, tmp_path, net, items, "--include", "four", out="rest")[1]["metrics"]["sqnr_db"]
    assert rest < plain + 4
    done, found, left = goal(call, tmp_path, net, items, "--gate", f"sqnr_db>={plain + 5}", "--budget", 200)
    assert done.code == 0
    assert sqnr_db(tmp_path, items, "goal/net.int8.onnx") >= plain + 5
    rows = {row["node"]: row for row in found["mixed_precision"]["layers"]}
    assert f"{body}/four" == max(rows, key=lambda name: rows[name]["contribution"])
    assert {name for name, row in rows.items() if row["decision"] == "float"} == left
    assert f"{body}/four" in left
    assert {"front", "back", f"{body}/one"} <= rows.keys()
    assert any(
        line == f"{body}: not quantized: MatMul four: in float so that the gates hold" for line in found["decisions"]
    )


def test_a_budget_that_no_layer_of_a_body_makes_suffice_ends_with_code_7(call, tmp_path):
    items = feeds(8, flag=True) + feeds(4, seed=1, flag=False)
    done, found, left = goal(call, tmp_path, sharp(), items, "--gate", "sqnr_db>=200", "--budget", 1000)
    assert done.code == 7
    assert "does not suffice for the gates" in done.message
    (kept,) = [point for point in found["mixed_precision"]["curve"] if point["kept"]]
    assert kept["layers_left"] == len(left) > 0
    assert is_int8(onnx.load(tmp_path / "goal/net.int8.onnx").graph) or any(
        is_int8(each) for each in bodies_of(onnx.load(tmp_path / "goal/net.int8.onnx").graph).values()
    )


def test_residual_codes_are_offered_to_layers_of_bodies(call, tmp_path):
    items = feeds(8, flag=True) + feeds(4, seed=1, flag=False)
    plain = goal(call, tmp_path, sharp(), items, out="plain")[1]["metrics"]["sqnr_db"]
    more = ("--gate", f"sqnr_db>={plain + 3}", "--budget", 200, "--fallback", "planes")
    done, found, left = goal(call, tmp_path, sharp(), items, *more)
    assert (done.code, left) == (0, set())
    rows = {row["node"]: row["decision"] for row in found["mixed_precision"]["layers"]}
    assert rows["choice/then_branch/four"] == "int8 with residual codes of its input"
    assert "four" in table(tmp_path, "goal")["bodies"]["choice/then_branch"]["corrections"]["remainder"]


def test_a_body_none_of_whose_layers_is_left_in_int8_is_float(call, tmp_path):
    items = feeds(8, flag=True, deep=True)
    done, _, left = goal(call, tmp_path, nested(), items, "--gate", "sqnr_db>=200", "--budget", 1000)
    assert done.code == 7
    assert len(left) == 2  # of three layers, one stays
    graphs = bodies_of(onnx.load(tmp_path / "goal/net.int8.onnx").graph)
    assert sum(map(is_int8, graphs.values())) == 1
    assert call("inspect", "goal/net.table.json").code == 0


def test_a_branch_that_no_sample_took_does_not_count_as_a_layer_that_stays_int8(call, tmp_path):
    done, _, left = goal(call, tmp_path, branches(), feeds(8, flag=True), "--gate", "sqnr_db>=200", "--budget", 9999)
    assert done.code == 7
    assert {name.rpartition("/")[0] for name in left} <= {"", "choice/then_branch"}
    assert integer_layers(onnx.load(tmp_path / "goal/net.int8.onnx"))
    assert (tmp_path / "goal.onnx").read_bytes() == (tmp_path / "goal/net.int8.onnx").read_bytes()


def integer_layers(int8):
    """Full names of the layers that read dequantized values."""
    found = set()
    for path, graph in {"": int8.graph, **bodies_of(int8.graph)}.items():
        dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        layers = (node for node in graph.node if node.op_type == "MatMul" and node.input[0] in dequantized)
        found |= {f"{path}/{node.name}" if path else node.name for node in layers}
    return found


def test_every_layer_is_left_float_where_float_is_faster_though_no_sample_took_a_branch(tmp_path, monkeypatch):
    def timed(sessions, feeds, **_):
        return [tuple(100.0 + len(integer_layers(each)) for each in sessions)] * 8

    monkeypatch.setattr(latency, "measure_interleaved", timed)
    monkeypatch.setattr(latency, "Session", lambda model, **_: model)

    def run(*arguments):
        return SimpleNamespace(code=main([str(each) for each in arguments]), err="")

    monkeypatch.chdir(tmp_path)
    done, found, _ = goal(run, tmp_path, branches(), feeds(4, flag=True), "--optimize", "latency")
    assert done.code == 0
    assert {name.rpartition("/")[0] for name in found["optimize"]["left"]} == {"", "choice/then_branch"}
    assert not integer_layers(onnx.load(tmp_path / "goal/net.int8.onnx"))


@pytest.mark.parametrize(
    ("net", "items", "slow"),
    [
        (sharp(), feeds(4, flag=True), "choice/then_branch/four"),
        (sharp(rounds=True), feeds(4, flag=np.int64(2)), "choice/body/one"),
        (nested(), feeds(4, flag=True, deep=True), "outer/then_branch/inner/then_branch/deepest"),
    ],
)
def test_a_layer_of_a_body_that_is_slower_in_int8_is_left_float(tmp_path, monkeypatch, net, items, slow):
    measured = latency.profile_kernels

    def profiled(models, feeds, **_):
        before, after = measured(models, feeds, budget_s=0.0)
        assert slow in before.kernels
        times = {name: 9.0 if name == slow else 2.0 for name in after.kernels}
        return replace(before, kernels=dict.fromkeys(before.kernels, 5.0)), replace(after, kernels=times)

    def timed(sessions, feeds, **_):
        found = [integer_layers(each) for each in sessions]
        return [tuple(100.0 + 10.0 * (slow in each) - len(each - {slow}) for each in found)] * 8

    monkeypatch.setattr(latency, "profile_kernels", profiled)
    monkeypatch.setattr(latency, "measure_interleaved", timed)
    monkeypatch.setattr(latency, "Session", lambda model, **_: model)

    def run(*arguments):
        return SimpleNamespace(code=main([str(each) for each in arguments]), err="")

    monkeypatch.chdir(tmp_path)
    _, found, left = goal(run, tmp_path, net, items, "--optimize", "latency")
    assert left == {slow} == found["optimize"]["left"].keys()
    rows = {row["node"]: row for row in found["optimize"]["rows"]}
    assert (rows[slow]["decision"], rows[slow]["fp32_us"]) == ("float", 5.0)
    assert len(rows) > 1
    assert {row["decision"] for name, row in rows.items() if name != slow} == {"int8"}
    assert integer_layers(onnx.load(tmp_path / "goal/net.int8.onnx")) >= rows.keys() - {slow}
    assert slow not in integer_layers(onnx.load(tmp_path / "goal/net.int8.onnx"))


def test_a_function_that_is_called_around_a_body_and_in_it(call, tmp_path):
    """The runtime gives the tensors of both calls the same names when it puts the function in their place."""
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (bool flag, float[1,{SIZE}] x) => (float[1,{SIZE}] y) {{
            a = own.layer (x, w)
            y = If (flag) <then_branch = yes () => (float[1,{SIZE}] b) {{ b = own.layer (a, w) }},
                           else_branch = no () => (float[1,{SIZE}] c) {{ c = MatMul (a, w) }}>
        }}
        <domain: "own", opset_import: ["" : 17]> layer (h, v) => (out) {{ m = MatMul (h, v) out = Relu (m) }}""")
    net.graph.initializer.append(numpy_helper.from_array(weight(1), "w"))
    done = job(call, tmp_path, net, both())
    assert done.code == 0, done.err
    assert len(table(tmp_path)["data"]["bodies"]) == 2
    assert sqnr_db(tmp_path, both()) > 25
