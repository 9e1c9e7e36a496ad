"""The engine that takes the statistics of a file: samples are read for those to keep, and nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.calibration.engines.local import Collected, KeptSamples
from int8cal.data.padding import tally
from int8cal.errors import DataError, StatisticsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.calibration.statistics import Statistics
    from int8cal.data.sample import Sample
    from int8cal.graph.taps import Tap


class Stored:
    """Takes the statistics of a file, called as `Counting` is: samples are read for those to keep, and nothing is run.

    Args:
        statistics: Of the main graph or a body; None where the file holds none.
        where: The file, for messages.
        body: Path of the body of an If, Loop or Scan whose statistics they are; "" for the main graph's.
        taps: What the job quantizes.
        model_sha256: Of the job's FP32 model.
        keep: How many samples to keep, the same ones that `collect` would keep.
    """

    def __init__(
        self,
        statistics: Statistics | None,
        where: str,
        body: str,
        taps: tuple[Tap, ...],
        *,
        model_sha256: str,
        keep: int = 0,
    ) -> None:
        self._statistics, self._where, self._body = statistics, where, body
        self._taps, self._sha256 = taps, model_sha256
        self._keeping = KeptSamples(keep)

    @property
    def seen(self) -> int:
        """Number of samples so far, or in the file."""
        return self._keeping.seen or (0 if self._statistics is None else self._statistics.samples)

    def extend(self, samples: Iterable[Sample]) -> None:
        """Choose from samples those to keep.

        Raises:
            StatisticsError: As `result`, before any sample is read.
        """
        self._fitting()
        for sample in samples:
            self._keeping.add(sample)

    def result(self) -> Collected:
        """Return the file's statistics and the samples that were kept.

        Raises:
            StatisticsError: They are of another model, or lack a tensor or the body.
            DataError: There is no sample.
        """
        statistics, keeping = self._fitting(), self._keeping
        if not keeping.seen and not self._body:
            raise DataError("yields no sample", do="give at least one")
        tally((*statistics.padding, *keeping.padding))  # refuses statistics that count what is trimmed now
        remark = f"ranges follow {statistics.samples} samples of {self._where}, which are not the data's {keeping.seen}"
        return Collected(statistics, keeping.samples(), "" if keeping.total == statistics.fingerprint else remark)

    def _fitting(self) -> Statistics:
        if self._statistics is None:
            raise StatisticsError(
                f"holds nothing of {self._body}, which the data run",
                where=self._where,
                do="calibrate shards whose samples run it too, or leave the statistics out",
            )
        _require_fitting(self._statistics, self._taps, self._sha256, self._where)
        return self._statistics


def _require_fitting(statistics: Statistics, taps: tuple[Tap, ...], model_sha256: str, where: str) -> None:
    if statistics.model_sha256 != model_sha256:
        raise StatisticsError(
            f"is of another model (sha256 {statistics.model_sha256[:12]}…, this one is {model_sha256[:12]}…)",
            where=where,
            do="give statistics of this model, or leave them out to calibrate on the data",
        )
    for tap in taps:
        held = statistics.tensors.get(tap.tensor)
        channels = 0 if held is None or held.channels is None else len(held.channels.low)
        lacks = "no tensor" if held is None else f"{channels} channels, not {tap.channels}, of"
        if held is None or (tap.channel_axis is not None and channels != tap.channels):
            raise StatisticsError(
                f"holds {lacks} {tap.tensor!r}, which this job quantizes",
                where=where,
                do="count the data with this job's version, --target, --include and --exclude",
                tensor=tap.tensor,
            )
