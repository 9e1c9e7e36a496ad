"""Runs the jobs of the corpus, each command line once, in this process."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parent))

import workshop
from cases import CALIBRATED

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Verdict:
    """How a job ended: exit code, what it printed, and report.json where one was written."""

    code: int
    out: str
    err: str
    report: dict[str, Any] | None

    @property
    def sentences(self) -> list[str]:
        """What it says: errors and warnings on stderr, and all that the report complains of."""
        return [*self.err.splitlines(), *self.complaints]

    @property
    def complaints(self) -> list[str]:
        """Findings about the data, faults of outputs, and warnings."""
        if self.report is None:
            return []
        faults = [fault for output in self.report["outputs"].values() for fault in output.get("faults", [])]
        findings = [finding["text"] for finding in self.report.get("findings", [])]
        return [*findings, *faults, *self.report["warnings"]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Models, data and YAML files; jobs write into it, each beneath a name of its own."""
    made = tmp_path_factory.mktemp("verdict")
    workshop.fill(made)
    return made


@pytest.fixture
def judge(folder, monkeypatch, capfd, runs) -> Callable[[str], Verdict]:
    """Run a command line in the folder, or give back how it ended before."""
    from int8cal.cli.main import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def judge(line: str) -> Verdict:
        if line not in runs:
            words = shlex.split(line)
            if words[0] == "quantize":
                judge(CALIBRATED)  # wrote the table
            else:
                words += ["--threads", "1"]  # more cost time on models so small
            if "-o" not in words:
                words += ["-o", f"made/{len(runs)}"]
            place = words[words.index("-o") + 1]
            capfd.readouterr()
            code = main(words)
            done = capfd.readouterr()
            report = Path(place, "report.json")
            document = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
            runs[line] = Verdict(code, done.out, done.err, document)
        return runs[line]

    return judge


@pytest.fixture(scope="session")
def runs() -> dict[str, Verdict]:
    return {}
