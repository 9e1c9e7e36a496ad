"""AMD Quark as a contestant, where it is installed: u8 activations, s8 weights, asymmetric activations."""

from __future__ import annotations

import time
from pathlib import Path

from quark.onnx import ModelQuantizer, QConfig

from benchmarks.models import workload
from benchmarks.request import Measured, Request
from benchmarks.samples import stored_samples
from benchmarks.tools.onnxruntime import Reader


def quantize(request: Request) -> Measured:
    """Quantize and write the model; Quark has no calibration apart from quantization."""
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    reader = Reader(stored_samples(found, request.samples, folder))
    output = request.output or str(folder / f"quark-{request.model.replace(':', '-')}.onnx")
    quantizer = ModelQuantizer(QConfig.get_default_config("U8S8_AAWS"))
    started = time.perf_counter()
    quantizer.quantize_model(str(found.path), output, reader)
    return Measured(time.perf_counter() - started)


TASKS = {"quark": {"calibrate": quantize, "quantize": quantize}}
