"""Convolutions of one tensor become one where their sum is taken: drawn sums, blocks as they are trained, what stays."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, shape_inference
from op_types import ops

from int8cal.graph.prepare import fold, normalize
from int8cal.runtime.sessions import Session

SIZE = 9  # pixels along each axis


class Sum:
    """A graph that adds up branches of x (1, channels, SIZE, ...), written term by term."""

    def __init__(self, channels, seed, axes=2):
        self.channels, self.axes, self.nodes, self.constants = channels, axes, [], {}
        self.rng = np.random.default_rng(seed)

    def _constant(self, *shape, low=-1.0):
        name = f"c{len(self.constants)}"
        self.constants[name] = self.rng.uniform(low, 1.0, shape).astype(np.float32)
        return name

    def _node(self, kind, inputs, **attributes):
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], f"{kind}_{output}", **attributes))
        return output

    def conv(self, kernel=3, groups=1, stride=1, dilation=1, bias=True, data="x", outputs=None, pad=None):
        outputs = outputs or self.channels
        around = dilation * (kernel - 1) // 2 if pad is None else pad
        weight = self._constant(outputs, self.channels // groups, *[kernel] * self.axes)
        return self._node(
            "Conv",
            [data, weight, *([self._constant(outputs)] if bias else [])],
            group=groups,
            strides=[stride] * self.axes,
            dilations=[dilation] * self.axes,
            pads=[around] * (2 * self.axes),
        )

    def norm(self, data="x"):
        shape = (self.channels,)
        constants = [self._constant(*shape), *(self._constant(*shape) for _ in "bm"), self._constant(*shape, low=0.1)]
        return self._node("BatchNormalization", [data, *constants])

    def add(self, *terms, kind="Add"):
        total = terms[0]
        for term in terms[1:]:
            total = self._node(kind, [total, term])
        return total

    def relu(self, data):
        return self._node("Relu", [data])

    def folded(self, output):
        shape = ["N", self.channels, *[SIZE] * self.axes]
        graph = helper.make_graph(
            [*self.nodes, helper.make_node("Sin", [output], ["y"], "end")],
            "sum",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * (2 + self.axes))],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        before = shape_inference.infer_shapes(normalize(model, "net"))
        after = onnx.ModelProto()
        after.CopyFrom(before)
        fold(after)
        onnx.checker.check_model(after, full_check=True)
        x = self.rng.normal(0, 1, (2, *shape[1:])).astype(np.float32)
        (expected,), (actual,) = (Session(each, threads=1).run({"x": x}).values() for each in (before, after))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-4)
        return after


BRANCHES = st.lists(
    st.one_of(
        st.builds(
            lambda *values: ("conv", dict(zip(("kernel", "groups", "dilation", "bias"), values, strict=True))),
            st.sampled_from([1, 3, 5]),
            st.sampled_from([1, 2, 4]),
            st.sampled_from([1, 2]),
            st.booleans(),
        ),
        st.just(("norm", {})),
        st.just(("x", {})),
        st.just(("relu", {})),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(branches=BRANCHES, minus=st.lists(st.booleans(), min_size=6, max_size=6), seed=st.integers(0, 2**16))
def test_drawn_sums_keep_their_values(branches, minus, seed):
    block = Sum(4, seed)
    make = {"conv": block.conv, "norm": block.norm, "x": lambda: "x", "relu": lambda: block.relu("x")}
    total = make[branches[0][0]](**branches[0][1])
    for (kind, arguments), less in zip(branches[1:], minus, strict=False):
        total = block.add(total, make[kind](**arguments), kind="Sub" if less else "Add")
    after = block.folded(total)
    kinds = [kind for kind, _ in branches]
    assert ops(after).count("BatchNormalization") <= kinds.count("norm")
    assert ops(after).count("Conv") <= kinds.count("conv") + kinds.count("norm")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_block_as_it_is_trained_is_one_convolution(axes):
    block = Sum(4, 1, axes)
    after = block.folded(block.add(block.conv(3), block.conv(1, bias=False), block.norm()))
    assert ops(after) == ["Conv", "Sin"]


def test_depthwise_branches_and_the_tensor_itself_are_one_depthwise_convolution():
    block = Sum(4, 2)
    after = block.folded(block.norm(block.add(block.conv(7, groups=4), block.conv(3, groups=4), "x")))
    assert ops(after) == ["Conv", "Sin"]
    assert helper.get_node_attr_value(after.graph.node[0], "group") == 4


def test_the_tensor_itself_is_taken_in_once():
    block = Sum(4, 8)
    straight, dilated = (block.add(block.conv(3, dilation=step), block.conv(3, dilation=step)) for step in (1, 2))
    assert ops(block.folded(block.add(straight, dilated, "x"))) == ["Conv", "Conv", "Add", "Sin"]


def test_sums_of_normalizations_of_vectors_stay():
    block = Sum(4, 9, axes=0)
    assert ops(block.folded(block.add(block.norm(), block.norm()))).count("BatchNormalization") == 2


def test_a_term_that_is_broadcast_keeps_its_shape():
    block = Sum(4, 10)
    narrow = [block.conv(SIZE, outputs=1, pad=0), block.conv(SIZE, outputs=1, pad=0, data=block.relu("x"))]
    after = block.folded(block.add(narrow[0], block.add(narrow[1], block.add(block.conv(3), block.conv(1)))))
    shape_inference.infer_shapes(after, strict_mode=True, check_type=True)


def test_biases_that_round_are_kept_apart():
    block = Sum(4, 11)
    first = block.conv(3)
    block.constants["c1"][:] = 1.5 * 2.0**23
    assert ops(block.folded(block.add(first, block.conv(1)))).count("Conv") == 2


def test_what_is_added_to_branches_stays():
    block = Sum(4, 3)
    after = block.folded(block.add(block.relu("x"), block.conv(3), block.conv(1), block.norm("x")))
    assert sorted(ops(after)) == ["Add", "Conv", "Relu", "Sin"]


def test_a_branch_is_taken_off():
    block = Sum(4, 4)
    after = block.folded(block.add(block.conv(3, groups=4), block.norm(), kind="Sub"))
    assert ops(after) == ["Conv", "Sin"]


def test_strides_and_dilations_are_kept():
    block = Sum(4, 5)
    after = block.folded(block.add(block.conv(3, stride=2, dilation=2), block.conv(1, stride=2)))
    assert ops(after) == ["Conv", "Sin"]


def residual(block):
    return block.add(block.conv(3), "x")


def two_readers(block):
    first = block.conv(3)
    return block.add(first, block.conv(1), block.relu(first))


def unlike_strides(block):
    return block.add(block.conv(3, stride=9, pad=1), block.conv(1, stride=10, pad=0))


def unlike_data(block):
    return block.add(block.conv(3), block.conv(3, data=block.relu("x")))


def a_larger_kernel(block):
    return block.add(block.conv(1), block.conv(3, groups=4))


def unlike_dilations(block):
    return block.add(block.conv(3, dilation=2), block.conv(3))


@pytest.mark.parametrize(
    "make", [residual, two_readers, unlike_strides, unlike_data, a_larger_kernel, unlike_dilations]
)
def test_what_is_no_one_convolution_stays(make):
    block = Sum(4, 6)
    total = make(block)
    convolutions = sum(node.op_type == "Conv" for node in block.nodes)
    assert ops(block.folded(total)).count("Conv") == convolutions


def test_a_long_sum_of_many_forms_ends():
    block = Sum(2, 12)
    block.folded(block.add(*(block.conv(3, dilation=1 + number % 150, pad=1 + number % 150) for number in range(300))))


def test_a_long_sum_is_one_convolution():
    block = Sum(2, 7)
    after = block.folded(block.add(*(block.conv(1) for _ in range(400))))
    assert ops(after) == ["Conv", "Sin"]
