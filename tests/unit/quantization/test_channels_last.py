"""Codes of a float tensor pass a convolution that changes nothing, so that the sums behind have channels last."""

import numpy as np
import onnx
import pytest

from int8cal.evaluation.layerwise import find_layers, measure_layers
from int8cal.graph.index import attribute
from int8cal.quantization.channels_last import with_channels_last
from int8cal.quantization.laid_out import laid_out
from int8cal.runtime.sessions import Session

BLOCKS = 7


def residual(blocks=BLOCKS, stem="m = InstanceNormalization(c, S, B)"):
    """A chain of residual blocks behind a float node."""
    nodes, last = [f"c = Conv(x, W) {stem}"], "m"
    for number in range(blocks):
        nodes.append(f"d{number} = Conv<group=16, pads=[1, 1, 1, 1]>({last}, D) a{number} = Add({last}, d{number})")
        last = f"a{number}"
    return f"g (float[N,4,8,8] x) => (float[N,4,8,8] y) {{ {' '.join(nodes)} y = Conv({last}, V) }}"


def built(bench, text, **settings):
    weights = {"W": (16, 4, 1, 1), "D": (16, 1, 3, 3), "V": (4, 16, 1, 1), "S": (16,), "B": (16,)}
    model = bench.text(text, **{name: shape for name, shape in weights.items() if f" {name}" in text})
    samples = bench.samples(model)
    prepared, *_, result = bench.quantized(model, samples=samples, **settings)
    return prepared.model, samples, result.model


def added(model, before):
    known = {node.name for node in before.graph.node}
    return [node for node in model.graph.node if node.op_type == "Conv" and node.name not in known]


def transposes(model, tmp_path):
    """How many Transposes the runtime really runs."""
    session = Session(model, threads=1, optimized_path=tmp_path / "optimized.onnx")
    del session
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    return sum(node.op_type == "Transpose" for node in nodes)


def test_sums_behind_a_float_node_have_channels_last(bench, tmp_path):
    _, samples, model = built(bench, residual())
    better = with_channels_last(model)
    (conv,) = added(better, model)
    assert attribute(conv, "group", 1) == 16
    onnx.checker.check_model(better, full_check=True)
    first, second = ([Session(each, threads=1).run(sample.feed)["y"] for sample in samples] for each in (model, better))
    assert np.abs(first).max() > 0
    assert np.array_equal(first, second)


@pytest.mark.newest
def test_the_runtime_moves_its_transposes_together(bench, tmp_path):
    model = built(bench, residual())[2]
    assert transposes(model, tmp_path) >= BLOCKS
    assert transposes(with_channels_last(model), tmp_path) <= 4


def test_layers_are_those_that_there_were(bench):
    prepared, samples, model = built(bench, residual())
    better = with_channels_last(model)
    assert find_layers(prepared, better)[1] == ()
    plain = measure_layers(prepared, model, samples)
    assert len(plain[0]) > BLOCKS
    assert measure_layers(prepared, better, samples) == plain


@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_every_code_comes_out_as_it_went_in(bench, dtype):
    _, samples, model = built(bench, residual(), activations=dtype)
    better = with_channels_last(model)
    (conv,) = added(better, model)
    (read,) = [node for node in better.graph.node if node.output[0] == conv.input[0]]
    (write,) = [node for node in better.graph.node if node.input[0] == conv.output[0]]
    for name in (read.input[0], write.output[0]):
        better.graph.output.append(onnx.ValueInfoProto(name=name))
    for sample in samples:
        outputs = Session(better, threads=1).run(sample.feed)
        assert np.unique(outputs[read.input[0]]).size > 50
        assert np.array_equal(outputs[read.input[0]], outputs[write.output[0]])


@pytest.mark.parametrize(
    "text",
    [
        residual(blocks=5),  # too few
        residual(stem="m = Relu(c)"),  # the codes are a convolution's
        residual(stem="m = Softmax<axis=1>(c)"),  # passes Transposes on
        residual().replace("Add(m, d0)", "Relu(d0)"),  # the float tensor is no operand of a sum
    ],
)
def test_what_has_channels_last_or_gains_little_stays(bench, text):
    model = built(bench, text)[2]
    assert with_channels_last(model) is model


def test_another_runtime_gets_none(bench):
    model = built(bench, residual(), target="openvino")[2]
    assert laid_out(model, "openvino") is model
