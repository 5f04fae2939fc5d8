"""`pytest -p tests.stand_in.plugin`: the tests of GPUs run on a device in host memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.stand_in import lines
from tests.stand_in.build import N_GPUS, NoCompilerError, build

os.environ.setdefault(N_GPUS, "1")
try:
    build()
except NoCompilerError as error:
    pytest.exit(f"skipped: {error}", returncode=0)

from tests.stand_in import cuda

NOTES = None if lines.FOLDER in os.environ else TemporaryDirectory()  # None in the workers of pytest-xdist
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
