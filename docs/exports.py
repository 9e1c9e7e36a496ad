"""The table of docs/how-to/export.md: what becomes of PyTorch models under both exporters, and in which form.

Run: python docs/exports.py, with torch, torchvision, onnxscript and transformers installed; takes a minute or two.
Weights are random: what is counted are nodes and layers, which do not depend on them.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from int8cal.graph.planner import make_plan
from int8cal.graph.prepare import prepare
from int8cal.graph.select import Selection
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = ("model", "exported by", "nodes in the file", "BatchNormalization", "layers in int8", "activations in int8")


def variants() -> Iterator[tuple[str, str, Any, Any, dict[str, Any]]]:
    """Yield model, form, module, example inputs and what torch.onnx.export is told."""
    import torch
    import torchvision
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)
    resnet = torchvision.models.resnet18(weights=None).eval()
    small = torchvision.models.mobilenet_v3_small(weights=None).eval()
    for title, model in (("ResNet-18", resnet), ("MobileNetV3 small", small)):
        yield title, "dynamo", model, (image,), {"dynamo": True}
        yield title, "TorchScript", model, (image,), {"dynamo": False}
    training = {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING}
    yield "ResNet-18", "TorchScript, for training", resnet, (image,), training
    unfolded = {"dynamo": False, "do_constant_folding": False}
    yield "ResNet-18", "TorchScript, `do_constant_folding=False`", resnet, (image,), unfolded

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
            self.bert = BertModel(BertConfig(vocab_size=1000, **shape))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    encoder = Encoder().eval()
    ids, mask = torch.randint(0, 1000, (1, 16)), torch.ones(1, 16, dtype=torch.long)
    names = ("input_ids", "attention_mask")
    free = dict.fromkeys(names, (torch.export.Dim("batch"), torch.export.Dim("length")))
    axes = {"input_names": list(names), "dynamic_axes": {name: {0: "batch", 1: "length"} for name in names}}
    for attention in ("eager", "sdpa"):
        encoder.bert.set_attn_implementation(attention)
        title = f"BERT, 2 layers, `{attention}` attention"
        yield title, "dynamo", encoder, (ids, mask), {"dynamo": True, "dynamic_shapes": free}
        yield title, "TorchScript", encoder, (ids, mask), {"dynamo": False, **axes}

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(40, 64, 2, batch_first=True), torch.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0])

    recurrent, steps = Recurrent().eval(), torch.randn(1, 20, 40)
    yield "LSTM, 2 layers", "dynamo", recurrent, (steps,), {"dynamo": True}
    yield "LSTM, 2 layers", "TorchScript", recurrent, (steps,), {"dynamo": False}


def row(path: Path, title: str, form: str) -> tuple[str, ...]:
    """Count what one exported file holds, and what would be quantized of it."""
    model = onnx.load(path)
    normalizations = sum(node.op_type == "BatchNormalization" for node in model.graph.node)
    plan = make_plan(prepare(path, simplify).model, Selection())
    layers = len(plan.layers) + len(plan.recurrent)
    return (title, form, *map(str, (len(model.graph.node), normalizations, layers, len(plan.tensors))))


def main() -> None:
    """Print the table."""
    import torch

    print("|", " | ".join(HEAD), "|\n|---|---|---:|---:|---:|---:|")  # noqa: T201 - what the script is for
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        for title, form, module, inputs, options in variants():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                torch.onnx.export(module, inputs, str(path), **options)
            print("|", " | ".join(row(path, title, form)), "|", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
