"""`pytest -p tests.stand_in.plugin`: the tests of GPUs run on a device in host memory."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.stand_in.build import N_GPUS, NotHereError, build

os.environ.setdefault(N_GPUS, "1")
try:
    build()
except NotHereError as error:
    print(f"skipped: {error}")  # pytest would call it an error in a plugin
    sys.exit(0)

from tests.stand_in import cuda


@pytest.fixture(autouse=True)
def streams() -> Iterator[None]:
    """Each test fails where a stream uses memory without waiting for its writer, or a `record_stream` is missing."""
    cuda.device.take_faults()
    yield
    faults = cuda.device.take_faults()
    assert not faults, "\n".join(faults)
