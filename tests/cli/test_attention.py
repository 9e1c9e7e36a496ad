"""Decoders with masks, shared heads and caches through the commands."""

import json

import numpy as np
import onnx
import pytest
from attention_networks import DECODERS, LAYERS, NEW_DECODERS

pytestmark = pytest.mark.slow


def save(folder, decoder):
    onnx.save(decoder.model(), folder / "net.onnx")
    (folder / "data").mkdir()
    for number, feed in enumerate(decoder.samples(16)):
        np.savez(folder / "data" / f"{number:02}.npz", **feed)


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
@pytest.mark.parametrize(
    "decoder",
    [
        pytest.param(DECODERS["cache of shared heads"], id="products"),
        pytest.param(NEW_DECODERS["Attention, cache"], id="Attention", marks=pytest.mark.newest),
    ],
)
def test_a_decoder_with_a_cache_passes_all_commands(call, tmp_path, decoder, recipe):
    save(tmp_path, decoder)
    done = call("calibrate", "net.onnx", "--data", "data", "-o", "out", "--no-latency", "--recipe", recipe)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["outputs"].keys() == {"y", "present_k", "present_v"}
    assert min(each["sqnr_db"] for each in report["outputs"].values()) > 30
    assert "is empty" not in done.err
    assert "no value was ever observed" not in done.err

    done = call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    if recipe == "fast":
        assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "net.int8.onnx").read_bytes()
    done = call("evaluate", "net.onnx", "again.onnx", "--data", "data", "--json", "--no-latency")
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["sqnr_db"] > 30
    done = call("audit", "again.onnx", "--gate", "unsafe_channels<=0", "--gate", "layers>=7")
    assert done.code == 0, done.err
    for file in ("net.onnx", "again.onnx", "out/net.table.json", "out/net.stats.npz"):
        done = call("inspect", file)
        assert done.code == 0, done.err
    assert len(json.loads((tmp_path / "out" / "net.table.json").read_text())["weights"]) == LAYERS
