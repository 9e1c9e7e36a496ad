"""The graphs of the onnx package's backend tests as jobs for `int8cal.calibrate`, and what became of each.

    python tests/survey/backend_data.py FILE.json [GLOB]     all of them, or those whose names match; adds to FILE.json

Every graph with a float input is calibrated on its own test data in up to three forms: as it is published; with all its
float inputs but the first as constants, which makes weights of them; and between layers, each float32 input behind a
MatMul with the identity and each float32 output in front of one, which puts every op between int8 tensors.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from int8cal.data.checks import DataWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
WIDEST = 512  # columns of a layer
SIZES = {"scales", "roi"}  # inputs of Resize, which say what is computed and are no values
LIMIT_S = 120  # a job of such a graph takes a second
PUBLISHED, CONSTANTS, LAYERS = "published", "constants", "layers"


@dataclass(frozen=True)
class Case:
    """A model with its feeds, {input name: array} each."""

    name: str
    model: onnx.ModelProto
    feeds: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Outcome:
    """What `int8cal.calibrate` made of a case: exit code, its last words, and the signal-to-noise ratio of the model."""

    exit_code: int
    said: str
    sqnr_db: float | None = None
    integer: int = 0
    exact: bool = False


def published() -> Iterator[Case]:
    """Give the backend tests that have a float input, by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the numpy code that makes the cases
        found = {each.name: each for kind in KINDS for each in load_model_tests(kind=kind)}
    for name in sorted(found):
        case = found[name]
        folder = Path(case.model_dir or "")
        if case.model_dir is not None:
            if not (folder / "model.onnx").is_file():
                continue
            model = onnx.load(folder / "model.onnx")
        else:
            model = case.model
        given = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in given]
        if case.model_dir is not None:
            data = [_read(each, inputs) for each in sorted(folder.glob("test_data_set_*"))]
        else:
            data = [[_array(value) for value in values] for values, _ in case.data_sets]
        if any(_is_float(value) for value in inputs):
            names = [value.name for value in inputs]
            yield Case(name, model, tuple(dict(zip(names, each, strict=False)) for each in data))


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(folder: Path, inputs: list[onnx.ValueInfoProto]) -> list[Any]:
    values = []
    for index, value in enumerate(inputs):
        path = folder / f"input_{index}.pb"
        if not path.is_file() or value.type.WhichOneof("value") != "tensor_type":
            return []
        values.append(numpy_helper.to_array(onnx.load_tensor(path)))
    return values


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in FLOATS


def forms(case: Case) -> Iterator[tuple[str, Case]]:
    """Give a case in its forms, each under its form's name."""
    yield PUBLISHED, case
    constants = _with_constants(case)
    if constants is not None:
        yield CONSTANTS, constants
    layers = _between_layers(case)
    if layers is not None:
        yield LAYERS, layers


def _with_constants(case: Case) -> Case | None:
    """Make constants of all float inputs but the first."""
    given = {tensor.name for tensor in case.model.graph.initializer}
    floats = [value.name for value in case.model.graph.input if _is_float(value) and value.name not in given][1:]
    feeds = case.feeds[:1]
    if not floats or not feeds or not all(isinstance(feeds[0].get(name), np.ndarray) for name in floats):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)  # an initializer need not be an input
    model.graph.initializer.extend(numpy_helper.from_array(feeds[0][name], name) for name in floats)
    kept = [value for value in model.graph.input if value.name not in floats]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return Case(case.name, model, tuple({k: v for k, v in feed.items() if k not in floats} for feed in feeds))


def _between_layers(case: Case) -> Case | None:
    """Put a MatMul with the identity behind each float32 input and in front of each float32 output."""
    if not case.feeds:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)
    graph, feed = model.graph, case.feeds[0]
    given = {tensor.name for tensor in graph.initializer}
    before, after, renamed = [], [], {}
    shapes = _output_shapes(model, feed)
    for value in graph.input:
        if value.name in SIZES:
            continue
        given_value = feed.get(value.name)
        size = given_value.shape[-1:] if isinstance(given_value, np.ndarray) else ()
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        if is_float and size and 0 < size[0] <= WIDEST and value.name not in given and np.isfinite(given_value).all():
            name = f"{value.name}_layer"
            renamed[value.name] = name
            before.append(onnx.helper.make_node("MatMul", [value.name, f"{name}_weight"], [name], name))
            graph.initializer.append(numpy_helper.from_array(np.eye(size[0], dtype=np.float32), f"{name}_weight"))
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    for value in graph.output:
        shape = shapes.get(value.name)
        if (
            value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            and len(shape or ()) > 1
            and 0 < shape[-1] <= WIDEST
        ):
            inner, name = f"{value.name}_inner", f"{value.name}_out"
            for node in graph.node:
                for index, each in enumerate(node.output):
                    node.output[index] = inner if each == value.name else each
                for index, each in enumerate(node.input):
                    node.input[index] = inner if each == value.name else each
            after.append(onnx.helper.make_node("MatMul", [inner, f"{name}_weight"], [value.name], name))
            graph.initializer.append(numpy_helper.from_array(np.eye(shape[-1], dtype=np.float32), f"{name}_weight"))
    if not before or {value.name for value in graph.output} & {value.name for value in graph.input}:
        return None
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return Case(case.name, model, case.feeds)


def _output_shapes(model: onnx.ModelProto, feed: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Give shapes of the outputs as onnxruntime finds them; {} where it does not run the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return {name: getattr(value, "shape", ()) for name, value in zip(names, session.run(None, feed), strict=True)}
    except Exception:  # noqa: BLE001 - of many kinds; such a model has no output layer
        return {}


def calibrate(case: Case) -> Outcome:
    """Calibrate a case through the Python API, and compare the int8 model with the float one in onnxruntime."""
    import int8cal
    from int8cal.errors import Int8calError

    feeds = [{name: value for name, value in feed.items() if isinstance(value, np.ndarray)} for feed in case.feeds]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            table = int8cal.calibrate(case.model, feeds)
        int8 = int8cal.quantize(case.model, table)
    except Int8calError as error:
        return Outcome(error.exit_code, str(error))
    except Exception as error:  # noqa: BLE001 - a bug, which is what this looks for
        return Outcome(1, traceback.format_exc(limit=-4) + f"{type(error).__name__}: {error}")
    signal_sum, noise_sum = 0.0, 0.0
    results = [_outputs(int8, feed) for feed in feeds]
    try:
        references = [_outputs(case.model, feed) for feed in feeds]
    except Exception as error:  # noqa: BLE001 - of many kinds: onnxruntime lacks old forms of some ops
        return Outcome(0, f"onnxruntime does not run the float model: {error}")
    for given, found in zip(references, results, strict=True):
        for reference, value in zip(given, found, strict=True):
            if reference.dtype.kind == "f" and reference.size:
                exact, got = reference.astype(np.float64), value.astype(np.float64)
                differ = ~((exact == got) | (np.isnan(exact) & np.isnan(got)))
                error = np.subtract(exact, got, where=differ, out=np.zeros(exact.shape))
                signal_sum += float(np.square(exact, where=np.isfinite(exact), out=np.zeros(exact.shape)).sum())
                noise_sum += float(np.square(error).sum())
    ratio = signal_sum / noise_sum if noise_sum else math.inf
    sqnr = 10 * math.log10(ratio) if 0 < ratio < math.inf else ratio
    nodes = sum(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in int8.graph.node)
    return Outcome(0, "", None if math.isinf(sqnr) or math.isnan(sqnr) else sqnr, nodes, exact=noise_sum == 0)


def _outputs(model: onnx.ModelProto, feed: dict[str, Any]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [value for value in session.run(None, feed) if isinstance(value, np.ndarray)]


def calibrate_all(cases: Sequence[tuple[str, Case]]) -> Iterator[tuple[str, Outcome]]:
    """Calibrate cases in forks of this process, a new one where a case has ended it; gives each outcome when it is there."""
    left = list(cases)
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "w", encoding="utf-8") as answers:
                    for _, case in left:
                        signal.alarm(LIMIT_S)
                        answers.write(json.dumps(asdict(calibrate(case))) + "\n")
                        answers.flush()
                code = 0
            except Exception:  # noqa: BLE001 - told here, since a fork must not go on
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as answers:
            for line in answers:
                yield left.pop(0)[0], Outcome(**json.loads(line))
        _, status = os.waitpid(child, 0)
        if left:
            yield left.pop(0)[0], Outcome(os.waitstatus_to_exitcode(status), "the process ended")


def main() -> None:
    """Run cases and note what became of them."""
    path = Path(sys.argv[1])
    glob = sys.argv[2] if len(sys.argv) > 2 else "*"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    chosen = (case for case in published() if fnmatch.fnmatch(case.name, glob))
    cases = [(f"{each.name}:{form}", each) for case in chosen for form, each in forms(case)]
    noted = time.monotonic()
    for key, outcome in calibrate_all([(key, case) for key, case in cases if key not in found]):
        found[key] = asdict(outcome)
        if time.monotonic() - noted > 5:
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            noted = time.monotonic()
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
