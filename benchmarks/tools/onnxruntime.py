"""onnxruntime.quantization as a contestant, with its own defaults."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    create_calibrator,
    quantize_static,
)
from onnxruntime.quantization.calibrate import CalibraterBase
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.models import workload
from benchmarks.request import Measured, Request
from benchmarks.samples import stored_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.models import Feed


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds in a list, as onnxruntime asks for them."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        """Start at the first feed."""
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        """Give the next feed, None at the end."""
        return next(self._feeds, None)


def calibrate_with(method: CalibrationMethod) -> Callable[[Request], Measured]:
    """Return the task of one calibrator.

    Its span is session creation, collect_data and compute_data; "prepare" (shape inference, writing the augmented
    model) is a station outside it.
    """

    def task(request: Request) -> Measured:
        folder = Path(request.folder)
        found = workload(request.model, folder, Path(request.zoo))
        reader = Reader(stored_samples(found, request.samples, folder))
        opening: list[float] = []

        def create_session(calibrator: Any) -> None:
            # the calibrator's own method, with the number of threads, which it has no setting for
            began = time.perf_counter()
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.intra_op_num_threads = request.threads
            calibrator.infer_session = onnxruntime.InferenceSession(
                calibrator.augmented_model_path, sess_options=options, providers=calibrator.execution_providers
            )
            opening.append(time.perf_counter() - began)

        augmented = folder / f"{request.tool}-{request.model.replace(':', '-')}.onnx"
        started = time.perf_counter()
        with mock.patch.object(CalibraterBase, "create_inference_session", create_session):
            calibrator = create_calibrator(found.path, augmented_model_path=str(augmented), calibrate_method=method)
        created = time.perf_counter()
        calibrator.collect_data(reader)
        collected = time.perf_counter()
        calibrator.compute_data()
        ended = time.perf_counter()
        session = sum(opening)
        stations = {
            "prepare": created - started - session,
            "session": session,
            "collect": collected - created,
            "thresholds": ended - collected,
        }
        return Measured(ended - created + session, stations)

    return task


def quantize(request: Request) -> Measured:
    """Write the static QDQ model as its documentation advises: preprocessed, u8 activations, s8 weights per channel."""
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    ready = folder / f"{request.model.replace(':', '-')}-preprocessed.onnx"
    started = time.perf_counter()
    # symbolic shape inference needs sympy, which onnxruntime does not install
    quant_pre_process(str(found.path), str(ready), skip_symbolic_shape=find_spec("sympy") is None)
    quantize_static(
        str(ready),
        request.output,
        Reader(stored_samples(found, request.samples, folder)),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
    )
    return Measured(time.perf_counter() - started)


TASKS = {
    "ort-minmax": {"calibrate": calibrate_with(CalibrationMethod.MinMax), "quantize": quantize},
    "ort-entropy": {"calibrate": calibrate_with(CalibrationMethod.Entropy)},
    "ort-percentile": {"calibrate": calibrate_with(CalibrationMethod.Percentile)},
}
