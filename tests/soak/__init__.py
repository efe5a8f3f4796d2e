"""The soak: mixed load, and what the processes hold meanwhile. See `python -m tests.soak -h`."""
