"""Benchmarks: int8cal beside other tools on the same machine, in the same run. `python -m benchmarks --help`."""
