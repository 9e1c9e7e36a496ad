"""Tables, models and figures of small exact models in many ways are those of the golden files, to the bit."""

import numpy as np
import onnx
import pytest
from digests import MODELS, images, lines
from onnxruntime import InferenceSession


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.parametrize("name", MODELS)
def test_nothing_has_moved(name, tmp_path, golden):
    golden(f"digests/{name}.txt", "\n".join(lines(name, tmp_path)) + "\n")


@pytest.mark.parametrize("name", MODELS)
def test_every_sum_of_these_models_is_exact(name):
    """Values are multiples of a power of two that 20 bits hold, which leaves sums on the way 4 of float32's 24."""
    model = MODELS[name]()
    names = dict.fromkeys(output for node in model.graph.node for output in node.output)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=output) for output in names)
    for value in InferenceSession(model.SerializeToString()).run(None, {"x": images(model)}):
        step = next(step for step in range(20) if np.array_equal(np.rint(value * 2.0**step), value * 2.0**step))
        assert np.abs(value).max() * 2.0**step < 2**20
