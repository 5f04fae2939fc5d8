"""Who is ranked on what, and how many batches that takes."""

from dataclasses import replace

import pytest
import torch

from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.metric_names import LIST_METRICS
from bert4rec.evaluation.ranker import Ranker, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.untrained.kinds import Counting
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.initialization import initialize

CPU = torch.device("cpu")


@pytest.fixture
def model(small_dataset: Dataset) -> Bert4Rec:
    network = Bert4Rec(
        n_items=small_dataset.n_items, embed_dim=16, n_heads=2, n_layers=1, ffn_dim=16, max_len=12, dropout=0.0,
        head="tied", output_bias=True, device="cpu",
    )  # fmt: skip
    initialize(network, seed=1)
    return network


@pytest.mark.usefixtures("group_of_one")
def test_the_model_on_both_splits_and_its_contestants_on_the_test(small_dataset: Dataset, model: Bert4Rec) -> None:
    evaluator = Evaluator(
        dataset=small_dataset, world=Processes(0, 0, 1, 1, CPU), protocols=["full", "uniform"], ks=[10], batch_size=16,
        max_len=12, precision="fp32", baselines=["markov"],
        counting=Counting(
            dataset=small_dataset, partition=Partition(), recent_share=0.1, n_last_items=2, decay=0.5, smoothing=1.0
        ),
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
    of_contestants = {name: (metrics[name], metrics["intervals"][name]) for name in names[:3]}
    of_contestants["markov"] = metrics["baselines"]["markov"], metrics["intervals"]["baselines"]["markov"]
    for found, intervals in of_contestants.values():
        assert found["full"].keys() == {"users", "HR@10", "NDCG@10", "MRR"} | lists
        assert intervals["full"].keys() == found["full"].keys() - {"users", "Coverage@10", "Gini@10"}
        for protocol, of_protocol in intervals.items():
            for metric, (low, high) in of_protocol.items():
                assert low <= found[protocol][metric] <= high
    assert metrics["best_possible"].keys() == metrics["intervals"]["best_possible"].keys() == {"full", "uniform"}
    of_ranks = {k: v for k, v in metrics["test"]["full"].items() if k not in lists}
    assert {**metrics["test"], "full": of_ranks} == to_metrics(test, [10])
    (validation,) = evaluator.validation_metrics(model, lambda: None).values()
    assert validation == {k: v for k, v in metrics["validation"]["full"].items() if k not in lists}
    assert metrics["slices"].keys() == {"test"}
    sampled = replace(evaluator, protocols=["uniform"], baselines=[])
    assert sampled.n_batches(held_out) == 2 + 2 * 4
    assert sampled.results(sampled.ranks(model, held_out, lambda: None), held_out)["test"] == {
        "uniform": metrics["test"]["uniform"]
    }
