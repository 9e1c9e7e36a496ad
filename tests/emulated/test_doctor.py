"""`int8cal doctor` tells a CPU that saturates from one that does not by what it computes, not by what it is called."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import HASWELL

import int8cal

pytestmark = pytest.mark.emulated

DOCTOR = (sys.executable, "-m", "int8cal", "doctor", "--json")


def verdict(*prefix):
    done = subprocess.run([*prefix, *DOCTOR], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["int8 products"]


@pytest.fixture
def told_on_arm(arm, tmp_path):
    """The facts of an ARM CPU. The package alone is linked: beside it stand this CPU's libraries."""
    (tmp_path / "int8cal").symlink_to(Path(int8cal.__file__).parent)
    paths = {**arm.environment, "PYTHONPATH": f"{tmp_path}:{arm.environment['PYTHONPATH']}"}
    command = [*arm.python, *DOCTOR[1:]]
    done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_an_exact_cpu_is_called_exact(vnni):
    assert verdict().startswith("exact here")


def test_a_cpu_that_saturates_is_called_so_with_both_sums(haswell):
    assert verdict(*HASWELL).startswith("saturate here (262136 for 518160)")


def test_doctor_knows_an_arm_cpu(told_on_arm, arm):
    assert told_on_arm["system"] == "Linux aarch64"
    assert told_on_arm["cpu"].startswith("Arm ")
    assert {flag for flag in ("asimddp", "i8mm", "sve") if told_on_arm[flag] == "yes"} == arm.features
    assert "avx2" not in told_on_arm
    assert told_on_arm["int8 products"].startswith("exact here")
    assert ("-128" in told_on_arm["int8 products"]) == ("asimddp" not in arm.features)
