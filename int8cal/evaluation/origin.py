"""Where a report comes from: the date, the command and the machine, which differ between two runs of one job."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from int8cal.errors import UsageError
from int8cal.evaluation.result import Machine, Origin
from int8cal.evaluation.runtimes import further
from int8cal.runtime.machine import FLAGS, cpu_flags, cpu_name, physical_cores
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Sequence

# Seconds since 1970 that builds whose output shall not depend on the day put in place of the clock.
EPOCH = "SOURCE_DATE_EPOCH"


def origin_of(command: str, *, threads: int = 0, runtimes: Sequence[str] = ()) -> Origin:
    """Say when, by what and where a report is made.

    Args:
        command: What was run, as it was given.
        threads: Of the runtime; 0 for one per CPU that the process may use.
        runtimes: Those that are measured beside onnxruntime.

    Raises:
        UsageError: The environment's SOURCE_DATE_EPOCH is no date.
    """
    flags = cpu_flags()
    machine = Machine(
        cpu=cpu_name(),
        flags=tuple(flag for flag in FLAGS if flag in flags),
        physical_cores=physical_cores(),
        logical_cores=cpu_count(),
        threads=threads or cpu_count(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        runtimes={name: importlib.metadata.version(name) for name in ("onnxruntime", *further(runtimes))},
    )
    return Origin(date=_date(), command=command, machine=machine)


def _date() -> str:
    given = os.environ.get(EPOCH)
    try:
        date = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f'{EPOCH} is "{given}", expected whole seconds since 1970', where="environment", do="set it so, or unset it"
        ) from error
    return f"{date:%Y-%m-%dT%H:%M:%SZ}"
