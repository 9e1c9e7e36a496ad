"""Everything that int8cal reads, by name: sound files, how they are damaged, and what is made of them.

An entry's `read` does what a command does with the file, to where its content has been believed: a table is built into a
model, a report is compared, arrays become feeds.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import onnx
import yaml
from onnx import external_data_helper, numpy_helper

from . import mutate, seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

Mutation = "Callable[[Random, bytes, Sequence[bytes]], bytes]"


@dataclass(frozen=True)
class Parser:
    """A kind of file.

    Attributes:
        name: The file's name.
        make: Returns sound files, given a folder to work in.
        change: Damages one.
        read: Reads the file in a folder, where `beside` of the same folder has been called once.
        beside: Puts what the file refers to into the folder.
    """

    name: str
    make: Callable[[Path], list[bytes]]
    change: Callable[[Random, bytes], bytes]
    read: Callable[[Path], object]
    beside: Callable[[Path], object] = field(default=lambda folder: None)


def _octets(rng: Random, data: bytes) -> bytes:
    return mutate.octets(rng, data, data)


# ---------------------------------------------------------------- models


def _model_change(rng: Random, data: bytes) -> bytes:
    return _octets(rng, data) if rng.random() < 0.2 else mutate.message(rng, onnx.ModelProto.FromString(data))


def _read_model(path: Path) -> None:
    from int8cal.describe import describe_file
    from int8cal.report.screen import Screen

    describe_file(path, Screen())


def _made_models(_folder: Path) -> list[bytes]:
    return [model.SerializeToString() for model in (seeds.network(), seeds.branching(), seeds.old())]


def _made_others(_folder: Path) -> list[bytes]:
    """Files that are given in place of a model."""
    zipped = seeds.npz_of(image=seeds.images())
    return [
        zipped,
        zipped.replace(b"image.npy", b"data.pkl\0"),
        b"\x80\x02}q\0.",
        b'\x10\0\0\0\0\0\0\0{"a":{}}',
        b"hello\n",
    ]


def _external(folder: Path) -> list[bytes]:
    model = seeds.network()
    external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "made.onnx")
    return [(folder / "made.onnx").read_bytes()]


def _external_beside(folder: Path) -> None:
    _external(folder)
    (folder / "inner").mkdir(exist_ok=True)
    (folder / "inner" / "weights.bin").write_bytes((folder / "weights.bin").read_bytes())
    (folder / "short.bin").write_bytes(b"\0" * 20)


def _external_change(rng: Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    places = ("short.bin", "inner/weights.bin", "./weights.bin", "../weights.bin", "inner", ".", "", "/etc/hostname")
    numbers = ("0", "-1", "1", "4096", "99999999999999999999", "x", "", " 8", "1e3", "9223372036854775807", "0x10")
    for _ in range(rng.randrange(1, 4)):
        tensor = rng.choice(model.graph.initializer)
        if not tensor.external_data or rng.random() < 0.15:
            tensor.external_data.add(key=rng.choice(("location", "offset", "length", "checksum", "")), value="1")
            continue
        entry = rng.choice(tensor.external_data)
        match rng.randrange(5):
            case 0:
                entry.key = rng.choice(("location", "offset", "length", "checksum", "basepath", ""))
            case 1:
                tensor.external_data.remove(entry)
            case 2:
                tensor.dims[:] = [rng.choice((0, 1, -1, 3, 2**40, 2**62)) for _ in range(rng.randrange(4))]
            case _ if entry.key == "location":
                entry.value = rng.choice((*places, *(text for text in mutate.TEXTS if text != "\ud800")))
            case _:
                entry.value = rng.choice(numbers)
    return _octets(rng, model.SerializeToString()) if rng.random() < 0.1 else model.SerializeToString()


def _made_int8(folder: Path) -> list[bytes]:
    out = seeds.calibrated()
    made = [(out / "net.int8.onnx").read_bytes()]
    # one in the form of operators, as other tools write them
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{"image": seeds.images()}]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    quantize_static(out.parent / "net.onnx", folder / "operators.onnx", Reader(), quant_format=QuantFormat.QOperator)
    return [*made, (folder / "operators.onnx").read_bytes()]


def _audit(path: Path) -> None:
    from int8cal.audit.audit import audit_file

    audit_file(path, threads=1)


# ---------------------------------------------------------------- what int8cal wrote


@functools.cache
def _prepared() -> Any:
    from int8cal.graph.prepare import prepare
    from int8cal.runtime.sessions import simplify

    return prepare(seeds.network(), simplify)


def _read_table(path: Path) -> None:
    from int8cal.interop.foreign import require_unscaled
    from int8cal.interop.openvino import to_openvino
    from int8cal.interop.tensorrt import to_tensorrt
    from int8cal.quantization.table_file import load_table
    from int8cal.quantizing import quantize_prepared
    from int8cal.report.file_lines import table_lines
    from int8cal.report.screen import Screen

    table = load_table(path)
    table_lines(table, path.name, Screen())
    quantize_prepared(_prepared(), table, str(path), force=True)
    require_unscaled(table, str(path))
    to_tensorrt(table, str(path))
    to_openvino(table)


def _made_tables(_folder: Path) -> list[bytes]:
    out = seeds.calibrated()
    paths = [out / "net.table.json", seeds.GOLDEN / "table_v1.json", seeds.GOLDEN / "table.json"]
    return [path.read_bytes() for path in paths]


def _read_statistics(path: Path) -> None:
    from int8cal.calibration.ranges import choose_ranges
    from int8cal.calibration.statistics_file import load_statistics
    from int8cal.graph.planner import make_plan
    from int8cal.graph.select import Selection
    from int8cal.job import CalibrationSettings, QuantizationSettings
    from int8cal.report.file_lines import statistics_lines
    from int8cal.report.screen import Screen

    statistics = load_statistics(path)
    statistics_lines(statistics, path.name, Screen())
    total = statistics + statistics
    plan = make_plan(_prepared().model, Selection())
    choose_ranges(plan, total.tensors, CalibrationSettings(method="percentile"), QuantizationSettings())


def _made_statistics(_folder: Path) -> list[bytes]:
    return [
        (seeds.calibrated() / "net.stats.npz").read_bytes(),
        (seeds.GOLDEN / "statistics_v1.stats.npz").read_bytes(),
    ]


def _read_report(path: Path) -> None:
    from int8cal.report.comparison import compare_documents
    from int8cal.report.comparison_views import JudgedComparison, compare_json, compare_lines, compare_markdown
    from int8cal.report.files import load_report
    from int8cal.report.regressions import gates_gone, judge_regressions
    from int8cal.report.terminal import report_lines

    document = load_report(path)
    report_lines(document)
    found = compare_documents(_sound_report(), document)
    judged = JudgedComparison(found, ("old", "new"), (), judge_regressions(found), gates_gone(found))
    for view in (compare_lines, compare_markdown, compare_json):
        view(judged)


@functools.cache
def _sound_report() -> Any:
    from int8cal.report.document import document_from

    return document_from(json.loads(_made_reports()[0]))


def _made_reports(_folder: Path | None = None) -> list[bytes]:
    return [(seeds.calibrated() / "report.json").read_bytes()]


def _read_record(path: Path) -> None:
    from int8cal.batch.record import read_record
    from int8cal.report.file_lines import batch_file_lines, load_batch_file
    from int8cal.report.screen import Screen

    read_record(path.parent)
    batch_file_lines(path, load_batch_file(path), Screen())


def _made_records(_folder: Path) -> list[bytes]:
    out = seeds.calibrated()
    return [(out / "job.json").read_bytes(), (out.parent / "summary.json").read_bytes()]


# ---------------------------------------------------------------- what people write

_YAML_WORDS = (
    *("&a [*a, *a]", "*data", "*unknown", "&data", "<<: *data", "!!python/object/apply:os.system [id]", "!!binary xx", "!!int x"),
    *("!!timestamp 9999-99-99", "!!set {a}", "!!omap [a]", "%YAML 9.9", "---", "...", "? a", "${HOME}", "${", "$${x}", "${X}"),
    *("? [a, b]", "{", "}", "[", "]", "|", ">", "0o17", "0b1", "1:30:00", "2020-01-01", ".inf", ".nan", "\t", "* ", "model", "jobs"),
    *("matrix", "defaults", "data", "calibration.method", "{stem}", "{", "{nope}", "*.onnx", "**", "nothing-*", "models: [{}]"),
)  # fmt: skip


def _yaml_change(rng: Random, data: bytes) -> bytes:
    chance = rng.random()
    if chance < 0.1:
        return _octets(rng, data)
    if chance < 0.6:
        return mutate.text(rng, data, _YAML_WORDS)
    try:
        changed = mutate.json_document(rng, yaml.safe_load(data))
        return yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, RecursionError):
        return mutate.text(rng, data, _YAML_WORDS)


def _read_yaml(path: Path) -> None:
    from int8cal.batch.jobs import load_tasks

    load_tasks([str(path)], {}, {})


def _yaml_beside(folder: Path) -> None:
    onnx.save(seeds.network(), folder / "net.onnx")
    np.savez(folder / "data.npz", image=seeds.images())
    (folder / "photos").mkdir(exist_ok=True)
    (folder / "photos" / "a.png").write_bytes(seeds.pictures()[0])


# ---------------------------------------------------------------- tables of other runtimes


def _foreign(form: str, name: str, *, change: Any, more: Sequence[bytes] = ()) -> Parser:
    def make(folder: Path) -> list[bytes]:
        from int8cal.interop import Choices
        from int8cal.interop.convert import export_table

        out = seeds.calibrated()
        export_table(
            out / "net.table.json", form, folder / name, Choices(model=out.parent / "net.onnx"), overwrite=True
        )
        return [(folder / name).read_bytes(), *more]

    def read(path: Path) -> None:
        from int8cal.interop import Choices
        from int8cal.interop.convert import _foreign
        from int8cal.interop.tables import table_of
        from int8cal.quantizing import quantize_prepared

        choices = Choices(missing_float=True)
        # as import_table does, but with one preparation of the model for all inputs
        foreign = _foreign(path.read_bytes(), form, str(path), choices, _prepared())
        if form != "ncnn":
            table_of(foreign, form, str(path), choices, None)
        made = table_of(foreign, form, str(path), choices, _prepared()).table
        if made is not None:
            quantize_prepared(_prepared(), made, str(path))

    return Parser(name, make, change, read)


def _text_change(rng: Random, data: bytes) -> bytes:
    return _octets(rng, data) if rng.random() < 0.25 else mutate.text(rng, data)


def _param(folder: Path) -> list[bytes]:
    return [(seeds.GOLDEN / "sample.ncnn.param").read_bytes(), _PARAM]


_PARAM = b"""7767517
4 4
Input            image                    0 1 image 0=8 1=8 2=3
Convolution      stem                     1 1 image a 0=6 1=3 4=1 5=1 6=162
ConvolutionDepthWise depthwise            1 1 a c 0=6 1=3 4=1 6=54 7=6
InnerProduct     head                     1 1 c g 0=4 1=1 2=48
"""


def _read_param(path: Path) -> None:
    from int8cal.graph.planner import make_plan
    from int8cal.graph.select import Selection
    from int8cal.interop.ncnn import layers_of_model, renamed

    plan = make_plan(_prepared().model, Selection())
    renamed(layers_of_model(_prepared().model, plan), path.read_bytes(), str(path))


def _made_ir(folder: Path) -> list[bytes]:
    from int8cal.interop import Choices
    from int8cal.interop.convert import export_table

    out = seeds.calibrated()
    export_table(
        out / "net.table.json", "openvino", folder / "net.xml", Choices(model=out.parent / "net.onnx"), overwrite=True
    )
    return [(folder / "net.xml").read_bytes()]


def _ir_beside(folder: Path) -> None:
    _made_ir(folder)  # its weights lie beside it


# ---------------------------------------------------------------- data


def _feeds(path: str, **settings: Any) -> None:
    from int8cal.data.opening import open_feeds
    from int8cal.job import DataSettings

    for _ in open_feeds(DataSettings(path, **settings), _prepared().signature):
        pass


def _read_data(path: Path) -> None:
    _feeds(str(path))


def _made_csv(_folder: Path) -> list[bytes]:
    return [
        b"file,label\na.npy[0],0\na.npy[1],1\na.npy[2],2\na.npy[3],1\n",
        b"a.npy[0];cat\r\na.npy[1];dog\r\na.npy[2];cat\r\na.npy[3];'x, y'\r\n",
        '﻿filename,class_name\n"a.npy[0]","a ""b"""\na.npy[1],ä\na.npy[2],b\n./a.npy[3],b\n'.encode(),
    ]


def _csv_beside(folder: Path) -> None:
    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data" / "a.npy", seeds.images())


def _read_csv(path: Path) -> None:
    _feeds(str(path.with_name("data")), labels=str(path))


def _made_pb(_folder: Path) -> list[bytes]:
    typed = numpy_helper.from_array(seeds.images(), "image")
    listed = onnx.TensorProto(name="image", data_type=1, dims=[1, 3, 8, 8], float_data=seeds.images()[0].reshape(-1))
    half = numpy_helper.from_array(seeds.images()[:1].astype(np.float16), "x")
    return [each.SerializeToString() for each in (typed, listed, half)]


def _pb_change(rng: Random, data: bytes) -> bytes:
    return _octets(rng, data) if rng.random() < 0.4 else mutate.message(rng, onnx.TensorProto.FromString(data), depth=2)


def _read_image(path: Path) -> None:
    from int8cal.preprocess import Preprocess

    _feeds(str(path), preprocess=Preprocess(resize=(8, 8)))


def _branching_feeds(path: Path | str, **settings: Any) -> None:
    from int8cal.data.opening import open_feeds
    from int8cal.graph.signature import signature_of
    from int8cal.job import DataSettings

    for _ in open_feeds(DataSettings(str(path), **settings), signature_of(seeds.branching())):
        pass


def _made_lines(_folder: Path) -> list[bytes]:
    rows = [{"x": [0.5, -1, 2, 3e-3, each], "label": each % 2, "note": "é"} for each in range(4)]
    return ["\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()]


def _line_change(rng: Random, data: bytes) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    if rng.random() < 0.6:
        lines[at] = mutate.json_text(rng, lines[at])
        return b"\n".join(lines)
    return _text_change(rng, data)


def _made_sounds(_folder: Path) -> list[bytes]:
    import io

    import soundfile

    frames = np.sin(np.arange(64)).astype(np.float32) / 2
    made = []
    for form, kind in (("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")):
        stream = io.BytesIO()
        soundfile.write(stream, frames, 8000, format=form, subtype=kind)
        made.append(stream.getvalue())
    return made


def _read_sound(path: Path) -> None:
    from int8cal.preprocess import AudioPreprocess, Preprocess

    _branching_feeds(path, preprocess=Preprocess(audio=AudioPreprocess(rate=8000, hop=5)))


def _text_feeds(data: str, folder: Path, **settings: Any) -> None:
    """Read texts by the tokenizer of a folder."""
    from int8cal.data.opening import open_feeds
    from int8cal.graph.signature import signature_of
    from int8cal.job import DataSettings
    from int8cal.preprocess import Preprocess, TextPreprocess

    text = TextPreprocess(str(folder / "tokenizer.json"), **settings)
    for _ in open_feeds(DataSettings(data, preprocess=Preprocess(text=text)), signature_of(seeds.reader())):
        pass


def _made_tokenizers(_folder: Path) -> list[bytes]:
    return [each.encode() for each in seeds.tokenizers()]


def _tokenizer_beside(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(seeds.tokenizers()[0], encoding="utf-8")
    (folder / "texts.txt").write_text("good film\nbad\n\u00e4 good bad film\n", encoding="utf-8")


def _read_tokenizer(path: Path) -> None:
    _text_feeds(str(path.with_name("texts.txt")), path.parent)
    _text_feeds(str(path.with_name("texts.txt")), path.parent, padding="max_length", max_length=6)


def _made_cells(_folder: Path) -> list[bytes]:
    return [
        b'sentence,label\ngood film,1\nbad,0\n"bad, bad film",0\n',
        '\ufeff"premise","hypothesis","note"\r\n"a ""good"" film",good,1\r\n\u00e4,"two\r\nlines",2\r\n'.encode(),
    ]


def _read_cells(path: Path) -> None:
    _text_feeds(str(path), path.parent)


def _made_names(_folder: Path) -> list[bytes]:
    return [
        b"rows.csv",
        b"rows.csv:train",
        b"saved",
        b"saved:train[:2]",
        b"rows.jsonl:train+train[1:]",
        b"folder:train[:50%]",
    ]


def _datasets_beside(folder: Path) -> None:
    import datasets

    # nothing is asked of the Hub, and nothing kept
    config: Any = datasets.config
    config.HF_HUB_OFFLINE = config.HF_DATASETS_OFFLINE = True
    config.HF_DATASETS_CACHE = folder / "cache"
    datasets.disable_progress_bars()
    rows = [{"x": [0.5, -1.0, 2.0, 3e-3, float(each)], "label": each % 2} for each in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "rows.csv").write_text("x,label\n" + "".join(f"{each}.5,{each % 2}\n" for each in range(4)))
    (folder / "folder").mkdir(exist_ok=True)
    (folder / "folder" / "train.jsonl").write_text((folder / "rows.jsonl").read_text())
    if not (folder / "saved").exists():
        datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))


def _read_dataset(path: Path) -> None:
    from int8cal.data.hub import PREFIX

    # what begins with ~ is looked for there, and not in the home of who runs this
    with mock.patch.dict(os.environ, {"HOME": str(path.parent)}):
        _branching_feeds(f"{PREFIX}{path.read_text(encoding='utf-8', errors='surrogateescape')}")


_CACHE = b"image 2.5\na 3.0\nb 3.0\nc 1.25\n"
_OLD_JSON = seeds.text_of(
    {"image": [-1.0, 2.0], "b": {"lowest": 0.0, "highest": {"data": [3.0], "CLS": "numpy.array"}}}
)

PARSERS: dict[str, Parser] = {
    "model": Parser("net.onnx", _made_models, _model_change, _read_model),
    "no-model": Parser("net.onnx", _made_others, _octets, _read_model),
    "external-data": Parser("net.onnx", _external, _external_change, _read_model, _external_beside),
    "int8-model": Parser("net.int8.onnx", _made_int8, _model_change, _audit),
    "table": Parser("net.table.json", _made_tables, mutate.json_text, _read_table),
    "statistics": Parser("net.stats.npz", _made_statistics, mutate.archive, _read_statistics),
    "report": Parser("report.json", _made_reports, mutate.json_text, _read_report),
    "record": Parser("job.json", _made_records, mutate.json_text, _read_record),
    "yaml": Parser(
        "job.yaml", lambda _: [each.encode() for each in seeds.CONFIGS], _yaml_change, _read_yaml, _yaml_beside
    ),
    "tensorrt": _foreign("tensorrt", "calibration.cache", change=_text_change),
    "ncnn": _foreign("ncnn", "net.table", change=_text_change),
    "ncnn-param": Parser("net.param", _param, _text_change, _read_param),
    "onnxruntime-json": _foreign("onnxruntime", "calibration.json", change=mutate.json_text, more=[_OLD_JSON]),
    "onnxruntime-flatbuffers": _foreign("onnxruntime", "calibration.flatbuffers", change=_octets),
    "onnxruntime-cache": _foreign("onnxruntime", "calibration.cache", change=_text_change, more=[_CACHE]),
    "openvino": _foreign("openvino", "fakequantize.json", change=mutate.json_text),
    "labels": Parser("labels.csv", _made_csv, _text_change, _read_csv, _csv_beside),
    "npz": Parser(
        "a.npz", lambda _: [seeds.npz_of(image=seeds.images(), labels=np.arange(4))], mutate.archive, _read_data
    ),
    "npy": Parser(
        "a.npy", lambda _: [seeds.npy_of(seeds.images()), seeds.npy_of(seeds.images()[0])], mutate.npy, _read_data
    ),
    "pb": Parser("input_0.pb", _made_pb, _pb_change, _read_data),
    "jsonl": Parser("a.jsonl", _made_lines, _line_change, _branching_feeds),
    "images": Parser("a.png", lambda _: seeds.pictures(), mutate.png, _read_image),
}
if importlib.util.find_spec("soundfile") is not None:
    PARSERS["sound"] = Parser("a.wav", _made_sounds, _octets, _read_sound)
if importlib.util.find_spec("tokenizers") is not None:
    PARSERS["tokenizer"] = Parser(
        "tokenizer.json", _made_tokenizers, mutate.json_text, _read_tokenizer, _tokenizer_beside
    )
    PARSERS["csv"] = Parser("a.csv", _made_cells, _text_change, _read_cells, _tokenizer_beside)
if importlib.util.find_spec("datasets") is not None:
    PARSERS["datasets"] = Parser("name", _made_names, _text_change, _read_dataset, _datasets_beside)
if importlib.util.find_spec("openvino") is not None:
    PARSERS["openvino-ir"] = replace(
        _foreign("openvino", "net.xml", change=_text_change), make=_made_ir, beside=_ir_beside
    )
