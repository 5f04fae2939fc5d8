"""What the tests of each kind of damage begin with."""

from pathlib import Path

import pytest

from tests.dataset.check.damages import made
from tests.dataset.check.folders import check


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each kind of split, to be copied."""
    place = tmp_path_factory.mktemp("sound")
    folders = {split: made(split).save(place / split) for split in ("leave_one_out", "time", "none")}
    for path in folders.values():
        assert check(path)[0] == 0
    return folders
