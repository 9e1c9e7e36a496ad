"""Layers inside If, Loop and Scan: each int8 body against the FP32 one, both fed what the FP32 model gives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from int8cal.calibration.body_samples import feed_bodies
from int8cal.errors import ModelError
from int8cal.evaluation.layerwise import measure_layers
from int8cal.graph.bodies import extracted, full_name
from int8cal.graph.index import walk
from int8cal.graph.prepare import prepare
from int8cal.protos import metadata_of, set_metadata, subgraphs
from int8cal.quantization.corrections.equalization import EQUALIZATION_KEY
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from int8cal.calibration.body_samples import BodyRuns
    from int8cal.data.sample import Sample
    from int8cal.evaluation.result import LayerMetrics

T = TypeVar("T")

_MOST_ROUNDS = 16  # of one call, that are gone through


def measure_body_layers(
    fp32: onnx.ModelProto,
    int8: onnx.ModelProto,
    samples: Sequence[Sample],
    *,
    threads: int = 0,
    clipped: Mapping[str, float] | None = None,
) -> tuple[tuple[LayerMetrics, ...], dict[str, str]]:
    """Compare the quantized tensors of bodies as `measure_layers` does, on as many runs of each as there are samples.

    These are rounds of different samples, early and late ones among the first _MOST_ROUNDS of a Loop or Scan: in the
    very first rounds carried tensors may be zeros still, as those of a padded sequence that is read from its end.

    Args:
        fp32, int8: Both models; a body of one is found in the other by its path.
        samples: Of the whole model.
        threads: Of the runtime; 0 for all CPUs.
        clipped: As for `measure_layers`, by path and tensor: "If_0/then_branch/h".

    Returns:
        The layers and reasons, named likewise. What a Loop or Scan hands over has its op type.

    Raises:
        ModelError: A body does not load.
        DataError: A kernel failed.
    """
    within = (inner for node in int8.graph.node for graph in subgraphs(node) for inner in walk(graph))
    if not any(node.op_type == "QuantizeLinear" for node in within):
        return (), {}
    try:
        prepared = prepare(fp32, simplify)
    except ModelError as error:  # it runs all the same: a quantized one, or one of an opset that cannot be raised
        return (), {"layers.bodies": f"its bodies cannot be taken out: it {error.what}"}
    twins = _bodies(int8)
    runs: dict[str, list[Sample]] = {}
    kinds: dict[str, str] = {}

    def take(more: BodyRuns) -> None:
        held = runs.setdefault(more.body.path, [])
        held.extend(_rounds(more, len(held), len(samples)))
        kinds[more.body.path] = more.node.op_type

    bodies = [body for body in prepared.bodies if not body.reason]
    feed_bodies(prepared.model, prepared.signature, samples, bodies, take, threads=threads)
    layers: list[LayerMetrics] = []
    reasons: dict[str, str] = {}
    for body in bodies:
        path, twin = body.path, twins.get(body.path)
        if twin is None or not any(node.op_type == "QuantizeLinear" for node in twin.graph.node):
            continue
        if path not in runs:
            reasons[f"layers.{path}"] = "no sample runs it"
            continue
        known = {value.name: value.type for value in body.model.graph.input}
        for value in twin.graph.input:
            value.type.CopyFrom(known.get(value.name, value.type))
        for value in (*body.model.graph.input, *twin.graph.input):
            value.type.tensor_type.ClearField("shape")  # a run is one sample, whatever its first axis is
        inside = None if clipped is None else _inside(clipped, path)
        found, why, _ = measure_layers(body.model, twin, runs[path], threads=threads, clipped=inside)
        for each in found:
            node = full_name(path, each.node) if each.node else ""
            op_type = kinds[path] if each.op_type == "Input" and each.tensor in body.formals else each.op_type
            layers.append(replace(each, tensor=full_name(path, each.tensor), node=node, op_type=op_type))
        reasons |= {key.replace("layers.", f"layers.{path}/", 1): text for key, text in why.items() if key != "layers"}
    return tuple(layers), reasons


def _rounds(runs: BodyRuns, first: int, most: int) -> Iterator[Sample]:
    """Choose a round of each call, from the call with number `first` on: spread over their rounds as calls are many."""
    for number, call in enumerate(runs.calls[: most - first], first):
        rounds = list(islice(replace(runs, calls=[call]), _MOST_ROUNDS))
        if rounds:
            # multiples of the golden ratio modulo 1 are spread evenly, however many there are
            yield rounds[int(number * 0.6180339887 % 1 * len(rounds))]


def _bodies(int8: onnx.ModelProto) -> dict[str, onnx.ModelProto]:
    """Take the bodies of an int8 model out, those inside them too, with what their own channels were multiplied by."""
    factors = json.loads(metadata_of(int8, EQUALIZATION_KEY) or "{}")
    found: dict[str, onnx.ModelProto] = {}
    graphs = [("", int8)]
    for place, parent in graphs:  # which grows
        for body in extracted(parent, place):
            set_metadata(body.model, EQUALIZATION_KEY, json.dumps(_inside(factors, body.path)))
            found[body.path] = body.model
            graphs.append((body.path, body.model))
    return found


def _inside(values: Mapping[str, T], path: str) -> dict[str, T]:
    """Return what is known of the tensors of one body, by their names there."""
    return {name.removeprefix(f"{path}/"): value for name, value in values.items() if name.startswith(f"{path}/")}
