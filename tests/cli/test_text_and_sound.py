"""Text and sound from files to an int8 model, and back from its own record of how they were prepared."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main
from int8cal.config.load import load_jobs
from int8cal.preprocess import AudioPreprocess, TextPreprocess

sys.path.append(str(Path(__file__).parent))
from small_models import transformer

WORDS = [f"word{number}" for number in range(40)]


def listener():
    """Two products of frames (1, 400), beside a state that is added up: a model that remembers."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.1, (400, 32)).astype(np.float32), "w1"),
        numpy_helper.from_array(rng.normal(0, 0.2, (32, 8)).astype(np.float32), "w2"),
    ]
    nodes = [
        helper.make_node("MatMul", ["wave", "w1"], ["heard"], "hear"),
        helper.make_node("Relu", ["heard"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "w2"], ["known"], "know"),
        helper.make_node("Add", ["known", "state"], ["next_state"], "remember"),
    ]
    inputs = [helper.make_tensor_value_info("wave", TensorProto.FLOAT, [1, 400])]
    inputs.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, 8]))
    outputs = [helper.make_tensor_value_info("next_state", TensorProto.FLOAT, [1, 8])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """net.onnx, its tokenizer.json, texts.txt and labelled.csv in the working directory."""
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    onnx.save(transformer(), "net.onnx")
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save("tokenizer.json")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, rng.integers(3, 20))) for _ in range(12)]
    Path("texts.txt").write_text("\n".join(lines) + "\n")
    Path("labelled.csv").write_text("text,class\n" + "".join(f"{line},{n % 3}\n" for n, line in enumerate(lines)))
    return tmp_path


@pytest.fixture
def sounds(tmp_path, monkeypatch):
    """net.onnx and a folder of sounds in the working directory."""
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.chdir(tmp_path)
    onnx.save(listener(), "net.onnx")
    Path("sounds").mkdir()
    rng = np.random.default_rng(0)
    for number in range(2):
        soundfile.write(f"sounds/{number}.wav", 0.3 * rng.normal(size=4000).clip(-3, 3), 8000)
    return tmp_path


def preprocess_of(table="net-int8/net.table.json"):
    return json.loads(Path(table).read_text())["settings"]["preprocess"]


@pytest.mark.slow
def test_an_int8_model_knows_how_its_texts_became_tokens(texts, capsys):
    options = ["--tokenizer", "tokenizer.json", "--max-length", "12", "--no-latency"]
    assert main(["calibrate", "net.onnx", "--data", "texts.txt", *options]) == 0
    recorded = preprocess_of()["text"]
    assert (recorded["tokenizer"], recorded["max_length"]) == ("tokenizer.json", 12)
    assert len(recorded["tokenizer_sha256"]) == 64
    capsys.readouterr()
    both = ["evaluate", "net.onnx", "net-int8/net.int8.onnx", "--no-latency"]
    assert main([*both, "--data", "labelled.csv", "--labels", "column:class", "-o", "again"]) == 0
    found = capsys.readouterr()
    assert (
        "preprocessing from net.int8.onnx: text.tokenizer tokenizer.json, text.max_length 12" in found.err + found.out
    )
    report = json.loads(Path("again/report.json").read_text())
    assert report["metrics"]["top1"]["samples"] == 12


@pytest.mark.slow
def test_cut_texts_and_few_samples_are_counted_before_and_in_the_report(texts, capsys):
    lines = Path("texts.txt").read_text().splitlines()
    cut = sum(len(line.split()) > 6 for line in lines)
    told = f"{cut} of 12 calibration samples are longer than a sample may be, and cut"
    options = ["--tokenizer", "tokenizer.json", "--max-length", "6", "--no-latency"]
    assert main(["calibrate", "net.onnx", "--data", "texts.txt", *options]) == 0
    early = capsys.readouterr().err
    assert f"warning: {told}" in early
    assert "warning: a share of 12 samples, such as agreement or top-1, is known to 26 points at best" in early
    report = json.loads(Path("net-int8/report.json").read_text())
    assert [each["check"] for each in report["findings"]] == ["few-samples", "cut"]
    assert told in report["decisions"]
    assert report["settings"]["data"]["fit"] == report["settings"]["evaluation"]["data"]["fit"] == {"cut": cut}
    assert main(["calibrate", "net.onnx", "--data", "texts.txt", *options, "--overwrite", "--strict"]) == 4


@pytest.mark.slow
def test_another_tokenizer_than_that_of_calibration_is_told(texts, capsys):
    assert main(["calibrate", "net.onnx", "--data", "texts.txt", "--tokenizer", "tokenizer.json", "--no-latency"]) == 0
    content = Path("tokenizer.json").read_text()
    Path("tokenizer.json").write_text(content.replace("word39", "other"))
    capsys.readouterr()
    both = ["evaluate", "net.onnx", "net-int8/net.int8.onnx", "--data", "texts.txt", "--no-latency"]
    assert main(both) == 4
    assert "tokenizer.json: is another tokenizer than the one that tokenizer_sha256 names" in capsys.readouterr().err
    assert main([*both, "--tokenizer", "tokenizer.json"]) == 0
    told = "samples are preprocessed otherwise than for calibration (net.int8.onnx): another tokenizer"
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_tokenizer_is_compared_by_what_it_is_not_by_where_it_is(texts, capsys):
    given = ["calibrate", "net.onnx", "--data", "texts.txt", "--no-latency", "--tokenizer"]
    (texts / "link").symlink_to(texts, target_is_directory=True)
    for directory, tokenizer in (("a", "tokenizer.json"), ("b", str(texts / "link" / "tokenizer.json"))):
        assert main([*given, tokenizer, "-o", directory]) == 0
    Path("tokenizer.json").write_text(Path("tokenizer.json").read_text().replace("word39", "other"))
    assert main([*given, "tokenizer.json", "-o", "c"]) == 0
    found = []
    for other in ("b", "c"):
        capsys.readouterr()
        assert main(["compare", "a", other, "--json"]) == 0
        compared = json.loads(capsys.readouterr().out)
        named = [row["name"] for row in compared["settings"]]
        told = [line.partition(":")[0] for line in compared["warnings"] if "tokenizer" in line]
        found.append(([name for name in named if "tokenizer" in name], told))
    assert found[0] == ([], [])
    assert "preprocess.text.tokenizer_sha256" in found[1][0]
    assert found[1][1] == ["the evaluation data differ"]


@pytest.mark.slow
def test_a_job_runs_again_when_its_tokenizer_changed(texts, capsys):
    Path("job.yaml").write_text(
        "model: net.onnx\ndata: {path: texts.txt, preprocess: {text: {tokenizer: tokenizer.json}}}\n"
        "evaluation: {latency: false}\n"
    )
    assert main(["run", "job.yaml"]) == 0
    assert main(["run", "job.yaml", "--dry-run"]) == 0
    found = capsys.readouterr()
    assert "net: up to date" in found.out + found.err
    content = Path("tokenizer.json").read_text()
    Path("tokenizer.json").write_text(content.replace("word39", "other"))
    assert main(["run", "job.yaml", "--dry-run"]) == 0
    found = capsys.readouterr()
    assert "data.preprocess.text.tokenizer" in found.out + found.err


@pytest.mark.slow
def test_a_model_of_sound_with_a_state(sounds, capsys):
    options = ["--sample-rate", "8000", "--fill", "state=0", "--no-latency"]
    assert main(["calibrate", "net.onnx", "--data", "sounds", *options]) == 0
    assert preprocess_of()["fill"] == {"state": 0.0}
    assert json.loads(Path("net-int8/net.table.json").read_text())["data"]["samples"] == 20
    report = json.loads(Path("net-int8/report.json").read_text())
    assert "fit" not in report["settings"]["data"]
    capsys.readouterr()
    assert main(["evaluate", "net.onnx", "net-int8/net.int8.onnx", "--data", "sounds", "--no-latency"]) == 0
    found = capsys.readouterr()
    assert "preprocessing from net.int8.onnx: audio.rate 8000, fill.state 0.0" in found.err + found.out


def test_all_that_is_declared_of_sound_has_an_option(sounds, capsys):
    options = ["--sample-rate", "4000", "--resample", "--audio-channels", "first", "--audio-scale", "2"]
    options += ["--audio-hop", "300", "--audio-pad", "--audio-input", "wave", "--fill", "state=0", "--no-latency"]
    assert main(["calibrate", "net.onnx", "--data", "sounds", *options]) == 0
    expected = AudioPreprocess(4000, True, "first", 2.0, None, 300, True, "wave")
    assert preprocess_of()["audio"] == asdict(expected)
    report = json.loads(Path("net-int8/report.json").read_text())
    assert report["settings"]["data"]["fit"] == {"padded": 2}
    assert "2 of 14 calibration samples are filled up with zeros" in report["decisions"]
    capsys.readouterr()
    assert (
        main(["calibrate", "net.onnx", "--data", "sounds", "--sample-rate", "4000", "--fill", "state=0", "-o", "o"])
        == 4
    )
    assert "give --resample" in capsys.readouterr().err


def test_inputs_of_text_are_named_by_options(texts, capsys):
    model = onnx.load("net.onnx")
    for node in model.graph.node:
        node.input[:] = ["words" if name == "input_ids" else name for name in node.input]
    next(each for each in model.graph.input if each.name == "input_ids").name = "words"
    onnx.save(model, "net.onnx")
    options = ["--data", "texts.txt", "--tokenizer", "tokenizer.json", "--no-latency"]
    assert main(["calibrate", "net.onnx", *options]) == 4
    assert "--text-input input_ids=tokens" in capsys.readouterr().err
    more = ["--text-input", "input_ids=words", "--padding", "max_length", "--max-length", "24", "--pad-token", "[PAD]"]
    assert main(["calibrate", "net.onnx", *options, *more]) == 0
    recorded = preprocess_of()["text"]
    assert recorded["inputs"] == {"input_ids": "words"}
    assert (recorded["padding"], recorded["pad_token"], recorded["max_length"]) == ("max_length", "[PAD]", 24)
    assert main(["calibrate", "net.onnx", *options, "--text-input", "input_ids"]) == 2
    assert "expected NAME=INPUT, got 'input_ids'" in capsys.readouterr().err


def test_what_is_missing_is_said_with_exit_code_4(sounds, capsys):
    assert main(["calibrate", "net.onnx", "--data", "sounds", "--fill", "state=0"]) == 4
    assert "give --sample-rate 8000, if that is what the model was trained with" in capsys.readouterr().err
    assert main(["calibrate", "net.onnx", "--data", "sounds", "--sample-rate", "8000"]) == 4
    assert "let others hold one number, as in --fill state=0" in capsys.readouterr().err
    assert main(["calibrate", "net.onnx", "--data", "sounds", "--fill", "state"]) == 2
    assert "expected NAME=NUMBER, got 'state'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "extra"),
    [("t.txt", "a\n", "text"), ("t.wav", "RIFF", "audio"), ("datasets:imdb", None, "datasets")],
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, capsys, name, content, extra):
    monkeypatch.chdir(tmp_path)
    for library in ("tokenizers", "soundfile", "datasets"):
        monkeypatch.setitem(sys.modules, library, None)
    onnx.save(transformer() if extra != "audio" else listener(), "net.onnx")
    if content is not None:
        Path(name).write_text(content)
    Path("tokenizer.json").write_text("{}")
    given = {"text": ["--tokenizer", "tokenizer.json"], "audio": ["--fill", "state=0"], "datasets": []}[extra]
    assert main(["calibrate", "net.onnx", "--data", name, *given]) == 4
    told = capsys.readouterr().err
    assert "needs the library" in told
    assert f"[{extra}]" in told


def test_init_writes_a_starter_for_text_that_runs(texts):
    assert main(["init", "net.onnx"]) == 0
    (job,) = (located.job for located in load_jobs(Path("net.yaml")))
    assert Path(job.data.path).name == "texts.txt"
    assert job.data.preprocess.text == TextPreprocess("tokenizer.json")
    assert main(["run", "net.yaml", "--dry-run"]) == 0


def test_init_writes_a_starter_for_sound(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(listener(), "net.onnx")
    assert main(["init", "net.onnx"]) == 0
    (job,) = (located.job for located in load_jobs(Path("net.yaml")))
    assert job.data.preprocess.audio == AudioPreprocess(16000)
    assert job.data.preprocess.fill == {"state": 0}
