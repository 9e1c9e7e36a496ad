"""A report names a family only where it shows in the figures."""

import numpy as np
import pytest

from int8cal.evaluation.result import LayerMetrics
from int8cal.evaluation.weak_families import WEAK_DB, WORST, weak_families

DEPTHWISE = (
    "g (float[N,3,8,8] x) => (float[N,4,8,8] y)"
    " { a = Conv <pads = [1,1,1,1]> (x, A) d = Conv <group = 4, pads = [1,1,1,1]> (a, D) r = Relu (d) y = Conv (r, P) }"
)
MASKED = (
    "g (float[N,5,8] x, bool[N,5,5] mask) => (float[N,5,8] y)"
    " { q = MatMul (x, W) k = MatMul (x, K) t = Transpose <perm = [0,2,1]> (k) s = MatMul (q, t)"
    " m = Where (mask, s, low) p = Softmax (m) v = MatMul (x, V) y = MatMul (p, v) }"
)


@pytest.fixture
def depthwise(bench):
    return bench.text(DEPTHWISE, A=(4, 3, 3, 3), D=(4, 1, 3, 3), P=(4, 4, 1, 1))


def layers(**figures):
    return tuple(LayerMetrics(name, f"/{name}", "Relu", value, None) for name, value in figures.items())


def test_a_family_whose_tensor_is_weak_is_named_with_it(depthwise):
    (found,) = weak_families(depthwise, layers(a=30.0, r=9.5))
    assert (found.family, found.tensors) == ("depthwise convolutions", ("r",))
    assert found.what == "1 of the 10 worst layers, r at 9.5 dB"
    assert "Look at these layers" in found.advice


@pytest.mark.parametrize(
    "figures", [{"a": 30.0, "r": WEAK_DB}, {"a": 9.5, "r": 30.0}, {"a": 9.5, "r": None}, {}], ids=str
)
def test_a_family_with_fine_tensors_is_not_named(depthwise, figures):
    assert weak_families(depthwise, layers(**figures)) == ()


def test_only_the_worst_layers_count(depthwise):
    others = {f"z{i}": float(i) for i in range(WORST)}
    assert weak_families(depthwise, layers(**others, r=14.0)) == ()
    assert weak_families(depthwise, layers(**others, r=8.5))


def test_masked_scores_with_codes_are_named_whatever_their_figure(bench):
    weights = dict.fromkeys("WKV", (8, 8)) | {"low": np.float32(-3.4e38)}
    model = bench.text(MASKED, **weights)
    (found,) = weak_families(model, layers(s=40.0, m=300.0))
    assert (found.family, found.tensors) == ("attention masks", ("m",))
    assert found.what == "1 tensor is quantized with one scale over values of very different size: m"
    assert weak_families(model, layers(s=40.0, p=40.0)) == ()
