"""Threshold methods: a Spectrum -> a clip range."""
