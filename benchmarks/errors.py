"""The one error of the benchmarks: a line for the user."""


class BenchmarkError(Exception):
    """Something the user can put right; its text is one line that says what and how."""
