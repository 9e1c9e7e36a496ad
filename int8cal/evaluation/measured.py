"""How each figure of an evaluation was measured, in a sentence: samples, runs, threads, and where its interval is from.

Each sentence follows from the evaluation alone, so that equal evaluations give equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import Drop, Evaluation


def how_measured(evaluation: Evaluation) -> dict[str, str]:
    """Say how each part that was measured was; keys are dotted paths of report.json."""
    told = {path: tell(evaluation) for path, tell in _HOW.items()}
    return {path: text for path, text in told.items() if text}


def _over(evaluation: Evaluation, what: str, interval: str = "") -> str:
    return f"{counted(evaluation.samples, 'sample')}, one at a time through both models; {what}" + (
        f"; 95 % interval: {interval}" if interval else ""
    )


def _sqnr(evaluation: Evaluation) -> str:
    metrics = evaluation.metrics
    interval = "linearized ratio over samples, Student's t" if metrics.sqnr_db_ci95 else ""
    known = metrics.sqnr_db is not None
    return _over(evaluation, "sums over all values of the worst float output", interval) if known else ""


def _cosine(evaluation: Evaluation) -> str:
    known = evaluation.metrics.cosine is not None
    return _over(evaluation, "over all values of the worst float output") if known else ""


def _largest(evaluation: Evaluation) -> str:
    return _over(evaluation, "all float outputs") if evaluation.metrics.max_abs_error is not None else ""


def _agreement(evaluation: Evaluation) -> str:
    known = evaluation.metrics.agreement is not None
    return _over(evaluation, "the same arg-max", "Clopper and Pearson, exact") if known else ""


def _drop(evaluation: Evaluation, drop: Drop | None, what: str) -> str:
    if drop is None:
        return ""
    labelled = evaluation.samples if drop.samples is None else drop.samples
    return _over(evaluation, f"{what}, {labelled} of them with a label", "Tango's score interval of paired samples")


def _metric(evaluation: Evaluation) -> str:
    own = evaluation.metric
    if own is None or own.drop is None:
        return ""
    interval = "bootstrap of the paired differences (of very many, Student's t)" if own.drop_ci95 else ""
    return _over(evaluation, "the same samples and labels to the function for both", interval)


def _layers(evaluation: Evaluation) -> str:
    if not evaluation.layers or not evaluation.layer_samples:
        return ""
    samples = f"the first {evaluation.layer_samples} of {evaluation.samples} samples"
    thinned = sum(each.compared is not None for each in evaluation.layers)
    few = f"; of {thinned} tensors every so many rows and columns, as many as can be held" if thinned else ""
    return f"{samples}, with all errors before each layer of its graph{few}"


def _fusion(evaluation: Evaluation) -> str:
    return "the graph that onnxruntime runs, as it writes it after all its optimizations" if evaluation.fusion else ""


def _saturation(evaluation: Evaluation) -> str:
    known = evaluation.saturation.unsafe_channels is not None
    return "from the weights: the worst case over all activations; nothing was run" if known else ""


def _latency(evaluation: Evaluation) -> str:
    found = evaluation.latency
    if found is None or found.rounds is None or found.threads is None:
        return ""
    rounds, threads = counted(found.rounds, "round"), counted(found.threads, "thread")
    text = f"the first sample, {rounds} in which each model runs in its turn, {threads}; medians of the rounds' medians"
    text += ", on Linux without the time that other processes took"
    return text + ("; 95 % interval: Student's t on logarithms of the rounds' ratios" if found.speedup_ci95 else "")


def _fastest(evaluation: Evaluation) -> str:
    found = evaluation.fastest
    if found is None:
        return ""
    text = "the int8 model alone, from the medians of latencies_ms"
    return text + ("; 95 % interval: Student's t on logarithms of the rounds' ratios" if found.gain_ci95 else "")


# Dotted path of a part of report.json -> what says how it was measured, or nothing where it was not.
_HOW: dict[str, Callable[[Evaluation], str]] = {
    "metrics.sqnr_db": _sqnr,
    "metrics.cosine": _cosine,
    "metrics.max_abs_error": _largest,
    "metrics.agreement": _agreement,
    "metrics.top1": lambda found: _drop(found, found.metrics.top1, "the label has the largest score"),
    "metrics.top5": lambda found: _drop(found, found.metrics.top5, "the label is among the five largest scores"),
    "metric": _metric,
    "layers": _layers,
    "fusion": _fusion,
    "saturation": _saturation,
    "size": lambda found: "bytes of the files, with their external data" if found.size.fp32_bytes else "",
    "latency_ms": _latency,
    "latencies_ms": lambda found: _latency(found) if len(found.latencies) > 1 else "",
    "fastest": _fastest,
}
