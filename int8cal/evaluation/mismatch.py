"""Two models that are not each other's counterpart: outputs under each other's names, weights of another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.graph.signature import signature_of
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.runtime.batching import run_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.data.sample import Sample
    from int8cal.evaluation.result import LayerMetrics, OutputMetrics
    from int8cal.runtime.batching import Runs

# Another output is nearer by so much. Two outputs of one shape that were exchanged (tests/verdict) have 26 and 32 dB
# against each other's FP32 values, 1 and -3 dB against their own.
_NEARER_DB = 10.0
# The work stays small: samples that are run again, and outputs that are compared with each other.
_SAMPLES, _OUTPUTS = 4, 16
# A tensor behind other weights: for two rectified Gaussians -1.3 dB, for the classifiers of tests/verdict -0.3 dB. The
# least of the computed first layers of seven real models that int8cal quantized is at 32.5 dB.
_UNRELATED_DB = 3.0
_INTACT_DB = 20.0
# So many of a tensor's values outside its range say that the data are unlike those that the range was made from: raw
# pixels in a model calibrated on normalized ones have 0.38 in the first layer.
_CLIPPED = 0.1


def exchanged_outputs(
    sessions: Sequence[Runs],
    models: Sequence[onnx.ModelProto],
    names: Sequence[tuple[str, str]],
    samples: Sequence[Sample],
    outputs: Mapping[str, OutputMetrics],
) -> tuple[str, ...]:
    """Say which outputs of the int8 model follow another output of the FP32 model than their own.

    Nothing is run where fewer than two outputs are bad.

    Args:
        sessions, models: The FP32 model and the int8 model.
        names: Output names in both models.
        samples: Some of those that were compared; the first few are run again.
        outputs: What was measured of each output, by its FP32 name.

    Returns:
        A sentence for each output.
    """
    poor = [pair for pair in names if _decibels(outputs[pair[0]].sqnr_db) < _UNRELATED_DB][:_OUTPUTS]
    if len(poor) < 2:
        return ()
    crossed: dict[tuple[str, str], ErrorSums] = {}
    pairs = zip(
        run_each(sessions[0], signature_of(models[0]), samples[:_SAMPLES]),
        run_each(sessions[1], signature_of(models[1]), feeds_for(models[1], samples[:_SAMPLES])),
        strict=True,
    )
    for (_, expected), (_, actual) in pairs:
        for own, _ in poor:
            for _, other in poor:
                x, y = np.asarray(expected[own]), np.asarray(actual[other])
                if x.shape == y.shape:
                    crossed[own, other] = crossed.get((own, other), ErrorSums()) + error_sums(x, y)
    found = []
    for own, other in poor:
        ratios = {name: _decibels(sums.sqnr_db) for (name, each), sums in crossed.items() if each == other}
        near = max(ratios, key=lambda name: ratios[name], default=own)
        if near != own and ratios[near] > max(ratios.get(own, 0.0), 0.0) + _NEARER_DB:
            found.append(
                f'outputs look exchanged: "{other}" of the int8 model follows "{near}" of the FP32 model'
                f' ({ratios[near]:.2f} dB), not "{own}" ({ratios[own]:.2f} dB); give the outputs their names back'
            )
    return tuple(found)


def other_weights(layers: Sequence[LayerMetrics]) -> tuple[str, ...]:
    """Say in one sentence, or none, whether the int8 model's first layer computes something else than the FP32 model's.

    Args:
        layers: In the order of the FP32 graph; those at its inputs have op type "Input".
    """
    inputs = [layer for layer in layers if layer.op_type == "Input"]
    first = next((layer for layer in layers if layer.op_type != "Input"), None)
    if first is None or first.sqnr_db is None or first.sqnr_db >= _UNRELATED_DB:
        return ()
    if any(layer.sqnr_db is not None and layer.sqnr_db < _INTACT_DB for layer in inputs):
        return ()
    if (first.outside or 0.0) > _CLIPPED:
        return ()
    what = f'the models differ from the first layer on: "{first.tensor}" ({first.op_type} {first.node})'
    why = "either the int8 model was made from another FP32 model, or that layer is broken"
    return (f"{what} has an SQNR of {first.sqnr_db:.2f} dB; {why}",)


def _decibels(ratio: float | None) -> float:
    """Return an SQNR that can be compared; an output without signal is near to nothing."""
    return -np.inf if ratio is None else float(ratio)
