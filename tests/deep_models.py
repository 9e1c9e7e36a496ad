"""Models whose graphs are long: chains of layers, and chains of everything that walks over a graph look through."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE = 4, 4


class _Chain:
    def __init__(self):
        self.nodes, self.constants, self.tensor = [], {}, "x"

    def constant(self, name, value):
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op_type, *constants, **attributes):
        output = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, [self.tensor, *constants], [output], name=f"{op_type}_{output}", **attributes)
        )
        self.tensor = output

    def layer(self, seed):
        """A 1x1 convolution that keeps the size of what goes through, and a Relu."""
        rng = np.random.default_rng(seed)
        weight = np.eye(CHANNELS) * 0.9 + rng.normal(size=(CHANNELS, CHANNELS)) * 0.05
        w = self.constant(f"w{seed}", weight.reshape(CHANNELS, CHANNELS, 1, 1).astype(np.float32))
        b = self.constant(f"b{seed}", (rng.normal(size=CHANNELS) * 0.1).astype(np.float32))
        self.add("Conv", w, b)
        self.add("Relu")

    def model(self):
        shape = ["N", CHANNELS, SIZE, SIZE]
        graph = helper.make_graph(
            self.nodes,
            "deep",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(self.tensor, TensorProto.FLOAT, shape)],
            [*self.constants.values()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def layers(nodes):
    """Conv, Relu, Conv, Relu, ...: every node is quantized."""
    chain = _Chain()
    for seed in range(nodes // 2):
        chain.layer(seed)
    return chain.model()


def moves(nodes):
    """Two layers, and between them nodes that only pass values on; the graph ends in such nodes too."""
    chain = _Chain()
    shape = chain.constant("shape", np.array([0, CHANNELS, SIZE, SIZE], np.int64))
    chain.layer(0)
    for _ in range((nodes - 4) // 2):
        chain.add("Reshape", shape)
    chain.layer(1)
    for number in range((nodes - 4) // 2):
        chain.add("Transpose", perm=[0, 1, 3, 2]) if number % 2 else chain.add("MaxPool", kernel_shape=[1, 1])
    return chain.model()


def elementwise(nodes):
    """A layer behind constants that scale and shift, and float nodes: none of these can join a layer."""
    chain = _Chain()
    chain.layer(0)
    factor = chain.constant("factor", np.linspace(0.9, 1.1, CHANNELS, dtype=np.float32).reshape(CHANNELS, 1, 1))
    shift = chain.constant("shift", np.linspace(-0.1, 0.1, CHANNELS, dtype=np.float32).reshape(CHANNELS, 1, 1))
    for number in range((nodes - 4) // 4):
        chain.add("Sigmoid" if number % 2 else "Tanh")
        chain.add("Mul", factor)
        chain.add("Add", shift)
        chain.add("LeakyRelu", alpha=0.5)
    chain.layer(1)
    return chain.model()


DEEP = {"layers": layers, "moves": moves, "elementwise": elementwise}


def samples(count=2):
    """Images for these models."""
    return np.random.default_rng(3).normal(size=(count, CHANNELS, SIZE, SIZE)).astype(np.float32)
