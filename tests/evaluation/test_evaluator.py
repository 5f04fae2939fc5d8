"""What is evaluated, and that its figures are those of the lists that recommend gives."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec import load
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation import LIST_METRICS
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.ranker import Ranker, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.models.baselines import BaselineFactory
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.processes import Processes
from bert4rec.training.run import run
from tests.conftest import long, prepare_log
from tests.evaluation.test_ranker import model_for

CPU = torch.device("cpu")


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
    contestants = {name: (metrics[name], metrics["intervals"][name]) for name in names[:3]}
    contestants["markov"] = metrics["baselines"]["markov"], metrics["intervals"]["baselines"]["markov"]
    for found, intervals in contestants.values():
        assert found["full"].keys() == {"users", "HR@10", "NDCG@10", "MRR"} | lists
        assert intervals["full"].keys() == found["full"].keys() - {"users", "Coverage@10", "Gini@10"}
        for protocol, protocol_intervals in intervals.items():
            for metric, (low, high) in protocol_intervals.items():
                assert low <= found[protocol][metric] <= high
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


KS = (1, 5, 10)
N_ITEMS = 30


@pytest.fixture(scope="module")
def repeats_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which four of ten rows repeat one of the user's last three items."""
    draw = np.random.default_rng(1)
    log: dict[str, list[int]] = {}
    for user in range(60):
        items = draw.integers(N_ITEMS, size=20).tolist()
        for at in range(3, 20):
            if draw.random() < 0.4:
                items[at] = items[at - draw.integers(1, 4)]
        log[f"u{user}"] = items
    return prepare_log(tmp_path_factory.mktemp("repeats"), log)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("seen_items", "chosen"), [("auto", "keep"), long("leave_out", "leave_out")])
def test_metrics_of_recommended_lists_equal_the_reports_and_choose_the_best_epoch(
    log_config: Callable[..., Config], repeats_folder: Path, seen_items: str, chosen: str
) -> None:
    settings = {"evaluation.seen_items": seen_items, "training.eval_every_n_epochs": 1}
    folder = run(log_config(**{"data.dataset_dir": str(repeats_folder)}, **settings))
    report = json.loads((folder / "report.json").read_text())
    recommender = load(folder)
    assert report["seen_items"] == chosen
    assert recommender.leaves_out_seen == (chosen == "leave_out")
    for split in ("validation", "test"):
        lists, targets = recommended(recommender, repeats_folder, split)
        assert report[split]["full"]["users"] == len(targets)
        for name, value in written_out(lists, targets).items():
            assert report[split]["full"][name] == pytest.approx(value, abs=1e-12), (split, name)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [record["full"] for record in records if record["kind"] == "validation"]
    assert len(validations) > 1
    assert report["validation"]["full"]["NDCG@10"] == max(full["NDCG@10"] for full in validations)


def recommended(recommender: Any, folder: Path, split: str) -> tuple[list[list[Any]], list[Any]]:
    """The ten recommended items for each held-out user, and the targets, both in the items' own ids."""
    part = open_dataset(folder).splits[split]
    rows = part.read(np.arange(len(part)))
    histories = np.split(rows.items, rows.lengths.cumsum()[:-1])
    found = recommender.recommend([recommender.ids.of(items.tolist()) for items in histories], 10)
    return [[one.item for one in row] for row in found], recommender.ids.of((rows.targets).tolist())


def written_out(lists: list[list[Any]], targets: list[Any]) -> dict[str, float]:
    metrics = {f"{name}@{k}": 0.0 for name in ("HR", "NDCG") for k in KS}
    for items, target in zip(lists, targets, strict=True):
        for k in KS:
            if target in items[:k]:
                metrics[f"HR@{k}"] += 1 / len(targets)
                metrics[f"NDCG@{k}"] += 1 / log2(items.index(target) + 2) / len(targets)
    return metrics
