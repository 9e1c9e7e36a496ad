"""A commented YAML to start from, made from what a model says of itself."""

from __future__ import annotations

import collections
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.data.images import plan_images
from int8cal.data.text import inputs_of_text
from int8cal.errors import Int8calError, printable
from int8cal.evaluation.evaluate import model_bytes
from int8cal.graph.prepare import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.graph.staying import float_nodes
from int8cal.job import CalibrationSettings, QuantizationSettings, model_stem
from int8cal.phrases import counted
from int8cal.report.wording import kinds_text, shortened, size
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.data.images import ImagePlan
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature, TensorSpec

_PLAIN = re.compile(r"(\.\.?/|/)*[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_COLUMN = 26  # where comments begin
_MOST_CLASSES = 100_000
_SAMPLES = f"{'  # samples: 512':<{_COLUMN}} # at most so many; a few hundred are enough"
_SOUND = re.compile(r"audio|wave?($|form|_)|speech|sound|pcm|signal|input_values", re.IGNORECASE)
_RATES = ("sr", "sample_rate", "sampling_rate")
_BESIDE_SOUND = re.compile(
    rf"{'|'.join(_RATES)}|(?:.*_)?(?:state|cache)(?:_?\w{{1,4}})?|[hc]_?\d?|h[nx]|c[nx]", re.IGNORECASE
)
_FEWEST_FRAMES = 160
_SHOWN = 6  # entries of a list that may be long
_KINDS = 12  # of nodes in a line


@weights_folder()
def starter_yaml(model: Path, beside: Path) -> str:
    """Write a YAML for a model, which `int8cal run` takes once there is data where it says.

    Args:
        model: The FP32 model; what it leaves open is a comment.
        beside: The directory that the YAML is for; the model's path is relative to it.

    Raises:
        ModelError: The model cannot be read, is already quantized, or has nothing to quantize.
    """
    prepared = prepare(model, simplify)
    plan = require_layers(prepared, Selection())
    signature = prepared.signature
    lines = [
        *_head(model, prepared, plan),
        "",
        f"model: {_text(_relative(model, beside))}",
        "",
        *_data(signature),
        "",
        "calibration:",
        _line(f"  method: {CalibrationSettings.method}", "per tensor the best of kl, percentile, mse and max"),
        "",
        *_quantization(signature),
        "",
        *_evaluation(signature),
        "",
        "output:",
        _line(
            f"  dir: {_text(_free(model_stem(model), beside))}", "an existing one is refused, unless this job made it"
        ),
        _line("  # overwrite: true", "replace it whatever made it"),
    ]
    return "\n".join(lines) + "\n"


def _head(model: Path, prepared: Prepared, plan: Plan) -> list[str]:
    nodes = prepared.model.graph.node
    quantized = {layer.node for layer in plan.layers} | {each.node for each in plan.recurrent}
    layers = collections.Counter(node.op_type for node in nodes if node.name in quantized)
    floats = collections.Counter(node.op_type for node in float_nodes(prepared.model, plan))
    lines = [
        f"# A job for {_comment(model.name)}, {size(model_bytes(model))}. Run it:   int8cal run THIS-FILE",
        "# Check it first, without running it:   int8cal run THIS-FILE --dry-run",
        "# For completion in editors: int8cal schema -o int8cal.schema.json, and as the first line here",
        "#   yaml-language-server: $schema=int8cal.schema.json   (behind a # and a space)",
        "# Paths are relative to this file. Every key but model and data has a default.",
        "#",
        f"# {counted(sum(layers.values()), 'layer')} would be int8: {kinds_text(layers, _KINDS)}.",
    ]
    if floats:
        lines.append(f"# Would stay float: {kinds_text(floats, _KINDS)}.")
    reasons = collections.Counter((each.op_type, each.reason) for each in plan.unquantized)
    lines += [
        f"#   {number} x {kind}: {shortened(printable(why), 100)}"
        for (kind, why), number in reasons.most_common(_SHOWN)
    ]
    lines.append("# Inputs:")
    lines += [f"#   {_spec(spec)}" for spec in prepared.signature.inputs]
    lines.append("# Outputs:")
    lines += [f"#   {_spec(spec)}" for spec in prepared.signature.outputs]
    named = {dim for spec in prepared.signature.inputs for dim in spec.shape or () if isinstance(dim, str)}
    if named:
        names = ", ".join(_comment(name) for name in sorted(named))
        lines.append(f"# Named dimensions ({names}) may have any size; samples run one by one.")
    return lines


def _data(signature: Signature) -> list[str]:
    image = _image(signature)
    if image is not None:
        return _images(image)
    tokens = inputs_of_text(signature, None)
    if "input_ids" in tokens and len(tokens) == len(signature.inputs):
        return _texts(signature)
    sound = _sound(signature)
    if sound is not None:
        return _sounds(sound, signature)
    one = signature.inputs[0]
    lines = ["data:"]
    if len(signature.inputs) == 1 and one.dtype.kind == "f":
        lines += [
            _line("  path: calib", "a folder of .npy files, each one sample or a batch of them"),
            f"  #   shape of a sample: {_sample_shape(one, signature)}, dtype {one.dtype.name}",
            f"  #   .npz files do as well, with the key {_comment(one.name)}",
        ]
        if one.shape is not None and len(one.shape) == 2:
            lines.append("  #   a table does too: a .csv with a sample in each row, and as many columns of numbers")
    else:
        lines.append(
            _line("  path: calib", "a folder of .npz files, each one sample or a batch of them, with the keys")
        )
        lines += [
            f"  #   {_comment(spec.name)}: {spec.dtype.name} {_sample_shape(spec, signature)} per sample"
            for spec in signature.inputs
        ]
        if any(spec.dtype.kind in "iu" for spec in signature.inputs):
            lines += [
                "  #   Integers are fed as they are: run your tokenizer, and np.savez what it gives, for example",
                f"  #   np.savez('calib/0.npz', {_savez(signature.inputs)})",
            ]
    if _classes(signature) is not None:
        lines.append('  #   "labels" may be one more key of .npz files, for top-1: one class index per sample')
    return [*lines, _SAMPLES]


def _images(image: ImagePlan) -> list[str]:
    height, width = image.size
    gray = image.color == "GRAY"
    channels = "one channel" if gray else "three channels"
    lines = [
        "data:",
        _line("  path: photos/calib", "JPEG, PNG, BMP or WebP, flat or in one folder per class"),
        _SAMPLES,
        f"  # The input {_comment(image.spec.name)} looks like an image of {channels}.",
        "  # For arrays (.npy, .npz) that are prepared already, remove preprocess.",
        _line("  preprocess:", "applied in this order"),
    ]
    if isinstance(height, int) and isinstance(width, int) and height == width:
        lines += [
            _line(f"    resize: {height}", "the shorter side; many classifiers resize to more, then crop"),
            _line(f"    crop: {height}", "from the centre"),
            _line("    # letterbox: 114", "in place of crop for most detectors: whole images, filled up with grey"),
        ]
    elif isinstance(height, int) and isinstance(width, int):
        lines.append(_line(f"    resize: [{height}, {width}]", "height, width"))
    else:
        lines.append(_line("    # resize: 256", "the input takes any size; say which the model was trained with"))
    return [
        *lines,
        f"    color: {image.color}"
        if gray
        else _line(f"    color: {image.color}", "BGR for models trained with OpenCV"),
        *([f"    layout: {image.layout}"] if image.layout else []),
        "    # The model does not say how pixels 0..255 become its input. Take what it was trained with, for example:",
        "    # scale: 1/255",
        f"    # mean: {'[0.5]' if gray else '[0.485, 0.456, 0.406]'}  # subtracted after scale",
        f"    # std: {'[0.5]' if gray else '[0.229, 0.224, 0.225]'}  # divided by",
    ]


def _texts(signature: Signature) -> list[str]:
    length = (signature.inputs[0].shape or (None,))[-1]
    lines = [
        "data:",
        _line("  path: texts.txt", "a sample in each line; or .csv, .tsv, .jsonl with columns, or datasets:NAME"),
        _line("  # columns: [text]", "of .csv, .tsv, .jsonl and datasets; two of them for pairs of texts"),
        _SAMPLES,
        "  # For .npz files of tokens, with the keys " + ", ".join(_comment(each.name) for each in signature.inputs),
        "  # (one row for each sample), remove preprocess.",
        "  preprocess:",
        "    text:",
        _line("      tokenizer: tokenizer.json", "the model's own; a path from this file"),
    ]
    if isinstance(length, int):
        return [*lines, f"      # Samples have {length} tokens: longer text is cut, shorter text is padded."]
    return [*lines, _line("      # max_length: 128", "longer text is cut; samples keep their own length below")]


def _sound(signature: Signature) -> TensorSpec | None:
    """Tell which input takes sound: by its name, or beside a state or a sample rate; None where none does."""
    others = [spec for spec in signature.inputs if _BESIDE_SOUND.fullmatch(spec.name)]
    rest = [spec for spec in signature.inputs if spec not in others]
    if len(rest) != 1 or rest[0].dtype.kind != "f" or rest[0].shape is None or len(rest[0].shape) not in (2, 3):
        return None
    frames = rest[0].shape[-1]
    if isinstance(frames, int) and frames < _FEWEST_FRAMES:
        return None
    return rest[0] if others or _SOUND.search(rest[0].name) else None


def _sounds(sound: TensorSpec, signature: Signature) -> list[str]:
    frames = (sound.shape or (None,))[-1]
    others = [spec for spec in signature.inputs if spec is not sound]
    lines = [
        "data:",
        _line("  path: sounds", ".wav, .flac or .ogg, flat or in one folder per class"),
        _SAMPLES,
        f"  # The input {_comment(sound.name)} looks like frames of sound, in -1..1.",
        "  # For arrays (.npz) that are prepared already, remove preprocess.",
        "  preprocess:",
        "    audio:",
        _line("      rate: 16000", "frames per second that the model was trained with; others are refused"),
        _line("      # resample: true", "bring files of another rate to it"),
        _line("      # channels: mean", "of files with several channels; or first"),
    ]
    if isinstance(frames, int):
        lines.append(_line(f"      # hop: {frames}", f"frames from one sample to the next; each has {frames}"))
    else:
        lines.append(_line("      # length: 16000", "cut files into samples of so many frames"))
    if others:
        lines.append(_line("    fill:", "inputs that hold one number"))
        lines += [f"      {_text(spec.name)}: {16000 if spec.name in _RATES else 0}" for spec in others]
    return lines


def _quantization(signature: Signature) -> list[str]:
    pixels = _image(signature) is not None
    return [
        "quantization:",
        _line(
            f"  recipe: {QuantizationSettings.recipe}", "fast, balanced or accurate: how much work goes into accuracy"
        ),
        _line(
            f"  target: {QuantizationSettings.target}", "x86-vnni, x86-avx2 or arm64 where it runs on such CPUs alone"
        ),
        '  # exclude: ["/head/*", "op:Softmax"]  # nodes that stay float: patterns of names, or op:Type',
        *([_line("  # uint8_input: true", "let the int8 model take raw pixels")] if pixels else []),
    ]


def _evaluation(signature: Signature) -> list[str]:
    classes = _classes(signature)
    where = "photos/val" if _image(signature) is not None else "val"
    lines = ["evaluation:", _line(f"  # data: {where}", "other samples than those above, for a figure to rely on")]
    if classes is not None:
        lines.append(_line("  # labels: folders", f"or a CSV of file,label; the output looks like {classes} classes"))
        gates, why = '["top1.drop<=1.0"]', "percentage points"
    else:
        gates, why = '["sqnr_db>=20"]', "signal to noise at the outputs"
    return [
        *lines,
        _line(f"  # gates: {gates}", f"{why}; exit code 7 when it does not hold"),
        _line("  latency: true", "measure the speed of both models"),
    ]


def _image(signature: Signature) -> ImagePlan | None:
    """Settle how an image would become the input; None where the input is no image."""
    spec = signature.inputs[0]
    if len(signature.inputs) != 1 or spec.shape is None or len(spec.shape) != 4 or spec.dtype.kind not in "fu":
        return None
    try:
        return plan_images(signature, None, "")
    except Int8calError:
        return None


def _classes(signature: Signature) -> int | None:
    """Count the classes of a classifier: the one output's last axis, behind nothing but the batch."""
    if len(signature.outputs) != 1:
        return None
    shape = signature.outputs[0].shape
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int) or not 2 <= shape[1] <= _MOST_CLASSES:
        return None
    return shape[1]


def _sample_shape(spec: TensorSpec, signature: Signature) -> str:
    if spec.shape is None:
        return "(any shape)"
    dims = spec.shape[1:] if signature.batch is not None else spec.shape
    return f"({', '.join(_comment(str(dim or '?')) for dim in dims)}{',' if len(dims) == 1 else ''})"


def _spec(spec: TensorSpec) -> str:
    shape = "of unknown shape" if spec.shape is None else f"({', '.join(_comment(str(d or '?')) for d in spec.shape)})"
    return f"{_comment(spec.name)}: {spec.dtype.name} {shape}"


def _savez(inputs: Sequence[TensorSpec]) -> str:
    keys = [spec.name for spec in inputs]
    if all(key.isidentifier() for key in keys):
        return ", ".join(f"{key}=..." for key in keys)
    return "**{" + ", ".join(f"{_comment(key)!r}: ..." for key in keys) + "}"


def _relative(model: Path, beside: Path) -> str:
    try:
        return Path(os.path.relpath(model.absolute(), beside.absolute())).as_posix()
    except ValueError:  # another drive
        return model.absolute().as_posix()


def _free(stem: str, beside: Path) -> str:
    """Name a directory for results that is not there yet: what is there, others may have made."""
    name, number = f"{stem}-int8", 2
    while os.path.lexists(beside / name):
        name, number = f"{stem}-int8-{number}", number + 1
    return name


def _text(text: str) -> str:
    """Write a value: quoted where YAML or int8cal would read something else into it."""
    escaped = text.replace("${", "$${")
    is_plain = _PLAIN.fullmatch(escaped) and escaped.lower() not in _NOT_TEXT
    return escaped if is_plain else json.dumps(escaped, ensure_ascii=False)


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COLUMN}} # {comment}"


def _comment(text: str) -> str:
    """Write a name of the model's: on one line, and not without end."""
    return shortened(printable(text), 60)
