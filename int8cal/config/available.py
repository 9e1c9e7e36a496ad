"""What this version can do, out of what the settings can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from int8cal.job import Job

# Section and key -> the choices that are built. Everything else is refused, never replaced by something near it.
AVAILABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("quantization", "recipe"): ("fast",),
    ("quantization", "target"): tuple(TARGETS),
    ("calibration", "engine"): ("local",),
}


def require_available(job: Job) -> None:
    """Refuse a setting that is known but not built in this version.

    Args:
        job: The job, before anything is read or written.

    Raises:
        ConfigError: Names the setting, its value and what is available.
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
