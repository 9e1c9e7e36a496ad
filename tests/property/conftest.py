"""Puts the shared strategies in reach: test files are imported one by one, without their folder."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent))

# nothing is timed, and the same examples come up every time
settings.register_profile("int8cal", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("int8cal")
