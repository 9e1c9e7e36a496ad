"""Chains of models: the float outputs of one are the samples of the next, and the int8 models are compared as a whole.

Recording comes before the jobs of the batch, which then are jobs like all others; comparing comes after them.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from int8cal.batch.jobs import JobResult
from int8cal.batch.summary import figures_of
from int8cal.calibrating import files_of
from int8cal.config.chain import CALIBRATION, EVALUATION, data_of, splits
from int8cal.data.feeds import open_feeds
from int8cal.data.fit import LABEL_KEYS, Header, are_apart, count_rows
from int8cal.data.sample import Sample
from int8cal.errors import DataError, GateError, Int8calError, OutputError
from int8cal.evaluating import open_samples
from int8cal.evaluation.evaluate import nothing_measured
from int8cal.evaluation.gates import check_gates, parse_gates
from int8cal.evaluation.output_groups import GroupFinder
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.pixel_feeds import feeds_for, match_outputs
from int8cal.evaluation.result import Report
from int8cal.gating import failure_of
from int8cal.graph.load import load_model
from int8cal.graph.passes.float32 import float32_reference
from int8cal.graph.signature import signature_of
from int8cal.io.atomic import atomic_write
from int8cal.report.document import document_of
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from int8cal.batch.jobs import Task
    from int8cal.config.chain import ChainModel, Link
    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Array, Feed
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.job import Job

# Bytes of the samples that are recorded for one model.
RECORDED_LIMIT = 16 << 30
_IN_CHAIN = " in the chain"
_WITH_RESULTS = ("done", "up to date", "gate failed")


def chains_of(tasks: Sequence[Task]) -> tuple[tuple[Task, ...], ...]:
    """Return the jobs of each chain among those of a batch, in their order."""
    configs = dict.fromkeys(task.config for task in tasks if task.chain is not None)
    return tuple(tuple(task for task in tasks if task.config == config) for config in configs)


def row_names(task: Task) -> tuple[str, ...]:
    """Name the rows of a job: its own, and that of its model in a chain."""
    linked = task.chain is not None and task.chain.links
    return (task.job.name, f"{task.job.name}{_IN_CHAIN}") if linked else (task.job.name,)


def require_links(chain: Sequence[Task]) -> None:
    """Hold what models of a chain read of each other against the models.

    Raises:
        ConfigError: An input or tensor that a model does not have, or of another kind; an input that nothing feeds.
        ModelError: A model cannot be loaded.
    """
    signatures = {task.job.name: signature_of(load_model(task.job.model)) for task in chain}
    for task in chain:
        if task.chain is None or not task.chain.links:
            continue
        inputs = {spec.name: spec for spec in signatures[task.job.name].inputs}
        for link in task.chain.links:
            source = signatures[link.source]
            tensors = {spec.name: spec for spec in (*source.inputs, *source.outputs)}
            if link.input not in inputs:
                what = f'the model has no input "{link.input}"'
                raise link.place.error(what, f"its inputs are {_names(inputs)}")
            if link.tensor not in tensors:
                what = f'"{link.source}" has no output or input "{link.tensor}"'
                raise link.place.error(what, f"it has {_names(tensors)}")
            _require_fit(link, tensors[link.tensor], inputs[link.input])
        left = inputs.keys() - {link.input for link in task.chain.links}
        if left and not task.chain.own:
            what = f"nothing feeds {_names(sorted(left))}"
            raise task.chain.links[0].place.error(what, "give data for it, or the tensor of another model")


def _require_fit(link: Link, given: TensorSpec, taken: TensorSpec) -> None:
    if given.dtype.kind != taken.dtype.kind:
        what = f'"{link.tensor}" is {given.dtype.name}, the input takes {taken.dtype.name}'
        raise link.place.error(what, "name another tensor")
    if given.shape is None or taken.shape is None:
        return
    sizes = zip(given.shape, taken.shape, strict=False)
    both = (pair for pair in sizes if all(isinstance(size, int) for size in pair))
    if len(given.shape) != len(taken.shape) or any(first != second for first, second in both):
        what = f'"{link.tensor}" has shape {_shape(given)}, the input takes {_shape(taken)}'
        raise link.place.error(what, "name another tensor")


def record_samples(chain: Sequence[Task], tell: Callable[[str], object] | None = None) -> None:
    """Run the float models of a chain, and write what they give as samples of those that read them.

    A file that is there with the same bytes is left as it is, so that jobs stay up to date.

    Args:
        chain: Its jobs, in order, checked by `require_links`.
        tell: Gets a line for each model with recorded samples.

    Raises:
        Int8calError: Of the models and the data; samples that do not belong together.
        OutputError: The samples are too many for the disk, or cannot be written.
    """
    jobs = {task.job.name: task.job for task in chain}
    for task in chain:
        if task.chain is None or not task.chain.links:
            continue
        for split in splits(task.job):
            folder, count = Path(data_of(task.job, split).path), 0
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"cannot be made ({error.strerror})", where=str(folder), do="give another output.dir"
                ) from error
            written = 0
            for count, sample in enumerate(_joined(task, jobs, split), 1):
                written += _write(folder / f"{count - 1:06d}.npz", sample)
                if written > RECORDED_LIMIT:
                    what = f"samples of more than {RECORDED_LIMIT >> 30} GB would be recorded"
                    raise OutputError(what, where=str(folder), do="give data.samples to the models that it reads")
            for number in itertools.count(count):  # of an earlier run with more samples
                if not (folder / f"{number:06d}.npz").is_file():
                    break
                (folder / f"{number:06d}.npz").unlink()
            if tell is not None:
                sources = ", ".join(dict.fromkeys(link.source for link in task.chain.links))
                tell(f"{task.job.name}: {count} {split} samples of {sources} recorded in {folder}")


def _joined(task: Task, jobs: Mapping[str, Job], split: str) -> Iterator[Sample]:
    """Make the samples of a model from those that it reads, and from its own data."""
    if task.chain is None:
        return
    signature, links = signature_of(load_model(task.job.model)), task.chain.links
    names = list(dict.fromkeys(link.source for link in links))
    streams: dict[str, Iterable[tuple[Sample, Feed]]] = {
        name: _run(jobs[name], split, [link.tensor for link in links if link.source == name]) for name in names
    }
    if split in task.chain.own:
        given = {link.input for link in links}
        rest = replace(signature, inputs=tuple(spec for spec in signature.inputs if spec.name not in given))
        streams[task.job.name] = ((sample, sample.feed) for sample in open_feeds(task.chain.own[split], rest))
    for number, found in enumerate(itertools.zip_longest(*streams.values())):
        row = dict(zip(streams, found, strict=True))
        short = [name for name, each in row.items() if each is None]
        if short:
            raise DataError(
                f'"{short[0]}" has {number} {split} samples, '
                f'"{next(name for name in row if name not in short)}" has more',
                where=links[0].place.text,
                do="give the models of a chain the same samples, in the same order",
            )
        feed = {} if task.job.name not in row else dict(row[task.job.name][1])
        feed |= {link.input: _cast(row[link.source][1][link.tensor], signature, link.input) for link in links}
        if not number:
            headers = {name: Header(array.dtype, array.shape) for name, array in feed.items()}
            own = replace(signature, whole=signature.whole or are_apart(signature))
            count_rows(headers, own, links[0].place.text)
        label = next((each[0].label for each in reversed(row.values()) if each[0].label is not None), None)
        yield Sample(feed, "", label)


def _run(job: Job, split: str, tensors: Sequence[str]) -> Iterator[tuple[Sample, Feed]]:
    """Run a float model over its samples; gives each with the tensors that are asked for, inputs among them."""
    reference = float32_reference(job.model)
    signature = signature_of(reference.model)
    outputs = [spec.name for spec in signature.outputs if spec.name in tensors]
    threads = job.calibration.threads
    feeds = open_samples(data_of(job, split), reference.model, signature, None, None, threads=threads)
    if not outputs:
        yield from ((sample, sample.feed) for sample in feeds)
        return
    session = Session(reference.run, threads=threads, entries=QUIET)
    for sample, values in run_each(session, signature, feeds, outputs):
        yield sample, sample.feed | values


def _cast(array: Array, signature: Signature, name: str) -> Array:
    dtype = next(spec.dtype for spec in signature.inputs if spec.name == name)
    return np.asarray(array, dtype, order="C")  # np.ascontiguousarray would make a vector of a scalar


def _write(path: Path, sample: Sample) -> int:
    """Write a sample, if the file does not hold it already; returns its bytes."""
    buffer = io.BytesIO()
    label = {} if sample.label is None or LABEL_KEYS[0] in sample.feed else {LABEL_KEYS[0]: np.array([sample.label])}
    np.savez(buffer, allow_pickle=False, **sample.feed, **label)
    content = buffer.getvalue()
    if not path.is_file() or path.read_bytes() != content:
        atomic_write(path, content)
    return len(content)


class _Member:
    """A model of a chain, in float and in int8."""

    def __init__(self, task: Task, chain: ChainModel) -> None:
        self.job, self.chain = task.job, chain
        directory, (name, *_) = files_of(task.job)
        self.paths = (task.job.model, directory / name)
        reference, self.int8 = float32_reference(task.job.model), load_model(self.paths[1])
        self.signatures = (signature_of(reference.model), signature_of(self.int8))
        self.reference, self.threads = reference.model, task.job.calibration.threads
        self.sessions = [Session(each, threads=self.threads, entries=QUIET) for each in (reference.run, self.paths[1])]
        self.names = match_outputs(*self.signatures)
        self.comparison = OutputComparison(self.names, GroupFinder(reference.model, threads=self.threads))

    def samples(self, split: str) -> Feeds:
        """Open the samples as they were recorded, or the model's own data."""
        data, signature = data_of(self.job, split), self.signatures[0]
        if self.chain.links and signature.batch == "dynamic":  # a sample in each file
            return open_feeds(data, replace(signature, whole=True))
        return open_samples(data, self.reference, signature, None, None, threads=self.threads)

    def run(self, sample: Sample, values: Mapping[str, tuple[Feed, Feed]]) -> tuple[Feed, Feed]:
        """Run both models on a sample; of what other models give, each gets that of its own kind.

        Args:
            sample: As recorded, or of the model's own data.
            values: Of the models before: tensors in float and in int8, by the float model's names.

        Returns:
            The tensors of this model, likewise.
        """
        given = dict(sample.feed)
        for link in self.chain.links:
            array = values[link.source][1][link.tensor]
            given[link.input] = array.astype(sample.feed[link.input].dtype)
        changed = Sample(given, sample.origin, sample.label)
        ((_, expected),) = run_each(self.sessions[0], self.signatures[0], [sample])
        ((_, actual),) = run_each(self.sessions[1], self.signatures[1], feeds_for(self.int8, [changed]))
        self.comparison.add(sample, expected, actual)
        named = {first: actual[second] for first, second in self.names if second in actual}
        return {**sample.feed, **expected}, {**given, **named}


def with_chains(
    tasks: Sequence[Task], results: Sequence[JobResult], report: Callable[[JobResult, str], object]
) -> tuple[tuple[Task, ...], tuple[JobResult, ...]]:
    """Compare each chain whose jobs all have results, and append what came out to those of the batch.

    Args:
        tasks, results: Of the batch.
        report: Shows a result.

    Returns:
        Jobs and results; the job of a further result is that of its model.
    """
    ended = {id(task): result.status in _WITH_RESULTS for task, result in zip(tasks, results, strict=True)}
    jobs, found = list(tasks), list(results)
    for chain in chains_of(tasks):
        sources = {link.source for task in chain if task.chain for link in task.chain.links}
        if not sources <= {task.job.name for task in chain} or not all(ended[id(task)] for task in chain):
            continue
        try:
            compared = compare_chain(chain)
        except Int8calError as error:
            compared = (_failed(chain[-1], error),)
        owners = {name: task for task in chain for name in row_names(task)}
        for result in compared:
            report(result, "")
            jobs.append(owners[result.name])
            found.append(result)
    return tuple(jobs), tuple(found)


def _failed(task: Task, error: Int8calError) -> JobResult:
    return JobResult(
        f"{task.job.name}{_IN_CHAIN}",
        "failed",
        files_of(task.job)[0],
        task.job.model.name,
        ran=True,
        exit_code=error.exit_code,
        error=str(error),
        station=error.station,
        error_type=type(error).__name__,
    )


def compare_chain(chain: Sequence[Task]) -> tuple[JobResult, ...]:
    """Compare the int8 models of a chain with the float ones, each fed by the int8 models before it.

    Args:
        chain: All its jobs, in order; each has an int8 model.

    Returns:
        For each model that reads others a result called "NAME in the chain", with the figures of its outputs; the last
        one's has the gates of the chain.

    Raises:
        Int8calError: A model fails on what another gives.
    """
    members = [_Member(task, task.chain) for task in chain if task.chain is not None]
    split = EVALUATION if all(EVALUATION in splits(task.job) for task in chain) else CALIBRATION
    streams = [each.samples(split) for each in members]
    for samples in zip(*streams, strict=True):
        values: dict[str, tuple[Feed, Feed]] = {}
        for member, sample in zip(members, samples, strict=True):
            values[member.job.name] = member.run(sample, values)
    return tuple(_result(each, last=each is members[-1]) for each in members if each.chain.links)


def _result(member: _Member, *, last: bool) -> JobResult:
    job, comparison = member.job, member.comparison
    apart = GateError("models of a chain are measured one by one, only their outputs are compared in it")
    blank = nothing_measured(*member.paths, job.quantization.target, apart)
    outputs = comparison.outputs()
    evaluation = replace(blank, samples=comparison.samples, metrics=comparison.metrics(), outputs=outputs, failures=())
    texts = member.chain.gates if last else ()
    report = Report({"name": job.model.name}, {}, evaluation, {}, check_gates(parse_gates(texts, None), evaluation))
    error = failure_of(report)
    return JobResult(
        f"{job.name}{_IN_CHAIN}",
        "done" if error is None else "gate failed",
        files_of(job)[0],
        job.model.name,
        ran=True,
        exit_code=0 if error is None else error.exit_code,
        error="" if error is None else str(error),
        station="" if error is None else error.station,
        why="each model was fed by the int8 models above it",
        metrics=figures_of(document_of(report)),
        gates=report.gates,
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _shape(spec: TensorSpec) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in spec.shape or ())})"
