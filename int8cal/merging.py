"""Statistics of shards, added to those of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.calibration.statistics import Statistics, merge
from int8cal.calibration.statistics_file import load_statistics, save_statistics
from int8cal.errors import StatisticsError
from int8cal.output_paths import require_apart, require_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class MergeOutcome:
    """How many samples the sum holds, and warnings."""

    samples: int
    warnings: tuple[str, ...]


def merge_files(inputs: Sequence[Path], output: Path, overwrite: bool = False) -> MergeOutcome:
    """Add the statistics of shards and write the sum.

    Raises:
        StatisticsError: A file is unreadable, or the shards do not belong together.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), inputs)
    seen: dict[int, Path] = {}
    read: list[Path] = []
    warnings = []

    def shards() -> Iterator[Statistics]:
        for path in inputs:
            shard = load_statistics(path)
            if shard.fingerprint in seen:
                warnings.append(f"{path} holds the same samples as {seen[shard.fingerprint]}; they count twice")
            seen[shard.fingerprint] = path
            read.append(path)
            yield shard

    try:
        total = merge(shards())
    except StatisticsError as error:
        error.where = error.where or _pair(read[:-1], read[-1])
        raise
    save_statistics(total, output)
    return MergeOutcome(total.samples, tuple(warnings))


def _pair(before: Sequence[Path], path: Path) -> str:
    """Name a file whose statistics do not add to those of the files before, with the first of these that is why."""
    last = load_statistics(path)
    for each in before:
        try:
            merge([load_statistics(each), last])
        except StatisticsError:
            return f"{each} and {path}"
    return str(path)
