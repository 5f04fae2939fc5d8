"""Ranks of users in a file, as they were given, with whose they are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.reader import Dataset, Split, open_dataset, read_metadata
from bert4rec.evaluation.ranker import HeldOut
from bert4rec.evaluation.results import rank_files
from bert4rec.evaluation.results.rank_files import write_ranks
from bert4rec.evaluation.results.slices import Facts
from bert4rec.runtime.collectives import Partition
from tests.conftest import LOG, prepare_log


@pytest.fixture
def log_dataset(log_folder: Path) -> Dataset:
    metadata = read_metadata(log_folder)
    return open_dataset(log_folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])


def facts_of(dataset: Dataset) -> dict[str, Facts]:
    return {"test": Facts.of(dataset, "test", HeldOut.of(dataset.splits["test"], Partition()).repeated)}


RANKS = {
    "full": np.array([1, 2, 3, 4, 5, 6], np.int32),
    "popular": np.array([1, 2, 3, LEFT_OUT, 5, LEFT_OUT], np.int32),
}


def test_every_user_has_a_row(log_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_files, "ROWS_AT_ONCE", 4)  # of six users
    assert write_ranks(tmp_path, log_dataset, {"test": RANKS}, facts_of(log_dataset)) == [
        tmp_path / "ranks-test.parquet"
    ]
    table = pq.read_table(tmp_path / "ranks-test.parquet")
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "user: int32", "original_user: large_string", "target: int32", "original_item: int64", "is_repeated: bool",
        "history_length: int32", "train_count: int32", "last_time: int64", "full: int32", "popular: int32",
    ]  # fmt: skip
    rows = table.to_pydict()
    assert rows["user"] == [0, 1, 2, 3, 4, 5]
    assert rows["original_user"] == list("abcdef")
    assert rows["original_item"] == [items[-1] for items in LOG.values()]
    assert rows["target"] == log_dataset.splits["test"].targets(np.arange(6)).tolist()
    assert rows["is_repeated"] == [items[-1] in items[:-1] for items in LOG.values()]
    assert rows["history_length"] == [len(items) - 1 for items in LOG.values()]
    assert rows["train_count"] == [sum(items[:-2].count(of[-1]) for items in LOG.values()) for of in LOG.values()]
    assert rows["last_time"] == [1_600_000_000 + len(items) - 2 for items in LOG.values()]
    assert rows["full"] == [1, 2, 3, 4, 5, 6]
    assert rows["popular"] == [1, 2, 3, None, 5, None]


def test_text_ids_of_items_may_be_longer_than_32_bits_can_count(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, {user: [f"item {item}" for item in items] for user, items in LOG.items()})
    metadata = read_metadata(folder)
    dataset = open_dataset(folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])
    items = pq.read_table(folder / "items.parquet")
    place = items.schema.get_field_index("original")
    pq.write_table(items.set_column(place, "original", items["original"].cast(pa.string())), folder / "items.parquet")
    write_ranks(tmp_path, dataset, {"test": RANKS}, facts_of(dataset))
    table = pq.read_table(tmp_path / "ranks-test.parquet")
    assert table["original_item"].type == pa.large_string()
    assert table["original_item"].to_pylist() == [f"item {items[-1]}" for items in LOG.values()]


def test_a_write_that_fails_leaves_nothing(
    log_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of(log_dataset)
    original = Split.targets

    def fails_at_the_end(split: Split, rows: np.ndarray) -> np.ndarray:
        if rows[-1] == 5:
            raise OSError(28, "No space left on device")
        return original(split, rows)

    monkeypatch.setattr(rank_files, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(Split, "targets", fails_at_the_end)
    with pytest.raises(OSError, match="No space"):
        write_ranks(tmp_path, log_dataset, {"test": RANKS}, facts)
    assert list(tmp_path.iterdir()) == []
