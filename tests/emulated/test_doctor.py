"""`int8cal doctor` tells a CPU that saturates from one that does not by what it computes, not by what it is called."""

import json
import subprocess
import sys

import pytest
from harness import HASWELL

pytestmark = pytest.mark.emulated

DOCTOR = (sys.executable, "-m", "int8cal", "doctor", "--json")


def verdict(*prefix):
    done = subprocess.run([*prefix, *DOCTOR], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["int8 products"]


def test_an_exact_cpu_is_called_exact(vnni):
    assert verdict().startswith("exact here")


def test_a_cpu_that_saturates_is_called_so_with_both_sums(haswell):
    assert verdict(*HASWELL).startswith("saturate here (262136 for 518160)")
