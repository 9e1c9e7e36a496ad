"""A small classifier, a quantizer of a few lines that is not int8cal's own, and samples."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.evaluation import speed
from int8cal.evaluation.latency import measure_latencies


@pytest.fixture(autouse=True)
def short_latency(monkeypatch):
    """Measure speed for a moment: no test here looks at how precise it is."""
    monkeypatch.setattr(speed, "measure_latencies", partial(measure_latencies, budget_s=0.2))


@dataclass(frozen=True, eq=False)
class FakeSample:
    feed: dict
    origin: str
    label: int | None = None


def text_model(text, **weights):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    return model


def classifier(batch="N", channels=4, classes=8):
    rng = np.random.default_rng(1)
    return text_model(
        f"""net (float[{batch},3,8,8] x) => (float[{batch},{classes}] y) {{
            c = Conv <pads = [1, 1, 1, 1]> (x, W, B)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            y = Gemm(f, G)
        }}""",
        W=rng.normal(size=(channels, 3, 3, 3)).astype(np.float32),
        B=rng.normal(size=channels).astype(np.float32),
        G=rng.normal(size=(channels, classes)).astype(np.float32),
    )


def quantize(model, ranges, *, drop=(), weights=()):
    """Insert Q and DQ behind each tensor of `ranges` {name: (low, high)}, u8; drop Relu nodes; quantize named weights.

    A graph output keeps its name behind the DQ, as other tools do it.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    outputs = {value.name for value in graph.output}
    nodes, extra = [], []
    renamed, produced = {}, {}
    for node in list(graph.node):
        if node.name in drop:
            renamed[node.output[0]] = node.input[0]
            continue
        nodes.append(node)
    del graph.node[:]

    def parameters(name, scale, zero, dtype):
        graph.initializer.extend(
            [
                numpy_helper.from_array(np.float32(scale), f"{name}.scale"),
                numpy_helper.from_array(np.array(zero, dtype), f"{name}.zero"),
            ]
        )
        return [f"{name}.scale", f"{name}.zero"]

    def pair(name, source):
        low, high = ranges[name]
        scale = (high - low) / 255
        names = parameters(name, scale, round(-low / scale), np.uint8)
        target = name if name in outputs else f"{name}.dq"
        extra.append(helper.make_node("QuantizeLinear", [source, *names], [f"{name}.q"], f"{name}.Q"))
        extra.append(helper.make_node("DequantizeLinear", [f"{name}.q", *names], [target], f"{name}.DQ"))
        produced[name] = target

    for value in list(graph.input):
        if value.name in ranges:
            pair(value.name, value.name)
    for tensor in list(graph.initializer):
        if tensor.name in weights:
            value = numpy_helper.to_array(tensor)
            scale = np.float32(np.abs(value).max() / 127)
            codes = np.rint(value / scale).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(codes, f"{tensor.name}.codes"))
            names = parameters(tensor.name.removesuffix(".codes"), scale, 0, np.int8)
            original = tensor.name.removesuffix(".codes")
            extra.append(helper.make_node("DequantizeLinear", [tensor.name, *names], [f"{original}.dq"]))
            produced[original] = f"{original}.dq"
    for node in nodes:
        inputs = [renamed.get(name, name) for name in node.input]
        node.input[:] = [produced.get(name, name) for name in inputs]
        extra.append(node)
        for slot, name in enumerate(list(node.output)):
            if name in ranges:
                source = name
                if name in outputs:
                    source = node.output[slot] = f"{name}.raw"
                pair(name, source)
    graph.node.extend(extra)
    onnx.checker.check_model(result)
    return result


RANGES = {"x": (-4.0, 4.0), "c": (0.0, 20.0), "f": (0.0, 8.0), "y": (-20.0, 20.0)}


@pytest.fixture
def fp32():
    return classifier()


@pytest.fixture
def int8(fp32):
    """Quantized at x, c (its Relu dropped), f and y."""
    return quantize(fp32, RANGES, drop=("Relu_1",), weights=("W", "G"))


@pytest.fixture
def make_samples():
    def make(count, *, labels=True, name="x", shape=(3, 8, 8)):
        rng = np.random.default_rng(7)
        for index in range(count):
            feed = {name: rng.normal(size=(1, *shape)).astype(np.float32)}
            yield FakeSample(feed, f"calib/{index:04d}.npz", index % 8 if labels else None)

    return make


@pytest.fixture
def tools():
    """The builders, for tests that make models of their own."""

    class Tools:
        model = staticmethod(text_model)
        classifier = staticmethod(classifier)
        quantize = staticmethod(quantize)
        sample = FakeSample
        ranges = RANGES

    return Tools
