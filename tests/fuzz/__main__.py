"""Read damaged files by the hundred thousand: `python -m tests.fuzz table --inputs 100000 --seed 0`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .parsers import PARSERS
from .run import complaint, damaged, fuzz, tally


def main() -> int:
    """Fuzz the parsers that the command line names; exit code 1 where there are findings."""
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("parsers", nargs="+", metavar="PARSER", help=f"all, or some of: {', '.join(PARSERS)}")
    arguments.add_argument(
        "--inputs", type=int, default=100_000, help="damaged files per parser (default: %(default)s)"
    )
    arguments.add_argument("--seed", type=int, default=0, help="another one gives other files (default: %(default)s)")
    arguments.add_argument("--first", type=int, default=0, help="the number of the first input (default: %(default)s)")
    arguments.add_argument("--keep", type=Path, help="a folder for the first input of each finding")
    arguments.add_argument("--only", type=int, help="read the input of this number alone, and show what becomes of it")
    arguments.add_argument("--file", type=Path, help="read this file alone")
    given = arguments.parse_args()
    names = list(PARSERS) if given.parsers == ["all"] else given.parsers
    unknown = [name for name in names if name not in PARSERS]
    if unknown:
        arguments.error(f"no parser {unknown[0]}; there are {', '.join(PARSERS)}")
    if given.only is not None or given.file is not None:
        return _read_one(names[0], given.seed, given.only, given.file)
    results = {}
    for name in names:
        keep = given.keep and given.keep / name
        results[name] = fuzz(
            PARSERS[name], given.inputs, given.seed, first=given.first, keep=keep, tell=sys.stderr.isatty()
        )
        for finding in sorted(results[name].findings.values(), key=lambda each: each.first):
            print(f"{name} input {finding.first}, {finding.count} times: {finding.what}")
            print(finding.trace)
        print(tally({name: results[name]}), flush=True)
    return int(any(each.findings for each in results.values()))


def _read_one(name: str, seed: int, index: int, file: Path | None) -> int:
    parser = PARSERS[name]
    with tempfile.TemporaryDirectory() as folder:
        made, place = Path(folder) / "made", Path(folder) / "read"
        made.mkdir()
        place.mkdir()
        data = file.read_bytes() if file else damaged(parser, parser.make(made), seed, index)
        parser.beside(place)
        wrong, trace, is_accepted = complaint(parser, data, place)
    print(data[:2000])
    print(trace or ("accepted" if is_accepted else "refused"), wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
