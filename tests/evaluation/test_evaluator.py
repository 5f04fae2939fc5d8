"""Evaluation: the figures of recommend's lists, slices of users, and users without damage of the log."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import preprocessing
from bert4rec import load
from bert4rec.config.tables import Config
from bert4rec.dataset.format import LEFT_OUT
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation import LIST_METRICS
from bert4rec.evaluation import slices as slices_module
from bert4rec.evaluation.damage import without_damage
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.intervals import Ranking, paired_difference, rank_intervals, strongest_baseline
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.ranker import Ranker, repeated_targets, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.evaluation.slices import TargetFacts, slices, write_ranks
from bert4rec.models.baselines import BaselineFactory
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.processes import Processes
from bert4rec.training.run import run
from tests.conftest import LOG, prepare_log
from tests.evaluation.test_ranker import model_for
from tests.processes.jobs import CPU


@pytest.mark.usefixtures("group_of_one")
def test_the_model_on_both_splits_and_its_contestants_on_the_test(small_dataset: Dataset) -> None:
    model = model_for(small_dataset)
    evaluator = Evaluator(
        dataset=small_dataset, world=Processes(0, 0, 1, 1, CPU), protocols=["full", "uniform"], ks=[10], batch_size=16,
        max_len=12, precision="fp32", baselines=["markov"],
        counting=BaselineFactory(dataset=small_dataset, partition=Partition()),
    )  # fmt: skip
    calls: list[None] = []
    held_out = evaluator.held_out()
    ranks = evaluator.ranks(model, held_out, lambda: calls.append(None))
    assert list(ranks) == ["validation", "test", "popularity_baseline", "markov", "best_possible"]
    n_of_test = 4 + 1
    assert len(calls) == evaluator.n_batches(held_out) == 2 + 1 + n_of_test + n_of_test + 1 + n_of_test
    ranker = Ranker(ModelScorer(model, device=CPU, max_len=12), batch_size=16, device=CPU)
    test = ranker.rank(small_dataset.splits["test"], ["full", "uniform"])
    metrics = evaluator.results(ranks, held_out)
    names = ["validation", "test", "popularity_baseline", "best_possible", "baselines"]
    assert list(metrics) == [*names, "strongest_baseline", "intervals", "slices"]
    lists = {f"{name}@10" for name in LIST_METRICS}
    assert {"users", "HR@10", "NDCG@10", "MRR"} | lists == metrics["baselines"]["markov"]["full"].keys()
    assert metrics["best_possible"].keys() == metrics["intervals"]["best_possible"].keys() == {"full", "uniform"}
    rank_metrics = {k: v for k, v in metrics["test"]["full"].items() if k not in lists}
    assert {**metrics["test"], "full": rank_metrics} == to_metrics(test, [10])
    (validation,) = evaluator.validation_metrics(model, lambda: None).values()
    assert validation == {k: v for k, v in metrics["validation"]["full"].items() if k not in lists}
    assert metrics["slices"].keys() == {"test"}
    sampled = replace(evaluator, protocols=["uniform"], baselines=[])
    assert sampled.n_batches(held_out) == 2 + 2 * 4
    assert sampled.results(sampled.ranks(model, held_out, lambda: None), held_out)["test"] == {
        "uniform": metrics["test"]["uniform"]
    }


@pytest.mark.usefixtures("alone")
def test_metrics_of_recommended_lists_equal_the_reports_and_choose_the_best_epoch(
    log_config: Callable[..., Config], tmp_path: Path
) -> None:
    """Four of ten rows of the log repeat one of the user's last three items."""
    draw, log = np.random.default_rng(1), {}
    for user in range(60):
        items = draw.integers(30, size=20).tolist()
        for at in range(3, 20):
            if draw.random() < 0.4:
                items[at] = items[at - draw.integers(1, 4)]
        log[f"u{user}"] = items
    dataset = open_dataset(prepare_log(tmp_path, log))
    folder = run(log_config(**{"data.dataset_dir": str(dataset.folder), "training.eval_every_n_epochs": 1}))
    report = json.loads((folder / "report.json").read_text())
    recommender = load(folder)
    assert (report["seen_items"], recommender.leaves_out_seen) == ("keep", False)
    for split in ("validation", "test"):
        rows = dataset.splits[split].read(np.arange(len(dataset.splits[split])))
        histories = np.split(rows.items, rows.lengths.cumsum()[:-1])
        found = recommender.recommend([recommender.ids.of(items.tolist()) for items in histories], 10)
        targets = recommender.ids.of(rows.targets.tolist())
        assert report[split]["full"]["users"] == len(targets)
        for name, value in metrics_of([[one.item for one in row] for row in found], targets).items():
            assert report[split]["full"][name] == pytest.approx(value, abs=1e-12), (split, name)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [record["full"] for record in records if record["kind"] == "validation"]
    assert len(validations) > 1
    assert report["validation"]["full"]["NDCG@10"] == max(full["NDCG@10"] for full in validations)


def metrics_of(lists: list[list[Any]], targets: list[Any]) -> dict[str, float]:
    metrics = {f"{name}@{k}": 0.0 for name in ("HR", "NDCG") for k in (1, 5, 10)}
    for items, target in zip(lists, targets, strict=True):
        for k in (1, 5, 10):
            if target in items[:k]:
                metrics[f"HR@{k}"] += 1 / len(targets)
                metrics[f"NDCG@{k}"] += 1 / log2(items.index(target) + 2) / len(targets)
    return metrics


N_USERS, N_ROWS = 60, 12
Row = tuple[str, int, int]


def dataset_of(folder: Path, rows: list[Row]) -> Dataset:
    """The dataset of rows of user, item and second."""
    lines = (f"{user},i{item},{1_600_000_000 + second}" for user, item, second in rows)
    (folder / "log.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    arguments = [f"--data.path={folder / 'log.csv'}", f"--data.dataset_dir={folder / 'dataset'}", "--data.source=table"]
    assert preprocessing.main(["--config=config.toml", *arguments]) == 0
    return open_dataset(folder / "dataset")


def rows_of(user: str, first: int, n: int) -> list[Row]:
    return [(user, (first + 7 * at) % 50, 100 * at) for at in range(n)]


@pytest.mark.parametrize(("n_robots", "name"), [(1, "one large user"), (3, "heavy users")])
def test_users_with_very_many_rows_are_left_out(tmp_path: Path, n_robots: int, name: str) -> None:
    robots = [row for robot in range(n_robots) for row in rows_of(f"robot{robot}", robot, 1100 + robot)]
    people = [row for user in range(N_USERS) for row in rows_of(f"u{user}", user, N_ROWS)]
    dataset = dataset_of(tmp_path, robots + people)
    split = dataset.splits["test"]
    is_robot = split.lengths(np.arange(len(split))) > N_ROWS
    assert is_robot.sum() == n_robots
    ranks = np.where(is_robot, 1, 2 + np.arange(len(split)) % 20).astype(np.int32)
    model, markov = Ranking({"full": ranks}), Ranking({"full": np.full(len(split), 4, np.int32)})
    found = without_damage(dataset, model, {"markov": markov}, np.ones(len(split), bool))
    gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1.0), 0)
    difference = paired_difference((gains - 1 / np.log2(5))[~is_robot])
    assert found[name]["value"] == pytest.approx(gains[~is_robot].mean())
    assert found[name]["value_of_all"] == pytest.approx(gains.mean())
    assert found[name]["difference"] == pytest.approx(difference.value)
    assert found[name]["interval"] == pytest.approx([difference.low, difference.high])
    assert [found[name][key] for key in ("users", "left_out", "of")] == [N_USERS, n_robots, N_USERS + n_robots]


def test_targets_that_repeat_the_row_before_are_left_out(tmp_path: Path) -> None:
    """Every third user ends with the same row twice, and others only with the same item, or only at the same time."""
    rows = []
    for user in range(N_USERS):
        own = rows_of(f"u{user}", user, N_ROWS)
        _, item, second = own[-1]
        again = [(item, second), (item, second + 1), (item + 1, second)][user % 3]
        rows += [*own, (f"u{user}", *again), *([own[0]] * 2)]
    dataset = dataset_of(tmp_path, rows)
    split = dataset.splits["test"]
    rank = np.arange(1, len(split) + 1, dtype=np.int32)
    model, markov = Ranking({"full": rank}), Ranking({"full": rank[::-1].copy()})
    (found,) = without_damage(dataset, model, {"markov": markov}, np.ones(len(split), bool)).values()
    targets = split.targets(np.arange(len(split)))
    is_again = split.are_tied & (targets == split.last_items)
    assert is_again.sum() == N_USERS // 3 == found["left_out"]
    others = [Ranking({"full": ranking.ranks["full"][~is_again]}) for ranking in (model, markov)]
    comparison = strongest_baseline(others[0], {"markov": others[1]})
    assert {key: found[key] for key in comparison} == comparison
    untied = without_damage(dataset, model, {"markov": markov}, ~split.are_tied)["duplicates"]
    assert untied == {"users": N_USERS // 3, "left_out": 0, "of": N_USERS // 3}


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
    untied = FACTS._replace(is_tied=is_tied & ~is_tied, last_time=None)
    assert {"ties", "time"}.isdisjoint(slices(untied, RANKS, POPULARITY))
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
