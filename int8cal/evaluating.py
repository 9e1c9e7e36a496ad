"""The order of an evaluation: two models and data become a report."""

from __future__ import annotations

import importlib.metadata
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from pydantic import TypeAdapter

from int8cal.audit.worst_case import audit_saturation
from int8cal.data.callables import CallStream
from int8cal.data.checks import Finding, SampleWatch, classes_of
from int8cal.data.labels import COLUMN, NONE
from int8cal.data.opening import feeds_of, open_feeds
from int8cal.data.padding import record
from int8cal.data.preprocessing import differing, flat, shown
from int8cal.data.sample import Sample
from int8cal.data.text import with_tokenizer_hash
from int8cal.data.trimming import NamedArrays, Opened, RunFeed, Trimmer
from int8cal.errors import DataError, ModelError, naming
from int8cal.evaluation.data_checks import Findings, few_judged, opened
from int8cal.evaluation.evaluate import evaluate_pair
from int8cal.evaluation.feeding import better_fed, feeding_findings
from int8cal.evaluation.gates import (
    ParsedGate,
    all_gates,
    check_gates,
    need_labels,
    never_failing,
    require_classes,
    require_measurable,
    require_outputs,
)
from int8cal.evaluation.layerwise import find_layers
from int8cal.evaluation.mixed_rows import of_whole_rows
from int8cal.evaluation.origin import origin_of
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import Report
from int8cal.evaluation.runtimes import further, unasked
from int8cal.evaluation.user_metric import metric_of
from int8cal.graph.load import Watched, file_sha256, is_quantized, load_model, model_sha256
from int8cal.graph.passes.float32 import float32_reference, told
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import Tap, tapped_model
from int8cal.identity import library_versions, mixed_with, run_of, stored_preprocess
from int8cal.io.atomic import OutputDirectory
from int8cal.io.paths import require_free
from int8cal.phrases import counted
from int8cal.preprocess import Preprocess
from int8cal.progress import Clock, track
from int8cal.progress import stage as open_stage
from int8cal.protos import metadata_of, without_weights
from int8cal.quantization.build import STEPS_KEY
from int8cal.quantization.table import StepResult
from int8cal.report.files import write_reports
from int8cal.runtime.batching import run_each
from int8cal.runtime.machine import resolve
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import CPU, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.data.feeds import Feeds
    from int8cal.data.padding import Padding
    from int8cal.data.shards import Shard
    from int8cal.evaluation.result import Origin
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.signature import Signature
    from int8cal.identity import StoredPreprocess
    from int8cal.job import DataSettings, EvaluationSettings, Job


def evaluate_files(
    job: Job,
    int8: Path,
    *,
    command: str = "",
    tell: Callable[[str], object] | None = None,
    warnings: Sequence[str] = (),
) -> Report:
    """Compare a job's model with an int8 model, and write the reports where the job's output is a directory.

    Args:
        job: As for `evaluate_models`; its gates are judged.
        int8: The int8 model.
        command: What was run, for the report.
        tell: Gets what is found about the data before the work, line by line.
        warnings: Of what was found before, for the report.

    Returns:
        The report; parts that could not be measured are among its evaluation's failures.

    Raises:
        Int8calError: Of the station that failed.
    """
    fp32, output = job.model, job.output
    metric, gates = require_judgeable(job)
    if output.dir is not None:
        require_free(output.dir, overwrite=output.overwrite, directory=True)
    directory = nullcontext() if output.dir is None else OutputDirectory(output.dir, overwrite=output.overwrite)
    with directory as place, weights_folder():
        report = evaluate_models(
            job, fp32, int8, require_labels=need_labels(gates), metric=metric, command=command, tell=tell
        )
        warnings = (*report.warnings, *never_failing(gates), *warnings)
        report = replace(report, gates=check_gates(gates, report.evaluation), warnings=warnings)
        if place is not None:
            with open_stage("report"), place.stage() as stage:
                write_reports(report, stage)
    return report


def evaluate_models(
    job: Job,
    fp32: Path | onnx.ModelProto,
    int8: Path | onnx.ModelProto,
    *,
    require_labels: bool = False,
    metric: Metric | None,
    command: str,
    stream: Callable[[], object] | None = None,
    tell: Callable[[str], object] | None = None,
) -> Report:
    """Compare two models on data.

    Args:
        job: Settings: the data that the models are judged on, the target, threads, and what is measured.
        fp32, int8: The models.
        require_labels: Refuse data without labels, before anything is run.
        metric: The job's own.
        command: What was run, for the report.
        stream: Yields feed dicts, in place of the data's path.
        tell: Gets what is found about the data before the work, line by line.

    Raises:
        ModelError: One of them cannot be loaded, or changed meanwhile, or they are in each other's place.
        DataError: The data does not fit the model, or there are findings and they are errors.
    """
    clock, threads, data = Clock(), job.calibration.threads, job.evaluation.data or job.data
    with open_stage("prepare"):
        origin = job_origin(job, command)
        watched = [(Watched(each), _digest(each)) for each in (fp32, int8) if isinstance(each, Path)]
        reference = float32_reference(fp32)
        signature = signature_of(reference.model)
        if is_quantized(reference.model) and not is_quantized(load_model(int8) if isinstance(int8, Path) else int8):
            raise ModelError(
                "is quantized, and the model that it is compared with is not",
                where=str(fp32) if isinstance(fp32, Path) else "fp32",
                do="give the float model first, then the int8 model",
            )
        trim = trimmer(signature, reference.run, int8, threads=threads)
        header = _header(int8)
        beside = fp32.parent if isinstance(fp32, Path) else Path()
        stored = stored_preprocess(header, int8 if isinstance(int8, Path) else None, beside)
        model = reference.model
        with naming(str(fp32)) if isinstance(fp32, Path) else nullcontext():
            feeds = open_samples(
                data, model, signature, stream, trim, threads=threads, require_labels=require_labels, stored=stored
            )
        used = _used(data, feeds, stored)
        if tell is not None:
            for line in used:
                tell(line)
        data = replace(data, preprocess=feeds.preprocess) if used else data
        findings, watch = Findings(tell, strict=job.evaluation.strict), SampleWatch("evaluation", signature)
        findings.add((*opened(feeds, signature), *_other_preprocess(data, feeds, stored)))
        if stream is None:  # an iterator in memory may give its samples only once
            findings.add(feeding_findings(reference.model, feeds, threads=threads))
            findings.add(better_fed(reference.model, feeds, classes_of(signature), threads=threads))
        findings.require_none()
    with clock.station("evaluate"):
        evaluation = evaluate_pair(
            reference,
            int8,
            track(watch.watch(feeds), feeds.count, "outputs"),
            audit=audit_saturation,
            target=job.quantization.target,
            threads=threads,
            latency=job.evaluation.latency,
            runtimes=job.evaluation.runtimes,
            providers=job.evaluation.providers,
            metric=metric,
            reasons={"layers.clipped": "only known where int8cal calibrated the model"},
        )
    for files, digest in watched:
        files.require_same(digest)
    names = {
        "fp32": fp32.name if isinstance(fp32, Path) else "fp32",
        "int8": int8.name if isinstance(int8, Path) else "int8",
    }
    sha256 = watched[0][1] or "" if isinstance(fp32, Path) else model_sha256(fp32)
    run = run_of(header)
    few = few_judged(evaluation.samples, shares=evaluation.metrics.agreement is not None)
    findings.add((*evaluation.findings, *few, *watch.findings()), told=True)
    return Report(
        model={"name": names["fp32"], "sha256": sha256, "int8": names["int8"], **({"run": run} if run else {})},
        settings={
            "evaluation": evaluation_settings(job.evaluation, data, feeds.padding, watch),
            "versions": versions(job.evaluation.runtimes),
        },
        evaluation=evaluation,
        timing_s=clock.seconds,
        warnings=(
            *map(str, findings.found),
            *(told(reference.model) if reference.run is reference.model else ()),
            *evaluation.warnings,
            *(mixed_with(int8) if isinstance(int8, Path) else ()),
            *skipped_warnings(feeds.skipped),
            *fewer_samples(data, evaluation.samples),
            *padding_lines(feeds.padding, counted=True),
        ),
        decisions=(*used, *feeds.made, *watch.lines(), *padding_lines(feeds.padding, counted=False)),
        steps=steps_of(header),
        findings=findings.found,
        origin=origin,
    )


def job_origin(job: Job, command: str) -> Origin:
    """Say what a job's report was made by and on: with all runtimes that something is measured in."""
    names, target = job.evaluation.runtimes, job.quantization.target
    others = unasked(names, latency=job.evaluation.latency, target=target, providers=job.evaluation.providers)
    return origin_of(command, threads=job.calibration.threads, runtimes=(*names, *others))


def _used(data: DataSettings, feeds: Feeds, stored: StoredPreprocess | None) -> tuple[str, ...]:
    """Say which stored preprocessing is used, where it is."""
    if stored is None or data.preprocess is not None or feeds.preprocess is None:
        return ()
    defaults = flat(Preprocess())
    keys = {key: value for key, value in flat(feeds.preprocess).items() if value != defaults.get(key)}
    if feeds.preprocess.text is not None:
        keys["text.tokenizer"] = feeds.preprocess.text.tokenizer
    told = ", ".join(f"{key} {shown(value)}" for key, value in keys.items() if value not in (None, {}))
    return (f"preprocessing from {stored.source}: {told or 'none'}",)


def _other_preprocess(data: DataSettings, feeds: Feeds, stored: StoredPreprocess | None) -> tuple[Finding, ...]:
    """Say that samples are preprocessed in another way than those that the int8 model was calibrated on."""
    if stored is None or not feeds.prepared or data.preprocess in (None, stored.preprocess):
        return ()
    told = differing(flat(data.preprocess), flat(stored.preprocess))
    if not told:
        return ()
    return (
        Finding(
            "other-preprocess",
            f"{'images' if feeds.images else 'samples'} are preprocessed otherwise than for calibration "
            f"({stored.source}): {told}",
            "leave --preprocess and the like (data.preprocess in a YAML) out, so that the stored one is used",
        ),
    )


def _header(model: Path | onnx.ModelProto) -> onnx.ModelProto:
    """Read a model without its external data; a file that cannot be read is told as `load_model` tells it."""
    if not isinstance(model, Path):
        return model
    try:
        return onnx.load(str(model), load_external_data=False)
    except Exception:  # noqa: BLE001 - protobuf and onnx raise families of their own
        return load_model(model)


def steps_of(int8: onnx.ModelProto) -> tuple[StepResult, ...]:
    """Read what each step of a recipe gave, which models that were calibrated with --explain carry.

    Raises:
        ModelError: The metadata is malformed.
    """
    text = metadata_of(int8, STEPS_KEY)
    try:
        return () if text is None else tuple(TypeAdapter(list[StepResult]).validate_json(text, strict=True))
    except ValueError as error:
        raise ModelError(
            f'its metadata "{STEPS_KEY}" is not a list of steps with name, before_db, after_db and kept',
            do="calibrate the model again",
        ) from error


def _digest(model: Path) -> str | None:
    """Hash a model's files; None for what is none, which whoever loads it tells."""
    try:
        return file_sha256(model)
    except Exception:  # noqa: BLE001 - protobuf and onnx raise families of their own
        return None


def open_samples(
    data: DataSettings,
    model: onnx.ModelProto,
    signature: Signature,
    stream: Callable[[], object] | None,
    trim: Trimmer | None,
    *,
    threads: int,
    require_labels: bool = False,
    stored: StoredPreprocess | None = None,
    shard: Shard | None = None,
    judged: DataSettings | None = None,
) -> Feeds:
    """Open the samples of a path as a model takes them, or of a stream of feed dicts in its place.

    See `open_feeds`, and `of_whole_rows`, which runs the model. Of a stream, which may end for good, the first feeds
    are read, and come first in the first pass. Where a table has more columns than the model takes, the one that holds
    the labels of the `judged` data is none of values.
    """
    if stream is not None:
        first, whole = CallStream("data", stream, signature, data.samples, shard).begun()
        opened_first = partial(feeds_of, first, trim=trim)
        looked_at = of_whole_rows(model, opened_first(signature), opened_first, threads=threads)
        feeds = feeds_of(whole, looked_at.signature, trim)
        feeds.made, feeds.mixed = looked_at.made, looked_at.mixed
        return feeds
    known = None if stored is None else stored.preprocess
    open_with = partial(open_feeds, require_labels=require_labels, trim=trim, stored=known, shard=shard)
    opened_for = partial(open_with, data)
    try:
        feeds = opened_for(signature)
    except DataError as error:
        labels = None if judged is None or data.labels is not None else judged.labels
        if labels is not None and labels.startswith(COLUMN) and error.fields.get("spare"):
            opened_for = partial(open_with, replace(data, labels=labels))
            return of_whole_rows(model, opened_for(signature), opened_for, threads=threads)
        if not error.fields.get("one_label"):
            raise
        # a label for each file, which is then a sample, if the model says so, too
        opened_plain = partial(open_feeds, replace(data, labels=NONE), trim=trim, stored=known, shard=shard)
        found = of_whole_rows(model, opened_plain(signature), opened_plain, threads=threads)
        if not found.signature.whole:
            raise
        feeds = opened_for(found.signature)
        feeds.made = found.made
        return feeds
    return of_whole_rows(model, feeds, opened_for, threads=threads)


def trimmer(
    signature: Signature,
    fp32: Path | onnx.ModelProto,
    int8: Path | onnx.ModelProto | None = None,
    *,
    taps: Sequence[Tap] = (),
    threads: int,
) -> Trimmer:
    """Make what takes the padding off samples; it runs the models when it meets the first padded one.

    Args:
        signature: Of the FP32 model.
        fp32: The model that decides what padding is.
        int8: A model that must take samples without padding too.
        taps: What will be counted; with an int8 model, what that quantizes is compared as well.
        threads: Of the runtime; 0 for all CPUs.
    """

    def runner(model: onnx.ModelProto, own: Signature, session: Session) -> RunFeed:
        bare = without_weights(model)  # says what its pixels are

        def run(feed: NamedArrays) -> NamedArrays:
            ((_, outputs),) = run_each(session, own, feeds_for(bare, [Sample(dict(feed), "")]))
            return outputs

        return run

    def open_models() -> list[Opened]:
        float_, other = (load_model(each) if isinstance(each, Path) else each for each in (fp32, int8 or fp32))
        tensors = [each.tensor for each in (taps if int8 is None else find_layers(float_, other)[0])]
        outputs = runner(float_, signature, Session(fp32, threads=threads))

        def open_tensors() -> RunFeed:
            inside = runner(float_, signature, Session(tapped_model(float_, tensors), threads=threads))
            return lambda feed: {**feed, **inside(feed), **outputs(feed)}

        found = [Opened(signature, outputs, open_tensors)]
        if int8 is not None:
            own = signature_of(other)
            found.append(Opened(own, runner(other, own, Session(int8, threads=threads))))
        return found

    return Trimmer(signature, open_models)


def padding_lines(paddings: Iterable[Padding], *, counted: bool) -> tuple[str, ...]:
    """Say what padding the samples had: that which counts in ranges and figures, or that which does not."""
    return tuple(str(each) for each in paddings if (each.how == "kept") == counted)


def require_judgeable(job: Job) -> tuple[Metric | None, tuple[ParsedGate, ...]]:
    """Refuse a job that cannot be judged as it says, before any work; return its metric and gates.

    Raises:
        ConfigError: A gate on a figure that will not be measured, or on an output that the model does not have; two
            gates that contradict each other; a metric that cannot be called.
        UsageError: A runtime or provider that is not installed.
    """
    settings = job.evaluation
    gates = all_gates(settings)
    require_measurable(gates, latency=settings.latency, audited=resolve(settings.providers) == (CPU,))
    metric = metric_of(settings.metric)
    further(settings.runtimes)
    require_outputs(gates, lambda: [spec.name for spec in signature_of(load_model(job.model)).outputs])
    require_classes(gates, lambda: _class_count(signature_of(load_model(job.model))))
    return metric, gates


def _class_count(signature: Signature) -> int | None:
    """Count the classes of a model: the scores in its first float output; None where its shape does not tell."""
    scores = next((spec for spec in signature.outputs if spec.dtype.kind == "f"), None)
    if scores is None or not scores.shape:
        return None
    sizes = scores.shape if signature.batch is None else scores.shape[1:]
    several = [size for size in sizes if size != 1]
    return several[0] if len(several) == 1 and isinstance(several[0], int) else None


def versions(runtimes: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions that figures depend on, those of further runtimes too."""
    return {**library_versions(), **{name: importlib.metadata.version(name) for name in further(runtimes)}}


def data_settings(data: DataSettings, watch: SampleWatch | None) -> dict[str, object]:
    """Return the data's settings as the report tells them, and how many samples were made to fit (see `Fit`).

    A tokenizer has its hash beside its place.
    """
    if data.preprocess is not None and data.preprocess.text is not None:
        data = replace(data, preprocess=replace(data.preprocess, text=with_tokenizer_hash(data.preprocess.text)))
    fits = {"fit": dict(watch.fits)} if watch is not None and watch.fits else {}
    return {key: value for key, value in asdict(data).items() if value is not None} | fits


def evaluation_settings(
    evaluation: EvaluationSettings, data: DataSettings, paddings: Sequence[Padding], watch: SampleWatch
) -> dict[str, object]:
    """Return what an evaluation ran on, as the report tells it: data, its padding, the metric, providers if not CPU.

    Args:
        evaluation: Of the job.
        data: The data that was used.
        paddings: Of its samples.
        watch: Has looked at the samples.
    """
    resolved = resolve(evaluation.providers)
    settings: dict[str, object] = {"data": data_settings(data, watch)}
    if resolved != (CPU,):
        settings["providers"] = list(resolved)
    if paddings:
        settings["padding"] = record(paddings)
    if evaluation.strict:
        settings["strict"] = True
    if evaluation.metric is not None:
        settings["metric"] = evaluation.metric
    return settings


def skipped_warnings(names: Sequence[str]) -> tuple[str, ...]:
    """Say which unreadable files were left out."""
    if not names:
        return ()
    shown = ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
    return (f"{counted(len(names), 'unreadable file')} skipped: {shown}",)


def fewer_samples(data: DataSettings, samples: int) -> tuple[str, ...]:
    """Say that there were fewer samples than asked for."""
    if data.samples is None or samples >= data.samples:
        return ()
    return (f"{data.path} gave {samples} samples, {data.samples} were asked for",)
