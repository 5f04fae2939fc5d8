"""`pytest -p tests.stand_in.plugin`: the tests of GPUs run on a device in host memory.

With the variable `STAND_IN_LINES=1`, which takes half as long again, it prints which statements of GPUs have run.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.stand_in import lines
from tests.stand_in.build import N_GPUS, NotHereError, build

os.environ.setdefault(N_GPUS, "1")
try:
    build()
except NotHereError as error:
    print(f"skipped: {error}")  # pytest would call it an error in a plugin
    sys.exit(0)

from tests.stand_in import cuda

# The workers of pytest-xdist inherit the folder.
NOTES = TemporaryDirectory() if os.environ.get(lines.FOLDER) == "1" else None
if NOTES:
    os.environ[lines.FOLDER] = NOTES.name
lines.trace()


@pytest.fixture(autouse=True)
def streams() -> Iterator[None]:
    """Each test fails where a stream uses memory without waiting for its writer, or a `record_stream` is missing."""
    cuda.device.take_faults()
    yield
    faults = cuda.device.take_faults()
    assert not faults, "\n".join(faults)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if NOTES:
        terminalreporter.section("statements that are entered on a GPU alone")
        for line in lines.summary(Path(NOTES.name)):
            terminalreporter.write_line(line)
        NOTES.cleanup()
