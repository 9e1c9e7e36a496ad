"""Examples under integrations/: each does in another tool what the command line does."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import int8cal

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_data"
sys.path += [str(ROOT / "integrations"), str(ROOT / "tests" / "cli")]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """The sample's int8 model and table."""
    folder = tmp_path_factory.mktemp("out")
    table = int8cal.calibrate(SAMPLE / "model.onnx", SAMPLE / "calib", samples=8)
    onnx.save(int8cal.quantize(SAMPLE / "model.onnx", table), folder / "model.int8.onnx")
    table.save(folder / "model.table.json")
    return folder


def test_descriptions_are_there_and_the_model_computes_the_same(calibrated, tmp_path):
    script, int8 = ROOT / "integrations" / "netron.py", calibrated / "model.int8.onnx"
    subprocess.run([sys.executable, script, int8, "-o", tmp_path / "d.onnx"], check=True)
    described, table = onnx.load(tmp_path / "d.onnx"), int8cal.CalibrationTable.load(calibrated / "model.table.json")
    assert "calibrated on 8 samples" in described.doc_string
    assert f"recipe {table.settings.recorded['recipe']}" in described.doc_string
    texts = {node.name: node.doc_string for node in described.graph.node}
    for entry in table.weights.values():
        assert f"weights {entry.range}" in texts[entry.node]
    quantizers = [node for node in described.graph.node if node.op_type == "QuantizeLinear"]
    assert quantizers
    for node in quantizers:
        assert f"observed {table.tensors[node.input[0]].observed[0]:.6g} to " in node.doc_string
    onnx.checker.check_model(described)
    x = np.random.default_rng(0).integers(0, 256, (1, 1, 32, 32)).astype(np.float32)
    runs = [onnxruntime.InferenceSession(path).run(None, {"image": x})[0] for path in (int8, tmp_path / "d.onnx")]
    np.testing.assert_array_equal(*runs)


def test_the_olive_pass_gives_the_model_that_the_api_gives(calibrated, tmp_path):
    pytest.importorskip("olive")
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict
    from olive_pass import Int8cal

    config = {"data": str(SAMPLE / "calib"), "settings": {"samples": 8}}
    made = create_pass_from_dict(Int8cal, config, disable_search=True)
    found = made.run(ONNXModelHandler(str(SAMPLE / "model.onnx")), str(tmp_path / "out"))
    assert Path(found.model_path).read_bytes() == (calibrated / "model.int8.onnx").read_bytes()
    assert int8cal.CalibrationTable.load(Path(found.model_path).with_suffix(".table.json")).data["samples"] == 8


def test_a_directory_of_a_text_model_becomes_one_of_its_int8_model(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from model_directory import quantize_directory
    from small_models import transformer

    source = tmp_path / "exported"
    source.mkdir()
    onnx.save(transformer(), source / "model.onnx")
    (source / "config.json").write_text("{}")
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *(f"word{n}" for n in range(40))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(source / "tokenizer.json"))
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"word{n} word{(n * 7) % 40} word{(n * 3) % 40}\n" for n in range(12)))
    found = quantize_directory(source, tmp_path / "int8", texts)
    names = {path.name for path in (tmp_path / "int8").iterdir()}
    assert names == {"config.json", "tokenizer.json", "model_quantized.onnx", "model_quantized.table.json"}
    recorded = json.loads((tmp_path / "int8" / "model_quantized.table.json").read_text())["settings"]["preprocess"]
    assert recorded["text"]["tokenizer"] == "tokenizer.json"
    ids = np.array([made.encode("word1 word2 word3").ids], np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    x, y = (onnxruntime.InferenceSession(path).run(None, feeds)[0] for path in (source / "model.onnx", found))
    assert np.square(x - y).sum() < 1e-2 * np.square(x).sum()
    with pytest.raises(FileExistsError):
        quantize_directory(source, tmp_path / "int8", texts)


def test_a_directory_of_any_other_model_will_do(tmp_path):
    from model_directory import quantize_directory

    source = tmp_path / "exported"
    source.mkdir()
    options = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 64}
    onnx.save(onnx.load(SAMPLE / "model.onnx"), source / "model.onnx", **options)
    shutil.copy(SAMPLE / "model.onnx", source / "decoder.onnx")
    found = quantize_directory(source, tmp_path / "int8", SAMPLE / "calib", samples=4)
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(found).graph.node)
    names = {path.name for path in (tmp_path / "int8").iterdir()}
    assert names == {"decoder.onnx", "model_quantized.onnx", "model_quantized.table.json"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch and transformers, about themselves
def test_a_directory_that_optimum_exported_is_loaded_by_its_class(tmp_path):
    pytest.importorskip("optimum.exporters.onnx")
    tokenizers = pytest.importorskip("tokenizers")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from model_directory import quantize_directory
    from optimum.exporters.onnx import main_export
    from optimum.onnxruntime import ORTModelForSequenceClassification

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(40))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(words, range(44), strict=True)), "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)
    torch.manual_seed(0)
    config = transformers.BertConfig(44, 32, 2, 2, 64, max_position_embeddings=64, num_labels=3, initializer_range=0.3)
    for each in (transformers.BertForSequenceClassification(config), tokenizer):
        each.save_pretrained(tmp_path / "torch")
    main_export(str(tmp_path / "torch"), tmp_path / "exported", task="text-classification", do_validation=False)

    lines = [f"word{n} word{(n * 7) % 40} word{(n * 3) % 40}" for n in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    quantize_directory(tmp_path / "exported", tmp_path / "int8", tmp_path / "texts.txt")
    fed = transformers.AutoTokenizer.from_pretrained(tmp_path / "int8")(lines, return_tensors="pt")
    before, after = (
        ORTModelForSequenceClassification.from_pretrained(tmp_path / name, file_name=file)(**fed).logits
        for name, file in (("exported", "model.onnx"), ("int8", "model_quantized.onnx"))
    )
    assert after.shape == (40, 3)
    assert not torch.equal(before, after)
    assert torch.square(before - after).sum() < 1e-2 * torch.square(before).sum()
