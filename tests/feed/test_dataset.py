"""Opening a dataset folder: what is read, and the one line for a folder that must not be trained on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest

from bert4rec.config import Config
from bert4rec.errors import DataError
from bert4rec.feed.dataset import Dataset, open_dataset


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    """A copy of the small dataset, to be damaged."""
    return Path(shutil.copytree(small_folder, tmp_path / "dataset"))


@pytest.fixture
def reopen(folder: Path, small_config: Callable[..., Config]) -> Callable[..., Dataset]:
    """Open with the settings that the folder was made with, but for some."""
    made_with = small_config()

    def open_again(**changes: Any) -> Dataset:
        settings = made_with.preprocessing.recipe | changes
        return open_dataset(folder, max_len=made_with.model.max_len, preprocessing=settings)

    return open_again


def edit_metadata(folder: Path, **changes: Any) -> None:
    path = folder / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_rows_are_those_of_the_folder(small_dataset: Dataset) -> None:
    for name, split in small_dataset.splits.items():
        plain = datasets.load_from_disk(str(small_dataset.folder / name))
        assert split.lengths.tolist() == [len(items) for items in plain["items"]]
        chosen = np.array([5, 0, 5, 2])
        rows = split.read(chosen)
        assert rows.items.tolist() == [item for i in chosen.tolist() for item in plain[i]["items"]]
        assert rows.lengths.tolist() == [len(plain[i]["items"]) for i in chosen.tolist()]
        if name == "train":
            assert rows.targets is None
            continue
        assert rows.targets is not None
        assert rows.negatives is not None
        assert rows.targets.tolist() == [plain[i]["target"] for i in chosen.tolist()]
        for protocol in ("popular", "uniform"):
            expected = [plain[i][f"{protocol}_negatives"] for i in chosen.tolist()]
            assert rows.negatives[protocol].tolist() == expected


def test_popularity_counts_training_positions(small_dataset: Dataset) -> None:
    train = datasets.load_from_disk(str(small_dataset.folder / "train"))
    counts = np.zeros(small_dataset.n_items, np.int64)
    for items in train["items"]:
        for item in items:
            counts[item - 2] += 1
    assert small_dataset.popularity.tolist() == counts.tolist()


def test_rows_come_from_mapped_memory(small_dataset: Dataset) -> None:
    split = small_dataset.splits["train"]
    assert split._rows.cache_files
    assert Path(split._rows.cache_files[0]["filename"]).is_relative_to(small_dataset.folder)


def test_oracle_ranks_stand_in_the_order_of_the_test_split(small_dataset: Dataset) -> None:
    ranks = small_dataset.oracle_ranks()
    assert set(ranks) == {"full", "popular", "uniform"}
    users = pq.read_table(small_dataset.folder / "oracle.parquet")["user"].to_pylist()
    assert users == small_dataset.splits["test"].column("user").to_pylist()
    assert all((ranks["popular"] <= ranks["full"]) & (ranks["full"] >= 1))


def test_a_folder_may_come_from_elsewhere(folder: Path, reopen: Callable[..., Dataset]) -> None:
    before = reopen().popularity.tolist()
    edit_metadata(folder, source="table")
    assert reopen().popularity.tolist() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: shutil.rmtree(f),
            r"no dataset folder \(no metadata\.json\); run `python preprocessing\.py` with these settings first$",
        ),
        (lambda f: (f / "metadata.json").write_text("{"), r"metadata\.json: cannot be read"),
        (
            lambda f: (f / "metadata.json").write_text("[]"),
            r"metadata\.json: does not describe a dataset; make it again",
        ),
        (lambda f: edit_metadata(f, format_version=2), r"format_version 2, this program reads 1; make it again"),
        (lambda f: edit_metadata(f, max_len=20), r"made with model\.max_len = 20, the settings say 12; make it again"),
        (lambda f: (f / "items.parquet").unlink(), r"items\.parquet: is missing; make it again"),
        (
            lambda f: (f / "README.md").write_text("x"),
            r"README\.md: has 1 bytes, metadata\.json says \d+; make it again",
        ),
        (lambda f: flip_byte(f / "train" / "data-00000-of-00001.arrow"), r"its checksum is not that of metadata\.json"),
        (lambda f: edit_metadata(f, items=100), r"train: column items has an id outside 2…101; make it again"),
    ],
)
def test_a_damaged_folder_is_one_line(
    folder: Path, reopen: Callable[..., Dataset], damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        reopen()
    assert "\n" not in str(caught.value)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_folder_of_other_settings_is_refused(reopen: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match=r"made with preprocessing\.seed = 1, the settings say 2; make it again"):
        reopen(seed=2)
