"""What to do about a gate that failed: about its figure, and from what the report measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError, printable
from int8cal.evaluation.figures import OUTPUT_FAULTS, TOLD_BY_NOISE
from int8cal.evaluation.gates import figure_named, parse_gate
from int8cal.evaluation.result_parts import ends
from int8cal.numerics.metrics import EXACT_DB
from int8cal.phrases import counted, some
from int8cal.report import wording
from int8cal.report.reading import for_another_runtime, own_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import LayerMetrics
    from int8cal.evaluation.result_parts import Gate
    from int8cal.report.document import Document

_NAMED = 3  # layers and nodes in one line
# A layer is named where the noise rises by at least this share of what it rises by in all layers together.
_LOUD = 0.1
# Target -> flags of which its CPUs have one.
_ONE_OF = {
    "arm64": frozenset({"asimddp", "i8mm"}),
    "x86-avx2": frozenset({"avx2"}),
    "x86-vnni": frozenset({"avx512_vnni", "avx_vnni", "amx_int8"}),
}


def advice(document: Document, index: int) -> str:
    """Say in one line what to do about a gate that failed; empty for one that held, and where a figure is missing."""
    return "; ".join(_parts(document, index))


def advice_below(document: Document, index: int) -> str:
    """Say it in a list of all gates: without what stands there under a gate before."""
    own, before = _parts(document, index), {part for each in range(index) for part in _parts(document, each)}
    new = [part for part in own if part not in before]
    return "; ".join(new if len(new) == len(own) else [*new, "as above"])


def _parts(document: Document, index: int) -> tuple[str, ...]:
    gate = document.gates[index]
    if gate.passed:
        return ()
    if gate.why:  # the figure would hold, and is worth nothing
        return tuple(finding.do for finding in document.findings if finding.check == "chance")[:1]
    try:
        figure = parse_gate(gate.gate, metric=own_metric(document), reachable=False).name
    except ConfigError:  # the report is of another version
        return ()
    if gate.value is None:
        return tuple(filter(None, [_decided_instead(document, figure)]))
    about = next((say for start, say in _ABOUT.items() if figure.startswith(start)), _about_accuracy)
    return tuple(filter(None, about(document, gate, figure)))


def advice_on_all(document: Document) -> str:
    """Say in one line what to do about all gates that failed, each advice once."""
    told = {gate.gate: parts for index, gate in enumerate(document.gates) if (parts := _parts(document, index))}
    if not told:
        return "see the reasons in the report"
    of_all = [part for part in next(iter(told.values())) if all(part in parts for parts in told.values())]
    said, texts = set(of_all), []
    for gate, parts in told.items():
        own = [part for part in parts if part not in said]
        said.update(own)
        texts += [f"for {gate}: {'; '.join(own)}"] if own else []
    return "; ".join((*of_all, *texts))


def _decided_instead(document: Document, figure: str) -> str:
    """Name the figures that outputs without a row of class scores have instead of agreement and top-k."""
    if figure.partition(".")[0] not in {"agreement", "top1", "top5"} or document.metrics.agreement is not None:
        return ""
    decided = [
        f"outputs.{name}.{each.figure}" for name, output in document.outputs.items() for each in output.decisions
    ]
    return f"these outputs are judged by {_listed(decided)}" if decided else ""


def _about_latency(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:
    if figure == "latency.fp32":
        return (_OF_FLOAT,)
    found, fusion = document.optimize, document.fusion
    left = "" if fusion is None or not fusion.float_ else f"{fusion.float_} of {fusion.total} nodes stay in float"
    if found is not None:
        tried = f"--optimize latency has left {counted(len(found.left), 'layer')} in float already"
    else:
        tried = "--optimize latency leaves those layers in float that int8 makes slower"
    noisy = _open(document, gate)
    undecided = "its 95 % interval contains the bound: measure on a machine without other work" if noisy else ""
    return undecided, tried, f"{left} (see Left in float)" if left else "", _target(document)


def _target(document: Document) -> str:
    """Say so where speed was measured elsewhere than on the target."""
    target, origin = document.saturation.target, document.origin
    if for_another_runtime(document):
        return f"this is the speed in onnxruntime: measure in {target}, which the model is for"
    flags = frozenset() if origin is None else frozenset(origin.machine.flags)
    elsewhere = origin is not None and target in _ONE_OF and not _ONE_OF[target] & flags
    return f"this machine is not of the target {target}: measure on one that is" if elsewhere else ""


def _about_size(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:  # noqa: ARG001 - one signature for all
    if figure == "size.fp32_bytes":
        return (_OF_FLOAT,)
    settings = document.settings
    causes = {
        "--exclude": settings.get("exclude"),
        "--include": settings.get("include"),
        "--budget": document.mixed_precision is not None,
        "--optimize latency": document.optimize is not None and document.optimize.left,
    }
    options = [option for option, cause in causes.items() if cause]
    if options:
        return (f"weights of layers in float take four times the bytes: less {' and '.join(options)} makes it smaller",)
    return ("the weights that can be int8 are int8: what is left are layers in float, scales and the graph itself",)


def _about_saturation(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:  # noqa: ARG001 - likewise
    unsafe = [each for each in document.saturation.layers if each.unsafe_channels]
    unsafe.sort(key=lambda each: -each.unsafe_channels)
    named = _listed([f"{each.node} ({each.unsafe_channels} of {each.channels})" for each in unsafe])
    worst = f"channels can saturate in {named}" if named else ""
    return worst, "quantize with --target portable and --weights paired, or repair the model: int8cal audit --fix"


def _about_fusion(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:  # noqa: ARG001 - likewise
    nodes = () if document.fusion is None else document.fusion.nodes
    named = _listed([f"{each.node} ({each.op_type}: {each.reason})" for each in nodes])
    return (f"in float are {named}" if named else "", "" if named else "see Left in float")


def _about_faults(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:  # noqa: ARG001 - likewise
    if document.settings.get("recipe") is None:  # any tool's model, which was only evaluated
        do = "give what these channels come from scales of its own, as int8cal calibrate does, or leave it in float"
    else:
        ranges = "without the ranges that were given, " if document.settings.get("ranges") else ""
        do = f"calibrate {ranges}on data in which these channels vary, or --exclude the layers that they come from"
    return do, f"to allow it, give --gate {figure}=off, or a bound of your own"


def _about_accuracy(document: Document, gate: Gate, figure: str) -> tuple[str, ...]:
    if figure.endswith(".fp32"):
        return (_OF_FLOAT,)
    layers = _layers(document)
    next_steps = _spent(document) or (layers, *_recipe(document, "such layers" if layers else "the worst layers"))
    return (_more_samples(document, gate, figure), *next_steps)


def _more_samples(document: Document, gate: Gate, figure: str) -> str:
    """Say how many samples would decide, where the interval of the figure contains the bound."""
    samples = _samples(document, figure)
    if not _open(document, gate) or not samples:
        return ""
    bound, low_high = _bound(document, gate), ends(gate.ci95)
    text = f"its 95 % interval contains the bound, so {counted(samples, 'sample')} do not decide: more would"
    if low_high is None or gate.value is None or gate.value == bound:
        return text
    # an interval is as narrow as the root of the samples is large; the narrower side may end where figures do
    margin = max(low_high[1] - gate.value, gate.value - low_high[0])
    needed = samples * (margin / (bound - gate.value)) ** 2
    digits = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return f"{text}, about {math.ceil(needed / digits) * digits:,} if the figure stays" if needed < 1e6 else text


def _samples(document: Document, figure: str) -> int:
    counted = {"top1": document.metrics.top1, "top5": document.metrics.top5, "metric": document.metric}
    of_figure = counted.get(figure.partition(".")[0])
    return int((of_figure.samples if of_figure is not None else None) or document.samples or 0)


def _open(document: Document, gate: Gate) -> bool:
    """Whether the interval of a gate's figure contains its bound."""
    between = ends(gate.ci95)
    return between is not None and between[0] <= _bound(document, gate) <= between[1]


def _bound(document: Document, gate: Gate) -> float:
    return parse_gate(gate.gate, metric=own_metric(document), reachable=False).bound


def _spent(document: Document) -> tuple[str, ...]:
    """Say what a budget came to; nothing where there was none."""
    mixed = document.mixed_precision
    kept = None if mixed is None else next((point for point in mixed.curve if point.kept), None)
    if mixed is None or kept is None or all(each.passed for each in kept.gates.values()):
        return ()
    if mixed.needed_percent is not None:
        return mixed.outcome, f"give --budget {math.ceil(mixed.needed_percent)}, or relax the gate"
    failed = [figure_named(gate, own_metric(document)) for gate, each in kept.gates.items() if not each.passed]
    told = all(figure in TOLD_BY_NOISE for figure in failed)  # then the outcome says that no larger budget would do
    return mixed.outcome, "relax the gate" if told else "try a larger --budget, or relax the gate"


def _layers(document: Document) -> str:
    """Name the layers that make the noise: by their measured share of it, or where the SQNR falls in network order."""
    mixed = document.mixed_precision
    if mixed is not None and mixed.layers:
        shares = [f"{each.node} ({each.contribution:.2f} of it)" for each in mixed.layers if each.contribution >= _LOUD]
        return f"most noise is made by {_listed(shares)}" if shares else ""
    rises = sorted(_rises(document), key=lambda each: -each[0])
    total = sum(rise for rise, _, _ in rises)
    loud = [(layer, text) for rise, layer, text in rises if total and rise >= _LOUD * total]
    if not loud:
        return ""
    # layers with weights have nodes that the user's model has, too; others may be what became of several
    own = {each.tensor: each.node for each in document.weights}
    named = _listed([f"{own.get(layer.tensor) or layer.node or layer.tensor} ({text})" for layer, text in loud])
    exclude = next((own[layer.tensor] for layer, _ in loud[:_NAMED] if own.get(layer.tensor)), "")
    return f"SQNR falls most at {named}" + (
        f"; --exclude '{printable(exclude)}' leaves one in float" if exclude else ""
    )


def _rises(document: Document) -> list[tuple[float, LayerMetrics, str]]:
    """Return by how much the ratio of noise to signal rises at each layer beside the one before it, and the SQNRs."""
    found: list[tuple[float, LayerMetrics, str]] = []
    before = math.inf
    for layer in document.layers:
        if layer.sqnr_db is None:
            continue
        rise = 10 ** (-layer.sqnr_db / 10) - 10 ** (-before / 10)
        came = "" if math.isinf(before) else f"{wording.EXACT if before >= EXACT_DB else f'{before:.1f}'} to "
        if rise > 0 and layer.op_type != "Input":
            found.append((rise, layer, f"{came}{layer.sqnr_db:.1f} dB"))
        before = layer.sqnr_db
    return found


def _recipe(document: Document, layers: str) -> tuple[str, ...]:
    """Say which recipe and which option to try next.

    Args:
        document: The report.
        layers: What to call those that make the noise, named before or not.
    """
    recipe = document.settings.get("recipe")
    if recipe is None:  # any tool's model, which was only evaluated
        return (f"leave {layers} in float, or calibrate with --recipe accurate",)
    stronger = "" if recipe == "accurate" else "try --recipe accurate"
    budget = "" if document.mixed_precision else "--budget PERCENT leaves as few layers in float as the gate takes"
    return stronger, budget


def _listed(names: list[str]) -> str:
    return some(map(printable, names), _NAMED)


_OF_FLOAT = "this is the FP32 model's own figure: check that data, labels and preprocessing are the model's"
# What figures' names begin with -> what to say of a gate about them.
_ABOUT: dict[str, Callable[[Document, Gate, str], tuple[str, ...]]] = {
    "latency.": _about_latency,
    "size.": _about_size,
    "saturation.": _about_saturation,
    "fusion.": _about_fusion,
    **dict.fromkeys(OUTPUT_FAULTS, _about_faults),
}
