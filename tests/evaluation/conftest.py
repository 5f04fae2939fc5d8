"""The dataset of the log that is written by hand."""

from pathlib import Path

import pytest

from bert4rec.dataset.reader import Dataset, open_dataset, read_metadata


def dataset_of(folder: Path) -> Dataset:
    metadata = read_metadata(folder)
    return open_dataset(folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])


@pytest.fixture(scope="session")
def log_dataset(log_folder: Path) -> Dataset:
    return dataset_of(log_folder)
