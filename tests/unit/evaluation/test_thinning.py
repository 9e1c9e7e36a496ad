import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.evaluation.thinning import Thinning, slices_with_steps, thinnings
from int8cal.numerics.shares import fair_share
from int8cal.runtime.sessions import Session

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple)


def numpy_cut(cut, values):
    every = (cut.steps.get(axis, 1) for axis in range(values.ndim))
    return values[tuple(slice(step // 2, None, step) for step in every)]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8])
def test_the_runtime_cuts_what_numpy_cuts(tools, dtype):
    values = np.random.default_rng(0).integers(0, 100, (2, 5, 11, 3)).astype(dtype)
    kind = {np.float32: "float", np.uint8: "uint8", np.int8: "int8"}[dtype]
    for cut in (Thinning({2: 3}), Thinning({3: 2, 1: 5}), Thinning({2: 4, 3: 2})):
        model = tools.model(f"g ({kind}[2,5,11,3] x) => ({kind}[A,B,C,D] y) {{ y = Identity(x) }}")
        del model.graph.node[:]
        model.graph.node.extend(cut.nodes("x", "y"))
        found = Session(model).run({"x": values})["y"]
        assert np.array_equal(found, numpy_cut(cut, values))
        assert found.size == cut.count(values.shape)


@pytest.mark.parametrize("opset", [9, 10, 21])
def test_slices_have_steps_from_opset_10_on(tools, opset):
    model = tools.model("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    model.opset_import[0].version = opset
    model.opset_import.add(domain="com.microsoft", version=12)
    assert slices_with_steps(model) == (opset >= 10)


def test_images_are_cut_along_rows_or_columns_and_sequences_along_any_but_their_own_axes():
    image, sequence, table = (1, 64, 32, 48), (1, 128, 256), (1, 1000)
    given = [image, image, sequence, sequence, table, (), (4,)]
    found = thinnings(given, 1000, [4] * len(given), [set(), {3}, set(), {-1}, {1}, set(), set()])
    assert found == [Thinning(each) for each in ({2: 20, 3: 20}, {2: 32}, {1: 12, 2: 11}, {1: 128})] + [None] * 3
    assert thinnings([(2, 8, 8)], 127, [1], [set()]) == [Thinning({2: 2})]
    assert thinnings([(2, 8, 8)], 128, [1], [set()]) == [None]
    # one row is left at least
    assert thinnings([(1, 1, 2, 900)], 3, [1], [set()]) == [Thinning({2: 2, 3: 300})]


@given(st.lists(SHAPES, min_size=1, max_size=6), st.integers(1, 2000))
def test_every_tensor_keeps_about_its_fair_share(shapes, room):
    sizes = [int(np.prod(shape)) for shape in shapes]
    share = fair_share(sizes, room)
    kept = [min(size, share) for size in sizes]
    assert sum(kept) <= max(room, len(sizes))
    assert sum(kept) == sum(sizes) or sum(kept) > room - len(sizes)
    for cut, shape, size in zip(
        thinnings(shapes, share, [1] * len(shapes), [set()] * len(shapes)), shapes, sizes, strict=True
    ):
        if cut is None:
            assert size <= share or max(shape[2 if len(shape) > 3 else 1 :], default=1) == 1
            continue
        assert size > share
        values = np.arange(size).reshape(shape)
        left = numpy_cut(cut, values)
        assert left.size == cut.count(shape)
        # all of the share, or one index
        assert all(left.shape[axis] == 1 for axis in cut.steps) or left.size <= 4 * share
