"""A table with every kind of entry, and tests of the text that a file is."""

from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration.ranges import TensorEntry
from int8cal.numerics.affine import S8, U8, Affine
from int8cal.quantization.table import CalibrationTable, TableSettings, WeightEntry


def entry_of(affine):
    low, high = affine.low, affine.high
    amax = max(abs(low), abs(high))
    return TensorEntry(
        affine.dtype.name, affine.scale, affine.zero_point, low, high, "max", amax, (low, high), 0.0, "calibrated"
    )


def f32(value):
    return float(np.float32(value))


def make_table(tensors, weights=None, **changes):
    table = CalibrationTable(
        {"sha256": "ab" * 32, "name": "m.onnx"},
        {"fingerprint": "0", "samples": 3},
        TableSettings({"target": "portable", "weights": "paired"}),
        {name: entry_of(affine) for name, affine in tensors.items()},
        weights or {},
    )
    return replace(table, **changes)


def small_table(**changes):
    tensors = {
        "x": Affine(0.5, 128, U8),
        "relu: a b": Affine(f32(0.1), 0, U8),
        "s8": Affine(f32(0.3), 0, S8),
    }
    weights = {"W": WeightEntry("int8", 0, "s8", (f32(0.01), 0.25), "conv", "x")}
    return make_table(tensors, weights, **changes)


@pytest.fixture
def make():
    class Make:
        table = staticmethod(make_table)
        small = staticmethod(small_table)
        f32 = staticmethod(f32)

    return Make
