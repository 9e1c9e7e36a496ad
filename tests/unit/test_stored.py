"""Large weights lie in files, and messages say where: copies of these hold none, and what is written is the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, numpy_helper

from int8cal import protos, stored
from int8cal.errors import ModelError, OutputError
from int8cal.graph import load
from int8cal.graph.edit import constant
from int8cal.graph.load import load_model, model_digest, model_sha256, save_model

VALUES = np.arange(600, dtype=np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where tensors of 1 kB and more are stored, of models of any size."""
    monkeypatch.setattr(stored, "LEAST", 1000)
    monkeypatch.setattr(load, "LEAST", 1000)
    monkeypatch.setattr(load, "MAPPED", 0)
    path = tmp_path / "weights"
    path.mkdir()
    with stored.weights_in(path):
        yield path


@pytest.fixture
def model():
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["a"]), onnx.helper.make_node("Add", ["a", "one"], ["y"])]
    values = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [600]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(VALUES, "w"), numpy_helper.from_array(np.float32(1), "one")]
    graph = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_a_stored_tensor_has_its_values_in_a_file_and_can_be_made_whole(folder):
    plain = numpy_helper.from_array(VALUES.reshape(30, 20), "w")
    apart = stored.stored(plain)
    assert stored.is_stored(apart)
    assert apart.ByteSize() < 500
    assert np.array_equal(stored.values_of(apart), VALUES.reshape(30, 20))
    assert stored.whole(apart).SerializeToString() == plain.SerializeToString()
    assert bytes(stored.content_of(apart)) == stored.content_of(plain) == plain.raw_data


def test_a_tensor_that_was_loaded_comes_back_as_onnx_loads_it(folder):
    plain = numpy_helper.from_array(VALUES, "w")
    plain.data_location, plain.doc_string = TensorProto.DEFAULT, ""
    assert stored.whole(stored.stored(plain)).SerializeToString() == plain.SerializeToString()


@pytest.mark.parametrize(
    "tensor",
    [
        numpy_helper.from_array(VALUES[:100], "small"),
        onnx.helper.make_tensor("typed", TensorProto.FLOAT, [600], VALUES.tolist()),
        onnx.helper.make_tensor("nibbles", TensorProto.INT4, [4000], bytes(2000), raw=True),
    ],
    ids=lambda tensor: tensor.name,
)
def test_small_ones_typed_fields_and_odd_types_stay_in_the_message(folder, tensor):
    assert stored.stored(tensor) is tensor


def test_without_a_folder_messages_hold_their_values():
    assert not stored.is_stored(constant("w", np.zeros(1 << 20, np.float32)))


def test_equal_values_are_one_file(folder):
    first, second, third = (constant(name, VALUES + more) for name, more in (("a", 0), ("b", 0), ("c", 1)))
    assert stored.file_place(first) == stored.file_place(second) != stored.file_place(third)
    assert len([*folder.iterdir()]) == 2


def test_a_path_of_the_models_own_is_not_taken_for_a_place(folder, tmp_path):
    (tmp_path / "secret").write_bytes(VALUES.tobytes())
    tensor = numpy_helper.from_array(VALUES, "w")
    external_data_helper.set_external_data(tensor, str(tmp_path / "secret"), 0, VALUES.nbytes)
    tensor.external_data.add(key="stored", value="1")
    tensor.ClearField("raw_data")
    assert not stored.is_stored(tensor)


def test_a_folder_that_takes_nothing_is_told(folder):
    folder.rmdir()
    with pytest.raises(OutputError, match=r"temporary directory .*cannot be written .*TMPDIR"):
        constant("w", VALUES)


@pytest.mark.parametrize("external", [False, True])
def test_a_loaded_model_says_the_places_and_is_written_with_the_same_bytes(folder, model, tmp_path, external):
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    expected = onnx.load(path)
    found = load_model(path)
    assert [stored.is_stored(tensor) for tensor in found.graph.initializer] == [True, False]
    assert protos.with_values(found).SerializeToString() == expected.SerializeToString()
    assert model_sha256(found) == model_sha256(expected)
    assert model_digest(found) == model_digest(expected)
    assert not protos.PackedModel.of(found).model().graph.initializer[0].external_data
    for name, each in (("found", found), ("expected", expected)):
        save_model(each, tmp_path / f"{name}.onnx")
    assert (tmp_path / "found.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()


def test_a_split_model_leaves_stored_weights_of_its_folder_where_they_are(folder, model, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    found = load_model(tmp_path / "m.onnx")
    protos.write_split(found, folder / "a.onnx", folder / "a.data", "a.data")
    protos.write_split(found, tmp_path / "b.onnx", tmp_path / "b.data", "b.data")
    assert (folder / "a.data").stat().st_size == 0
    assert (tmp_path / "b.data").stat().st_size == VALUES.nbytes
    for path in (folder / "a.onnx", tmp_path / "b.onnx"):
        assert np.array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), VALUES)


@pytest.mark.parametrize("content", [b"", VALUES[:300].tobytes()])
def test_data_that_is_cut_off_is_refused_when_it_is_loaded_and_when_it_is_read(folder, model, tmp_path, content):
    path, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=1000)
    (weight, _) = load_model(path).graph.initializer
    data.write_bytes(content)
    with pytest.raises(ModelError, match="changed while it was in use"):
        stored.values_of(weight)
    with pytest.raises(ModelError, match=r"external data cannot be read \(w.bin\)"):
        load_model(path)


def test_data_outside_of_the_models_folder_is_refused(folder, model, tmp_path):
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=1000)
    (tmp_path / "sub" / "w.bin").rename(tmp_path / "w.bin")
    (tmp_path / "sub" / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ModelError, match="no file in the model's folder"):
        load_model(path)
