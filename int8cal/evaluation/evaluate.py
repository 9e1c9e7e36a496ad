"""An int8 model against its FP32 model, over data: one pass over the samples, then layers, fusion and latency."""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.errors import DataError, Int8calError, ModelError, OutputError
from int8cal.evaluation.body_layers import measure_body_layers
from int8cal.evaluation.data_checks import drift, near_chance, one_answer
from int8cal.evaluation.fusion import audit_graph_file, with_names
from int8cal.evaluation.layerwise import LEAST, measure_layers
from int8cal.evaluation.metric_run import MetricRun
from int8cal.evaluation.mismatch import exchanged_outputs, other_weights
from int8cal.evaluation.output_groups import GroupFinder
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.pixel_feeds import feeds_for, match_outputs, require_same_inputs
from int8cal.evaluation.recalled import KnownOutputs, Recalled, recalling
from int8cal.evaluation.result import Evaluation, Fusion, LayerMetrics, Metrics, Saturation, Size, UserMetric
from int8cal.evaluation.result_parts import FIRST, ends
from int8cal.evaluation.runtimes import SecondRuntime, further, saturated_here, unasked
from int8cal.evaluation.speed import Speed, measure_speed, what_is_too_large
from int8cal.evaluation.weak_families import FamilyFinding, weak_families
from int8cal.graph.index import attribute, walk
from int8cal.graph.load import load_model, model_files
from int8cal.graph.passes.float32 import CONVERTED, float32_reference, told_shared
from int8cal.graph.random_numbers import are_alike, can_repeat, random_ops
from int8cal.graph.signature import signature_of
from int8cal.job import DEFAULT_TARGET
from int8cal.phrases import counted, some
from int8cal.progress import stage
from int8cal.protos import metadata_of, weight_bytes, without_weights
from int8cal.runtime.batching import Runs, batch_size, make_feed, run_each
from int8cal.runtime.machine import resolve
from int8cal.runtime.scratch import scratch_folder
from int8cal.runtime.segments import is_long
from int8cal.runtime.sessions import CPU, QUIET, SIDE_BY_SIDE, Session, cpu_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import onnx

    from int8cal.data.sample import Sample
    from int8cal.evaluation.in_cluster import SampleOutputs
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.passes.float32 import Reference
    from int8cal.progress import Exclusive

LAYERWISE_SAMPLES = 32  # the first ones: how many are compared layer by layer at most
LAYER_DB = 1.0  # to what the SQNR of a layer is wanted, 95 % interval, to both sides


def evaluate_pair(
    fp32: Path | onnx.ModelProto | Reference,
    int8: Path | onnx.ModelProto,
    samples: Iterable[Sample],
    *,
    audit: Callable[[onnx.ModelProto, str, Fusion | None], Saturation],
    target: str = DEFAULT_TARGET,
    threads: int = 0,
    latency: bool = True,
    runtimes: Sequence[str] = (),
    providers: Sequence[str] = (),
    clipped: Mapping[str, float] | None = None,
    metric: Metric | None = None,
    reasons: Mapping[str, str] | None = None,
    known: KnownOutputs | None = None,
    elsewhere: Callable[[tuple[onnx.ModelProto, ...], int], Iterable[SampleOutputs]] | None = None,
    exclusive: Exclusive = nullcontext,
) -> Evaluation:
    """Measure what quantization did to a model.

    Args:
        fp32: The model before quantization; one of 16 bits is run in float32, see `float32_reference`.
        int8: The quantized model; any tool's, as long as inputs and outputs correspond.
        samples: Read once, streaming; leading dimension 1 where the model has a batch axis.
        audit: Audits the int8 model for the target, given what the runtime fuses: `audit.worst_case.audit_saturation`.
        target: The target that the saturation audit is for.
        threads: Threads of the runtime; 0 for all CPUs.
        latency: Whether to time both models (3 s at most for models faster than that).
        runtimes: Further runtimes for the int8 model, of evaluation.runtimes.OTHERS; onnxruntime may be named. Where
            none is named, both models are timed in all that are installed, and nothing else is done there.
        providers: onnxruntime's execution providers for outputs and latency, in the order of preference, see
            runtime.machine; none for CPU. Layers are always compared on the CPU provider.
        clipped: FP32 tensor name -> fraction of calibration values outside its range; None when not known.
        metric: The user's own, called with the outputs of all samples; None for none.
        reasons: What the caller already knows about missing figures; wins over the reasons found here.
        elsewhere: Runs both models in place of this process, given these and how many of the first samples must come
            with their feeds: gives every sample with the outputs of both, in order. `samples` are not read then.
        known: Outputs that the models have given already, which they are not run for again; one of each is checked.
        exclusive: Keeps other jobs from running while speed is measured.

    Returns:
        The evaluation. A figure that cannot be had is None, and `reasons` says why under its dotted path. An error in a
        part beside the outputs (layers, fusion, latency, saturation, a further runtime, the user's metric) is in
        `failures`, and takes no other part with it.

    Raises:
        ModelError: A model is missing, corrupt, does not load, or is not the other one's counterpart.
        DataError: There are no samples, or a label is beyond the classes.
        NonFiniteError: An output holds NaN or infinity (names output, model and sample).
        DataError: A kernel failed on a sample.
        UsageError: A runtime or provider is not installed, or a provider does not run the models.
        UnlikeError: The models do not give the `known` outputs.

    Numerics: samples run one by one (a fixed batch is padded), so no figure depends on how the data is cut in files.
    The SQNR is 10 log10(sum x^2 / sum (x - y)^2) over all samples; of several outputs the worst one's counts.
    """
    reference = float32_reference(fp32)
    fp32 = reference.run
    models = (reference.model, load_model(int8) if isinstance(int8, Path) else int8)
    signatures = (signature_of(models[0]), signature_of(models[1]))
    require_same_inputs(*models)
    names = match_outputs(*signatures)
    groups = GroupFinder(models[0], threads=threads)
    comparison = OutputComparison(names, groups)
    own = None if metric is None else MetricRun(metric, names, signatures[0])
    providers = resolve(providers)
    parts = _Parts()
    others = []
    for name in further(runtimes):
        with parts.part(f"runtimes.{name}"):
            others.append(SecondRuntime(name, int8, names, groups, threads=threads))
    audits = providers == (CPU,)
    # other providers have threads and memory of their own
    at_once = min(SIDE_BY_SIDE, threads or cpu_count()) if audits else 1
    open_here = partial(Session, threads=threads, providers=providers, at_once=at_once)
    fusion: Fusion | None = None
    with scratch_folder() as folder:
        open_first = partial(open_here, models[0] if is_long(models[0]) else fp32, entries=QUIET)
        # the known ones are the CPU's; those of a model that is run as a copy in float32 are the copy's, and random
        # ones have to repeat
        recall = known if known and audits else KnownOutputs()
        drawn = [random_ops(each) for each in models]
        is_known = metadata_of(models[0], CONVERTED) is None and (can_repeat(models[0]) or not drawn[0])
        as_given = recall.fp32 if is_known else {}
        first = Recalled(open_first, as_given, at_once) if as_given else open_first()
        # the session that runs the int8 model writes the graph for the audit: optimizing a deep one takes long
        opened = models[1] if is_long(models[1]) or drawn[1] else int8
        second, unwritten = _open_written(
            partial(open_here, opened, entries=QUIET), folder / "graph.onnx" if audits else None
        )
        if drawn[1] and not second.repeats:  # the graph is written of one that draws anew
            second = open_here(opened, entries=QUIET)
        ran: Iterable[SampleOutputs]
        if elsewhere is None:
            ran = _run_here((first, recalling(second, recall.int8)), models, samples, others, parts)
        else:
            ran = elsewhere(models, LAYERWISE_SAMPLES)
        kept = _compare(ran, comparison, own, keep=LAYERWISE_SAMPLES)
        del ran
        outputs = comparison.outputs()
        exchanged = exchanged_outputs((first, second), models, names, kept, outputs)
        random = _random(models, drawn, (first, second))
        del first, second  # the sessions for latency and layers are others, and large models must not be held twice
        if audits and not unwritten:
            with parts.part("fusion"):
                fusion = audit_graph_file(folder / "graph.onnx", with_names(models[1]))
    if not kept:
        raise DataError("there are no samples to evaluate on", do="check the path of --eval-data or --data")

    found = comparison.reasons()
    for other in others:
        found |= other.reasons()
    figures, why = parts.user_metric(own)
    found |= why
    speed = Speed()
    if latency:
        paths = ("latency", *(f"runtimes.{other.name}.latency_ms" for other in others))
        with stage("speed"), parts.part(*paths), exclusive(threads) as every:
            speed = measure_speed(
                (fp32, int8),
                (make_feed(signatures[0], kept[:1]), make_feed(signatures[1], [*feeds_for(models[1], kept[:1])])),
                asked=others,
                unasked=unasked(runtimes, latency=True, target=target, providers=providers),
                too_large=what_is_too_large(model_bytes(reference.given), models[1]),
                rows=(batch_size(signatures[0]), batch_size(signatures[1])),
                providers=providers,
                threads=every,
            )
            found |= speed.reasons
    else:
        found["latency"] = "latency was switched off"
        found |= {f"runtimes.{other.name}.latency_ms": found["latency"] for other in others}
    if unwritten:
        found["fusion"] = unwritten
    elif not audits:
        found["fusion"] = "only the CPU provider's graph is audited, and other providers were asked for"
    layers: tuple[LayerMetrics, ...] = ()
    outer: tuple[LayerMetrics, ...] = ()
    compared = 0
    with stage("layers"), parts.part("layers"):
        few = kept[: _enough(comparison)]
        outer, why, compared = measure_layers(*models, few, threads=threads, clipped=clipped)
        inner, why_not = measure_body_layers(*models, few, threads=threads, clipped=clipped)
        compared = compared or len(few)
        layers = (*outer, *inner)
        if inner and not outer and clipped is not None:
            why.pop("layers", None)  # it is only the main graph that has none
        found |= why | why_not
    families: tuple[FamilyFinding, ...] = ()
    with stage("families"), parts.part("families"):
        families = weak_families(models[0], outer)
    saturation, saturated = Saturation(target, None), tuple[str, ...]()
    with stage("saturation"), parts.part("saturation"):
        saturation = audit(models[1], target, fusion)
        if audits:
            saturated = saturated_here(target, lambda: audit(models[1], "x86-avx2", fusion))
    results = []
    for other in others:
        with parts.part(f"runtimes.{other.name}"):
            results.append(other.result(speed.latencies.get(other.name)))
    return Evaluation(
        samples=comparison.samples,
        metrics=comparison.metrics(),
        outputs=outputs,
        layers=layers,
        fusion=fusion,
        saturation=saturation,
        size=Size(model_bytes(reference.given), model_bytes(int8)),
        latency=speed.latencies.get(FIRST),
        metric=figures,
        reasons=found | dict(reasons or {}) | parts.reasons,
        runtimes=tuple(results),
        latencies=speed.latencies,
        fastest=speed.fastest,
        failures=tuple(parts.failures),
        findings=(
            *near_chance(comparison.metrics().top1, comparison.classes, comparison.answers),
            *one_answer(comparison.samples, still=comparison.still),
            *drift(layers),
        ),
        layer_samples=compared,
        families=families,
        warnings=(
            *saturated,
            *exchanged,
            *random,
            *_unread_labels(comparison, own),
            *told_shared(reference),
            *_in_training(models[0]),
            *other_weights(outer),
            *comparison.warnings(),
            *(line for other in others for line in other.warnings()),
        ),
    )


def _in_training(model: onnx.ModelProto) -> tuple[str, ...]:
    """Say of a float model that it normalizes by what it is fed at a time, as in training, and so is hardly meant."""
    norms = (node for node in walk(model.graph) if node.op_type == "BatchNormalization")
    found = [node.name for node in norms if attribute(node, "training_mode", 0)]
    if not found:
        return ()
    named = f"BatchNormalization {some(map(repr, found), 1)}"
    what = "outputs depend on which samples are run together, and layers around it stay float"
    return (f"{named} in training mode: {what}; export the model in evaluation mode (PyTorch: model.eval())",)


def _unread_labels(comparison: OutputComparison, own: MetricRun | None) -> tuple[str, ...]:
    """Say that labels were given and no figure is made of them: they may be truths of another kind than classes."""
    if own is not None or not comparison.labelled or comparison.metrics().top1 is not None:
        return ()
    why, labels = comparison.reasons()["metrics.top1"], counted(comparison.labelled, "label")
    return (f"no figure is made of {labels}, which stand for classes: {why}; judge other truths by --metric",)


def _random(
    models: Sequence[onnx.ModelProto], drawn: Sequence[Sequence[str]], sessions: Sequence[Runs]
) -> tuple[str, ...]:
    """Say of models that draw random numbers, by these ops, whether the numbers were the same in both."""
    ops = sorted({op for each in drawn for op in each})
    if not ops:
        return ()
    what = f"outputs are random ({', '.join(ops)})"
    # what is recalled is no session: it was compared with what one gives
    if are_alike(*models) and all(each.repeats for each in sessions if isinstance(each, Session)):
        return (f"{what}: both models were compared with the same random numbers",)
    return (f"{what}: each model drew numbers of its own, and what they differ by counts as error",)


def _enough(comparison: OutputComparison) -> int:
    """Return how many samples tell an SQNR to LAYER_DB, by how much the outputs' differs between samples."""
    interval = ends(comparison.metrics().sqnr_db_ci95)
    if interval is None:
        return comparison.samples
    half = (interval[1] - interval[0]) / 2
    return max(math.ceil(comparison.samples * (half / LAYER_DB) ** 2), LEAST)


def nothing_measured(fp32: Path, int8: Path, target: str, error: BaseException) -> Evaluation:
    """Return the evaluation of a pair that an error kept from being evaluated: sizes, and why there is nothing else.

    Args:
        fp32, int8: The models; a file that cannot be read has no size.
        target: As for `evaluate_pair`.
        error: What happened; an interrupt is not among the failures.
    """
    parts = _Parts()
    sizes = [0, 0]
    for index, model in enumerate((fp32, int8)):
        with parts.part("size"):
            sizes[index] = model_bytes(model)
    why = "the evaluation was interrupted" if isinstance(error, KeyboardInterrupt) else _why(error)
    names = ("metrics", "outputs", "layers", "fusion", "saturation", "latency", "runtimes")
    return Evaluation(
        samples=0,
        metrics=Metrics(sqnr_db=None, cosine=None, max_abs_error=None, agreement=None, top1=None, top5=None),
        outputs={},
        layers=(),
        fusion=None,
        saturation=Saturation(target, None),
        size=Size(*sizes),
        latency=None,
        reasons=parts.reasons | dict.fromkeys(names, why),
        failures=(error,) if isinstance(error, Exception) else (),
    )


@dataclass
class _Parts:
    """Parts of an evaluation that fail one by one."""

    failures: list[Exception] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def part(self, *paths: str) -> Iterator[None]:
        """Run one part; its error is kept, and is the reason for these dotted paths."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again by whoever ends the command, when results are written
            self.failures.append(error)
            self.reasons |= dict.fromkeys(paths, _why(error))

    def user_metric(self, run: MetricRun | None) -> tuple[UserMetric | None, dict[str, str]]:
        """Call the user's metric; returns its figures, and why some are None."""
        if run is None:
            return None, {}
        with self.part("metric"):
            return run.result()
        return run.nothing(), {}


def _why(error: BaseException) -> str:
    what = error.what if isinstance(error, Int8calError) else f"{type(error).__name__}: {error}".rstrip(": ")
    return f"it could not be computed: {what}"


def _run_here(
    sessions: Sequence[Runs],
    models: tuple[onnx.ModelProto, onnx.ModelProto],
    samples: Iterable[Sample],
    others: list[SecondRuntime],
    parts: _Parts,
) -> Iterator[SampleOutputs]:
    """Run every sample through both models, and then through the int8 model in other runtimes.

    Another runtime that fails is taken out of `others`.
    """
    # the models may have different fixed batches: tee holds back the few samples between them
    first, second, *more = itertools.tee(samples, 2 + len(others))
    fp32, int8 = sessions
    signature = signature_of(models[1])
    pairs = zip(
        run_each(fp32, signature_of(models[0]), first),
        run_each(int8, signature, feeds_for(models[1], second)),
        strict=True,
    )
    elsewhere = {
        other.name: run_each(other.session, signature, feeds_for(models[1], stream))
        for other, stream in zip(others, more, strict=True)
    }
    del more  # a stream that nobody reads any more would hold every sample
    for (sample, expected), (_, actual) in pairs:
        yield sample, (expected, actual)
        for other in tuple(others):
            with parts.part(f"runtimes.{other.name}"):
                _, outputs = next(elsewhere[other.name])
                other.add(sample, expected, actual, outputs)
                continue
            others.remove(other)
            del elsewhere[other.name]


def _compare(
    outputs: Iterable[SampleOutputs], comparison: OutputComparison, own: MetricRun | None, *, keep: int
) -> list[Sample]:
    """Compare what both models give; returns the first `keep` samples."""
    kept: list[Sample] = []
    for sample, (expected, actual) in outputs:
        comparison.add(sample, expected, actual)
        if own is not None:
            own.add(sample, expected, actual)
        if len(kept) < keep:
            kept.append(sample)
    return kept


def model_bytes(model: Path | onnx.ModelProto) -> int:
    """Size of a model in bytes: its file with its external data files, or its serialized form when in memory."""
    if not isinstance(model, Path):
        return int(without_weights(model).ByteSize()) + weight_bytes(model)
    return sum(file.stat().st_size for file in model_files(model))


def _open_written(open_session: Callable[..., Session], path: Path | None) -> tuple[Session, str]:
    """Open a session that writes its optimized graph, or say why it does not: some run that cannot be written."""
    try:
        return open_session(optimized_path=path), ""
    except (ModelError, OutputError) as error:
        if path is None:
            raise
        return open_session(), f"the runtime could not write its optimized graph: {error.what}"
