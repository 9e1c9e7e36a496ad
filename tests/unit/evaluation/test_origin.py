import re
from dataclasses import replace

import pytest
from made_reports import NOTHING

from int8cal.errors import UsageError
from int8cal.evaluation.measured import how_measured
from int8cal.evaluation.origin import origin_of
from int8cal.evaluation.result import Drop, Latency
from int8cal.runtime import machine
from int8cal.runtime.sessions import cpu_count

CPUINFO = """processor\t: 0
model name\t: Fast  CPU 9000
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu avx2 avx512_vnni

processor\t: 1
model name\t: Fast  CPU 9000
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 avx512_vnni
"""


@pytest.fixture
def cpuinfo(monkeypatch):
    def tell(text, cpus=(0, 1)):
        monkeypatch.setattr(machine.Path, "read_text", lambda *_, **__: text)
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(cpus), raising=False)

    return tell


@pytest.mark.parametrize(("core", "cpus", "cores"), [(0, (0, 1), 1), (1, (0, 1), 2), (1, (1,), 1)])
def test_physical_cores_are_those_that_the_process_may_use(cpuinfo, core, cpus, cores):
    cpuinfo(CPUINFO.format(core=core), cpus)
    assert machine.physical_cores() == cores
    assert machine.cpu_name() == "Fast CPU 9000"
    assert {"avx2", "avx512_vnni"} <= machine.cpu_flags()


@pytest.mark.parametrize("text", ["", "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp\n"])
def test_what_the_system_does_not_tell_is_not_made_up(cpuinfo, text):
    cpuinfo(text)
    assert machine.physical_cores() is None
    assert machine.cpu_name()  # the architecture
    assert ("asimddp" in machine.cpu_flags()) == ("asimddp" in text)


@pytest.mark.parametrize(("part", "name"), [("0xd0c", "Arm Neoverse-N1"), ("0xfff", "ARM, maker 0x41, part 0xfff")])
def test_an_arm_cpu_has_the_name_of_its_part(cpuinfo, part, name):
    cpuinfo(f"processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: {part}\n")
    assert machine.cpu_name() == name
    assert {"asimddp", "i8mm"} <= machine.cpu_flags()


def test_an_origin_names_the_machine_and_the_threads(cpuinfo):
    cpuinfo(CPUINFO.format(core=1))
    origin = origin_of("int8cal evaluate a b", threads=3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", origin.date)
    assert origin.command == "int8cal evaluate a b"
    assert (origin.machine.cpu, origin.machine.flags) == ("Fast CPU 9000", ("avx2", "avx512_vnni"))
    assert (origin.machine.physical_cores, origin.machine.threads) == (2, 3)
    assert origin_of("").machine.threads == cpu_count()
    assert set(origin.machine.runtimes) == {"onnxruntime"}


def test_a_build_may_set_the_date(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert origin_of("").date == "1970-01-02T00:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match='SOURCE_DATE_EPOCH is "yesterday"'):
        origin_of("")


def test_only_what_was_measured_says_how():
    assert how_measured(NOTHING) == {}
    drop = Drop(0.9, 0.8, 10.0, (8.0, 12.0), 90)
    metrics = replace(NOTHING.metrics, agreement=0.8, top1=drop)
    measured = replace(NOTHING, metrics=metrics, samples=100, latency=Latency(2.0, 1.0, 2.0, None, 1, 4))
    told = how_measured(measured)
    assert set(told) == {"metrics.agreement", "metrics.top1", "latency_ms"}
    assert "100 samples" in told["metrics.agreement"]
    assert "90 of them with a label" in told["metrics.top1"]
    assert "1 round " in told["latency_ms"]
    assert "4 threads" in told["latency_ms"]
    assert "interval" not in told["latency_ms"]
