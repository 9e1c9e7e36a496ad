"""What is read is never written over, and a job that fails before it has a model leaves nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import int8cal

SAMPLE = Path(__file__).parents[2] / "sample_data"
REPORTS = ("report.json", "report.md", "report.html")


def test_quantize_never_replaces_its_own_input(call, tmp_path, sample_run):
    shutil.copy(SAMPLE / "model.onnx", tmp_path / "m.onnx")
    shutil.copy(sample_run / "model.table.json", tmp_path / "t.json")
    before = {name: (tmp_path / name).read_bytes() for name in ("m.onnx", "t.json")}
    for target in before:
        done = call("quantize", "m.onnx", "--table", "t.json", "-o", target, "--overwrite")
        assert done.code == 2
        assert "is also an input" in done.message
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_results_never_go_among_the_samples(call, tmp_path):
    shutil.copytree(SAMPLE / "calib", tmp_path / "data")
    done = call("calibrate", SAMPLE / "model.onnx", "--data", "data", "-o", "data", "--overwrite")
    assert done.code == 2
    assert "is also an input" in done.message


def test_a_job_that_fails_before_it_has_a_model_leaves_no_directory(call, tmp_path):
    (tmp_path / "data").mkdir()
    for path in [*(SAMPLE / "calib").rglob("*.png")][:3]:
        shutil.copy(path, tmp_path / "data")
    (tmp_path / "data" / "z.png").write_bytes(b"no image")
    done = call("calibrate", SAMPLE / "model.onnx", "--data", "data", "-o", "deep/out", "--no-latency")
    assert done.code == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_an_evaluation_that_fails_costs_its_figures_alone(call, tmp_path):
    (tmp_path / "eval").mkdir()
    shutil.copy(next((SAMPLE / "eval").rglob("*.png")), tmp_path / "eval" / "a.png")
    (tmp_path / "eval" / "z.png").write_bytes((tmp_path / "eval" / "a.png").read_bytes()[:-40])
    done = call(
        *("calibrate", SAMPLE / "model.onnx", "--data", SAMPLE / "calib", "--samples", 5),
        *("--eval-data", "eval", "-o", "deep/out", "--no-latency"),
    )
    assert done.code == 4
    assert "; model, table and statistics are kept in deep/out, and the report there says what is missing" in done.err
    written = {path.name for path in (tmp_path / "deep" / "out").iterdir()}
    assert written == {"model.int8.onnx", "model.table.json", "model.stats.npz", *REPORTS}
    report = json.loads((tmp_path / "deep" / "out" / "report.json").read_text())
    assert report["metrics"]["sqnr_db"] is None
    assert "cannot be read" in report["reasons"]["metrics"]


def network(weights, nodes, outputs=None):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
    return tmp_path / "x.npy"


WEIGHT = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)


def test_node_names_that_int8cal_would_give_are_kept(call, tmp_path, data):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="x_QuantizeLinear"),
        helper.make_node("MatMul", ["x", "W"], ["m"], name="x_dequantized_DequantizeLinear"),
        helper.make_node("Add", ["m", "r"], ["y"], name="add"),
    ]
    onnx.save(network({"W": WEIGHT}, nodes), tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out", "--no-latency")
    assert done.code == 0, done.err
    names = [node.name for node in onnx.load(tmp_path / "out" / "m.int8.onnx").graph.node]
    assert len(names) == len(set(names))


def warnings_of(folder):
    return json.loads((folder / "report.json").read_text())["warnings"]


def product(source, target, name, weight="W"):
    return helper.make_node("MatMul", [source, weight], [target], name=name)


def test_nodes_that_share_a_name_are_given_their_own(call, tmp_path, data):
    """onnxruntime loads no such file."""
    onnx.save(network({"W": WEIGHT}, [product("x", "m", "p"), product("m", "y", "p")]), tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out", "--no-latency")
    assert done.code == 0, done.err
    told = 'several nodes are named "p": onnxruntime does not load such a file, so each was given its own name'
    assert told in warnings_of(tmp_path / "out")
    assert call("evaluate", "m.onnx", "out/m.int8.onnx", "--data", data, "-o", "own", "--no-latency").code == 0
    assert told in warnings_of(tmp_path / "own")


def test_a_model_without_outputs_is_refused_before_any_work(call, tmp_path, data):
    model = network({"W": WEIGHT}, [product("x", "y", "p")])
    del model.graph.output[:]
    onnx.save(model, tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert (done.code, (tmp_path / "out").exists()) == (3, False)
    assert "m.onnx: has no outputs, so nothing is computed; give a model with outputs" in done.message


def test_a_model_in_training_mode_is_told(call, tmp_path, data):
    nodes = [
        product("x", "m", "p"),
        helper.make_node(
            "BatchNormalization", ["m", "a", "b", "b", "a"], ["n", "mean", "var"], name="norm", training_mode=1
        ),
        product("n", "y", "q"),
    ]
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    onnx.save(network({"W": WEIGHT, "a": ones, "b": zeros}, nodes), tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out", "--no-latency")
    assert done.code == 0, done.err
    (told,) = [line for line in warnings_of(tmp_path / "out") if "training mode" in line]
    assert told.startswith("BatchNormalization 'norm' in training mode: ")


def test_a_model_of_fused_nodes_is_told(call, tmp_path, data):
    model = network({"W": WEIGHT}, [product("x", "y", "p")])
    model.graph.node[0].op_type, model.graph.node[0].domain = "FusedMatMul", "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    assert (
        "(it has ops of other domains, which are left as they are: com.microsoft.FusedMatMul 1); give" in done.message
    )


def test_a_model_of_trees_alone_is_told_to_stay_as_it_is(call, tmp_path, data):
    model = network({}, [product("x", "", "p")])
    node = model.graph.node[0]
    node.CopyFrom(helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    assert "ai.onnx.ml.Scaler 1); run the model in float: trees" in done.message
    assert "optimizer" not in done.message


def test_labels_that_no_figure_is_made_of_are_told(call, tmp_path, data):
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])]
    onnx.save(network({"W": WEIGHT[:, :1].copy()}, [product("x", "y", "p")], outputs), tmp_path / "m.onnx")
    (tmp_path / "labels.txt").write_text("\n".join(map(str, range(20))))
    given = ("calibrate", "m.onnx", "--data", data, "--labels", "labels.txt", "--no-latency", "-o", "out")
    assert call(*given).code == 0
    told = (
        'no figure is made of 20 labels, which stand for classes: the first float output "y" has shape (1, 1) per '
        "sample, not one row of class scores; judge other truths by --metric"
    )
    assert told in warnings_of(tmp_path / "out")


@pytest.mark.parametrize("command", ["calibrate", "evaluate", "merge"])
def test_a_dash_is_no_output(call, tmp_path, data, command):
    onnx.save(network({"W": WEIGHT}, [product("x", "y", "p")]), tmp_path / "m.onnx")
    assert call("calibrate", "m.onnx", "--data", data, "-o", "out", "--no-latency").code == 0
    given = {
        "calibrate": ("m.onnx", "--data", data),
        "evaluate": ("m.onnx", "out/m.int8.onnx", "--data", data),
        "merge": ("out/m.stats.npz",),
    }
    done = call(command, *given[command], "-o", "-")
    assert (done.code, done.out) == (2, "")
    assert "output: -: is not taken for standard output here" in done.message
    assert not (tmp_path / "-").exists()


def test_a_bias_of_minus_infinity_keeps_its_layer_in_float(call, tmp_path, data):
    bias = np.zeros(8, np.float32)
    bias[3] = -np.inf
    nodes = [
        helper.make_node("Gemm", ["x", "W", "b"], ["g"], name="masked"),
        helper.make_node("Softmax", ["g"], ["s"], name="softmax"),
        helper.make_node("MatMul", ["s", "W"], ["y"], name="plain"),
    ]
    onnx.save(network({"W": WEIGHT, "b": bias}, nodes), tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out", "--no-latency")
    assert done.code == 0, done.err
    decisions = json.loads((tmp_path / "out" / "report.json").read_text())["decisions"]
    assert [line for line in decisions if "masked" in line and "its bias holds infinity" in line]


@pytest.mark.parametrize(("name", "value"), [("W", np.nan), ("W", np.inf), ("b", np.nan)])
def test_a_weight_or_bias_that_is_no_number_is_named_with_its_file(call, tmp_path, data, name, value):
    nodes = [
        helper.make_node("Gemm", ["x", "W", "b"], ["g"], name="head"),
        helper.make_node("Softmax", ["g"], ["y"], name="softmax"),
    ]
    for file, last in (("good.onnx", 0.0), ("bad.onnx", value)):
        constants = {"W": WEIGHT.copy(), "b": np.zeros(8, np.float32)}
        constants[name].flat[3] = last
        onnx.save(network(constants, nodes), tmp_path / file)
    assert call("calibrate", "good.onnx", "--data", data, "-o", "out", "--no-latency").code == 0
    for command in (
        ("calibrate", "bad.onnx", "--data", data, "-o", "new"),
        ("quantize", "bad.onnx", "--table", "out/good.table.json", "--force", "-o", "q.onnx"),
    ):
        done = call(*command)
        assert done.code == 5
        assert done.message.startswith(
            f"int8cal: statistics: bad.onnx: weight '{name}' of node 'head' holds NaN or infinity; export the model again"
        )


def test_a_dead_output_is_a_warning_on_the_terminal_and_in_the_report(call, tmp_path, data):
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"], name="m")]
    onnx.save(network({"W": WEIGHT}, nodes), tmp_path / "m.onnx")
    (tmp_path / "job.yaml").write_text("quantization: {ranges: {x: [-1.0e+9, 1.0e+9]}}\nevaluation: {latency: false}\n")
    command = ("calibrate", "m.onnx", "--data", data, "-o", "out", "--config", "job.yaml")
    done = call(*command, "--gate", "sqnr_db>=40", "--gate", "cosine>=0.9")
    assert done.code == 7, done.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    said = 'output "y": 8 of 8 channels are constant in the int8 model'
    assert [line for line in report["warnings"] if line.startswith(said)]
    assert said in done.out
    assert (report["metrics"]["cosine"], report["metrics"]["exact_outputs"]) == (None, [])
    assert [gate["passed"] for gate in report["gates"]] == [False, False, False]


def test_a_sequence_output_is_refused_by_name(call, tmp_path, data):
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"], name="m"),
        helper.make_node("SequenceConstruct", ["m"], ["y"], name="s"),
    ]
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    onnx.save(network({"W": WEIGHT}, nodes, [output]), tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    assert "'y' is no tensor but a sequence; give a model whose inputs and outputs are tensors" in done.message


@pytest.mark.parametrize("stored", ["initializer", "Constant"])
def test_a_sparse_tensor_is_refused_by_name(call, tmp_path, data, stored):
    values, places = np.ones(2, np.float32), np.array([1, 9])
    parts = (numpy_helper.from_array(values, "sparse"), numpy_helper.from_array(places, "places"))
    tensor = helper.make_sparse_tensor(*parts, WEIGHT.shape)
    nodes = [helper.make_node("MatMul", ["x", "sparse"], ["m"]), helper.make_node("MatMul", ["m", "W"], ["y"])]
    if stored == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["sparse"], sparse_value=tensor))
    model = network({"W": WEIGHT}, nodes)
    model.graph.sparse_initializer.extend([tensor] if stored == "initializer" else [])
    onnx.save(model, tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    told = (
        "m.onnx: tensor 'sparse' is stored as a sparse tensor, which is not read; export the model with dense tensors"
    )
    assert told in done.message


def test_a_classifier_with_a_map_of_classes_is_refused_with_how_to_export_it(call, tmp_path, data):
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"], name="m"),
        helper.make_node("ZipMap", ["m"], ["y"], name="z", domain="ai.onnx.ml", classlabels_int64s=[*range(8)]),
    ]
    probabilities = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    output = helper.make_value_info("y", helper.make_sequence_type_proto(probabilities))
    model = network({"W": WEIGHT}, nodes, [output])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(model, tmp_path / "m.onnx")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    assert "'y' is no tensor but a sequence; export it with probabilities as a tensor (skl2onnx: " in done.message


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", {"weights": "s4"}),
        ("settings", {"exclude": 5}),
        ("corrections", {"bias": "x"}),
        ("corrections", {"bias": {"/stem/Conv": ["a"]}}),
        ("corrections", {"equalization": {"/stem/Clip_output": [1e9]}}),
    ],
)
def test_a_table_edited_wrongly_ends_with_6(call, tmp_path, sample_run, part, value):
    table = json.loads((sample_run / "model.table.json").read_text())
    table[part] |= value
    (tmp_path / "t.json").write_text(json.dumps(table))
    done = call("quantize", SAMPLE / "model.onnx", "--table", "t.json", "-o", "q.onnx")
    assert done.code == 6, done.err
    assert done.message


def test_a_table_nested_without_end_ends_with_6(call, tmp_path):
    (tmp_path / "t.json").write_text("[" * 100_000)
    assert call("quantize", SAMPLE / "model.onnx", "--table", "t.json", "-o", "q.onnx").code == 6


def test_a_damaged_compilation_cache_is_worked_around(call, tmp_path):
    # a copy with all that is compiled already; in one file of loops it is damaged, so that few are compiled anew
    copy = tmp_path / "copy"
    shutil.copytree(Path(int8cal.__file__).parent, copy / "int8cal")
    arguments = ("calibrate", SAMPLE / "model.onnx", "--data", SAMPLE / "calib", "--samples", 3, "--no-latency")
    cache = copy / "int8cal" / "numerics" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "kernels._observe_loop.waited").write_bytes(b"." * 99)  # enough processes did without it
    assert call(*arguments, "-o", "a", PYTHONPATH=str(copy)).code == 0
    files = list(cache.glob("kernels._observe_loop*.nb?"))
    assert {file.suffix for file in files} == {".nbi", ".nbc"}
    for file in files:
        file.write_bytes(file.read_bytes()[:40])
    done = call(*arguments, "-o", "b", PYTHONPATH=str(copy))
    assert done.code == 0, done.err
    assert (tmp_path / "a" / "model.stats.npz").read_bytes() == (tmp_path / "b" / "model.stats.npz").read_bytes()


def test_threads_beyond_reason_are_refused(call):
    done = call("calibrate", SAMPLE / "model.onnx", "--data", SAMPLE / "calib", "--threads", 99999999999)
    assert done.code == 2
    assert "--threads" in done.message
