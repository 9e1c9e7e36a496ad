"""Metrics for `--metric NAME`: one file per kind of task. Their libraries are those of the extra `metrics`."""
