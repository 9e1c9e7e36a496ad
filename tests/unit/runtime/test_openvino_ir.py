"""FakeQuantize operations in a real OpenVINO model, beside QuantizeLinear and DequantizeLinear in onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.errors import ModelError, TableError
from int8cal.numerics.affine import S7, S8, U8, Affine
from int8cal.numerics.fakequantize import (
    FakeQuantize,
    affine_of,
    fakequantize_of,
    fakequantize_of_weights,
)
from int8cal.runtime.openvino import Operations, operations_of, with_fake_quantize
from int8cal.runtime.sessions import Session

openvino = pytest.importorskip("openvino", reason="the extra openvino: pip install '.[openvino]'")

AFFINES = [Affine(0.5, 0, U8), Affine(float(np.float32(0.013)), 77, U8), Affine(0.0625, 128, U8), Affine(0.1, 0, S8)]
NET = "net (float[N,3,6,6] x) => (float[N,4,6,6] y) { c = Conv <pads = [1,1,1,1]> (x, W, B)\n y = Relu (c) }"


def symmetric_u8(high):
    """Return the range whose zero point is 128: its low end is -(128/127) * high."""
    low = -(128 / 127) * high
    return FakeQuantize(low, high, low, high, 256)


def identity():
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    node = helper.make_node("Abs", ["x"], ["y"])
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def through_q_dq(affine, x):
    constants = [
        numpy_helper.from_array(np.float32(affine.scale), "s"),
        numpy_helper.from_array(np.asarray(affine.zero_point, affine.dtype.name), "z"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Abs", ["d"], ["y"]),
    ]
    model = identity()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    return Session(model, optimization="none").run({"x": x})["y"]


def run(written, folder, feed):
    (folder / "m.xml").write_bytes(written.xml)
    (folder / "m.bin").write_bytes(written.data)
    compiled = openvino.compile_model(str(folder / "m.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(feed)[0]


@pytest.mark.parametrize("affine", AFFINES)
def test_openvino_gives_what_q_and_dq_give(affine, tmp_path):
    rng = np.random.default_rng(1)
    x = rng.uniform(affine.low * 1.1 - 1, affine.high * 1.1, 64).astype(np.float32)
    written = with_fake_quantize(identity(), Operations({"x": fakequantize_of(affine)}, {}), "m")
    np.testing.assert_allclose(run(written, tmp_path, x), through_q_dq(affine, x), atol=affine.scale * 1e-3)


def test_the_symmetric_form_with_256_levels_is_q_and_dq_with_zero_point_128(tmp_path):
    x = np.random.default_rng(2).uniform(-4, 4, 64).astype(np.float32)
    written = with_fake_quantize(identity(), Operations({"x": symmetric_u8(3.0)}, {}), "m")
    expected = through_q_dq(Affine(float(np.float32(3 / 127)), 128, U8), x)
    np.testing.assert_allclose(run(written, tmp_path, x), expected, atol=1e-4)


def test_another_zero_point_would_be_noticed(tmp_path):
    x = np.random.default_rng(2).uniform(-4, 4, 64).astype(np.float32)
    written = with_fake_quantize(identity(), Operations({"x": fakequantize_of(Affine(1.0, 100, U8))}, {}), "m")
    moved = through_q_dq(Affine(1.0, 101, U8), x + np.float32(0.5))
    assert not np.allclose(run(written, tmp_path, x), moved, atol=1e-3)


def test_a_whole_model_follows_the_int8_model(bench, tmp_path):
    from int8cal.quantization.build import with_weights

    model = bench.text(NET, W=(4, 3, 3, 3), B=(4,))
    prepared, plan, table, built = bench.quantized(model)
    table = with_weights(table, plan, built)
    tensors = {name: fakequantize_of(entry.affine) for name, entry in table.tensors.items()}
    weights = {
        layer.weight: (
            layer.axis,
            [
                fakequantize_of_weights(scale, S7 if table.weights[layer.weight].range == "s7" else S8)
                for scale in table.weights[layer.weight].scales
            ],
        )
        for layer in plan.layers
    }
    written = with_fake_quantize(prepared.model, Operations(tensors, weights), "m")
    assert written.absent == ()
    x = bench.samples(model)[0].feed["x"]
    y = run(written, tmp_path, x)
    ours = Session(built.model).run({"x": x})["y"]
    floats = Session(prepared.model).run({"x": x})["y"]
    assert np.abs(y - ours).max() < 0.5 * np.abs(ours - floats).max() + max(e.scale for e in table.tensors.values())
    assert written.xml.count(b'type="FakeQuantize"') == len(tensors) - ("y" in tensors) + len(weights)


def test_the_same_model_gives_the_same_bytes():
    operations = Operations({"x": fakequantize_of(AFFINES[1])}, {})
    first, second = (with_fake_quantize(identity(), operations, "m") for _ in range(2))
    assert first == second


def test_names_that_openvino_does_not_have_are_reported():
    written = with_fake_quantize(identity(), Operations({"z": fakequantize_of(AFFINES[0])}, {}), "m")
    assert written.absent == ("z",)


def test_an_operation_that_openvino_lacks_is_an_error_about_the_model():
    model = identity()
    model.graph.node[0].op_type, model.graph.node[0].domain = "NoSuchOp", "some.domain"
    model.opset_import.append(helper.make_opsetid("some.domain", 1))
    with pytest.raises(ModelError, match="OpenVINO cannot convert it"):
        with_fake_quantize(model, Operations({}, {}), "m.onnx")


def test_operations_are_read_back_and_weights_left_out(bench, tmp_path):
    model = bench.prepared(bench.text(NET, W=(4, 3, 3, 3), B=(4,))).model
    tensors = {"x": fakequantize_of(AFFINES[1])}
    written = with_fake_quantize(model, Operations(tensors, {"W": (0, [symmetric_u8(1.0)] * 4)}), "m")
    run(written, tmp_path, np.zeros((1, 3, 6, 6), np.float32))
    found, covered = operations_of(tmp_path / "m.xml")
    assert (list(found), covered) == (["x"], ())
    assert affine_of(found["x"]).affine.zero_point == AFFINES[1].zero_point
    assert affine_of(found["x"]).affine.scale == pytest.approx(AFFINES[1].scale, rel=1e-6)


def test_a_range_per_channel_becomes_one_that_covers_all(tmp_path):
    from openvino import opset13 as ops

    x = ops.parameter([1, 3], np.float32, name="x")
    x.output(0).set_names({"x"})
    low, high = (np.array(ends, np.float32).reshape(1, 3) for ends in ([0.0, -1.0, 0.0], [6.0, 1.0, 3.0]))
    node = ops.fake_quantize(x, low, high, low, high, 256)
    openvino.save_model(openvino.Model([node], [x], "m"), tmp_path / "m.xml", compress_to_fp16=False)
    found, covered = operations_of(tmp_path / "m.xml")
    assert (found["x"].input_low, found["x"].input_high, covered) == (-1.0, 6.0, ("x",))


def test_a_file_that_is_no_representation_is_an_error_about_the_table(tmp_path):
    (tmp_path / "bad.xml").write_text("<net")
    with pytest.raises(TableError, match="OpenVINO cannot read it"):
        operations_of(tmp_path / "bad.xml")


def test_a_name_that_is_no_text_is_refused_with_the_file(bench, tmp_path):
    model = bench.prepared(bench.text(NET, W=(4, 3, 3, 3), B=(4,))).model
    written = with_fake_quantize(model, Operations({"x": fakequantize_of(AFFINES[1])}, {}), "m")
    damaged = written.xml.replace(b'names="x"', b'names="\xff"')
    assert damaged != written.xml
    (tmp_path / "m.xml").write_bytes(damaged)
    (tmp_path / "m.bin").write_bytes(written.data)
    with pytest.raises(TableError, match=r"m\.xml: the name of a tensor is no UTF-8"):
        operations_of(tmp_path / "m.xml")


def test_a_model_of_nncf_is_read(bench, tmp_path):
    nncf = pytest.importorskip("nncf", reason="OpenVINO's quantizer, an extra check: pip install nncf")
    model = bench.text(NET, W=(4, 3, 3, 3), B=(4,))
    samples = [sample.feed["x"] for sample in bench.samples(model, 8)]
    quantized = nncf.quantize(
        openvino.Core().read_model(model.SerializeToString()), nncf.Dataset(samples), subset_size=8
    )
    openvino.save_model(quantized, tmp_path / "q.xml")
    found, _ = operations_of(tmp_path / "q.xml")
    nudged = affine_of(found["x"])
    assert not nudged.changed  # NNCF nudges, too
    assert nudged.affine.zero_point == 128
    assert max(sample.max() for sample in samples) / 2 < nudged.after[1] < 2 * max(sample.max() for sample in samples)
