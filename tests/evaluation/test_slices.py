"""Slices of users, and the files with the rank of each user."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.dataset.format import LEFT_OUT
from bert4rec.dataset.histories import EvaluationSplit
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation import slices as slices_module
from bert4rec.evaluation.intervals import rank_intervals
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.ranker import repeated_targets
from bert4rec.evaluation.slices import TargetFacts, slices, write_ranks
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from tests.conftest import LOG, prepare_log

POPULARITY = np.array([5, 0, 2, 3, 2, 0, 3])  # of 15 positions: 5 | 3, 3 | 2, 2, 0, 0
RANKS = np.array([1, 20, 3, 4, 11, 6, 7, 200], np.int32)
DAYS = [int(datetime(2024, 5, day, tzinfo=UTC).timestamp()) for day in (1, 2, 3, 3, 3, 9, 8, 9)]
FACTS = TargetFacts(
    history_length=np.array([1, 5, 6, 10, 11, 200, 201, 9000]),
    train_count=POPULARITY[[0, 1, 2, 3, 4, 5, 6, 0]],
    is_repeated=np.array([True, False, False, False, True, False, False, False]),
    last_time=np.array(DAYS),
)


@pytest.fixture(params=[1])
def least(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "LEAST_USERS", request.param)


def members(facts: TargetFacts) -> dict[str, dict[str, list[int]]]:
    """Kind → slice → its users, found again by giving each in turn a rank of its own."""
    found: dict[str, dict[str, list[int]]] = {}
    for user in range(len(RANKS)):
        hit = np.where(np.arange(len(RANKS)) == user, 1, 1000)
        for kind, parts in slices(facts, hit, POPULARITY).items():
            for part in parts:
                found.setdefault(kind, {}).setdefault(part["name"], []).extend([user] if part["HR@10"] else [])
    return found


@pytest.mark.usefixtures("least")
def test_every_user_is_in_one_slice_of_each_kind() -> None:
    assert members(FACTS) == {
        "history_length": {"1 to 5": [0, 1], "6 to 10": [2, 3], "11 to 20": [4], "101 to 200": [5],
                           "more than 200": [6, 7]},
        "item_popularity": {"head": [0, 7], "middle": [3, 6], "tail": [1, 2, 4, 5]},
        "target": {"known": [0, 2, 3, 4, 6, 7], "cold": [1, 5]},
        "repeated": {"new": [1, 2, 3, 5, 6, 7], "repeated": [0, 4]},
        "time": {"first third: 2024-05-01 to 2024-05-03": [0, 1, 2, 3, 4],
                 "second third: 2024-05-08 to 2024-05-08": [6],
                 "last third: 2024-05-09 to 2024-05-09": [5, 7]},
    }  # fmt: skip


@pytest.mark.parametrize("least", [3], indirect=True)
@pytest.mark.usefixtures("least")
def test_small_slices_are_joined_with_a_neighbour_or_have_no_interval() -> None:
    found = slices(FACTS, RANKS, POPULARITY, {"markov": RANKS})
    assert {kind: {part["name"]: part["users"] for part in parts} for kind, parts in found.items()} == {
        "history_length": {"1 to 10": 4, "more than 10": 4},
        "item_popularity": {"head and middle": 4, "tail": 4},
        "target": {"known": 6, "cold": 2},
        "repeated": {"new": 6, "repeated": 2},
        "time": {"first third: 2024-05-01 to 2024-05-03": 5,
                 "second and last third: 2024-05-08 to 2024-05-09": 3},
    }  # fmt: skip
    for part in (part for parts in found.values() for part in parts):
        for figures in (part, part["strongest_baseline"]):
            assert ("intervals" in figures) == (part["users"] >= 3)


def test_some_facts_give_other_slices_or_none() -> None:
    is_tied = np.array([True, False, False, True, False, False, False, False])
    assert members(FACTS._replace(is_tied=is_tied))["ties"] == {
        "at a new time": [1, 2, 4, 5, 6, 7], "tied with the item before": [0, 3],
    }  # fmt: skip
    nobody = FACTS._replace(is_tied=is_tied & ~is_tied, last_time=None)
    assert {"ties", "time"}.isdisjoint(slices(nobody, RANKS, POPULARITY))
    (tail,) = slices(FACTS._replace(train_count=np.zeros(8, int)), RANKS, np.zeros(7, int))["item_popularity"]
    assert (tail["name"], tail["users"]) == ("tail", 8)


@pytest.mark.usefixtures("least")
def test_the_figures_are_those_of_the_slice_alone() -> None:
    _, cold = slices(FACTS, RANKS, POPULARITY)["target"]
    metrics, intervals = ranking_metrics(RANKS[[1, 5]], [10]), rank_intervals(RANKS[[1, 5]], [10])
    figures = {name: metrics[name] for name in ("HR@10", "NDCG@10")}
    assert cold == {"name": "cold", "users": 2, **figures, "intervals": {name: intervals[name] for name in figures}}


def test_each_slice_has_the_baseline_that_is_the_strongest_there() -> None:
    content, markov = (np.where(FACTS.train_count == 0, *ranks).astype(np.int32) for ranks in ((2, 11), (11, 1)))
    (known, cold) = slices(FACTS, RANKS, POPULARITY, {"content_neighbours": content, "markov": markov})["target"]
    assert known["strongest_baseline"] == {"kind": "markov", "HR@10": 1.0, "NDCG@10": 1.0}
    assert (cold["strongest_baseline"]["kind"], cold["strongest_baseline"]["HR@10"]) == ("content_neighbours", 1.0)


def facts_of(dataset: Dataset) -> dict[str, TargetFacts]:
    return {"test": TargetFacts.of(dataset, "test", repeated_targets(dataset.splits["test"], Partition()))}


RANKS_OF_LOG = {
    "full": np.array([1, 2, 3, 4, 5, 6], np.int32),
    "popular": np.array([1, 2, 3, LEFT_OUT, 5, LEFT_OUT], np.int32),
}


def test_every_user_has_a_row(log_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "RANKS_AT_ONCE", 4)  # of six users
    write_ranks(tmp_path, log_dataset, {"test": RANKS_OF_LOG}, facts_of(log_dataset))
    table = pq.read_table(tmp_path / "ranks-test.parquet")
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "user: int32", "original_user: large_string", "target: int32", "original_item: int64", "is_repeated: bool",
        "history_length: int32", "train_count: int32", "last_time: int64", "full: int32", "popular: int32",
    ]  # fmt: skip
    rows = table.to_pydict()
    histories = LOG.values()
    assert rows == {
        "user": [0, 1, 2, 3, 4, 5],
        "original_user": list("abcdef"),
        "original_item": [items[-1] for items in histories],
        "target": log_dataset.splits["test"].targets(np.arange(6)).tolist(),
        "is_repeated": [items[-1] in items[:-1] for items in histories],
        "history_length": [len(items) - 1 for items in histories],
        "train_count": [sum(items[:-2].count(history[-1]) for items in histories) for history in histories],
        "last_time": [1_600_000_000 + len(items) - 2 for items in histories],
        "full": [1, 2, 3, 4, 5, 6],
        "popular": [1, 2, 3, None, 5, None],
    }


def test_text_ids_of_items_may_be_longer_than_32_bits_can_count(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, {user: [f"item {item}" for item in items] for user, items in LOG.items()})
    dataset = open_dataset(folder)
    items = pq.read_table(folder / "items.parquet")
    place = items.schema.get_field_index("original")
    pq.write_table(items.set_column(place, "original", items["original"].cast(pa.string())), folder / "items.parquet")
    write_ranks(tmp_path, dataset, {"test": RANKS_OF_LOG}, facts_of(dataset))
    column = pq.read_table(tmp_path / "ranks-test.parquet")["original_item"]
    assert (column.type, column[0].as_py()) == (pa.large_string(), f"item {LOG['a'][-1]}")


def test_users_of_another_dataset_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is replaced after the items have been read."""
    folder = prepare_log(tmp_path)
    dataset, original = open_dataset(folder), Dataset.item_rows

    def then_replaced(dataset: Dataset, *arguments: Any) -> pa.Table:
        rows = original(dataset, *arguments)
        metadata = json.loads((folder / "metadata.json").read_text())
        (folder / "metadata.json").write_text(json.dumps(metadata | {"fingerprint": "another"}))
        return rows

    facts = facts_of(dataset)
    monkeypatch.setattr(Dataset, "item_rows", then_replaced)
    with pytest.raises(DataError):
        write_ranks(tmp_path, dataset, {"test": RANKS_OF_LOG}, facts)


def test_a_write_that_fails_leaves_nothing(
    log_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of(log_dataset)
    original = EvaluationSplit.targets

    def fails_at_the_end(split: EvaluationSplit, rows: np.ndarray) -> np.ndarray:
        if rows[-1] == 5:
            raise OSError(28, "No space left on device")
        return original(split, rows)

    monkeypatch.setattr(slices_module, "RANKS_AT_ONCE", 4)
    monkeypatch.setattr(EvaluationSplit, "targets", fails_at_the_end)
    with pytest.raises(OSError, match="No space"):
        write_ranks(tmp_path, log_dataset, {"test": RANKS_OF_LOG}, facts)
    assert list(tmp_path.iterdir()) == []
