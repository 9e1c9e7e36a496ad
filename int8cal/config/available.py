"""What this version can do, out of what the settings can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.errors import ConfigError, UsageError
from int8cal.evaluation.gates import on_outputs, parse_gate
from int8cal.runtime.targets import TARGETS
from int8cal.search.recipes import RECIPES

if TYPE_CHECKING:
    from int8cal.job import Job

# Section and key -> the choices that are built. Everything else is refused, never replaced by something near it.
AVAILABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("quantization", "recipe"): tuple(RECIPES),
    ("quantization", "target"): tuple(TARGETS),
    ("calibration", "engine"): ("local",),
}


def require_available(job: Job) -> None:
    """Refuse a setting that is known but not built in this version.

    Args:
        job: The job, before anything is read or written.

    Raises:
        ConfigError: Names the setting, its value and what is available.
        UsageError: A budget without a gate that it could be spent on, or beside optimize; a target that cannot have
            what is asked for.
    """
    for (section, key), available in AVAILABLE.items():
        value = getattr(getattr(job, section), key)
        if value not in available:
            raise ConfigError(
                f'{section}.{key} "{value}" is not available in this version',
                do=f"use {' or '.join(available)}",
                where=job.name,
                key=f"{section}.{key}",
                value=value,
            )
    _require_sense_of_target(job)
    if job.quantization.budget is not None:
        _require_use_for_budget(job)


def _require_sense_of_target(job: Job) -> None:
    target, settings = TARGETS[job.quantization.target], job.quantization
    if settings.activations not in target.activations:
        raise UsageError(
            f"target {target.name} takes activations {' or '.join(target.activations)}, not {settings.activations}",
            where=job.name,
            do="leave activations out, or choose another target",
        )
    if settings.optimize is not None and not target.onnxruntime:
        raise UsageError(
            f"optimize measures kernels of onnxruntime, which says nothing of target {target.name}",
            where=job.name,
            do="leave one of them out",
        )


def _require_use_for_budget(job: Job) -> None:
    gates = [parse_gate(text) for text in job.evaluation.gates]
    if not gates:
        raise UsageError(
            "a budget is spent until the gates hold, but there is no gate",
            where=job.name,
            key="quantization.budget",
            do='give --gate, for example --gate "sqnr_db>=30", or leave --budget out',
        )
    if not on_outputs(gates):
        raise UsageError(
            f'a budget buys accuracy, but no gate is about it ("{gates[0].text}")',
            where=job.name,
            key="quantization.budget",
            do='give one that is, for example --gate "sqnr_db>=30", or leave --budget out',
        )
    if job.quantization.optimize is not None:
        raise UsageError(
            "budget spends time on accuracy by estimates, optimize saves time by measuring: not both in one job",
            where=job.name,
            key="quantization.budget",
            do="leave one of them out",
        )
