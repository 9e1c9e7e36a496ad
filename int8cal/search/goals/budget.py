"""A budget being spent: the search for layers outside int8, with its best result on disk all the time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from int8cal.calibration.statistics_file import save_statistics
from int8cal.data.checks import SampleWatch
from int8cal.data.opening import open_feeds
from int8cal.evaluation.in_cluster import ClusterOutputs
from int8cal.identity import identified, save_stamped
from int8cal.quantization.table_file import save_table
from int8cal.search.goals.gate_figures import GateEvaluator
from int8cal.search.goals.reach_gates import GateSearch

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.calibration.engines.local import Collected
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.statistics import Statistics
    from int8cal.evaluation.result import MixedPrecision
    from int8cal.io.atomic import OutputDirectory
    from int8cal.job import Job
    from int8cal.search.candidate import Planned
    from int8cal.search.recipes import Recipe
    from int8cal.search.search import Result

SAMPLES = 8  # calibration samples that are kept at least, to measure the layers' noise on


def kept_samples(job: Job, recipe: Recipe) -> int:
    """Return how many calibration samples are kept for what comes after statistics."""
    if job.quantization.budget is not None:
        return max(recipe.validation_samples + recipe.fit_samples, SAMPLES)
    return recipe.validation_samples + recipe.fit_samples or (1 if job.quantization.optimize else 0)


@dataclass
class BestResult:
    """Where results lie while a search goes on; nowhere for one in memory.

    Attributes:
        output: The output directory.
        names: Of the model, the table and the statistics.
        stale: Files of an earlier run that describe another model; they go with the first result.
        state: The file that remembers what was measured.
        latest: The best table and model so far, and the statistics, should what comes after them fail.
    """

    output: OutputDirectory | None = None
    names: tuple[str, str, str] = ("", "", "")
    stale: tuple[str, ...] = ()
    state: str = ""
    latest: tuple[Result, Statistics] | None = field(default=None, init=False, repr=False)
    _begun: bool = field(default=False, init=False, repr=False)

    @property
    def state_path(self) -> Path | None:
        """The file that remembers what was measured; None in memory."""
        return None if self.output is None else self.output.path / self.state

    def publish(self, result: Result, statistics: Statistics) -> None:
        """Put a result in the place of the one before.

        Raises:
            OutputError: The directory cannot be written.
        """
        self.latest = (result, statistics)
        if self.output is None:
            return
        table = identified(result.table)
        with self.output.stage() as stage:
            save_stamped(result.model, table, stage / self.names[0])
            save_table(table, stage / self.names[1])
            if not self._begun:
                save_statistics(statistics, stage / self.names[2])
        if not self._begun:
            for name in self.stale:
                (self.output.path / name).unlink(missing_ok=True)
        self._begun = True


def spend_budget(
    job: Job,
    planned: Planned,
    result: Result,
    collected: Collected,
    best_result: BestResult,
    cluster: Cluster | None,
) -> tuple[Result, MixedPrecision]:
    """Leave layers out of int8 until the job's gates about outputs hold; see `GateSearch`.

    Args:
        job: With a budget and such a gate.
        planned: Its model and data.
        result: With every layer in int8.
        collected: What calibration gave.
        best_result: Where results go.
        cluster: Runs the evaluation data, and what measures the layers' noise; None for this process.

    Raises:
        Int8calError: Of evaluating or writing.
    """
    prepared, statistics, judged = planned.prepared, collected.statistics, job.evaluation.data
    feeds = planned.feeds if judged is None else open_feeds(judged, prepared.signature, trim=planned.trim)
    elsewhere = None
    if cluster is not None:
        elsewhere = ClusterOutputs(cluster, feeds, SampleWatch("evaluation", prepared.signature))
    threads, path = job.calibration.threads, best_result.state_path
    evaluator = GateEvaluator(
        planned.source,
        feeds,
        sha256=prepared.sha256,
        path=path,
        threads=threads,
        metric=planned.metric,
        elsewhere=elsewhere,
    )
    best_result.publish(result, statistics)
    publish = partial(best_result.publish, statistics=statistics)
    with nullcontext() if cluster is None else cluster.held():
        return GateSearch(prepared, job, result, collected, evaluator, publish, cluster).run()
