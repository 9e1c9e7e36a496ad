import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import int8cal
from int8cal import protos
from int8cal.errors import ModelError, OutputError
from int8cal.graph.load import (
    external_files,
    file_sha256,
    load_model,
    model_digest,
    model_sha256,
    require_float,
    save_model,
)
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import Session, simplify


@pytest.fixture
def model(bench):
    return bench.text("g (float[N,40] x) => (float[N,50] y) { y = Gemm(x, W, B) }", W=(40, 50), B=(50,))


@pytest.fixture
def small_limit(monkeypatch):
    """A world in which protobuf's limit is 1000 bytes."""
    monkeypatch.setattr(protos, "LIMIT", 1000)


def test_a_saved_model_loads_as_it_was(model, tmp_path):
    save_model(model, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx") == model
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text("hello, this is text\n"), "is a text file, not an ONNX model"),
        (lambda path: path.write_bytes(b""), r"is empty \(0 bytes\)"),
    ],
)
def test_what_is_no_model_is_refused_with_its_path(tmp_path, make, message):
    path = tmp_path / "m.onnx"
    make(path)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert caught.value.where == str(path)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("part", [0.2, 0.5, 0.99])
def test_a_truncated_file_is_refused(model, tmp_path, part):
    whole = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ModelError, match=r"corrupt or truncated|no graph"):
        load_model(tmp_path / "m.onnx")


def test_external_data_in_a_second_file_is_found_beside_the_model(model, tmp_path, monkeypatch):
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    (tmp_path / "sub").mkdir()
    onnx.save(model, tmp_path / "sub" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    for old, new in zip(
        expected.graph.initializer, load_model(tmp_path / "sub" / "m.onnx").graph.initializer, strict=True
    ):
        assert old.raw_data == new.raw_data


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_external_data_is_named(model, tmp_path, damage):
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    data = tmp_path / "w.bin"
    if damage == "missing":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"external data cannot be read \(w.bin\)"):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("location", "x.bin", r"'B' is in a file that cannot be read \(no such file or directory\)"),
        ("offset", "8004", r"'B' is at bytes 8004 to \d+, the file has \d+"),
        ("offset", "-4", r"'B' has the offset '-4', which is no number of bytes"),
        ("length", "ten", r"'B' has the length 'ten', which is no number of bytes"),
        ("length", "12", r"'B' has 12 of \d+ bytes"),
    ],
)
def test_a_tensor_whose_external_data_are_elsewhere_is_named_with_its_place(model, tmp_path, key, value, fault):
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    edited = onnx.load(path, load_external_data=False)
    entries = {entry.key: entry for entry in edited.graph.initializer[-1].external_data}
    entries[key].value = value
    path.write_bytes(edited.SerializeToString())
    with pytest.raises(ModelError, match=f"external data cannot be read .*: tensor {fault}") as caught:
        load_model(path)
    assert caught.value.fields["tensor"] == "B"


def test_a_link_to_a_model_whose_data_lie_elsewhere_is_told(model, tmp_path):
    (tmp_path / "real").mkdir()
    onnx.save(model, tmp_path / "real" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "m.onnx").symlink_to("real/m.onnx")
    with pytest.raises(ModelError, match=r"\(w\.bin\)") as caught:
        load_model(tmp_path / "m.onnx")
    real = (tmp_path / "real" / "m.onnx").resolve()
    assert caught.value.do == f"the model is a link: give what it leads to, {real}, or link its data files, too"
    (tmp_path / "w.bin").symlink_to("real/w.bin")
    assert load_model(tmp_path / "m.onnx") == load_model(real)


def test_of_several_data_files_the_missing_one_is_named_with_its_folder(model, tmp_path):
    (tmp_path / "sub").mkdir()
    for tensor, name in zip(model.graph.initializer, ("a.bin", "sub/b.bin"), strict=True):
        (tmp_path / name).write_bytes(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, name)
        tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    load_model(tmp_path / "m.onnx")
    (tmp_path / "sub" / "b.bin").unlink()
    with pytest.raises(ModelError, match=r"external data cannot be read \(sub/b\.bin\)"):
        load_model(tmp_path / "m.onnx")


@pytest.fixture
def in_a_cache(model, tmp_path):
    """A model as the Hugging Face cache has it: links with its names lead to files that are named by their hashes."""
    blobs, names = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    names.mkdir(parents=True)
    onnx.save(
        onnx.ModelProto.FromString(model.SerializeToString()),
        blobs / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    for name, blob in (("m.onnx", "9af1"), ("w.bin", "07cc")):
        (blobs / name).rename(blobs / blob)
        (names / name).symlink_to(f"../../blobs/{blob}")
    return names / "m.onnx"


def test_external_data_may_be_a_link_to_beside_what_the_model_is_a_link_to(model, in_a_cache):
    loaded = load_model(in_a_cache)
    for mine, known in zip(loaded.graph.initializer, model.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(known))


def test_external_data_may_be_no_link_to_elsewhere_though_the_model_is_a_link(in_a_cache, tmp_path):
    (tmp_path / "blobs" / "07cc").rename(tmp_path / "07cc")
    (in_a_cache.parent / "w.bin").unlink()
    (in_a_cache.parent / "w.bin").symlink_to("../../07cc")
    with pytest.raises(ModelError, match="is no file in the model's folder"):
        load_model(in_a_cache)


def test_a_models_hash_covers_its_external_data_whatever_the_files_suffix(model, tmp_path):
    for name in ("m.onnx", "m.pb"):
        onnx.save(model, tmp_path / name, save_as_external_data=True, location="w.bin", size_threshold=0)
        before = file_sha256(tmp_path / name)
        content = bytearray((tmp_path / "w.bin").read_bytes())
        content[0] ^= 1
        (tmp_path / "w.bin").write_bytes(content)
        assert file_sha256(tmp_path / name) != before
        (tmp_path / "w.bin").unlink()
        model = load_model_again(model)


def load_model_again(model):
    # onnx.save moved the weights out of the model it was given
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(tuple(tensor.dims), np.float32), tensor.name))
    return copy


@pytest.mark.parametrize("hashed", [model_sha256, model_digest])
def test_a_model_in_memory_has_a_hash_that_sees_weights_and_nodes(hashed, bench):
    def make(op="Relu", value=1.0):
        return bench.text(
            f"g (float[N,4] x) => (float[N,4] y) {{ a = Add(x, W) y = {op}(a) }}", W=np.full(4, value, np.float32)
        )

    assert hashed(make()) == hashed(make())
    assert len({hashed(make()), hashed(make(op="Neg")), hashed(make(value=2.0))}) == 3


def test_a_file_and_the_model_that_it_holds_are_one(bench, tmp_path):
    """So a table that was made of one is for the other, too."""
    model = bench.text("g (float[N,4] x) => (float[N,4] y) { y = MatMul(x, W) }", W=(4, 4))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert model_sha256(model) == model_sha256(onnx.load(path)) == file_sha256(path)
    data = [sample.feed for sample in bench.samples(model, 4)]
    tables = [int8cal.calibrate(source, data, threads=1) for source in (model, path)]
    first, *others = [int8cal.quantize(source, tables[0]) for source in (model, path)]
    assert [first] == others
    assert int8cal.quantize(model, tables[1]) == int8cal.quantize(path, tables[1])


def test_a_model_above_the_limit_is_saved_in_two_files_and_stays_as_it_was(model, tmp_path, small_limit):
    before = model.SerializeToString(deterministic=True)
    save_model(model, tmp_path / "m.onnx")
    assert model.SerializeToString(deterministic=True) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert external_files(onnx.load(tmp_path / "m.onnx", load_external_data=False)) == {"m.onnx.data"}
    loaded = load_model(tmp_path / "m.onnx")
    assert [tensor.raw_data for tensor in loaded.graph.initializer] == [
        tensor.raw_data for tensor in model.graph.initializer
    ]
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_a_model_above_the_limit_opens_and_simplifies_like_any_other(bench, model, small_limit, monkeypatch):
    feed = bench.samples(model, 1)[0].feed
    large = bench.run(model, feed)["y"]
    simplified = simplify(model)
    prepared = prepare(model, simplify)
    quantized = bench.quantized(model)[3].model
    monkeypatch.undo()
    np.testing.assert_array_equal(large, bench.run(model, feed)["y"])
    np.testing.assert_array_equal(large, bench.run(simplified, feed)["y"])
    assert prepared.model == prepare(model, simplify).model
    assert quantized == bench.quantized(model)[3].model


def test_a_large_model_in_a_file_opens_by_its_path(bench, model, tmp_path, small_limit):
    save_model(model, tmp_path / "m.onnx")
    feed = bench.samples(model, 1)[0].feed
    np.testing.assert_array_equal(Session(tmp_path / "m.onnx").run(feed)["y"], bench.run(model, feed)["y"])


@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_a_failed_save_leaves_the_old_files(model, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(protos, "LIMIT", limit)
    (tmp_path / "m.onnx").write_bytes(b"old")
    (tmp_path / "m.onnx.data").write_bytes(b"old data")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", fail)
    with pytest.raises(OutputError, match="no space left"):
        save_model(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_saving_into_a_directory_that_is_not_there_is_an_output_error(model, tmp_path):
    with pytest.raises(OutputError, match="create the directory first"):
        save_model(model, tmp_path / "nowhere" / "m.onnx")


@pytest.mark.parametrize("op", ["QuantizeLinear", "QLinearConv", "com.microsoft.QLinearAdd", "MatMulInteger"])
def test_an_already_quantized_model_is_refused(op):
    node = onnx.helper.make_node(op.split(".")[-1], ["x"], ["y"], name="q1")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelError, match=r"already quantized.*'q1'"):
        require_float(model, "m.onnx")
    node.name = ""
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelError, match=rf"already quantized \('y' comes from {node.op_type}\)"):
        require_float(model, "m.onnx")


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
def test_a_tensor_of_an_unknown_type_is_named(tmp_path, place):
    good, bad = (numpy_helper.from_array(np.zeros(2, np.float32), name) for name in ("good", "odd"))
    bad.data_type = 99
    nodes = [helper.make_node("Add", ["x", "good"], ["y"])]
    inside = [bad] if place == "branch" else []
    if place == "constant":
        nodes.append(helper.make_node("Constant", [], ["c"], value=bad))
    value = [helper.make_tensor_value_info("z", 1, [2])]
    branch = helper.make_graph([helper.make_node("Identity", ["y"], ["z"])], "b", [], value, inside)
    nodes.append(helper.make_node("If", ["k"], ["i"], then_branch=branch, else_branch=branch))
    inputs = [helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("k", 9, [])]
    weights = [good, bad] if place == "initializer" else [good]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("i", 1, [2])], weights)
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match="tensor 'odd' has element type 99") as caught:
        load_model(tmp_path / "m.onnx")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"Relu", "op_type of a NodeProto"),
        (b"middle", "(in|out)put of a NodeProto"),
        (b"thenode", "name of a NodeProto"),
        (b"alphaattr", "name of an AttributeProto"),
        (b"weightname", "name of a TensorProto"),
        (b"inputname", "name of a ValueInfoProto"),
        (b"metakey", "key of a StringStringEntryProto"),
        (b"madeby", "producer_name of a ModelProto"),
    ],
)
def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path, text, what):
    node = helper.make_node("Relu", ["inputname"], ["middle"], name="thenode", alphaattr=1)
    graph = helper.make_graph(
        [node, helper.make_node("Add", ["middle", "weightname"], ["y"])],
        "g",
        [helper.make_tensor_value_info("inputname", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "weightname")],
    )
    model = helper.make_model(graph, producer_name="madeby")
    helper.set_model_props(model, {"metakey": "1"})
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(text, b"\xff" * len(text)))
    with pytest.raises(ModelError, match=f"{what} .* is not UTF-8 text") as caught:
        load_model(path)
    assert str(caught.value).isprintable()
