"""Small models with If, Loop and Scan, whose weights lie in the main graph or in bodies, and data for them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

SIZE = 16


def weight(seed, *shape):
    return np.random.default_rng(seed).normal(scale=0.3, size=shape or (SIZE, SIZE)).astype(np.float32)


def model(text, inside=(), **weights):
    """Parse `net (...) => (...) {...}`; weights by name, those of `inside` go into the body of that graph's name."""
    result = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    for name, value in weights.items():
        result.graph.initializer.append(numpy_helper.from_array(value, name))
    waiting = [result.graph]
    for graph in waiting:
        waiting += [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    for where, name, value in inside:
        (graph,) = [each for each in waiting if each.name == where]
        graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.checker.check_model(result)
    return result


def branches():
    """If on `flag`: one weight in each branch, of one name, another that both read from outside; a layer in front."""
    text = f"""net (float[N,{SIZE}] x, bool flag) => (float[N,{SIZE}] y) {{
        [front] f = MatMul (x, outside)
        [choice] y = If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{
                [one] h = MatMul (f, w) [two] r = Relu (h) [three] a = MatMul (r, both) }},
            else_branch = second () => (float[N,{SIZE}] b) {{
                [one] h = MatMul (f, w) [two] r = Tanh (h) [three] b = MatMul (r, both) }}> }}"""
    own = [("first", "w", weight(1)), ("second", "w", weight(2))]
    return model(text, own, outside=weight(3), both=weight(4))


def sharp(rounds=False):
    """Layers in front of a body, in it and behind it; a cube in front of the body's last layer spreads its input wide.

    The body is a branch that `flag` takes, or that of a Loop that goes as many rounds as `flag` says.
    """
    inside = "[one] h = MatMul ({}, w) [two] s = Mul (h, h) [three] c = Mul (s, h) [four] d = MatMul (c, v) [five] a = Tanh (d)"
    branch = f"""If (flag) <
            then_branch = first () => (float[N,{SIZE}] a) {{ {inside.format("f")} }},
            else_branch = second () => (float[N,{SIZE}] b) {{ [other] b = MatMul (f, u) }}>"""
    walk = f"""Loop (flag, , f) <
            body = first (int64 number, bool going, float[N,{SIZE}] g) => (bool on, float[N,{SIZE}] a) {{
                on = Identity (going) {inside.format("g")} }}>"""
    text = f"""net (float[N,{SIZE}] x, {"int64" if rounds else "bool"} flag) => (float[N,{SIZE}] y) {{
        [front] f = MatMul (x, outside) [choice] m = {walk if rounds else branch} [back] y = MatMul (m, behind) }}"""
    own = [("first", "w", weight(1)), ("first", "v", weight(2))] + ([] if rounds else [("second", "u", weight(3))])
    return model(text, own, outside=weight(4), behind=weight(5))


def nested():
    """If in a branch of an If; all weights lie inside, none is in the main graph."""
    text = f"""net (float[N,{SIZE}] x, bool flag, bool deep) => (float[N,{SIZE}] y) {{
        [outer] y = If (flag) <
            then_branch = middle () => (float[N,{SIZE}] a) {{
                [before] m = MatMul (x, w)
                [inner] i = If (deep) <
                    then_branch = bottom () => (float[N,{SIZE}] c) {{ [deepest] c = MatMul (m, w2) }},
                    else_branch = idle () => (float[N,{SIZE}] d) {{ [same] d = Identity (m) }}>
                [after] a = MatMul (i, w3) }},
            else_branch = plain () => (float[N,{SIZE}] b) {{ [double] b = Add (x, x) }}> }}"""
    return model(text, [("middle", "w", weight(1)), ("bottom", "w2", weight(2)), ("middle", "w3", weight(3))])


def loop():
    """As many rounds as the input `rounds` says: a layer, and what it gives is carried and collected."""
    text = f"""net (float[1,{SIZE}] x, int64 rounds) => (float[1,{SIZE}] y, float[R,1,{SIZE}] all) {{
        [walk] y, all = Loop (rounds, , x) <
            body = step (int64 number, bool going, float[1,{SIZE}] h) => (bool on, float[1,{SIZE}] g, float[1,{SIZE}] c) {{
                on = Identity (going) [layer] m = MatMul (h, w) [squash] g = Tanh (m) c = Identity (g) }}> }}"""
    return model(text, w=weight(1))


def scan():
    """A cell over the steps of a sequence, backwards: state and slice meet in two layers."""
    text = f"""net (float[{SIZE}] start, float[T,{SIZE}] steps) => (float[{SIZE}] last, float[T,{SIZE}] all) {{
        [walk] last, all = Scan <num_scan_inputs = 1, scan_input_directions = [1],
            body = cell (float[{SIZE}] h, float[{SIZE}] s) => (float[{SIZE}] g, float[{SIZE}] o) {{
                row = Unsqueeze (s, zero) [read] a = MatMul (row, w) [add] b = Add (a, h)
                flat = Squeeze (b, zero) [squash] g = Tanh (flat) o = Identity (g) }}> (start, steps) }}"""
    return model(text, w=weight(1), zero=np.array([0]))


def feeds(count=12, seed=7, **fixed):
    """Feeds of x: (1, SIZE), with other inputs as they are given."""
    rng = np.random.default_rng(seed)
    others = {name: np.asarray(value) for name, value in fixed.items()}
    return [{"x": rng.normal(size=(1, SIZE)).astype(np.float32), **others} for _ in range(count)]


def save_feeds(folder, items):
    folder.mkdir()
    for number, feed in enumerate(items):
        np.savez(folder / f"{number:03d}.npz", **feed)


def bodies_of(graph):
    """The graphs inside a graph, by node and attribute, at any depth."""
    found, waiting = {}, [("", graph)]
    while waiting:
        path, each = waiting.pop()
        for node in each.node:
            for item in node.attribute:
                if item.type == onnx.AttributeProto.GRAPH:
                    own = f"{path}{node.name}/{item.name}"
                    found[own] = item.g
                    waiting.append((f"{own}/", item.g))
    return found


def ops(graph):
    return [node.op_type for node in graph.node]


def function():
    """A layer in a model-local function."""
    result = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N,{SIZE}] x) => (float[N,{SIZE}] y) {{ y = own.block (x, w) }}
        <domain: "own", opset_import: ["" : 17]> block (a, b) => (c) {{ m = MatMul (a, b) c = Relu (m) }}""")
    result.graph.initializer.append(numpy_helper.from_array(weight(1), "w"))
    return result
