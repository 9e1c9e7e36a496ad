"""NNCF as a contestant, where it is installed: the performance preset, its documented default."""

from __future__ import annotations

import time
from pathlib import Path

import nncf
import onnx

from benchmarks.models import workload
from benchmarks.request import Measured, Request
from benchmarks.samples import stored_samples


def quantize(request: Request) -> Measured:
    """Quantize, and write the model where one is asked for; NNCF has no calibration apart from quantization."""
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    samples = stored_samples(found, request.samples, folder)
    model = onnx.load(str(found.path))
    started = time.perf_counter()
    int8 = nncf.quantize(
        model, nncf.Dataset(samples), preset=nncf.QuantizationPreset.PERFORMANCE, subset_size=len(samples)
    )
    seconds = time.perf_counter() - started
    if request.output:
        onnx.save(int8, request.output)
    return Measured(seconds)


TASKS = {"nncf": {"calibrate": quantize, "quantize": quantize}}
