"""Measurements: each a script, run by `python -m benchmarks.NAME`."""

import bert4rec  # noqa: F401  # sets what torch and libgomp read when they are loaded
