"""Templates compiled once per installation, as Python's modules are: that takes longer than to fill them in."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

import int8cal

if TYPE_CHECKING:
    from jinja2.bccache import Bucket


class CompiledTemplates(jinja2.FileSystemBytecodeCache):
    """Keeps them beside the modules'; where nothing can be written there, each process compiles its own."""

    def __init__(self) -> None:
        # the version, since what is compiled depends on the environment's options too
        name = f"templates-{int8cal.__version__}.{sys.implementation.cache_tag}-%s"
        super().__init__(str(Path(__file__).parent / "__pycache__"), name)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read what was compiled, where it is there."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write what was compiled, if Python writes what it compiles."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                super().dump_bytecode(bucket)
