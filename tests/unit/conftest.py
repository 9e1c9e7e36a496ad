"""One bench for the graph and quantize tests: a model from ONNX text, through the stations, with random data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference

from int8cal.calibration.engines.local import collect
from int8cal.calibration.ranges import choose_ranges
from int8cal.data.sample import Sample
from int8cal.graph.chains import find_chains
from int8cal.graph.planner import make_plan
from int8cal.graph.prepare import fold, normalize, prepare
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps
from int8cal.job import CalibrationSettings, QuantizationSettings
from int8cal.quantization.build import build_model
from int8cal.quantization.table import CalibrationTable, TableSettings
from int8cal.runtime.sessions import Session, simplify
from int8cal.runtime.targets import weight_range


class Bench:
    """Each method is one station; what the tests write is the model and what they expect."""

    @staticmethod
    def text(text, opset=17, domains="", **weights):
        """Parse `net (...) => (...) {...}`; weights are arrays, or shapes to fill with random numbers of any sign."""
        rng = np.random.default_rng(3)
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{domains}]>\n{text}')
        for name, value in weights.items():
            array = np.asarray(rng.normal(scale=0.5, size=value) if isinstance(value, tuple) else value)
            array = array.astype(np.float32) if array.dtype == np.float64 else array
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model

    @staticmethod
    def folded(model, *, data_prop=False):
        """Return a model with its shapes as folding gets it, and the folded one."""
        before = shape_inference.infer_shapes(normalize(model, "net"), data_prop=data_prop)
        after = onnx.ModelProto()
        after.CopyFrom(before)
        fold(after)
        return before, after

    @staticmethod
    def prepared(model):
        return prepare(model, simplify)

    @staticmethod
    def plan(model, *, include=(), exclude=(), target="portable", pixels=False):
        return make_plan(prepare(model, simplify).model, Selection(include, exclude, target=target, pixels=pixels))

    @staticmethod
    def samples(model, count=4, seed=5):
        rng = np.random.default_rng(seed)
        initialized = {tensor.name for tensor in model.graph.initializer}
        result = []
        for index in range(count):
            feed = {}
            for value in model.graph.input:
                if value.name in initialized:
                    continue
                kind = value.type.tensor_type
                shape = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in kind.shape.dim]
                dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
                feed[value.name] = np.asarray(rng.normal(size=shape)).astype(dtype)
            result.append(Sample(feed, f"sample {index}"))
        return result

    @classmethod
    def statistics(cls, prepared, plan, samples=None):
        taps = make_taps(plan, find_chains(prepared.model, plan))
        samples = samples or cls.samples(prepared.model)
        return collect(prepared.model, prepared.signature, taps, samples, model_sha256=prepared.sha256).statistics

    @classmethod
    def table(cls, prepared, plan, *, method="max", samples=None, **quantization):
        settings = QuantizationSettings(**quantization)
        statistics = cls.statistics(prepared, plan, samples)
        blank = CalibrationTable(
            {"sha256": prepared.sha256, "name": "net"}, {}, TableSettings({"weights": weight_range(settings)}), {}, {}
        )
        ranges = choose_ranges(plan, statistics.tensors, CalibrationSettings(method=method), settings)
        return replace(blank, tensors=ranges.entries)

    @classmethod
    def quantized(cls, model, *, include=(), exclude=(), target="portable", **settings):
        """Model -> (prepared, plan, table, built)."""
        prepared = prepare(model, simplify)
        plan = make_plan(prepared.model, Selection(include, exclude, target=target))
        table = cls.table(prepared, plan, **settings)
        return prepared, plan, table, build_model(prepared.model, plan, table)

    @staticmethod
    def run(model, feed, optimization="none"):
        return Session(model, threads=1, optimization=optimization).run(feed)


@pytest.fixture(scope="session")
def bench():
    return Bench
