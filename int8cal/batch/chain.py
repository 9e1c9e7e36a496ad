"""Chains of models: the float outputs of one are the samples of the next, and the int8 models are compared as a whole.

Recording comes before the jobs of the batch, which then are jobs like all others; comparing comes after them.
"""

from __future__ import annotations

import io
import itertools
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from int8cal.batch.jobs import JobResult
from int8cal.batch.summary import figures_of
from int8cal.calibrating import files_of
from int8cal.config.chain import CALIBRATION, EVALUATION, data_of, splits
from int8cal.data.find import visible_files
from int8cal.data.fit import LABEL_KEYS, Header, are_apart, count_rows, first_unsound
from int8cal.data.opening import open_feeds
from int8cal.data.sample import Sample
from int8cal.errors import DataError, GateError, Int8calError, OutputError, StatisticsError
from int8cal.evaluating import open_samples
from int8cal.evaluation.evaluate import nothing_measured
from int8cal.evaluation.gates import check_gates, parse_gates, require_outputs, with_standing
from int8cal.evaluation.output_groups import GroupFinder
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.pixel_feeds import feeds_for, match_outputs
from int8cal.evaluation.result import Report
from int8cal.gating import failure_of
from int8cal.graph.load import load_model
from int8cal.graph.passes.float32 import float32_reference
from int8cal.graph.random_numbers import random_ops
from int8cal.graph.signature import signature_of
from int8cal.io.atomic import atomic_write
from int8cal.phrases import quoted
from int8cal.report.document import document_of
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from int8cal.batch.jobs import Task
    from int8cal.config.chain import ChainModel, Link
    from int8cal.config.yaml_file import SettingPlace
    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Feed
    from int8cal.graph.passes.float32 import Reference
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.job import DataSettings, Job
    from int8cal.numerics import Array

# Bytes of the samples that are recorded for one model.
RECORDED_LIMIT = 16 << 30
_IN_CHAIN = " in the chain"
_RECORDED = ".npz"
_TOGETHER = "give the models of a chain the same samples, in the same order"
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
        ConfigError: An input or tensor that a model does not have, or of another kind; an input that nothing feeds;
            data of two models that belong together, of which other samples are chosen; a gate on an output that the
            last model does not have; a model called like the row of another.
        ModelError, DataError: A model cannot be loaded, or data beside what it reads cannot be opened.
    """
    signatures = {task.job.name: signature_of(load_model(task.job.model)) for task in chain}
    for task in chain:
        if task.chain is None or not task.chain.links:
            continue
        if (row := row_names(task)[-1]) in signatures:
            what = f'another model is called "{row}", as results of this one are'
            raise task.chain.links[0].place.error(what, "call that one otherwise")
        inputs = {spec.name: spec for spec in signatures[task.job.name].inputs}
        for link in task.chain.links:
            source = signatures[link.source]
            tensors = {spec.name: spec for spec in (*source.inputs, *source.outputs)}
            if link.input not in inputs:
                what = f'the model has no input "{link.input}"'
                raise link.place.error(what, f"its inputs are {quoted(inputs)}")
            if link.tensor not in tensors:
                what = f'"{link.source}" has no output or input "{link.tensor}"'
                raise link.place.error(what, f"it has {quoted(tensors)}")
            _require_fit(link, tensors[link.tensor], inputs[link.input])
        left = inputs.keys() - {link.input for link in task.chain.links}
        if left and not task.chain.own:
            what = f"nothing feeds {quoted(sorted(left))}"
            raise task.chain.links[0].place.error(what, "give data for it, or the tensor of another model")
        _require_same_samples(task, chain, signatures, task.chain.links[0].place)
    last = chain[-1]
    if last.chain is not None:
        outputs = [spec.name for spec in signatures[last.job.name].outputs]
        require_outputs(parse_gates(last.chain.gates, ""), lambda: outputs)


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


def _require_same_samples(
    task: Task, chain: Sequence[Task], signatures: Mapping[str, Signature], place: SettingPlace
) -> None:
    """Refuse data that are read side by side where `samples` and `seed` choose other ones of them, or not as many.

    Raises:
        ConfigError, DataError: Names both models.
    """
    tasks = {each.job.name: each for each in chain}
    for split in splits(task.job):
        first, *others = sorted(_roots_of(task, tasks, split))
        counts = {name: _count(tasks[name], split, signatures[name]) for name in (first, *others) if others}
        for other in others:
            chosen = {
                (data.samples, None if data.samples is None else data.seed)
                for data in (_own_data(tasks[name], split) for name in (first, other))
            }
            if len(chosen) > 1:
                what = f'of the {split} data of "{first}" and "{other}", samples and seed do not choose the same ones'
                raise place.error(what, "give both the same samples and seed")
            pair = (counts[first], counts[other])
            if None not in pair and len({*pair}) > 1:
                raise DataError(
                    f'"{first}" has {pair[0]} {split} samples, "{other}" has {pair[1]}', where=place.text, do=_TOGETHER
                )


def _roots_of(task: Task, tasks: Mapping[str, Task], split: str) -> set[str]:
    """Name the models whose own data a model's samples are made of, itself among them where it has any."""
    found, names = set[str](), [task.job.name]
    for each in names:  # which grows
        chain = tasks[each].chain
        links = () if chain is None else chain.links
        names += (link.source for link in links if link.source not in names)
        if chain is None or not links or split in chain.own:
            found.add(each)
    return found


def _count(task: Task, split: str, signature: Signature) -> int | None:
    """Count the samples of a model's own data; None where only a pass can tell, or that is an error of its job.

    Raises:
        Int8calError: Data beside what the model reads, which its job does not open, are not there or do not fit.
    """
    skip_bad = _own_data(task, split).skip_bad
    if task.chain is not None and task.chain.links:
        count = _open_own(task.chain, split, signature).count
        return None if skip_bad else count
    try:
        return None if skip_bad else _open(task.job, split, float32_reference(task.job.model)).count
    except Int8calError:
        return None


def _own_data(task: Task, split: str) -> DataSettings:
    own = {} if task.chain is None else task.chain.own
    return own.get(split) or data_of(task.job, split)


def record_samples(chain: Sequence[Task], tell: Callable[[str], object] | None) -> None:
    """Run the float models of a chain, and write what they give as samples of those that read them.

    A file that is there with the same bytes is left as it is, so that jobs stay up to date.

    Args:
        chain: Its jobs, in order, checked by `require_links`.
        tell: Gets a line for each model with recorded samples.

    Raises:
        Int8calError: Of the models and the data; samples that do not belong together.
        OutputError: The samples are too many for the disk, or cannot be written.
    """
    tasks = {task.job.name: task for task in chain}
    left_out: dict[str, dict[str, list[str]]] = {CALIBRATION: {}, EVALUATION: {}}
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
            for count, sample in enumerate(_joined(task, tasks, split, left_out[split]), 1):
                written += _write(folder / _recorded(count - 1), sample)
                if written > RECORDED_LIMIT:
                    what = f"samples of more than {RECORDED_LIMIT >> 30} GB would be recorded"
                    raise OutputError(what, where=str(folder), do="give data.samples to the models that it reads")
            _clear(folder, count)
            if tell is not None:
                sources = ", ".join(dict.fromkeys(link.source for link in task.chain.links))
                line = f"{task.job.name}: {count} {split} samples of {sources} recorded in {folder}"
                names = sorted(_roots_of(task, tasks, split))
                files = [file for name in names for file in left_out[split].get(name, ())]
                tell(line + (f"; left out: {', '.join(files)}" if files else ""))


def _recorded(number: int) -> str:
    """Name the file of a recorded sample."""
    return f"{number:06d}{_RECORDED}"


def _clear(folder: Path, count: int) -> None:
    """Remove what an earlier run recorded of more samples.

    Args:
        folder: With recorded samples.
        count: Of this run.

    Raises:
        OutputError: Something that nobody recorded lies there, which would be read as a sample.
    """
    written = set(map(_recorded, range(count)))
    for file in sorted(visible_files(folder)):
        if file.suffix != _RECORDED or file.relative_to(folder).as_posix() in written:
            continue
        if file.parent != folder or not (file.stem.isdecimal() and file.name == _recorded(int(file.stem))):
            what = f"is no sample that was recorded; {folder} is for these alone"
            raise OutputError(what, where=str(file), do="move it away")
        file.unlink()


def _joined(task: Task, tasks: Mapping[str, Task], split: str, left_out: dict[str, list[str]]) -> Iterator[Sample]:
    """Make the samples of a model from those that it reads, and from its own data.

    Args:
        task: Of the model.
        tasks: Of the chain, by name.
        split: The kind of samples.
        left_out: By model with data of its own, which of its files skip_bad left out; what is read here is entered.
    """
    if task.chain is None:
        return
    roots = sorted(_roots_of(task, tasks, split))
    signature, links = signature_of(load_model(task.job.model)), task.chain.links
    names = list(dict.fromkeys(link.source for link in links))
    references = {name: float32_reference(tasks[name].job.model) for name in names}
    feeds = {name: _open(tasks[name].job, split, references[name]) for name in names}
    streams: dict[str, Iterable[tuple[Sample, Feed]]] = {
        name: _run(references[name], feeds[name], [link.tensor for link in links if link.source == name], threads)
        for name, threads in ((name, tasks[name].job.calibration.threads) for name in names)
    }
    if split in task.chain.own:
        feeds[task.job.name] = _open_own(task.chain, split, signature)
        streams[task.job.name] = ((sample, sample.feed) for sample in feeds[task.job.name])
    for number, found in enumerate(itertools.zip_longest(*streams.values())):
        row = dict(zip(streams, found, strict=True))
        left_out.update((name, each.skipped) for name, each in feeds.items() if name in roots)
        bad = next((name for name in roots if left_out.get(name)), None)
        if bad is not None and len(roots) > 1:
            raise DataError(
                f'of "{bad}", {left_out[bad][0]} is left out by skip_bad, so that samples of '
                f'"{next(name for name in roots if name != bad)}" would stand beside those of others',
                where=links[0].place.text,
                do="mend the file, or take it away with what belongs to it",
            )
        short = [name for name, each in row.items() if each is None]
        if short:
            longer = next(name for name in row if name not in short)
            what = f'"{short[0]}" has {number} {split} samples, "{longer}" has more'
            raise DataError(what, where=links[0].place.text, do=_TOGETHER)
        feed = {} if task.job.name not in row else dict(row[task.job.name][1])
        feed |= {link.input: _cast(_given(link, *row[link.source]), signature, link.input) for link in links}
        if not number:
            headers = {name: Header(array.dtype, array.shape) for name, array in feed.items()}
            own = replace(signature, whole=signature.whole or are_apart(signature))
            try:
                count_rows(headers, own, "")
            except DataError as error:
                link = next((each for each in links if each.input == error.fields.get("input")), links[0])
                error.where, error.do = link.place.text, "name another tensor, or give that model other samples"
                raise
        label = next((each[0].label for each in reversed(row.values()) if each[0].label is not None), None)
        yield Sample(feed, "", label)


def _open_own(chain: ChainModel, split: str, signature: Signature) -> Feeds:
    """Open the data of the inputs that no other model feeds."""
    given = {link.input for link in chain.links}
    rest = tuple(spec for spec in signature.inputs if spec.name not in given)
    return open_feeds(chain.own[split], replace(signature, inputs=rest))


def _open(job: Job, split: str, reference: Reference) -> Feeds:
    signature, threads = signature_of(reference.model), job.calibration.threads
    return open_samples(data_of(job, split), reference.model, signature, None, None, threads=threads)


def _run(reference: Reference, feeds: Feeds, tensors: Sequence[str], threads: int) -> Iterator[tuple[Sample, Feed]]:
    """Run a float model over its samples; gives each with the tensors that are asked for, inputs among them."""
    signature = signature_of(reference.model)
    outputs = [spec.name for spec in signature.outputs if spec.name in tensors]
    if not outputs:
        yield from ((sample, sample.feed) for sample in feeds)
        return
    session = Session(reference.run, threads=threads, entries=QUIET)
    for sample, values in run_each(session, signature, feeds, outputs):
        yield sample, sample.feed | values


def _given(link: Link, sample: Sample, values: Feed) -> Array:
    position = first_unsound(values[link.tensor])
    if position is not None:
        what = f'"{link.source}" gives {values[link.tensor][position]} in "{link.tensor}" at {list(position)}'
        raise StatisticsError(what, where=sample.origin, do="check this sample, or that model on it")
    return values[link.tensor]


def _cast(array: Array, signature: Signature, name: str) -> Array:
    dtype = next(spec.dtype for spec in signature.inputs if spec.name == name)
    return np.asarray(array, dtype, order="C")  # np.ascontiguousarray would make a vector of a scalar


def _write(path: Path, sample: Sample) -> int:
    """Write a sample, if the file does not hold it already; returns its bytes."""
    buffer = io.BytesIO()
    label = {} if sample.label is None or LABEL_KEYS[0] in sample.feed else {LABEL_KEYS[0]: np.array([sample.label])}
    with zipfile.ZipFile(buffer, "w") as archive:  # np.savez takes no input that is called as one of its arguments
        for name, array in (sample.feed | label).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
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
        runs = (reference.run, self.int8 if random_ops(self.int8) else self.paths[1])
        self.sessions = [Session(each, threads=self.threads, entries=QUIET) for each in runs]
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
    for number, samples in enumerate(itertools.zip_longest(*streams)):
        if None in samples:
            what = f"has {number} {split} samples, other models of the chain have more, though as many were recorded"
            where = str(data_of(chain[samples.index(None)].job, split).path)
            raise DataError(what, where=where, do="leave the data alone while it is read, and run again")
        values: dict[str, tuple[Feed, Feed]] = {}
        for member, sample in zip(members, samples, strict=True):
            values[member.job.name] = member.run(sample, values)
    return tuple(_result(each, last=each is members[-1]) for each in members if each.chain.links)


def _result(member: _Member, *, last: bool) -> JobResult:
    """Judge a model by its outputs in the chain; the gates of the chain are about the last one."""
    job, comparison = member.job, member.comparison
    apart = GateError("models of a chain are measured one by one, only their outputs are compared in it")
    blank = replace(nothing_measured(*member.paths, job.quantization.target, apart), failures=())
    metrics, outputs, reasons = comparison.metrics(), comparison.outputs(), blank.reasons | comparison.reasons()
    evaluation = replace(blank, samples=comparison.samples, metrics=metrics, outputs=outputs, reasons=reasons)
    gates = with_standing(member.chain.gates, parse_gates(member.chain.gates, "") if last else ())
    report = Report({"name": job.model.name}, {}, evaluation, {}, check_gates(gates, evaluation))
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


def _shape(spec: TensorSpec) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in spec.shape or ())})"
