"""What tests and benchmarks share, and tools for developers: run them as `python -m tools.NAME`."""
