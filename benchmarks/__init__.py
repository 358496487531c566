"""Benchmarks: run each as `python -m benchmarks.NAME` in the root of the repository."""
