"""How the optional libraries are installed: every message about a missing one ends in what this file says.

The extras themselves, and what each brings, are in pyproject.toml.
"""

from __future__ import annotations

PUBLISHED = False  # whether a package index holds int8cal under its own name; a release sets it (docs/releasing.md)


def extra_hint(extra: str) -> str:
    """Say how an extra is installed today.

    Args:
        extra: Its name in pyproject.toml, such as "openvino".

    Returns:
        What to do, for the end of a message: the command, and where it works.
    """
    return f"pip install 'int8cal[{extra}]'" if PUBLISHED else f"pip install '.[{extra}]' in a clone of int8cal"
