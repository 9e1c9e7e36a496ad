"""Questions that several views ask of a report document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.report import wording
from int8cal.report.document import NO_REASON, find_reason, layer_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from int8cal.report.document import Document


@dataclass(frozen=True)
class Figure:
    """One headline figure: its name, its text, a note beside it, and whether it was measured at all."""

    label: str
    text: str
    note: str = ""
    measured: bool = True


def why(document: Document, *paths: str) -> str:
    """Find the reason for a null, by any of its dotted paths."""
    return find_reason(document["reasons"], *paths) or NO_REASON


def worst_first(document: Document) -> list[tuple[int, dict[str, Any]]]:
    """Sort the layers, each with its place in the report: lowest SQNR first, unmeasured ones last."""
    layers = list(enumerate(document["layers"]))
    return sorted(layers, key=lambda item: (item[1]["sqnr_db"] is None, item[1]["sqnr_db"] or 0.0, item[0]))


def why_nothing_clipped(document: Document) -> str:
    """Find why no layer at all has a clipped share; empty when one has. Views then say it once, not on each line."""
    layers = document["layers"]
    if not layers or any(layer["clipped"] is not None for layer in layers):
        return ""
    return why(document, *layer_paths(0, layers[0], "clipped"))


def name_of(document: Document) -> str:
    """Choose what to call the model: its name, else its path, else "model"."""
    model = document["model"]
    return next((str(model[key]) for key in ("name", "path", "file") if model.get(key)), "model")


def int8_name(document: Document) -> str:
    """Choose what to call the int8 model; empty where the report does not say."""
    return str(document["model"].get("int8") or "")


def evaluation_data(document: Document) -> list[tuple[str, str]]:
    """Say what data the int8 model was judged on, as rows of setting and value, its path first; empty if unrecorded."""
    evaluation = document["settings"].get("evaluation")
    data = evaluation.get("data") if isinstance(evaluation, dict) else None
    if not isinstance(data, dict):
        return []
    rows = [(name, value) for name, value in flat(data) if value != "none"]
    return sorted(rows, key=lambda row: row[0] != "path")


def versions(document: Document) -> list[tuple[str, str]]:
    """Say which versions of int8cal and its parts made the report; empty if unrecorded."""
    recorded = document["settings"].get("versions")
    return flat(recorded) if isinstance(recorded, dict) else []


def flat(part: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested settings into rows of dotted name and value."""
    rows: list[tuple[str, str]] = []
    for key, value in part.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            rows += flat(value, f"{name}.")
        else:
            rows.append((name, _setting(value)))
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None or value == {} else str(value)


def verdict(document: Document) -> str:
    """How the gates went, in one phrase."""
    gates = document["gates"]
    failed = sum(not gate["passed"] for gate in gates)
    if not gates:
        return "no accuracy gates set"
    if failed and len(gates) == 1:
        return "the accuracy gate failed"
    if failed:
        return f"{failed} of {wording.count(len(gates), 'accuracy gate')} failed"
    return "the accuracy gate passed" if len(gates) == 1 else f"all {len(gates)} accuracy gates passed"


def headline(document: Document) -> list[Figure]:
    """Pick the figures that answer "is this model good, and is it worth it", in reading order."""
    metrics = document["metrics"]
    figures = [
        _metric(document, "SQNR", "sqnr_db", wording.decibel),
        _metric(document, "Cosine similarity", "cosine", wording.cosine),
        _metric(document, "Agreement", "agreement", wording.percent),
    ]
    figures += [_drop(document, label, key) for label, key in (("Top-1", "top1"), ("Top-5", "top5"))]
    figures.append(_metric(document, "Largest error", "max_abs_error", wording.plain))
    fp32, int8, latency = document["size"]["fp32_bytes"], document["size"]["int8_bytes"], document["latency_ms"]
    if fp32 > 0 and int8 > 0:
        figures.append(Figure("Size", wording.smaller(fp32, int8), f"{wording.size(fp32)} to {wording.size(int8)}"))
    else:
        figures.append(_missing(document, "Size", "size"))
    if latency is None or latency["speedup"] is None:
        figures.append(_missing(document, "Speedup", "latency_ms.speedup", "latency_ms", "latency"))
    else:
        times = f"{wording.milliseconds(latency['fp32'])} to {wording.milliseconds(latency['int8'])} per sample"
        figures.append(Figure("Speedup", wording.times(latency["speedup"]), times))
    figures += _saturation(document)
    # Nothing is lost by leaving out top-5 when there is no top-1 either: both lack labels for the same reason.
    return [item for item in figures if item.label != "Top-5 drop" or metrics["top5"] or metrics["top1"]]


def _saturation(document: Document) -> list[Figure]:
    """Say how many channels can saturate; nothing in a report that was not audited."""
    found = document["saturation"]
    unsafe, channels = found["unsafe_channels"], found.get("channels")
    if unsafe is None:
        return []
    note = f"target {found['target']}, whatever the activations"
    if not unsafe:
        return [Figure("Can saturate", "no channel", note)]
    text = wording.count(unsafe, "channel") if channels is None else f"{unsafe} of {wording.count(channels, 'channel')}"
    return [Figure("Can saturate", text, f"target {found['target']}, on x86 CPUs without VNNI")]


def _metric(document: Document, label: str, key: str, text: Callable[[float | None], str]) -> Figure:
    value, bounds = document["metrics"][key], document["metrics"].get(f"{key}_ci95")
    if value is None:
        return _missing(document, label, f"metrics.{key}")
    known = bounds is not None and None not in bounds
    return Figure(label, text(value), f"95 % interval {text(bounds[0])} to {text(bounds[1])}" if known else "")


def _drop(document: Document, label: str, key: str) -> Figure:
    drop = document["metrics"][key]
    label = f"{label} drop"
    if drop is None or drop["drop"] is None:
        return _missing(document, label, f"metrics.{key}.drop", f"metrics.{key}")
    note = f"{wording.percent(drop['fp32'])} to {wording.percent(drop['int8'])}"
    note += f", 95 % interval {wording.interval(drop['drop_ci95'])}"
    return Figure(label, wording.points(drop["drop"]), note)


def _missing(document: Document, label: str, *paths: str) -> Figure:
    return Figure(label, wording.NOT_MEASURED, why(document, *paths), measured=False)


def optimized_sentence(found: Mapping[str, Any]) -> str:
    """Say what `optimize: latency` gained.

    Args:
        found: The document's "optimize".
    """
    fp32, plain, best = (found[key] for key in ("fp32_us", "plain_int8_us", "int8_us"))
    times = f"float32 {fp32:.1f} µs, every layer in int8 {plain:.1f} µs"
    if not found["left"]:
        return f"{times}; no layer in float made it faster."
    kept = wording.count(len(found["left"]), "layer")
    return f"{times}, with {kept} in float {best:.1f} µs ({fp32 / best:.2f} times float32's speed)."


def slowest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order measured layers: those that lose most in int8 first."""
    return sorted(rows, key=lambda row: row["fp32_us"] - row["int8_us"])


def step_rows(document: Document) -> list[tuple[str, str, str]]:
    """Say what each step of the recipe gave: its name, the SQNR with it, and the difference or that it was dropped."""
    rows = []
    for step in document.get("steps", []):
        before, after = step["before_db"], step["sqnr_db"]
        gain = f"{after - before:+.2f} dB" if before is not None and after is not None else ""
        if not step["kept"]:
            gain = f"dropped ({gain})" if gain else "dropped"
        rows.append((step["step"], wording.decibel(after), gain))
    return rows
