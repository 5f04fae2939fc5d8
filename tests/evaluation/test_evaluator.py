"""What is evaluated, that its figures are those of recommend's lists, and comparisons without damage of the log."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preprocessing
from bert4rec import load
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation import LIST_METRICS
from bert4rec.evaluation.damage import without_damage
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.intervals import Ranking, paired_difference, strongest_baseline
from bert4rec.evaluation.ranker import Ranker, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.models.baselines import BaselineFactory
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.processes import Processes
from bert4rec.training.run import run
from tests.conftest import prepare_log
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
    """In the log, four of ten rows repeat one of the user's last three items."""
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
