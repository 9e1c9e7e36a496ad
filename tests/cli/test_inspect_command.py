"""`int8cal inspect`."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import int8cal


def environment(**extra):
    return os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1]), "PYTHONIOENCODING": "utf-8"} | extra


def test_the_lines_of_the_pipeline_are_printed(here, pipeline):
    done = here("inspect", "x.table.json")
    assert (done.code, done.out, done.err) == (0, "version: 1\nproviders: CPU\n", "")
    assert pipeline.calls[0].path == Path("x.table.json")


@pytest.mark.parametrize("name", ["model.int8.onnx", "model.table.json", "model.stats.npz", "report.json"])
def test_every_file_of_a_run_can_be_shown(call, sample_run, name):
    done = call("inspect", sample_run / name)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) > 1


def test_a_directory_stands_for_its_report_and_its_other_forms_lead_to_it(call, sample_run, tmp_path):
    whole = call("inspect", sample_run / "report.json")
    assert (call("inspect", sample_run).out, whole.code) == (whole.out, 0)
    for name in ("report.html", "report.md"):
        done = call("inspect", sample_run / name)
        assert (done.code, done.message.endswith(f"; give {sample_run / 'report.json'}")) == (2, True)
    assert "is a directory; give a file" in call("inspect", tmp_path).message


@pytest.mark.parametrize(
    ("name", "code"),
    [("a.onnx", 3), ("a.table.json", 6), ("a.stats.npz", 5), ("report.json", 2), ("nowhere", 2)],
)
def test_a_missing_file_ends_with_the_code_of_the_kind_that_its_name_says(call, name, code):
    done = call("inspect", name)
    assert (done.code, f"{name}: does not exist; give a file" in done.message) == (code, True)


def test_a_model_of_another_tool_ends_as_everywhere_else(call, tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("net/data.pkl", b"")
    inspected, calibrated = call("inspect", "net.pt"), call("calibrate", "net.pt", "--data", ".")
    assert (inspected.code, inspected.message) == (3, calibrated.message)
    assert "net.pt: is a PyTorch file (.pt or .pth), not an ONNX model; export" in inspected.message


def test_a_file_of_no_known_kind_is_one_line(call, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    done = call("inspect", "notes.txt")
    assert done.code == 2
    assert "notes.txt" in done.message


def test_what_is_no_regular_file_is_called_so(call, tmp_path):
    done = call("inspect", os.devnull)
    assert (done.code, "is not a regular file" in done.message) == (2, True)
    assert "is a directory" in call("inspect", tmp_path).message


def test_rows_are_picked_and_ordered_as_asked(call, sample_run):
    done = call("inspect", sample_run / "model.table.json", "--filter", "*block3*", "--sort", "name")
    tensors = [line.split()[-1] for line in done.out.splitlines() if line.startswith("uint8")]
    assert len(tensors) == 4
    assert tensors == sorted(tensors)
    assert all("block3" in name for name in tensors)


def test_the_size_of_a_model_is_with_its_external_data(call, tmp_path):
    weight = numpy_helper.from_array(np.ones((500, 500), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 500]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    lines = call("inspect", "m.onnx").out.splitlines()
    assert lines[0] == "model        m.onnx, 1.00 MB with its data files, float"
    assert "weights      1 tensor, 1.00 MB" in lines


@pytest.mark.parametrize("name", ["report.json", "model.table.json", "model.stats.npz"])
def test_a_glob_that_nothing_matches_is_one_line(call, sample_run, name):
    done = call("inspect", sample_run / name, "--filter", "nothing*")
    assert done.code == 2
    assert "--filter 'nothing*'" in done.message
    assert name in done.message


@pytest.mark.parametrize("name", ["report.json", "model.table.json", "model.stats.npz"])
def test_a_pipe_gets_whole_names_no_colours_and_the_same_text_each_time(call, sample_run, name):
    done = call("inspect", sample_run / name, COLUMNS="60")
    assert "\x1b" not in done.out
    assert "/block3/project/BatchNormalization_output" in done.out
    assert call("inspect", sample_run / name, COLUMNS="60").out == done.out


@pytest.mark.parametrize("name", ["report.json", "model.table.json", "model.stats.npz"])
def test_where_the_terminal_has_only_ascii_bars_are_of_ascii(call, sample_run, name):
    done = call("inspect", sample_run / name, PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    assert "?" not in done.out


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of Unix")
@pytest.mark.parametrize(("extra", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_and_names_that_fit_its_width(sample_run, extra, colours):
    text = on_terminal(["inspect", str(sample_run / "report.json")], {"COLUMNS": "80", "TERM": "xterm", **extra})
    assert ("\x1b[32m" in text) == colours
    layers = [line for line in re.sub(r"\x1b\[\d+m", "", text).splitlines() if "█" in line and "float" not in line]
    assert len(layers) == 11
    assert max(map(len, layers)) <= 80


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of Unix")
@pytest.mark.parametrize("name", ["report.json", "model.table.json", "model.stats.npz", "model.int8.onnx"])
@pytest.mark.parametrize("extra", [{}, {"PYTHONIOENCODING": "ascii"}], ids=["blocks", "ascii"])
def test_no_line_is_longer_than_a_narrow_terminal(sample_run, name, extra):
    text = on_terminal(["inspect", "--all", str(sample_run / name)], {"COLUMNS": "40", "TERM": "xterm", **extra})
    lines = re.sub(r"\x1b\[\d+m", "", text).splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 40


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of Unix")
def test_names_cannot_give_commands_to_the_terminal(tmp_path):
    evil = "a\x1b]0;title\x07\x1b[31m\u202eb\n"
    node = helper.make_node("Relu", ["x"], ["y"], name=evil)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n\x1b[2J", 2]) for name in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, producer_name=evil, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, {evil: evil})
    onnx.save(model, tmp_path / "m.onnx")
    text = on_terminal(["inspect", str(tmp_path / "m.onnx")], {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"})
    assert all(line.isprintable() for line in text.splitlines())
    assert "a\ufffd]0;title" in text


def test_an_error_cannot_give_commands_to_the_terminal(call):
    assert call("inspect", "a\x1b[31m\u202eb\x07.onnx").message.isprintable()


def on_terminal(arguments, extra):
    """Run the command with a pseudo-terminal as its standard output."""
    import pty

    main, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "int8cal", *arguments],
        stdout=terminal,
        env={key: value for key, value in environment(**extra).items() if key != "NO_COLOR" or key in extra},
    ) as process:
        os.close(terminal)
        parts = []
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            parts.append(part)
        assert process.wait() == 0
    os.close(main)
    return b"".join(parts).decode()


def test_a_float_model_says_what_tends_to_go_wrong_with_its_kind(call, sample_run):
    lines = [
        line.strip()
        for line in call("inspect", Path(__file__).parents[2] / "sample_data" / "model.onnx").out.splitlines()
    ]
    start = lines.index("families")
    assert lines[start + 1].startswith("depthwise convolutions: depthwise convolution (/block3/depthwise/Conv); ")
    said = [line.partition(":")[0] for line in lines[start + 2 : start + 5]]
    assert said == ["what tends to go wrong", "what int8cal does", "what to look at"]
    assert "families" not in call("inspect", sample_run / "model.int8.onnx").out


def test_families_tell_of_cells_inside_of_other_nodes_what_becomes_of_them(call, tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> net (float[1, 2, 8] x, bool flag) => (float[A, B, C, D] y) {
            y = If (flag) <
                then_branch = g () => (float[A, B, C, D] a) { a = GRU <hidden_size = 8> (x, W, R) },
                else_branch = g () => (float[A, B, C, D] b) { b = GRU <hidden_size = 8> (x, W, R) }
            >
        }"""
    )
    rng = np.random.default_rng(0)
    for name in ("W", "R"):
        values = rng.normal(0, 0.3, (1, 24, 8)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "branches.onnx")
    out = call("inspect", tmp_path / "branches.onnx").out
    assert "would be quantized: 2 layers" in out
    assert "2 of them inside of other nodes" in out
    assert "what int8cal does: their weights become int8" in out


def network(*, in_nodes: bool) -> onnx.ModelProto:
    """A layer and a Softmax, its weights as an initializer or in a Constant node."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(0, 0.1, (32, 10)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "head"),
        helper.make_node("Softmax", ["m"], ["y"], "softmax"),
    ]
    graph = helper.make_graph(
        [*([helper.make_node("Constant", [], ["w"], value=weights)] if in_nodes else []), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [] if in_nodes else [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("in_nodes", [False, True])
def test_weights_count_wherever_they_are(call, tmp_path, in_nodes):
    onnx.save(network(in_nodes=in_nodes), tmp_path / "net.onnx")
    lines = call("inspect", "net.onnx").out.splitlines()
    assert "weights      1 tensor, 1.28 kB" in lines
    assert "would be quantized: 1 layer, 1 activation" in lines


def test_nodes_that_are_float_for_one_reason_are_one_line_unless_every_row_is_asked_for(call, tmp_path):
    model = network(in_nodes=True)
    model.graph.node.append(helper.make_node("Transpose", ["y"], ["t"], "turned"))
    for name in ("m1", "m2", "m3", "m4", "m5"):
        model.graph.node.append(helper.make_node("MatMul", ["y", "t"], [name], name))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]))
    onnx.save(model, tmp_path / "net.onnx")
    short, every = (call("inspect", "net.onnx", *extra).out for extra in ((), ("--all",)))
    assert "5 nodes, its weights are not constant: MatMul 5 (" in short
    assert short.endswith(" and 2 more)\n")
    assert short.count("its weights are not constant") == 1
    assert every.count(": its weights are not constant") == 5


def test_inspect_and_init_tell_the_same_of_what_stays_float(call, tmp_path):
    onnx.save(network(in_nodes=True), tmp_path / "net.onnx")
    assert "would stay float: 1 node of the model (Softmax 1); a report counts" in call("inspect", "net.onnx").out
    assert call("init", "net.onnx").code == 0
    assert "# Would stay float: Softmax 1.\n" in (tmp_path / "net.yaml").read_text()
