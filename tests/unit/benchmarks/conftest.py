"""Makes the checkout's benchmarks importable; they are no part of the wheel."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: int8cal is the one that is installed


@pytest.fixture
def bench(capsys):
    """Run the command line in this process: (status, stdout, stderr)."""
    from benchmarks.__main__ import main

    def call(*arguments):
        status = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
