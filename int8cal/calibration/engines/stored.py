"""No pass over the data: statistics that were counted before, in shards maybe, and samples to judge on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.calibration.engines.kept import Collected, Smallest
from int8cal.calibration.statistics_file import load_statistics
from int8cal.data.padding import tally
from int8cal.errors import DataError, StatisticsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.graph.taps import Tap


def stored(path: Path) -> Callable[..., Collected]:
    """Return an engine that reads statistics from a file, called as `engines.local.collect` is.

    It runs nothing. The samples are read for those to judge corrections on, the same ones that `collect` would keep.

    Args:
        path: A .stats.npz of the model, with the plan that the job has.

    Raises:
        StatisticsError: The file is missing or damaged, of another model, or lacks a tensor. The engine raises it, and
            DataError where there is no sample.
    """

    def engine(
        model: onnx.ModelProto,  # noqa: ARG001 - called as collect is
        signature: Signature,  # noqa: ARG001
        taps: tuple[Tap, ...],
        samples: Iterable[Sample],
        *,
        model_sha256: str,
        threads: int = 0,  # noqa: ARG001
        keep: int = 0,
    ) -> Collected:
        statistics = load_statistics(path)
        _require_fitting(statistics, taps, model_sha256, str(path))
        kept = Smallest(keep)
        for sample in samples:
            kept.add(sample)
        if not kept.seen:
            raise DataError("yields no sample", do="give at least one")
        tally((*statistics.padding, *kept.padding))  # refuses statistics that count what is trimmed now
        remark = f"ranges follow {statistics.samples} samples of {path}, which are not the data's {kept.seen}"
        return Collected(statistics, kept.samples(), "" if kept.total == statistics.fingerprint else remark)

    return engine


def _require_fitting(statistics: Statistics, taps: tuple[Tap, ...], model_sha256: str, where: str) -> None:
    if statistics.model_sha256 != model_sha256:
        raise StatisticsError(
            f"is of another model (sha256 {statistics.model_sha256[:12]}…, this one is {model_sha256[:12]}…)",
            where=where,
            do="give statistics of this model, or leave them out to calibrate on the data",
        )
    for tap in taps:
        held = statistics.tensors.get(tap.tensor)
        lacks = "no tensor" if held is None else ""
        if held is not None and tap.channel_axis is not None and _channels(held) != tap.channels:
            lacks = f"{_channels(held)} channels, not {tap.channels}, of"
        if lacks:
            raise StatisticsError(
                f"holds {lacks} {tap.tensor!r}, which this job quantizes",
                where=where,
                do="calibrate the shards with the same version, --include and --exclude",
                tensor=tap.tensor,
            )


def _channels(held: TensorStatistics) -> int:
    return 0 if held.channels is None else len(held.channels.low)
