"""Questions that several views ask of a report document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from int8cal.errors import printable
from int8cal.evaluation.figures import FIGURES, OUTPUT, figure_of, interval_of
from int8cal.evaluation.gates import figure_named
from int8cal.evaluation.result import NOT_QUANTIZED
from int8cal.evaluation.result_parts import TITLES, ends
from int8cal.phrases import counted, some
from int8cal.report import wording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from int8cal.evaluation.result import Drop, Latency
    from int8cal.evaluation.result_parts import Gate, Interval
    from int8cal.report.document import Document

NOTHING = "every output is zero on every sample, in both models: this says nothing about the int8 model"
_NAMED = 3  # outputs in one line
_OTHER_RUNTIMES = ("openvino", "tensorrt")  # targets
_JUDGED_ON, _AS_DATA = "evaluation.data.", "as data"
# Ends of an interval. One that holds 1 and is this wide holds a model half as fast again and one by a third slower: it
# says nothing. Where the ends are closer than _CLOSE, the figure between them is off by an eighth at most.
_NOTHING_SAID, _CLOSE = 2.0, 1.25
_LARGER = 1.005  # times the float file: below it the ratio is shown as 1.00
# What stands behind the number of a gate's value, which is of the unit of its bound.
_UNITS = {"dB": " dB", "percentage points": " points", "ms": " ms", "bytes": " bytes"}
# Of outputs that are surely not the same: noise of half the signal, one decision in five another one.
_UNLIKE_DB, _UNLIKE_AGREEMENT = 3.0, 0.8


@dataclass(frozen=True)
class Headline:
    """One headline figure.

    Attributes:
        label, text: Its name and its value.
        aside: What else to know of it; the reason where it was not measured.
        measured: Whether it was measured at all.
        interval: Its 95 % interval; empty where it has none.
        about: What the names of gates about it begin with.
    """

    label: str
    text: str
    aside: str = ""
    measured: bool = True
    interval: str = ""
    about: str = ""

    @property
    def note(self) -> str:
        """Everything to write beside the value."""
        return ", ".join(filter(None, (self.aside, f"95 % interval {self.interval}" if self.interval else "")))


@dataclass(frozen=True)
class Phrase:
    """A part of the verdict.

    Attributes:
        kind: "doubt" speaks against the figures, "fault" is an output that is useless, "gates" how they went, "worse" a
            way in which the int8 model is worse than the FP32 model.
        text: Without a capital and a full stop.
        band: "poor" where somebody has to look, "good" where gates passed, "" for neither.
    """

    kind: Literal["doubt", "fault", "gates", "worse"]
    text: str
    band: Literal["poor", "good", ""] = ""


def name_of(document: Document) -> str:
    """Choose what to call the model: its name, else its path, else "model"."""
    model = document.model
    return next((str(model[key]) for key in ("name", "path", "file") if model.get(key)), "model")


def int8_name(document: Document) -> str:
    """Choose what to call the int8 model; empty where the report does not say."""
    return str(document.model.get("int8") or "")


def evaluation_data(document: Document) -> list[tuple[str, str]]:
    """Say what data the int8 model was judged on, as rows of setting and value, its path first; empty if unrecorded."""
    evaluation = document.settings.get("evaluation")
    data = evaluation.get("data") if isinstance(evaluation, dict) else None
    if not isinstance(data, dict):
        return []
    rows = [(name, value) for name, value in setting_rows(data) if value not in ("none", "no")]
    return sorted(rows, key=lambda row: row[0] != "path")


def version_rows(document: Document) -> list[tuple[str, str]]:
    """Say which versions of int8cal and its parts made the report; empty if unrecorded."""
    recorded = document.settings.get("versions")
    return setting_rows(recorded) if isinstance(recorded, dict) else []


def own_metric(document: Document) -> str:
    """Name the user's own metric, by which gates may call its figures; empty without one."""
    return document.metric.name if document.metric else ""


def timed_on(document: Document) -> str:
    """Say on what CPU and with how many threads speed was measured; empty if unrecorded."""
    if document.origin is None:
        return ""
    machine = document.origin.machine
    threads = machine.threads if document.latency is None else document.latency.threads or machine.threads
    return f"{machine.cpu}, {counted(int(threads), 'thread')}"


def origin_rows(document: Document) -> list[tuple[str, str]]:
    """Say when, on what machine and by what a report was made, as rows of label and text; empty if unrecorded."""
    origin = document.origin
    if origin is None:
        return []
    machine = origin.machine
    physical = "" if machine.physical_cores is None else f" ({machine.physical_cores} physical)"
    cores = counted(int(machine.logical_cores), "core") + physical
    parts = (machine.cpu, cores, counted(int(machine.threads), "thread"), " ".join(machine.flags), machine.system)
    rows = [("Made", origin.date), ("Machine", ", ".join(filter(None, parts))), ("Command", origin.command)]
    return [(label, text) for label, text in rows if text]


def setting_rows(part: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested settings into rows of dotted name and value."""
    rows: list[tuple[str, str]] = []
    for key, value in part.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            rows += setting_rows(value, f"{name}.")
        else:
            rows.append((name, _setting(value)))
    return rows


def shown_settings(document: Document) -> list[tuple[str, str]]:
    """Turn the settings into rows that say each thing once, for people; report.json has all of them.

    Preprocessing stands in the settings of the data, of the evaluation's data and of the table: shown are the data's,
    of the others what differs, and of all of them what is declared.
    """
    settings = {key: value for key, value in document.settings.items() if key != "versions"}
    rows = [row for row in setting_rows(settings) if not (row[1] == "none" and "preprocess." in row[0])]
    known = {name.removeprefix("data."): value for name, value in rows if name.startswith("data.")}
    judged = [(name, value) for name, value in rows if name.startswith(_JUDGED_ON)]
    differing = [row for row in judged if known.get(row[0].removeprefix(_JUDGED_ON)) != row[1]]
    alike = [(_JUDGED_ON[:-1], f"{_AS_DATA}{', but for what follows' if differing else ''}")]
    shown = list[tuple[str, str]]()
    for name, value in rows:
        if judged and name == judged[0][0]:
            shown += [*(alike if len(differing) < len(judged) else []), *differing]
        elif name.startswith("preprocess.") and known.get(name) == value:
            continue
        elif (name, value) not in judged:
            shown.append((name, value))
    return shown


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        named = (item["name"] if isinstance(item, dict) and "name" in item else item for item in value)
        return ", ".join(str(item) for item in named) or "none"
    return "none" if value is None or value == {} else str(value)


def faults(document: Document) -> list[str]:
    """Say what makes outputs useless in the int8 model; nothing where there is no such fault."""
    return [line for output in document.outputs.values() for line in output.faults]


def told_gates(document: Document) -> list[tuple[int, Gate]]:
    """Return the gates to show, by place."""
    return [(at, gate) for at, gate in enumerate(document.gates) if gate.is_told]


def verdict(document: Document, *, complete: bool = True) -> tuple[Phrase, ...]:
    """Say how the int8 model stands, in the order in which every view tells it.

    Args:
        document: The report.
        complete: Whether everything could be evaluated.

    Returns:
        What speaks against the figures themselves; outputs at fault; how the gates went, always one phrase; in which
        ways the int8 model is worse than the FP32 model, beyond the noise of the figures.
    """
    at_fault = sum(bool(output.faults) for output in document.outputs.values())
    doubts = [
        *([] if complete else ["not everything could be evaluated"]),
        *(["check the data"] if document.findings else []),
        *(["nothing to compare"] if nothing_to_compare(document) else []),
        *(["the second model holds no int8 layer"] if _all_float(document) else []),
        *([] if at_fault else _unlike(document)),
    ]
    faulty = [Phrase("fault", f"{counted(at_fault, 'output')} at fault", "poor")] if at_fault else []
    worse = [Phrase("worse", text, "poor") for text in _worse_than_fp32(document)]
    return (*(Phrase("doubt", text, "poor") for text in doubts), *faulty, _of_gates(document), *worse)


def only_embeddings(document: Document) -> bool:
    """Whether the outputs are embeddings, without labels: neighbours decide there, and no largest value does."""
    kinds = {each.kind for output in document.outputs.values() for each in output.decisions}
    return kinds == {"embedding"} and document.metrics.top1 is None


def for_another_runtime(document: Document) -> bool:
    """Whether the target is a runtime with other kernels than onnxruntime, whose kernels the report has."""
    return document.saturation.target in _OTHER_RUNTIMES


def _all_float(document: Document) -> bool:
    found = document.fusion
    return (
        found is not None
        and found.integer == 0 < found.float_
        and all(node.reason == NOT_QUANTIZED for node in found.nodes)
    )


def _unlike(document: Document) -> list[str]:
    """Say that the int8 model gives something else than the FP32 model; nothing where noise may be the cause."""
    metrics, told = document.metrics, list[str]()
    agreeing = None if only_embeddings(document) else ends(metrics.agreement_ci95)
    if metrics.sqnr_db is not None and metrics.sqnr_db < _UNLIKE_DB:
        told.append(f"SQNR {wording.decibel(metrics.sqnr_db)}")
    if agreeing is not None and agreeing[1] < _UNLIKE_AGREEMENT:
        told.append(f"agreement {wording.fraction(metrics.agreement)}")
    return [f"the int8 model's outputs are not the FP32 model's ({', '.join(told)})"] if told else []


def _of_gates(document: Document) -> Phrase:
    gates = [gate for _, gate in told_gates(document)]
    failed = sum(not gate.passed for gate in gates)
    if not gates:
        return Phrase("gates", "no accuracy gates set")
    if failed:
        several = f"{failed} of {counted(len(gates), 'accuracy gate')} failed"
        return Phrase("gates", "the accuracy gate failed" if len(gates) == 1 else several, "poor")
    return Phrase(
        "gates", "the accuracy gate passed" if len(gates) == 1 else f"all {len(gates)} accuracy gates passed", "good"
    )


def _worse_than_fp32(document: Document) -> list[str]:
    found = []
    for name, drop in (("top-1", document.metrics.top1), (own_metric(document), document.metric)):
        bounds = ends(drop.drop_ci95) if drop else None
        if drop and drop.drop is not None and bounds is not None and bounds[0] > 0:
            text = wording.points(drop.drop) if name == "top-1" else wording.plain(drop.drop)
            found.append(f"{printable(name)} loses {text}")
    latency, size, unsafe = document.latency, document.size, document.saturation.unsafe_channels
    if latency is not None and latency.speedup is not None and latency.speedup < 1 and not _too_noisy(latency):
        bounds = ends(latency.speedup_ci95)
        surely = bounds is not None and bounds[1] < 1
        found.append(f"{'slower' if surely else 'no faster'} than FP32 ({wording.times(latency.speedup)})")
    if size.int8_bytes > _LARGER * size.fp32_bytes > 0:
        found.append(f"larger than the float file ({wording.times(size.int8_bytes / size.fp32_bytes)})")
    return [*found, f"{counted(unsafe, 'channel')} can saturate"] if unsafe else found


def _too_noisy(latency: Latency) -> bool:
    bounds = ends(latency.speedup_ci95)
    if bounds is None:
        return is_guessed(latency)
    return bounds[0] <= 1 <= bounds[1] and bounds[1] > _NOTHING_SAID * bounds[0]


def is_guessed(latency: Latency) -> bool:
    """Say whether several rounds gave no interval: other processes had the cores, see `evaluation.speed`."""
    return latency.speedup_ci95 is None and (latency.rounds or 1) > 1


def speedup_text(latency: Latency) -> str:
    """Write a speedup, and perhaps before one that is a guess."""
    text = wording.times(latency.speedup)
    return f"perhaps {text}" if is_guessed(latency) else text


def timed_elsewhere(old: Document, new: Document) -> bool:
    """Whether both reports have speeds, and these were measured on different CPUs or with different threads."""
    places = []
    for document in (old, new):
        if document.origin is None or document.latency is None:
            return False
        places.append((timed_on(document), document.origin.machine.flags))
    return places[0] != places[1]


def guessed_in(old: Document, new: Document) -> list[str]:
    """Name the reports whose speedup is a guess: up to twice what it is, so that its change says nothing."""
    return [
        which
        for which, document in (("old", old), ("new", new))
        if document.latency is not None and is_guessed(document.latency)
    ]


def surely_told(speedup: Headline, latency: Latency | None) -> Headline:
    """Tell a speedup no more surely than it was measured, where there is no room for an interval with every figure.

    Returns:
        It as it is; with its interval where that holds 1 or is wide; in place of a figure that says nothing, that.
    """
    bounds = ends(latency.speedup_ci95) if latency else None
    if latency is None or bounds is None:
        return speedup
    interval = f"95 % interval {speedup.interval}"
    if _too_noisy(latency):
        return replace(
            speedup, text="too noisy to say on this machine now", aside=f"{interval}; measure again", interval=""
        )
    if bounds[0] <= 1 <= bounds[1] or bounds[1] > _CLOSE * bounds[0]:
        return replace(speedup, aside=f"{interval}, {speedup.aside}", interval="")
    return speedup


def headlines(document: Document) -> list[Headline]:
    """Pick the figures that answer "is this model good, and is it worth it", in reading order."""
    metrics = document.metrics
    if nothing_to_compare(document):
        figures = [Headline("Outputs", "nothing to compare", NOTHING, about="sqnr_db")]
    else:
        figures = [
            _sqnr(document),
            _metric(document, "cosine"),
            _agreement(document),
            _drop(document, "top1", metrics.top1),
            _drop(document, "top5", metrics.top5),
            _metric(document, "max_abs_error"),
        ]
    figures = [*_own_metric(document), *figures]
    fp32, int8, latency = document.size.fp32_bytes, document.size.int8_bytes, document.latency
    if fp32 > 0 and int8 > 0:
        figures.append(
            Headline("Size", wording.smaller(fp32, int8), f"{wording.size(fp32)} to {wording.size(int8)}", about="size")
        )
    else:
        figures.append(_missing(document, "Size", "size", "size"))
    if latency is None or latency.speedup is None:
        figures.append(_missing(document, "Speedup", "latency", "latency_ms.speedup"))
    else:
        times = f"{wording.milliseconds(latency.fp32)} to {wording.milliseconds(latency.int8)} per sample"
        times += f" on {machine}" if (machine := timed_on(document)) else ""
        interval = _interval(latency.speedup_ci95, wording.times)
        if is_guessed(latency):
            times = f"{document.why('latency_ms.speedup_ci95')}; {times}"
        figures.append(Headline("Speedup", speedup_text(latency), times, interval=interval, about="latency"))
    figures += _fastest(document)
    figures += _saturation(document)
    # Nothing is lost by leaving out top-5 when there is no top-1 either: both lack labels for the same reason.
    return [item for item in figures if item.label != "Top-5 drop" or metrics.top5 or metrics.top1]


def _fastest(document: Document) -> list[Headline]:
    """Say in which runtime the int8 model is fastest; nothing where only onnxruntime was measured."""
    found, times = document.fastest, document.latencies_ms
    if found is None:
        failed = [name for name, latency in times.items() if latency is None]
        return [_missing(document, "Fastest here", "", f"latencies_ms.{name}") for name in failed[:1]]
    here, there = times.get(found.runtime), times.get(found.against)
    if here is None or there is None or here.int8 is None:
        return []
    name, other = (TITLES.get(each, each) for each in (found.runtime, found.against))
    first, second = wording.milliseconds(here.int8), wording.milliseconds(there.int8)
    interval = ends(found.gain_ci95)
    if interval is not None and interval[0] <= 1.0:
        return [Headline("Fastest here", f"{name} and {other} alike", f"{first} and {second}")]
    guessed = is_guessed(here) or is_guessed(there)
    aside = f"{'perhaps ' if guessed else ''}{wording.times(found.gain)}"
    if here.fp32 is not None and here.fp32 < here.int8:
        aside += f", and the float32 model {wording.milliseconds(here.fp32)}"
    shown = _interval(found.gain_ci95, wording.times)
    return [Headline("Fastest here", f"{name}: {first} against {second} in {other}", aside, interval=shown)]


def nothing_to_compare(document: Document) -> bool:
    """Whether every float output is zero on every sample, in both models: they agree, which says nothing about them."""
    metrics = document.metrics
    return metrics.sqnr_db is None and metrics.max_abs_error == 0.0


def _saturation(document: Document) -> list[Headline]:
    """Say how many channels can saturate; nothing in a report that was not audited."""
    found = document.saturation
    unsafe, channels = found.unsafe_channels, found.channels
    if unsafe is None:
        return []
    note = f"target {found.target}, whatever the activations"
    if not unsafe:
        return [Headline("Can saturate", "no channel", note, about="saturation")]
    text = counted(unsafe, "channel") if channels is None else f"{unsafe} of {counted(channels, 'channel')}"
    return [Headline("Can saturate", text, f"target {found.target}, on x86 CPUs without VNNI", about="saturation")]


def _metric(document: Document, name: str) -> Headline:
    figure = FIGURES[name]
    value, text = figure.read(document), wording.OF_UNIT[figure.unit]
    if value is None:
        return _missing(document, figure.label, name, f"metrics.{name}")
    shown = text(value)
    interval = "" if shown == wording.EXACT else _interval(interval_of(name, document), text)
    return Headline(figure.label, shown, interval=interval, about=name)


def _own_metric(document: Document) -> list[Headline]:
    """Show the user's own metric, which comes before all others; nothing where there is none."""
    found = document.metric
    if found is None:
        return []
    if found.drop is None:
        return [_missing(document, found.name, "metric", "metric")]
    better = "" if found.higher_is_better else ", lower is better"
    aside = f"{wording.plain(found.fp32)} to {wording.plain(found.int8)}{better}"
    interval = _interval(found.drop_ci95, wording.plain)
    return [Headline(f"{found.name} drop", wording.plain(found.drop), aside, interval=interval, about="metric")]


def _agreement(document: Document) -> Headline:
    """Show the agreement, and the samples that it is of."""
    value, samples, found = document.metrics.agreement, document.samples, _metric(document, "agreement")
    return found if value is None or not samples else replace(found, aside=f"{round(value * samples)} of {samples}")


def _sqnr(document: Document) -> Headline:
    """Show the SQNR of the worst output, and which that is."""
    value, found = document.metrics.sqnr_db, _metric(document, "sqnr_db")
    return found if value is None else replace(found, aside=_of_outputs(document, value))


def _of_outputs(document: Document, value: float) -> str:
    """Say which of several outputs the SQNR is of, and which are exact; empty where there is nothing to tell apart."""
    known = [name for name, output in document.outputs.items() if output.sqnr_db is not None]
    exact = document.metrics.exact_outputs
    if len(known) < 2 or len(exact) == len(known):
        return ""
    worst = next((name for name in known if document.outputs[name].sqnr_db == value), "")
    told = [f"at {wording.shortened(printable(worst))}, the worst of {len(known)} outputs"] if worst else []
    if exact:
        told.append(f"exact: {some((wording.shortened(printable(name)) for name in exact), _NAMED)}")
    return "; ".join(told)


def _interval(bounds: Interval | None, text: Callable[[float | None], str]) -> str:
    """Show both ends of an interval with their unit; empty where there is none."""
    return " to ".join(text(bound) for bound in ends(bounds) or ())


def _drop(document: Document, key: str, drop: Drop | None) -> Headline:
    label = FIGURES[f"{key}.drop"].label
    if drop is None or drop.drop is None:
        return _missing(document, label, key, f"metrics.{key}.drop")
    note = f"{wording.fraction(drop.fp32)} to {wording.fraction(drop.int8)}"
    return Headline(label, wording.points(drop.drop), note, interval=wording.interval(drop.drop_ci95), about=key)


def _missing(document: Document, label: str, about: str, path: str) -> Headline:
    return Headline(label, wording.NOT_MEASURED, document.why(path), measured=False, about=about)


def gate_value(document: Document, index: int) -> str:
    """Say what a gate was held against: the value, with its interval where it has one, or why there is none."""
    gate = document.gates[index]
    if gate.value is None:
        return f"{wording.NOT_MEASURED}: {document.why(f'gates.{index}.value')}"
    name = figure_named(gate.gate, own_metric(document))
    known = name in FIGURES or OUTPUT.fullmatch(name)
    unit = _UNITS.get(figure_of(name).unit, "") if known else ""
    interval = _interval(gate.ci95, wording.plain)
    why = f"; {gate.why}" if gate.why else ""
    return wording.plain(gate.value) + unit + (f", 95 % interval {interval}{unit}" if interval else "") + why
