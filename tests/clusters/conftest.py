"""Settings of runs that are interrupted, as for tests/end_to_end."""

from tests.end_to_end.conftest import make as make
