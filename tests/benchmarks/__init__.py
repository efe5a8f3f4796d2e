"""Benchmarks: the bus and its references, measured in one run. See `python -m tests.benchmarks -h`.

Nothing here asserts anything about time: machines are shared and noisy, so only ratios of figures
of the same run mean something.
"""
