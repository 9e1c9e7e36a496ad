"""The jobs of a batch: read from YAML files, chosen by name; and what became of each."""

from __future__ import annotations

import difflib
import fnmatch
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from int8cal.config.expand import require_distinct_outputs
from int8cal.config.load import PATTERN_KEYS, load_jobs, require_available
from int8cal.errors import ConfigError, Int8calError, UsageError
from int8cal.evaluation.gates import gates_of, require_measurable
from int8cal.inputs import flatten, setting_text
from int8cal.phrases import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.config.chain import ChainModel
    from int8cal.config.load import Located
    from int8cal.evaluation.result_parts import Gate
    from int8cal.job import Job

Status = Literal["done", "up to date", "gate failed", "failed", "not run"]

# Settings that set no two jobs apart: they are shown of every job, or no result depends on them.
_NOT_COMPARED = ("model", "name", "output.dir", "quiet", "data.path")


@dataclass(frozen=True)
class Task:
    """One job of a batch.

    Attributes:
        job: Its settings.
        config: The YAML file that it stands in.
        differs: Key path -> text of each setting that is not the same in all jobs of the batch.
        places: Key path -> file, line and key of each setting that is held against the model when the job runs.
        chain: What it is in a chain of models; None for a job of its own.
    """

    job: Job
    config: Path
    differs: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    chain: ChainModel | None = None


@dataclass(frozen=True)
class JobResult:
    """What became of one job: rows, summary files and other views of a batch are made from these.

    Attributes:
        name: Of the job.
        status: "gate failed" of a job that is up to date as well; `ran` tells.
        directory: Its output directory.
        model: File name.
        ran: Whether it ran in this batch.
        exit_code: 0, or that of its error.
        error: One line, which begins with the station; "" where there is none.
        station: Where that error is from: an error's `station`, or "killed" for a process that a signal ended.
        error_type: Class of that error; "" where there is none, and where a gate failed.
        why: Why it ran, or why it did not.
        metrics: Name of a gate's figure -> value, None where it was not measured; empty without a report.
        gates: As in its report.
        findings: What makes its figures untrustworthy, as in its report.
        seconds: Of the run that wrote the results, by the wall clock; None without results.
    """

    name: str
    status: Status
    directory: Path
    model: str
    ran: bool = False
    exit_code: int = 0
    error: str = ""
    station: str = ""
    error_type: str = ""
    why: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    findings: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def stops(self) -> bool:
        """Whether it keeps later jobs from running: it failed and gave no results. A failed gate is a result."""
        return bool(self.exit_code) and not self.metrics


def load_tasks(configs: Sequence[str], overrides: Mapping[str, object], flags: Mapping[str, str]) -> tuple[Task, ...]:
    """Read the jobs of several YAML files, in their order.

    Args:
        configs: The files.
        overrides, flags: As for `load_jobs`.

    Raises:
        ConfigError: A mistake in a file, two jobs with one output directory, a setting that this version lacks.
        UsageError: Settings that contradict each other.
    """
    tasks: list[Task] = []
    for config in configs:
        for located in load_jobs(Path(config), overrides, flags=flags):
            places = {key: located.place(key).text for key in PATTERN_KEYS}
            tasks.append(Task(located.job, Path(config), places=places, chain=located.chain))
            with _placed(located, overrides):
                require_available(located.job)
                _require_whole(located.job)
                gates = gates_of(located.job.evaluation)
                require_measurable(gates, latency=located.job.evaluation.latency)
    require_distinct_outputs([task.job for task in tasks], [str(task.config) for task in tasks])
    return _with_differences(tasks)


def select_tasks(tasks: Sequence[Task], patterns: Sequence[str]) -> tuple[Task, ...]:
    """Select the jobs whose name matches any pattern of --only; all where there is none.

    Raises:
        UsageError: A pattern matches no job; names the nearest ones.
    """
    if not patterns:
        return tuple(tasks)
    names = [task.job.name for task in tasks]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            bare = re.sub(r"[*?\[\]]", "", pattern)
            near = difflib.get_close_matches(bare, names, n=3, cutoff=0.4)
            advice = f"did you mean {_quoted(near, 'or')}?" if near else f"the jobs are {_quoted(names[:10], 'and')}"
            raise UsageError(f'--only "{pattern}" matches no job', do=advice)
    return tuple(task for task in tasks if any(fnmatch.fnmatchcase(task.job.name, pattern) for pattern in patterns))


def _require_whole(job: Job) -> None:
    if job.calibration.shard is not None:
        raise ConfigError(
            "a shard gives statistics alone, which is no job of a batch",
            where=job.name,
            key="calibration.shard",
            do="use int8cal calibrate --config FILE --shard K/N, and int8cal merge",
        )


@contextmanager
def _placed(located: Located, overrides: Mapping[str, object]) -> Iterator[None]:
    """Let an error about a setting begin with its file and line, unless it came from the command line."""
    try:
        yield
    except Int8calError as error:
        key = str(error.fields.get("key", ""))
        if key in overrides:
            raise
        place = located.place(key)
        fields = error.fields | {"line": place.line}
        raise type(error)(error.what, do=error.do, where=place.text, **fields) from error


def _with_differences(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Note for each job the settings that are not the same in all of them."""
    texts = [{key: setting_text(value) for key, value in flatten(asdict(task.job))} for task in tasks]
    keys = dict.fromkeys(key for each in texts for key in each if key not in _NOT_COMPARED)
    differing = [key for key in keys if len({each.get(key) for each in texts}) > 1]
    return tuple(
        replace(task, differs={key: each[key] for key in differing if key in each})
        for task, each in zip(tasks, texts, strict=True)
    )


def _quoted(names: Sequence[str], word: str) -> str:
    """List names as `"a", "b" or "c"`."""
    return quoted(names) if len(names) == 1 else f"{quoted(names[:-1])} {word} {quoted(names[-1:])}"
