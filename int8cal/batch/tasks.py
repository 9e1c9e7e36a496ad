"""From YAML files to the tasks of a batch: all are checked, some are chosen, and what sets them apart is found."""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.batch.task import Task
from int8cal.config.available import require_available
from int8cal.config.expand import require_distinct_outputs
from int8cal.config.load import load_located
from int8cal.config.patterns import PATTERN_KEYS
from int8cal.errors import Int8calError, UsageError
from int8cal.evaluation.gates import parse_gate, require_measurable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.config.load import Located

# These are told of every job, or say nothing about results.
_TOLD = ("model", "name", "output.dir", "quiet", "data.path")


def load_tasks(configs: Sequence[str], overrides: Mapping[str, object], flags: Mapping[str, str]) -> tuple[Task, ...]:
    """Read the jobs of several YAML files.

    Args:
        configs: The files.
        overrides: Key path -> value from the command line.
        flags: Key path -> option, for messages.

    Raises:
        ConfigError: A mistake in a file, two jobs with one output directory, a setting that this version lacks.
        UsageError: Settings that contradict each other.
    """
    tasks: list[Task] = []
    for config in configs:
        for located in load_located(Path(config), overrides, flags=flags):
            places = {key: located.place(key).text for key in PATTERN_KEYS}
            tasks.append(Task(located.job, Path(config), places=places))
            with _placed(located, overrides):
                require_available(located.job)
                gates = [parse_gate(text) for text in located.job.evaluation.gates]
                require_measurable(gates, latency=located.job.evaluation.latency)
    require_distinct_outputs([task.job for task in tasks], [str(task.config) for task in tasks])
    return with_differences(tasks)


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


def chosen(tasks: Sequence[Task], patterns: Sequence[str]) -> tuple[Task, ...]:
    """Choose the tasks whose name matches a pattern; all where there is none.

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
            advice = f"did you mean {_either(near)}?" if near else f"the jobs are {_either(names[:10], 'and')}"
            raise UsageError(f'--only "{pattern}" matches no job', do=advice)
    return tuple(task for task in tasks if any(fnmatch.fnmatchcase(task.job.name, pattern) for pattern in patterns))


def with_differences(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Note for each task the settings that are not the same in all of them."""
    flat = [dict(_flat(asdict(task.job), "")) for task in tasks]
    keys = dict.fromkeys(key for each in flat for key in each if key not in _TOLD)
    differing = [key for key in keys if len({each.get(key) for each in flat}) > 1]
    return tuple(
        replace(task, differs={key: each[key] for key in differing if key in each})
        for task, each in zip(tasks, flat, strict=True)
    )


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return "none" if value is None else json.dumps(value, default=str)


def _either(names: Sequence[str], word: str = "or") -> str:
    quoted = [f'"{name}"' for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"
