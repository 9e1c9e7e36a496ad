"""Kills runs at random moments, and looks whether anything was lost: `python -m tests.faults --kills 200 --seed 1`.

A run of a small model ends by SIGKILL after a time that is drawn from how long it takes undisturbed; a quarter of the runs
that come after it, too. What must be true is in `killing.Folder` and in `check`. The page docs/reliability.md has the counts.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "cli"))

from killing import Folder, Runs
from small_batch import fill, write

OUT = "deep/out"
CALIBRATE = ("calibrate", "net.onnx", "--data", "data", "-o", OUT, "--no-latency", "--quiet", "--threads", "1")
ALL_PHASES = (*CALIBRATE, "--checkpoint", "4", "--recipe", "balanced")


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Attributes:
        name: For the table.
        command: Its arguments.
        old: Whether results of another run are there before.
    """

    name: str
    command: tuple[str, ...]
    old: bool = False

    @property
    def first(self) -> tuple[str, ...]:
        """The arguments of the first run."""
        return (*self.command, "--overwrite") if self.old else self.command

    def again(self, folder: Path, *, resume: bool) -> tuple[str, ...]:
        """Return the arguments of the run after a kill, as a user would give them: results that are there may go."""
        there = self.command[0] == "calibrate" and any(folder.glob(f"{OUT}/*")) and "--shard" not in self.command
        return (*self.command, *(["--resume"] if resume else []), *(["--overwrite"] if there or self.old else []))


SCENARIOS = (
    Scenario("calibrate", CALIBRATE),
    Scenario("calibrate, results there", CALIBRATE, old=True),
    Scenario("calibrate, checkpoints", ALL_PHASES),
    Scenario("calibrate, checkpoints, results there", ALL_PHASES, old=True),
    Scenario("calibrate --shard", (*CALIBRATE, "--checkpoint", "2", "--shard", "2/3", "--overwrite")),
    Scenario("run", ("run", "batch.yaml", "--quiet")),
)
COLUMNS = (
    *(
        "killed",
        "ended before",
        "left nothing new",
        "left a checkpoint",
        "left some results, whole",
        "left all results",
    ),
    *("begun anew", "resumed"),
)


class Faults:
    """Kills each scenario in turn, in folders of their own."""

    def __init__(self, work: Path, seed: int) -> None:
        self._work, self._random = work, random.Random(seed)  # noqa: S311 - moments
        self._temporary = work / "temporary"
        self._temporary.mkdir()
        self._runs = Runs(self._temporary)
        self._template = work / "template"
        self._template.mkdir()
        fill(self._template)
        jobs = (
            "name: one, calibration: {method: max, threads: 1}",
            "name: two, calibration: {threads: 1, checkpoint: 4}",
        )
        write(self._template, *jobs)
        self._must(self._template, *CALIBRATE[:5], "old", *CALIBRATE[6:], "--method", "max")
        self._undisturbed: dict[str, tuple[dict[str, bytes], float, int]] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.harm: list[str] = []

    def kill(self, scenario: Scenario, number: int) -> None:
        """Kill a run once, or twice, look, run it again, look, and count what there was."""
        new, seconds, events = self._known(scenario)
        resume = self._random.random() < 0.5
        folder = self._folder(scenario, f"killed{number}")
        before = folder.files()
        arguments = scenario.first
        for _ in range(2 if self._random.random() < 0.25 else 1):
            # half of them at a change in the file system: these are few, and short
            when: dict[str, float] = {"kill_after": self._random.uniform(0, seconds)}
            if self._random.random() < 0.5:
                when = {"kill_at": self._random.randint(1, events)}
            code, _ = self._runs(folder.path, *arguments, **when)
            self._count(scenario, "killed" if code == -9 else "ended before")
            self.check(scenario, number, torn=folder.torn(before, new), code=code if code != -9 else 0)
            self._count(scenario, self._found(folder, before, new))
            arguments = scenario.again(folder.path, resume=resume)
        code, _ = self._runs(folder.path, *arguments)
        self._count(scenario, "resumed" if resume else "begun anew")
        found = folder.files()
        differ = [name for name in found.keys() | new.keys() if found.get(name) != new.get(name)]
        left = [each.name for each in self._temporary.iterdir() if each.name != ".ses"]  # onnxruntime's own
        self.check(scenario, number, code=code, differ=differ, left=left)
        shutil.rmtree(folder.path)

    def check(self, scenario: Scenario, number: int, *, code: int = 0, **wrong: list[str]) -> None:
        """Note what is wrong: files that are torn, that differ from an undisturbed run's, or that are left over."""
        found = [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]
        if code:
            said = (self._work / "log").read_text().strip()
            found.append(f"exit code {code}: {said}")
        self.harm += [f"kill {number} of {scenario.name}: {each}" for each in found]

    @property
    def kills(self) -> int:
        """How many runs were killed."""
        return sum(each for (_, what), each in self.counts.items() if what == "killed")

    def table(self) -> list[str]:
        """Write the counts as the page does."""
        columns = [each for each in COLUMNS if any(what == each for _, what in self.counts)]
        names = [scenario.name for scenario in SCENARIOS]
        rows = [(name, [self.counts[name, each] for each in columns]) for name in names]
        rows.append(("all", [sum(self.counts[name, each] for name in names) for each in columns]))
        head = [f"| scenario | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        return head + [f"| {name} | {' | '.join(map(str, counts))} |" for name, counts in rows]

    def close(self) -> None:
        """End the process that runs are forked from."""
        self._runs.close()

    def _found(self, folder: Folder, before: dict[str, bytes], new: dict[str, bytes]) -> str:
        """Say how far a killed run had come, by what it left."""
        found = {name: each for name, each in folder.files().items() if ".int8cal-" not in name}
        if any(name.endswith(".checkpoint") for name in found):
            return "left a checkpoint"
        if found == before:
            return "left nothing new"
        return "left all results" if found == new else "left some results, whole"

    def _known(self, scenario: Scenario) -> tuple[dict[str, bytes], float, int]:
        """Return the files of an undisturbed run, how long it takes, and how often it changes the file system."""
        if scenario.name not in self._undisturbed:
            folder = self._folder(scenario, "undisturbed")
            began = time.monotonic()
            events = self._must(folder.path, *scenario.first)
            self._undisturbed[scenario.name] = folder.files(), time.monotonic() - began, events
            shutil.rmtree(folder.path)
        return self._undisturbed[scenario.name]

    def _folder(self, scenario: Scenario, name: str) -> Folder:
        return Folder.of(self._template, self._work / name, OUT if scenario.old else "")

    def _must(self, folder: Path, *arguments: str) -> int:
        code, events = self._runs(folder, *arguments)
        if code:
            raise RuntimeError(f"{arguments}: exit code {code}: {(self._work / 'log').read_text()}")
        return events

    def _count(self, scenario: Scenario, what: str) -> None:
        self.counts[scenario.name, what] += 1


def main(arguments: list[str] | None = None) -> int:
    """Kill as often as is asked for, and print a table; the exit code is 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="runs that are killed, of all scenarios together")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="faults-") as work:
        faults = Faults(Path(work), asked.seed)
        with contextlib.suppress(KeyboardInterrupt):  # what was found until then is told
            for number in itertools.count():
                if faults.kills >= asked.kills:
                    break
                faults.kill(SCENARIOS[number % len(SCENARIOS)], number)
                sys.stderr.write(f"\r{faults.kills} killed, {len(faults.harm)} findings ")
        faults.close()
    sys.stdout.write("\n".join([*faults.table(), *(faults.harm or ["nothing was lost, torn or left over"])]) + "\n")
    return bool(faults.harm)


if __name__ == "__main__":
    sys.exit(main())
