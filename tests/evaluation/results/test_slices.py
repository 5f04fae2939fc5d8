"""Who is in which slice, and that its figures are those of its users."""

import json
from datetime import UTC, datetime

import numpy as np

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.reader import NO_TIME, Dataset
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.results.intervals import rank_intervals
from bert4rec.evaluation.results.slices import Facts, slices

POPULARITY = np.array([5, 0, 2, 3, 2, 0, 3])  # of 15 positions: 5 | 3, 3 | 2, 2, 0, 0
RANKS = np.array([1, 20, 3, 4, 11, 6, 7, 200], np.int32)
DAYS = [int(datetime(2024, 5, day, tzinfo=UTC).timestamp()) for day in (1, 2, 3, 3, 3, 9, 8)]
FACTS = Facts(
    history_length=np.array([1, 5, 6, 10, 11, 200, 201, 9000]),
    train_count=POPULARITY[[0, 1, 2, 3, 4, 5, 6, 0]],
    is_repeated=np.array([True, False, False, False, True, False, False, False]),
    last_time=np.array([*DAYS, NO_TIME]),
)


def members(facts: Facts) -> dict[str, dict[str, list[int]]]:
    """Kind → slice → its users, found again by giving each in turn a rank of its own."""
    users = range(len(RANKS))
    found: dict[str, dict[str, list[int]]] = {}
    for user in users:
        hit = np.where(np.arange(len(RANKS)) == user, 1, 1000)
        for kind, parts in slices(facts, hit, POPULARITY).items():
            for part in parts:
                found.setdefault(kind, {}).setdefault(part["name"], []).extend([user] if part["HR@10"] else [])
    return found


def test_every_user_is_in_one_slice_of_each_kind() -> None:
    assert members(FACTS) == {
        "history_length": {"1 to 5": [0, 1], "6 to 10": [2, 3], "11 to 20": [4], "101 to 200": [5],
                           "more than 200": [6, 7]},
        "item_popularity": {"head": [0, 7], "middle": [3, 6], "tail": [1, 2, 4, 5]},
        "target": {"known": [0, 2, 3, 4, 6, 7], "cold": [1, 5]},
        "repeated": {"new": [1, 2, 3, 5, 6, 7], "repeated": [0, 4]},
        "time": {"first third: 2024-05-01 to 2024-05-03": [0, 1, 2, 3, 4],
                 "last third: 2024-05-08 to 2024-05-09": [5, 6]},
    }  # fmt: skip


def test_without_times_there_are_no_slices_by_time() -> None:
    assert "time" not in slices(FACTS._replace(last_time=None), RANKS, POPULARITY)
    assert "time" not in slices(FACTS._replace(last_time=np.full(8, NO_TIME)), RANKS, POPULARITY)
    assert [part["users"] for part in slices(FACTS, RANKS, POPULARITY)["time"]] == [5, 2]


def test_items_that_nobody_was_trained_on_are_the_tail() -> None:
    nothing = slices(FACTS._replace(train_count=np.zeros(8, int)), RANKS, np.zeros(7, int))
    assert [(part["name"], part["users"]) for part in nothing["item_popularity"]] == [("tail", 8)]


def test_the_figures_are_those_of_the_slice_alone() -> None:
    (known, cold) = slices(FACTS, RANKS, POPULARITY)["target"]
    ranks = RANKS[[1, 5]]
    metrics, intervals = ranking_metrics(ranks, [10]), rank_intervals(ranks, [10])
    assert cold == {
        "name": "cold",
        "users": 2,
        "HR@10": metrics["HR@10"],
        "NDCG@10": metrics["NDCG@10"],
        "intervals": {name: intervals[name] for name in ("HR@10", "NDCG@10")},
    }
    assert json.loads(json.dumps(known))["users"] == 6


def test_facts_of_a_dataset(small_dataset: Dataset) -> None:
    test = small_dataset.splits["test"]
    repeated = np.zeros(len(test), bool)
    facts = Facts.of(small_dataset, "test", repeated)
    everybody = np.arange(len(test))
    assert facts.history_length.tolist() == test.lengths(everybody).tolist()
    assert facts.train_count.tolist() == [small_dataset.popularity[item - 2] for item in test.targets(everybody)]
    assert facts.is_repeated is repeated
    assert LEFT_OUT not in facts.train_count
