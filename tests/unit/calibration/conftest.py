"""Small models, samples and statistics for the tests of calibration/."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.calibration.collector import Collector
from int8cal.calibration.engines.local import collect
from int8cal.calibration.statistics import Statistics
from int8cal.calibration.statistics_file import save_statistics
from int8cal.data.sample import Sample
from int8cal.graph.plan import Plan, QuantizedTensor
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import Tap


@dataclass(frozen=True)
class Network:
    """A prepared model with taps, and how to collect over it."""

    model: onnx.ModelProto
    taps: tuple

    def collect(self, samples, **settings):
        return collect(self.model, signature_of(self.model), self.taps, samples, model_sha256="0" * 64, **settings)


def text_model(text, **weights):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    return onnx.shape_inference.infer_shapes(model)


def small_network(batch="N"):
    rng = np.random.default_rng(1)
    model = text_model(
        f"""net (float[{batch},2,5,5] x) => (float[{batch},3] y) {{
            c = Conv <pads = [1, 1, 1, 1]> (x, W, B)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            y = Gemm(f, G)
        }}""",
        W=rng.normal(size=(4, 2, 3, 3)).astype(np.float32),
        B=rng.normal(size=4).astype(np.float32),
        G=rng.normal(size=(4, 3)).astype(np.float32),
    )
    return Network(model, (Tap("x", 1, 2), Tap("r", 1, 4, True), Tap("f", -1, 4)))


def make_samples(count, *, shape=(2, 5, 5), seed=7, name="x"):
    rng = np.random.default_rng(seed)
    return [
        Sample({name: rng.normal(size=(1, *shape)).astype(np.float32)}, f"calib/{index:04d}.npz")
        for index in range(count)
    ]


def count(values, *, tap=None, tensor="t"):
    collector = Collector(tap or Tap(tensor))
    collector.add(np.asarray(values, np.float32), "sample")
    return collector.result()


def make_statistics(seed=3, *, sha="a" * 64, **tensors):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(2, 3, 8))
    found = {"hidden": count(values, tap=Tap("hidden", 1, 3, True)), "plain": count(values), **tensors}
    return Statistics(sha, seed * 10**30, 2, found)


def make_plan(*points):
    """Points from (tensor, group, source)."""
    return Plan(
        tuple(QuantizedTensor(tensor, group, source, True, "", "Conv") for tensor, group, source in points),
        (),
        frozenset(),
        (),
    )


@pytest.fixture
def tools(tmp_path):
    """The builders above, for tests."""

    class Tools:
        model = staticmethod(text_model)
        network = staticmethod(small_network)
        samples = staticmethod(make_samples)
        count = staticmethod(count)
        statistics = staticmethod(make_statistics)
        plan = staticmethod(make_plan)
        wrap = Network

        @staticmethod
        def file_bytes(statistics):
            path = tmp_path / "bytes.stats.npz"
            save_statistics(statistics, path)
            return path.read_bytes()

    return Tools
