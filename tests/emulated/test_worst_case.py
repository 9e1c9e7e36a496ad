"""What VPMADDUBSW does to the worst activations: s8 breaks, s7 and safe pairs do not, and the sums are those of the formula."""

import numpy as np
import pytest
from harness import Case
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from int8cal.numerics.pairs import link, unsafe_pairs

pytestmark = pytest.mark.emulated


def every_pair():
    """The three activations that are worst for some pair, and all 65536 pairs of weights."""
    codes = np.arange(-128, 128, dtype=np.int8)
    weights = np.stack(np.meshgrid(codes, codes, indexing="ij")).reshape(2, -1)
    return np.array([[255, 255], [255, 0], [0, 255]], np.uint8), weights


def largest_codes(*pairs):
    """Columns of eight equal pairs each, and activations that are worst for all of them."""
    return np.full((3, 16), 255, np.uint8), np.tile(np.array(pairs, np.int8).T, (8, 1))


def random(rows, length, columns):
    rng = np.random.default_rng(length)
    x = rng.integers(0, 256, (rows, length), np.uint8)
    return x, rng.integers(-128, 128, (length, columns), np.int8)


# activations u8 (rows, K), constant weights s8 (K, columns)
PRODUCTS = {
    "every pair": every_pair(),
    "s8": largest_codes((127, 127), (-128, -128), (127, -128), (127, 2)),
    "s7": largest_codes((63, 63), (-64, -64), (63, -64), (63, 2)),
    "paired": largest_codes((64, 64), (-64, -64), (127, -128), (127, 1)),
    "one row": random(1, 301, 64),
    "some rows": random(7, 576, 48),
    "many rows": random(64, 96, 33),
}


def case(x, w):
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", T.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", T.INT32, None)],
        [numpy_helper.from_array(w, "w")],
    )
    return Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), {"x": x[None]})


def run(machine):
    results = machine.run(case(*product) for product in PRODUCTS.values())
    return {name: result.outputs["y"][0] for name, result in zip(PRODUCTS, results, strict=True)}


@pytest.fixture(scope="module")
def emulated(haswell):
    return run(haswell)


def exact(x, w):
    return x.astype(np.int32) @ w.astype(np.int32)


def saturated(x, w):
    """Neighbours along K are added in s16 and clipped; the pairs' sums are added in s32."""
    odd = len(w) % 2
    x, w = np.pad(x, ((0, 0), (0, odd))).astype(np.int32), np.pad(w, ((0, odd), (0, 0))).astype(np.int32)
    sums = sum(x[:, k::2, None] * w[None, k::2] for k in (0, 1))
    return np.clip(sums, -32768, 32767).sum(axis=1)


def test_a_pair_of_weights_is_unsafe_exactly_where_the_kernel_saturates(emulated):
    x, w = PRODUCTS["every pair"]
    broken = (emulated["every pair"] != exact(x, w)).any(axis=0)
    assert (broken == unsafe_pairs(w.T, link(["flat"], 1, 2))[:, 0]).all()
    assert 0 < broken.sum() < len(broken)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sum_is_the_sum_of_clipped_pairs(emulated, name):
    assert (emulated[name] == saturated(*PRODUCTS[name])).all()


@pytest.mark.parametrize("kind", ["s7", "paired"])
def test_the_largest_safe_codes_are_exact(emulated, kind):
    assert (emulated[kind] == exact(*PRODUCTS[kind])).all()


def test_the_largest_s8_codes_are_not(emulated):
    assert emulated["s8"][0].tolist() == [8 * 32767, 8 * -32768, 8 * -255, 8 * 32767]
    assert exact(*PRODUCTS["s8"])[0, 0] == 518160


def test_with_vnni_every_sum_is_exact(native, vnni):
    for name, sums in run(native).items():
        assert (sums == exact(*PRODUCTS[name])).all(), name
