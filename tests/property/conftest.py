"""Puts the shared strategies in reach: test files are imported one by one, without their folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
