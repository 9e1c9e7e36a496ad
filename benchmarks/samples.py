"""Samples kept in a file, so that every worker process loads the same ones at once instead of making them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.models import Feed, Workload

POOL = 64  # different samples in a long stream


def stored_samples(workload: Workload, count: int, folder: Path) -> list[Feed]:
    """Load the first `count` samples, after making and storing them if this is the first time.

    Args:
        workload: Whose samples.
        count: How many.
        folder: Where they are kept, one .npz per workload and count.

    Returns:
        Feeds; all contestants hold them in memory, so that reading files is nobody's time.
    """
    path = folder / f"{workload.name.replace(':', '-')}-{count}.npz"
    if not path.is_file():
        feeds = list(workload.samples(count))
        stacked: dict[str, Any] = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
        np.savez(path, **stacked)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def sample_files(workload: Workload, count: int, folder: Path) -> Path:
    """Return a directory with the first `count` samples as files of one sample each, as a user has them."""
    path = folder / f"{workload.name.replace(':', '-')}-{count}-samples"
    if not path.is_dir():
        part = path.with_name(f"{path.name}.part")
        part.mkdir(exist_ok=True)
        for number, stored in enumerate(stored_samples(workload, count, folder)):
            feed: dict[str, Any] = stored
            np.savez(part / f"{number:05}.npz", **feed)
        part.rename(path)
    return path


def endless(workload: Workload, count: int, folder: Path) -> Iterator[Feed]:
    """Give `count` samples from a pool of a few, so that a long pass holds no more data than a short one."""
    pool = stored_samples(workload, min(count, POOL), folder)
    return (pool[index % len(pool)] for index in range(count))
