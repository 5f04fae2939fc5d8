"""The dataset of the log that is written by hand."""

from pathlib import Path

import pytest

from bert4rec.dataset.reader import Dataset, open_dataset


@pytest.fixture(scope="session")
def log_dataset(log_folder: Path) -> Dataset:
    return open_dataset(log_folder)
