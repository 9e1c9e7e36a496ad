"""Threshold methods: a Histogram -> a clip range."""
