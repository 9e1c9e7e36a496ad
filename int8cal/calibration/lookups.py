"""What embeddings may give beyond what samples looked up: the values of their tables, which are known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.collector import Collector
from int8cal.graph.ops import is_standard
from int8cal.graph.taps import Tap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan


def find_lookups(index: Index, plan: Plan) -> dict[str, str]:
    """Return the planned tensors whose values rows of a constant table are, each with its table.

    Those that share their scale with what other nodes write are left out.
    """
    found = {}
    for group in plan.groups:
        sources = [each.tensor for each in plan.members(group) if each.source]
        node = index.producer.get(sources[0]) if len(sources) == 1 else None
        if node is None or node.op_type != "Gather" or not is_standard(node):
            continue
        if index.is_float_constant(node.input[0]):
            found[sources[0]] = node.input[0]
    return found


def with_tables(
    index: Index, looked_up: Mapping[str, str], tensors: Mapping[str, TensorStatistics]
) -> dict[str, TensorStatistics]:
    """Return statistics of looked-up tensors in which a table's rows count too, in all as much as those of samples.

    A few hundred samples see a few of the users, items or words that there are, and the range of these clips the
    others. Which rows come how often is not known; half and half loses little where samples have seen them all.

    Args:
        index: Of the prepared model.
        looked_up: `find_lookups` of it.
        tensors: Statistics of the planned tensors.
    """
    result = {}
    for tensor, table in looked_up.items():
        values, observed = index.constant(table), tensors.get(tensor)
        if observed is None or not observed.count or not np.isfinite(values).all():
            continue
        seen = replace(observed, channels=None)
        collector = Collector(Tap(tensor))
        collector.add(values, table)
        whole = collector.result()
        result[tensor] = _times(seen, whole.count // seen.count) + _times(whole, seen.count // whole.count)
    return result


def _times(values: TensorStatistics, times: int) -> TensorStatistics:
    return replace(values, counts=values.counts * max(times, 1), zeros=values.zeros * max(times, 1))
