"""`int8cal` whose `--optimize latency` measures each proposal for a moment: a page says what is done, not what is fast."""

import os
import sys

from int8cal.cli.main import entry
from int8cal.search.goals import latency

sys.path[0] = os.getcwd()  # noqa: PTH109 - as with python -m
latency._BUDGET_S = 0.05
entry()
