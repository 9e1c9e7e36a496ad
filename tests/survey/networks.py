"""Whole networks through `int8cal calibrate`: what became of each, and docs/survey.md, which shows it.

    python tests/survey/networks.py run FOLDER [NAME...]   calibrate FOLDER/NAME/model.onnx on FOLDER/NAME/data
    python tests/survey/networks.py graphs FILE.json       take in what backend_data.py noted
    python tests/survey/networks.py page                   write docs/survey.md

All of it stands in results.json beside this file: names and figures, no weights. FOLDER/NAME/peer.json may hold the SQNR
of another tool on the same model and samples, {"sqnr_db": {output: figure}, "cpu_s": seconds}; FOLDER/NAME/kind.txt what the
network is.
"""

from __future__ import annotations

import collections
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "survey.md"
FORMS = {
    "published": "as published",
    "constants": "inputs but the first made constant",
    "layers": "between layers",
}
LIMIT_S = 900
SPEED_S, MOST_RUNS, LEAST_RUNS = 4.0, 300, 5  # of both models in turn

HEAD = """# Which networks were run
What became of networks and graphs that went through `int8cal calibrate` with its defaults. The figures are of one machine (x86-64
with VNNI; those of tree 82493bf of one with AVX2); the page is made from `tests/survey/results.json` by `tests/survey/networks.py`, which says how to run it again.
*Tree* is the commit of the code that gave a row, or the first one after which the row is known: later ones may have moved single
figures.

## Networks
Exports of torchvision, timm, transformers, segmentation-models-pytorch, ultralytics and hand-written networks have random
weights, with settled BatchNorm statistics: they tell whether a graph is understood, not how accurate a trained network is, and
their SQNR means something only beside another tool's on the same model and samples: onnxruntime's `quantize_static` (QDQ, per
channel, MinMax; files of an opset below 13 were raised to 17 for it first, since it fails on them). Networks named `real` have
trained weights, from packages of PyPI and npm: as published, converted by tf2onnx, or exported after their layers were written
down in torch. Their data are photographs and crops of them, rendered pages and lines of text, tokenized sentences, sequences and
molecules, synthetic speech and music. *Layers* are those with int8 weights, of all that have constant weights; *size* is of the file, int8 over
float; *faster* is the float model's CPU time over the int8 model's, on one thread; *CPU s* are seconds of all processors for the
whole command without latency, and for the other tool, where they were taken. A detector whose boxes the models select by themselves has no SQNR: they give other numbers of them. Networks named `light`
are the onnx package's, whose weights are one value each, written as such: their files grow.

Most were run on three to eight samples; five of the deepest on eight to sixteen, since of few samples of theirs the difference
between two tools is chance: `convmixer_768_32` has 9.5 dB on four samples, the other tool 14.2, and on sixteen 16.7 and 14.7;
`botnet26t_256` 7.5 and 8.7 dB on four. What a run says of few samples says so too. `keras_lstm` has int8 weights in its LSTM, which
the other tool leaves in float: 0.03 dB, for a third of the size.

"""
GRAPHS = """
## Graphs of ONNX's own tests
Every graph with a float input of the onnx package's backend tests, on its own test data, in up to three forms: as it is
published; with all its float inputs but the first made constant, so that weights become weights; and between layers, each
float32 input behind a MatMul with the identity and each float32 output in front of one, which puts every op between int8
tensors. *Exact*: the outputs are the float model's, bit for bit.

"""
LOW = """
Quantized graphs with less than 15 dB. A nearest neighbour, an index, a Hardmax or a rank turns one code's difference into another element;
a Softmax of numbers in the thousands reads differences that are smaller than a code; a value of 1000 behind a mask takes the
range of all others.

"""


def run(folder: Path, names: list[str]) -> None:
    """Calibrate networks one by one, the smallest first, and note what became of each."""
    sizes = {path.parent.name: path.stat().st_size for path in folder.glob("*/model.onnx")}
    for name in names or sorted(sizes, key=lambda each: sizes[each]):
        with tempfile.TemporaryDirectory() as out:
            given = [str(folder / name / "model.onnx"), "--data", str(folder / name / "data"), "-o", out, "--overwrite"]
            command = [sys.executable, "-m", "int8cal", "calibrate", *given, "--no-latency", "--quiet"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=dict(os.environ))
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
            note(network_of(folder / name, done.returncode, done.stderr, Path(out), cpu_s))


def network_of(source: Path, code: int, said: str, out: Path, cpu_s: float) -> dict[str, Any]:
    """Return what is kept of a run, of its report and of what another tool made."""
    kind, peer = source / "kind.txt", source / "peer.json"
    found: dict[str, Any] = {"name": source.name, "kind": kind.read_text().strip() if kind.is_file() else "others"}
    theirs = json.loads(peer.read_text()) if peer.is_file() else {}
    found["tree"] = tree()
    found["peer"] = "fails" if "failed" in theirs else min(theirs.get("sqnr_db", {}).values(), default=None)
    found["cpu_s"] = [round(cpu_s, 1), theirs.get("cpu_s")]
    found |= {"exit_code": code, "said": reason(said.strip().splitlines()[-1]) if code and said.strip() else ""}
    report = out / "report.json"
    if report.is_file():
        document = json.loads(report.read_text(encoding="utf-8"))
        table = json.loads(next(out.glob("*.table.json")).read_text(encoding="utf-8"))
        left = [each for each in document["decisions"] if "not quantized: " in each]
        layers = r"not quantized: (Conv|ConvTranspose|Gemm|MatMul|LSTM|GRU|RNN) .*: (?!its weights are not constant)"
        count = len(table["weights"])
        found["layers"] = [count, count + sum(re.search(layers, each) is not None for each in left)]
        found["sqnr_db"] = document["metrics"]["sqnr_db"]
        found["size"] = document["size"]["int8_bytes"] / document["size"]["fp32_bytes"]
        found["speed"] = speed(source, next(out.glob("*.int8.onnx")))
    return found


def speed(source: Path, int8: Path) -> float:
    """Return the float model's CPU time over the int8 model's, both on one thread, in turn, on the first sample."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    sessions = [ort.InferenceSession(str(path), options) for path in (source / "model.onnx", int8)]
    feed = dict(np.load(min((source / "data").glob("*.npz"))))
    taken: list[list[float]] = [[], []]
    end = time.monotonic() + SPEED_S
    while len(taken[1]) < LEAST_RUNS or (time.monotonic() < end and len(taken[1]) < MOST_RUNS):
        for session, times in zip(sessions, taken, strict=True):
            before = time.thread_time()
            session.run(None, feed)
            times.append(time.thread_time() - before)
    return float(np.median(taken[0]) / np.median(taken[1]))


def tree() -> str:
    """Return the commit that is checked out, with a + where files differ from it."""
    told = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(told, cwd=PAGE.parent, capture_output=True, text=True, check=True).stdout.strip()


def reason(said: str) -> str:
    """Return what a message says, without what is of one file alone: paths, names, positions."""
    said = re.sub(r"^int8cal: ", "", said)
    said = re.sub(r"^(\w+): [^ ]+: ", r"\1: ", said)
    said = re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", said)
    said = re.sub(r"(implementation for|kernel for) (\w+)\(\d+\).*", r"\1 \2", said)
    said = re.sub(r"\((?:\w+) '[^']*': ([^;)]*)[^)]*\)?.*", r"(\1)", said)
    said = re.sub(r" \((?:node|output of)[^)]*\)", "", said)
    said = re.sub(r" '[^']*'| \"[^\"]*\"", "", said)
    said = re.sub(r"/onnxruntime_src\S*|Node \(\w+\) Op \((\w+)\)", r"\1", said)
    said = re.sub(r"^(\w+): data\[\d+\](\[\d+\])?(, data\[\d+\]\[\d+\])*: ", r"\1: ", said)
    return re.sub(r" of sample \d+| at \[[\d, ]*\]", "", said.partition("; ")[0])[:140].strip()


def note(network: dict[str, Any]) -> None:
    """Keep what became of a network, in place of what was known of it."""
    results = stored()
    networks = {each["name"]: each for each in results["networks"]} | {network["name"]: network}
    results["networks"] = sorted(networks.values(), key=lambda each: (each["kind"], each["name"]))
    store(results)


def stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"networks": [], "graphs": {}}


def store(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def take_graphs(path: Path) -> None:
    """Sum up outcomes by test and form into counts by form and reason, and the names of those below 15 dB."""
    graphs: dict[str, Any] = {form: {"quantized": 0, "exact": 0, "refused": collections.Counter()} for form in FORMS}
    low = {}
    for key, outcome in json.loads(path.read_text(encoding="utf-8")).items():
        name, form = key.split(":")
        of_form = graphs[form]
        if outcome["exit_code"] == 0:
            of_form["exact" if outcome["exact"] else "quantized"] += 1
            if outcome["sqnr_db"] is not None and outcome["sqnr_db"] < 15:
                low[f"{name}, {FORMS[form]}"] = round(outcome["sqnr_db"], 1)
        else:
            of_form["refused"][f"{outcome['exit_code']}|{reason(outcome['said'])}"] += 1
    store(stored() | {"graphs": graphs, "low": low})


def page(results: dict[str, Any]) -> str:
    """Write the page."""
    lines = [HEAD]
    networks = results["networks"]
    passed = [each for each in networks if each["exit_code"] == 0]
    better = [each for each in passed if isinstance(each["peer"], float) and each["sqnr_db"] is not None]
    least = sum(each["sqnr_db"] >= each["peer"] for each in better)
    lines.append(
        f"{len(passed)} of {len(networks)} were quantized, {len(networks) - len(passed)} refused. Of the {len(better)} for "
        f"which both tools have a figure, int8cal's SQNR is at least as high for {least}."
    )
    if timed := [each for each in passed if "speed" in each]:
        slowest = min(timed, key=lambda each: each["speed"])
        slower = sum(each["speed"] < 1 for each in timed)
        lines.append(
            f" Of the {len(timed)} that were timed, {slower or 'none'} took longer in int8; the least gain is "
            f"{slowest['speed']:.2f}, of `{slowest['name']}`."
        )
    lines.append("\n")
    for kind in sorted({each["kind"] for each in networks}):
        lines += [
            f"\n### {kind[0].upper()}{kind[1:]}\n\n",
            "| network | SQNR dB | other tool | layers | size | faster | CPU s | other tool | tree |\n",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|\n",
        ]
        lines += [_row(each) for each in networks if each["kind"] == kind]
    lines += [GRAPHS, "| form | quantized | of them exact | refused |\n", "|---|---:|---:|---:|\n"]
    for form, words in FORMS.items():
        each = results["graphs"][form]
        lines.append(
            f"| {words} | {each['quantized'] + each['exact']} | {each['exact']} | {sum(each['refused'].values())} |\n"
        )
    total: collections.Counter[str] = collections.Counter()
    for form in FORMS:
        total.update(results["graphs"][form]["refused"])
    lines += ["\n| exit code | refused because | graphs |\n", "|---:|---|---:|\n"]
    for key, count in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        code, _, said = key.partition("|")
        lines.append(f"| {code} | {_cell(said)} | {count} |\n")
    lines += [LOW, "| graph | SQNR dB |\n", "|---|---:|\n"]
    lines += [f"| `{name}` | {figure} |\n" for name, figure in sorted(results["low"].items())]
    return "".join(lines)


def _row(each: dict[str, Any]) -> str:
    peer = each["peer"] if isinstance(each["peer"], str) else _figure(each["peer"])
    if each["exit_code"]:
        return f"| `{each['name']}` | refused: {_cell(each['said'])} | {peer} | | | | | | {each['tree']} |\n"
    layers = "{} of {}".format(*each["layers"])
    ours, theirs = map(_figure, each.get("cpu_s", (None, None)))
    faster = f"{each['speed']:.2f}" if "speed" in each else ""
    found = [_figure(each["sqnr_db"]), peer, layers, f"{each['size']:.2f}", faster, ours, theirs, each["tree"]]
    return f"| `{each['name']}` | {' | '.join(found)} |\n"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "run":
        run(Path(rest[0]).resolve(), rest[1:])
    elif command == "graphs":
        take_graphs(Path(rest[0]))
    else:
        PAGE.write_text(page(stored()), encoding="utf-8")


if __name__ == "__main__":
    main()
