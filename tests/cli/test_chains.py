"""Chains of models in one YAML: the float outputs of one are the samples of the next, and the whole is compared."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.batch import chain
from int8cal.cli.main import main
from int8cal.runtime.sessions import Session

CHAIN = """
defaults:
  evaluation: {latency: false}
  output: {dir: "out/{name}"}
gates: ["sqnr_db>=GATE"]
models:
  encoder:
    model: encoder.onnx
    data: mels
    evaluation: {data: more}
  decoder:
    model: decoder.onnx
    data: tokens
    evaluation: {data: more-tokens}
    inputs: {memory: encoder.hidden}
  joiner:
    model: joiner.onnx
    inputs: {e: encoder.hidden, d: decoder.state, m: encoder.mel}
"""


def product(inputs, output, ops, seed, width=8):
    """A model that adds up the products of its inputs (n, width) with weights, and an op behind."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], {}
    for name in inputs:
        weights[f"w_{name}"] = rng.normal(0, 0.4, (width, width)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [name, f"w_{name}"], [f"p_{name}"], f"mul_{name}"))
    total = f"p_{inputs[0]}"
    for name in inputs[1:]:
        nodes.append(helper.make_node("Add", [total, f"p_{name}"], [f"s_{name}"], f"add_{name}"))
        total = f"s_{name}"
    nodes.append(helper.make_node(ops, [total], [output], "last"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Three models and their data in a folder; calls `run` on a chain and gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    onnx.save(product(["mel"], "hidden", "Relu", 0), "encoder.onnx")
    onnx.save(product(["tokens", "memory"], "state", "Tanh", 1), "decoder.onnx")
    onnx.save(product(["e", "d", "m"], "scores", "Softmax", 2), "joiner.onnx")
    rng = np.random.default_rng(3)
    for folder, name, count in (
        ("mels", "mel", 6),
        ("tokens", "tokens", 6),
        ("more", "mel", 5),
        ("more-tokens", "tokens", 5),
    ):
        Path(folder).mkdir()
        np.savez(f"{folder}/0.npz", **{name: rng.normal(size=(count, 8)).astype(np.float32)})

    def run(text=CHAIN, *arguments, gate="15"):
        Path("chain.yaml").write_text(textwrap.dedent(text).lstrip().replace("GATE", gate))
        code = main(["run", "chain.yaml", *arguments])
        out, err = capsys.readouterr()
        # five samples are few
        return code, out, "".join(line for line in err.splitlines(keepends=True) if "check the data" not in line)

    return run


def test_each_model_is_calibrated_on_what_the_float_models_above_it_give(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    mel, tokens = np.load("mels/0.npz")["mel"], np.load("tokens/0.npz")["tokens"]
    encoder, decoder = Session(Path("encoder.onnx")), Session(Path("decoder.onnx"))
    for row in range(6):
        hidden = encoder.run({"mel": mel[row : row + 1]})["hidden"]
        state = decoder.run({"tokens": tokens[row : row + 1], "memory": hidden})["state"]
        recorded = np.load(f"out/joiner-inputs/calibration/{row:06d}.npz")
        for name, value in {"e": hidden, "d": state, "m": mel[row : row + 1]}.items():
            np.testing.assert_array_equal(recorded[name], value)
    assert sorted(path.name for path in Path("out/joiner-inputs/evaluation").iterdir()) == [
        f"{row:06d}.npz" for row in range(5)
    ]
    for name in ("encoder", "decoder", "joiner"):
        report = json.loads(Path(f"out/{name}/report.json").read_text())
        assert report["metrics"]["sqnr_db"] > 10
    assert "joiner: 6 calibration samples of encoder, decoder recorded in out/joiner-inputs/calibration" in out


def test_the_int8_models_are_compared_one_feeding_the_other(run):
    _, out, _ = run()
    summary = json.loads(Path("out/summary.json").read_text())
    jobs = {job["name"]: job for job in summary["jobs"]}
    assert [*jobs] == ["encoder", "decoder", "joiner", "decoder in the chain", "joiner in the chain"]
    judged = {name: {gate["gate"]: gate["passed"] for gate in job["gates"]} for name, job in jobs.items()}
    assert judged["joiner in the chain"] == {"sqnr_db>=15": True, "outputs.dead<=0": True}
    assert judged["decoder in the chain"] == {"outputs.dead<=0": True}
    # the oracle: both chains by hand
    float_, int8 = ({name: Session(Path(pattern.format(name))) for name in ("encoder", "decoder", "joiner")}
                    for pattern in ("{0}.onnx", "out/{0}/{0}.int8.onnx"))  # fmt: skip
    mel, tokens = np.load("more/0.npz")["mel"], np.load("more-tokens/0.npz")["tokens"]
    outputs = []
    for models in (float_, int8):
        rows = []
        for row in range(5):
            one = mel[row : row + 1]
            hidden = models["encoder"].run({"mel": one})["hidden"]
            state = models["decoder"].run({"tokens": tokens[row : row + 1], "memory": hidden})["state"]
            rows.append(models["joiner"].run({"e": hidden, "d": state, "m": one})["scores"])
        outputs.append(np.concatenate(rows).astype(np.float64))
    expected = 10 * np.log10((outputs[0] ** 2).sum() / ((outputs[0] - outputs[1]) ** 2).sum())
    assert jobs["joiner in the chain"]["metrics"]["sqnr_db"] == pytest.approx(expected, abs=1e-3)
    assert "joiner in the chain" in out
    assert "joiner in the chain" in Path("out/summary.md").read_text()


def test_a_second_run_finds_all_models_up_to_date(run):
    run()
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.np?")}
    code, out, _ = run()
    assert code == 0
    assert out.count("(up to date)") == 3
    assert before == {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.np?")}


def test_a_gate_of_the_chain_fails_the_run_and_keeps_all_files(run):
    code, out, err = run(CHAIN, "--junit", "junit.xml", gate="200")
    assert code == 7
    assert "joiner in the chain: gate: 1 of 1 failed: sqnr_db>=200 (is " in err
    assert Path("out/joiner/joiner.int8.onnx").is_file()
    assert "failed" in out
    assert 'name="joiner in the chain"' in Path("junit.xml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("encoder.hidden}", "encodr.hidden}", "chain.yaml:14:22: models.decoder.inputs.memory:", '"encodr.hidden" names no tensor'),
        ("encoder.hidden}", "joiner.scores}", "chain.yaml:14:22:", '"joiner" does not stand above this model'),
        ("encoder.hidden}", "decoder.state}", "chain.yaml:14:22:", '"decoder" does not stand above this model'),
        ("encoder.hidden}", "encoder.hiden}", "chain.yaml:14:22:", '"encoder" has no output or input "hiden"'),
        ("{memory: enc", "{memry: enc", "chain.yaml:14:21:", 'the model has no input "memry"'),
        (", m: encoder.mel", "", "chain.yaml:17:17:", 'nothing feeds "m"'),
        ("    evaluation: {data: more-tokens}\n", "", "chain.yaml:11:5: models.decoder:", "has evaluation data"),
        ("gates:", "matrix: {calibration.method: [kl]}\ngates:", "chain.yaml:4:1: matrix:", "takes defaults and gates beside"),
        ("models:", "jobs:", "chain.yaml:", ""),
        ("inputs: {memory", "inpts: {memory", "chain.yaml:14:5: models.decoder.inpts:", 'did you mean "inputs"?'),
        ("sqnr_db>=GATE", "sqnr>=3", "chain.yaml:4:9: gates[0]:", 'names an unknown figure "sqnr"; did you mean "sqnr_db"?'),
        ("sqnr_db>=GATE", "latency.speedup>=1", "chain.yaml:4:9: gates[0]:", "only the outputs of models are compared in a chain"),
        ("data: mels", "data: {path: mels, samples: 4}", "chain.yaml:14:22:", "samples and seed do not choose the same ones"),
        ("model: encoder.onnx", "model: encoder.onnx\n    output: {dir: out/decoder-inputs}", "chain.yaml:7:5:", 'where samples of "decoder" are recorded'),
        ("model: encoder.onnx", "model: encoder.onnx\n    output: {dir: out/joiner-inputs/e}", "chain.yaml:7:5:", 'where samples of "joiner" are recorded'),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line_before_any_work(run, old, new, where, message):
    assert old in CHAIN
    code, out, err = run(CHAIN.replace(old, new, 1))
    assert (code, out) == (2, "")
    assert err.startswith(f"int8cal: config: {where}")
    assert message in err
    assert not Path("out").exists()


def test_no_model_is_called_like_a_row_of_another(run):
    text = re.sub(r"encoder(:|\.hidden|\.mel)", r"decoder in the chain\1", CHAIN)
    code, out, err = run(text)
    assert (code, out) == (2, "")
    assert 'chain.yaml:14:22: models.decoder.inputs.memory: another model is called "decoder in the chain"' in err


@pytest.mark.parametrize("more", ["", ", skip_bad: true"])
@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_data_beside_what_a_model_reads_are_looked_for_before_any_work(run, arguments, more):
    code, out, err = run(CHAIN.replace("data: more-tokens", f"data: {{path: none{more}}}"), *arguments)
    assert (code, out) == (4, "")
    assert "int8cal: data: none: " in err
    assert not Path("out").exists()


def test_samples_that_do_not_belong_together_are_refused(run):
    np.savez("tokens/0.npz", tokens=np.zeros((4, 8), np.float32))
    for arguments in ((), ("--dry-run",)):
        code, out, err = run(CHAIN, *arguments)
        assert (code, out) == (4, "")
        assert '"decoder" has 4 calibration samples, "encoder" has 6' in err


def test_a_model_that_gives_no_number_is_named_with_the_sample_that_it_had(run):
    onnx.save(product(["mel"], "hidden", "Log", 0), "encoder.onnx")  # of negative numbers
    code, _, err = run()
    assert code == 5
    assert err.startswith('int8cal: statistics: mels/0.npz[0]: "encoder" gives nan in "hidden" at [0, ')
    assert not [*Path("out").rglob("*.npz")]


def test_samples_of_functions_that_do_not_belong_together_are_refused_where_one_ends(run, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    Path("fewer.py").write_text(
        "import numpy as np\n\ndef tokens():\n    for _ in range(4):\n"
        "        yield {'tokens': np.ones((1, 8), np.float32)}\n"
    )
    code, _, err = run(CHAIN.replace("data: tokens", 'data: "fewer:tokens"'))
    assert code == 4
    assert '"decoder" has 4 calibration samples, "encoder" has more' in err


def save_rows(folder, name, bad):
    """Save the samples of a folder in a file each, one of which is none."""
    rows = np.load(f"{folder}/0.npz")[name]
    Path(folder, "0.npz").unlink()
    for number, row in enumerate(rows):
        path = Path(folder, f"{number}.npz")
        np.savez(path, **{name: row[None]}) if number != bad else path.write_bytes(b"torn")


@pytest.mark.parametrize("bad", [2, 5])
def test_a_sample_that_is_left_out_shifts_no_pairs(run, bad):
    save_rows("mels", "mel", bad)
    code, _, err = run(CHAIN.replace("data: mels", "data: {path: mels, skip_bad: true}"))
    assert code == 4
    assert f'of "encoder", mels/{bad}.npz is left out by skip_bad, so that samples of "decoder" would stand' in err


def test_what_is_left_out_of_the_only_data_is_left_out_for_all_and_told(run):
    save_rows("mels", "mel", 2)
    onnx.save(product(["e", "m"], "scores", "Softmax", 2), "joiner.onnx")
    code, out, err = run(
        """
        defaults: {evaluation: {latency: false}, output: {dir: "out/{name}"}}
        models:
          encoder: {model: encoder.onnx, data: {path: mels, skip_bad: true}}
          joiner: {model: joiner.onnx, inputs: {e: encoder.hidden, m: encoder.mel}}
        """
    )
    assert code == 0, err
    assert "5 calibration samples of encoder recorded in out/joiner-inputs/calibration; left out: mels/2.npz" in out
    assert np.load("out/joiner-inputs/calibration/000002.npz")["m"].tolist() == np.load("mels/3.npz")["mel"].tolist()


def test_outputs_that_die_in_the_chain_alone_fail_the_gate_that_is_always_on(run):
    wide = "quantization: {ranges: {mel: [-1.0e+6, 1.0e+6]}}, evaluation: {gates: [outputs.dead=off]}"
    chain = f"""
        defaults: {{evaluation: {{latency: false}}, output: {{dir: "out/{{name}}"}}}}
        models:
          encoder: {{model: encoder.onnx, data: mels, {wide}}}
          decoder: {{model: encoder.onnx, inputs: {{mel: encoder.hidden}}}}
        """
    code, _, err = run(chain)
    assert code == 7
    assert "decoder in the chain: gate: 1 of 1 failed: outputs.dead<=0" in err
    assert run("        gates: [outputs.dead=off]" + chain)[0] == 0


def test_a_gate_on_what_the_last_outputs_do_not_have_says_why_and_what_they_have(run):
    joiner = onnx.load("joiner.onnx")
    joiner.graph.output[0].type.tensor_type.shape.dim[1].ClearField("dim_value")
    joiner.graph.node.extend([helper.make_node("Reshape", ["whole", "rows"], ["scores"], "fold")])
    joiner.graph.node[-2].output[0] = "whole"
    joiner.graph.initializer.append(numpy_helper.from_array(np.array([-1, 2, 4]), "rows"))
    joiner.graph.output[0].type.tensor_type.shape.dim.add()
    onnx.save(joiner, "joiner.onnx")
    code, _, err = run(CHAIN.replace("sqnr_db>=GATE", "agreement>=0.1"))
    assert code == 7
    assert 'agreement>=0.1 (not computed: the first float output "scores" has shape (1, 2, 4) per sample' in err
    assert "these outputs are judged by outputs.scores." in err


def test_a_gate_of_the_chain_on_an_output_that_is_not_there_is_refused(run):
    code, out, err = run(CHAIN.replace("sqnr_db>=GATE", "outputs.score.sqnr_db>=3"))
    assert (code, out) == (2, "")
    assert 'is about an output "score" that the model does not have; did you mean "scores"?' in err


def test_a_dry_run_knows_that_a_model_above_gives_other_samples(run):
    run()
    assert "3 up to date; nothing was written" in run(CHAIN, "--dry-run")[1]
    quieter = CHAIN.replace("    data: mels\n", "    data: mels\n    calibration: {method: max}\n")
    _, out, _ = run(quieter, "--dry-run")
    assert "1 to run, 2 up to date; nothing was written" in out
    onnx.save(product(["mel"], "hidden", "Relu", 7), "encoder.onnx")
    _, out, _ = run(CHAIN, "--dry-run")
    assert 'joiner: to run (what "encoder" gives may be another now)' in out
    assert "3 to run; nothing was written" in out


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_an_input_may_be_called_as_an_argument_of_numpy(run, name):
    onnx.save(product([name], "state", "Tanh", 1), "decoder.onnx")
    code, _, err = run(
        f"""
        defaults: {{evaluation: {{latency: false}}, output: {{dir: "out/{{name}}"}}}}
        models:
          encoder: {{model: encoder.onnx, data: mels}}
          decoder: {{model: decoder.onnx, inputs: {{{name}: encoder.hidden}}}}
        """
    )
    assert (code, err) == (0, "")


def test_quiet_prints_no_row(run):
    assert run(CHAIN, "--quiet")[:2] == (0, "")


def test_a_tensor_of_another_width_is_refused(run):
    onnx.save(product(["e", "d", "m"], "scores", "Softmax", 2, width=4), "joiner.onnx")
    code, _, err = run()
    assert code == 2
    assert '"hidden" has shape (n, 8), the input takes (n, 4)' in err


def test_a_tensor_whose_size_only_a_sample_tells_is_refused_at_its_line(run):
    decoder = product(["tokens", "memory"], "state", "Tanh", 1)
    decoder.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "width"
    onnx.save(decoder, "decoder.onnx")
    onnx.save(product(["d"], "scores", "Softmax", 2, width=4), "joiner.onnx")
    code, _, err = run(CHAIN.replace("e: encoder.hidden, d: decoder.state, m: encoder.mel", "d: decoder.state"))
    assert code == 4
    assert 'chain.yaml:17:17: models.joiner.inputs.d: input "d" has shape (1, 8), the model expects (n, 4)' in err
    assert err.splitlines()[-1].endswith("; name another tensor, or give that model other samples")


def test_a_dry_run_writes_nothing(run):
    code, out, _ = run(CHAIN, "--dry-run")
    assert code == 0
    assert "3 to run; nothing was written" in out
    assert not Path("out").exists()


def test_a_model_without_data_of_its_own_takes_none_of_the_defaults(run):
    text = CHAIN.replace("defaults:\n", "defaults:\n  data: mels\n").replace("    data: mels\n", "")
    code, _, err = run(text)
    assert (code, err) == (0, "")


def test_recorded_samples_are_those_of_the_run_alone(run):
    assert run()[0] == 0
    recorded = Path("out/decoder-inputs/calibration")
    names = sorted(path.name for path in recorded.iterdir())
    # of an earlier run with more samples, of which one was taken away
    shutil.copy(recorded / names[0], recorded / "000009.npz")
    code, _, err = run()
    assert (code, err) == (0, "")
    assert sorted(path.name for path in recorded.iterdir()) == names
    shutil.copy(recorded / names[0], recorded / "mine.npz")
    code, _, err = run()
    assert code == 2
    told = "mine.npz: is no sample that was recorded; out/decoder-inputs/calibration is for these alone; move it away"
    assert f"int8cal: output: out/decoder-inputs/calibration/{told}" in err
    assert (recorded / "mine.npz").is_file()


def test_data_that_changes_before_the_chain_is_compared_is_told(run, monkeypatch):
    compare = chain.compare_chain

    def fewer(tasks):
        np.savez("mels/0.npz", mel=np.zeros((4, 8), np.float32))
        return compare(tasks)

    monkeypatch.setattr(chain, "compare_chain", fewer)
    text = CHAIN.replace("    evaluation: {data: more}\n", "").replace("    evaluation: {data: more-tokens}\n", "")
    code, _, err = run(text)
    assert code == 4
    assert "mels: has 4 calibration samples, other models of the chain have more, though as many were recorded" in err


def test_one_model_of_a_chain_may_be_run_alone(run):
    code, out, err = run(CHAIN, "--only", "decoder")
    assert (code, err) == (0, "")
    assert Path("out/decoder/report.json").is_file()
    assert not Path("out/encoder").exists()
    assert "in the chain" not in out


def test_a_single_number_is_handed_on_as_one(run):
    gain = helper.make_tensor_value_info("gain", TensorProto.FLOAT, [])
    for name, inputs, output in (("encoder", ["mel"], "hidden"), ("decoder", ["memory"], "state")):
        model = product(inputs, "sum", "Relu", 0)
        model.graph.input.append(gain)
        model.graph.node.append(helper.make_node("Mul", ["sum", "gain"], [output], "louder"))
        model.graph.output[0].name = output
        onnx.save(model, f"{name}.onnx")
    for row, mel in enumerate(np.load("mels/0.npz")["mel"]):
        Path("loud").mkdir(exist_ok=True)
        np.savez(f"loud/{row}.npz", mel=mel[np.newaxis], gain=np.float32(2))
    text = """
defaults: {output: {dir: "out/{name}"}, evaluation: {latency: false}}
models:
  encoder: {model: encoder.onnx, data: loud}
  decoder: {model: decoder.onnx, inputs: {memory: encoder.hidden, gain: encoder.gain}}
"""
    code, _, err = run(text)
    assert (code, err) == (0, "")
    assert np.load("out/decoder-inputs/calibration/000000.npz")["gain"].shape == ()
