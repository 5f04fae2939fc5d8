"""The prior beside a model: ranks and lists by all scores added up, and weights that help."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.metrics import Lists
from bert4rec.evaluation.prior import Features, PriorScorer, choose_weights
from bert4rec.evaluation.scorers import KnownItems, ModelScorer
from bert4rec.models.baselines import BaselineFactory
from bert4rec.models.prior import Prior, last_items
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.processes import Processes
from tests.conftest import long
from tests.evaluation.jobs import results_with_prior
from tests.evaluation.test_ranker import PROTOCOLS, as_lists, by_sorting, model_for, ranker_of, scores_by, set_sizes
from tests.models.test_prior import ALL, sources_for
from tests.processes.jobs import CPU

SHARDED = {"parallelism.sparse_optimizer": "adagrad"}  # a row of its table may be cut


@pytest.mark.parametrize("seen", ["leave_out", "keep", "by_item"])
@pytest.mark.parametrize("some_are_unknown", [False, True], ids=["all items are known", "one in four is not"])
def test_ranks_and_lists_are_those_of_the_sums(
    some_are_unknown: bool, seen: str, small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown items are not in histories; here the model gives them scores."""
    set_sizes(monkeypatch, USERS_PER_PASS=7, MIN_TILE=16, USERS_AT_ONCE=5)
    n_items, split = small_dataset.n_items, small_dataset.splits["test"]
    network, prior = model_for(small_dataset), Prior(sources_for(n_items, 0, n_items), range(n_items), ALL)
    leaves_out_seen = np.arange(n_items) % 3 > 0 if seen == "by_item" else seen == "leave_out"
    ids = np.where(np.arange(n_items) % 4 == 1, NO_ITEM, np.arange(n_items)).astype(np.int32)
    known, of_model = KnownItems(ids) if some_are_unknown else None, scores_by(network, split)

    def score(row: int) -> list[float]:
        rows, scores = split.read(np.array([row])), torch.tensor([of_model(row)])
        rows = rows.part(ids[rows.items] != NO_ITEM) if some_are_unknown else rows
        prior.add(scores, torch.from_numpy(last_items(rows.items, rows.lengths, prior.n_last)), 0)
        return scores[0].tolist()

    lists = Lists(len(split), [10], small_dataset.popularity, Partition(), n_kept=10)
    scorer = PriorScorer(ModelScorer(network, device=CPU, max_len=12), prior, known)
    ranks = ranker_of(scorer, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS, lists)
    expected, expected_lists = by_sorting(score, split, leaves_out_seen=leaves_out_seen)
    assert as_lists(ranks) == expected
    assert lists.kept_items.tolist() == [items[:10] for items in expected_lists]


def test_items_with_the_same_vector_tie_only_if_the_prior_adds_the_same(small_dataset: Dataset) -> None:
    n_items, split = small_dataset.n_items, small_dataset.splits["test"]
    network, prior = model_for(small_dataset), Prior(sources_for(n_items, 0, n_items), range(n_items), ALL)
    with torch.no_grad():
        network.item_table.collection.embeddings["item"].weight.fill_(0.25)
    scorer = PriorScorer(ModelScorer(network, device=CPU, max_len=12), prior)

    def score(row: int) -> list[float]:
        scores = torch.tensor([scores_by(network, split)(row)])
        rows = split.read(np.array([row]))
        prior.add(scores, torch.from_numpy(last_items(rows.items, rows.lengths, prior.n_last)), 0)
        return scores[0].tolist()

    assert as_lists(ranker_of(scorer).rank(split, PROTOCOLS)) == by_sorting(score, split)[0]


def test_weights_help_and_a_source_of_noise_gets_none() -> None:
    """The model knows one half of what the targets depend on, the first source the other half."""
    random = torch.Generator().manual_seed(0)
    halves, noise = torch.randn(2, 400, 60, generator=random), torch.randn(400, 60, generator=random)
    targets = (halves.sum(0) + 0.5 * torch.randn(400, 60, generator=random)).argmax(1, keepdim=True)

    def first(scores: torch.Tensor) -> torch.Tensor:
        """The target's column comes first."""
        others = scores.scatter(1, targets, scores[:, :1])[:, 1:]
        return torch.cat([scores.gather(1, targets), others], 1).double()

    features = Features(first(halves[0]), torch.stack([first(3 * halves[1]), first(noise)], 2))
    weights = choose_weights(features, is_auto=True)
    assert 0.2 < float(weights[0]) < 0.5  # 1/3 is right
    assert float(weights[1]) < 0.1 * float(weights[0])
    assert features.ranks(weights).mean() < features.ranks(torch.zeros(2, dtype=torch.float64)).mean()
    alone = Features(features.model, features.sources[:, :, 1:])
    assert choose_weights(alone, is_auto=True).tolist() == [0.0]


@pytest.mark.usefixtures("group_of_one")
def test_each_part_is_tested_by_its_scores_alone_unless_that_takes_long(small_dataset: Dataset) -> None:
    n_items, split = small_dataset.n_items, small_dataset.splits["test"]
    network, prior = model_for(small_dataset), Prior(sources_for(n_items, 0, n_items), range(n_items), ALL)
    evaluator = Evaluator(
        dataset=small_dataset, world=Processes(0, 0, 1, 1, CPU), protocols=["uniform", "full"], ks=[10], batch_size=16,
        max_len=12, precision="fp32", baselines=[], prior=prior, prior_tested_up_to=4 * len(split) * n_items,
        counting=BaselineFactory(dataset=small_dataset, partition=Partition()),
    )  # fmt: skip
    held_out, calls = evaluator.held_out(), list[None]()
    ranks = evaluator.ranks(network, held_out, lambda: calls.append(None))
    found = evaluator.prior_figures(network, ranks, lambda: calls.append(None))
    assert len(calls) == evaluator.n_batches(held_out)

    def gains(weights: dict[str, list[float]], model: float = 1.0) -> np.ndarray:
        """NDCG@10 of each user."""

        def score(row: int) -> list[float]:
            scores = model * torch.tensor([scores_by(network, split)(row)])
            rows = split.read(np.array([row]))
            last = torch.from_numpy(last_items(rows.items, rows.lengths, prior.n_last))
            prior.add(scores, last, 0, weights)
            return scores[0].tolist()

        return np.array([1 / math.log2(rank + 1) * (0 < rank <= 10) for rank in by_sorting(score, split)[0]["full"]])

    expected = {"model": gains({}), **{name: gains({name: weights}, 0.0) for name, weights in ALL.items()}}
    metrics = {"model": found["model"], **found["sources"]}
    hits = {name: {"HR@10": np.mean(values > 0), "NDCG@10": values.mean()} for name, values in expected.items()}
    assert metrics == {name: pytest.approx(values) for name, values in hits.items()}
    assert found["weights"] == ALL
    assert found["difference"]["difference"] == pytest.approx(np.mean(gains(ALL) - expected["model"]))
    assert found["difference"]["difference"] == pytest.approx(
        ranks["test"].metrics([10])["full"]["NDCG@10"] - found["model"]["NDCG@10"]
    )
    too_many = replace(evaluator, prior_tested_up_to=4 * len(split) * n_items - 1)
    assert too_many.prior_figures(network, ranks, calls.clear) == {"weights": ALL}
    assert calls  # nothing was ranked
    prior.weights = {}
    assert evaluator.prior_figures(network, ranks, calls.clear) == {"weights": {}}
    assert replace(evaluator, prior=None).prior_figures(network, ranks, calls.clear) == {}


@pytest.mark.parametrize(
    ("ease_up_to", "placed"),  # exact EASE up to so many items
    [
        (1, [(3, "column_wise", 0)]),
        (20_000, [(4, "row_wise", 2)]),
        long(1, [(2, "row_wise", 0), (4, "row_wise", 2)]),
        long(20_000, [(2, "row_wise", 0), (3, "table_wise", 0)]),
    ],
)
def test_counts_weights_and_ranks_do_not_depend_on_the_processes(
    ease_up_to: int, pools: Any, small_config: Callable[..., Config], tmp_path: Path, placed: list[tuple[int, str, int]]
) -> None:
    changes = {"parallelism.mode": "dmp"}
    (alone,) = pools(1).run(results_with_prior, small_config(**changes), tmp_path / "1", ease_up_to)
    assert alone["figures"]["weights"].keys() == alone["figures"]["sources"].keys() != set()
    for n, sharding, group in placed:
        sharded = {"parallelism.sharding_type": sharding, "parallelism.sharding_group_size": group}
        config = small_config(**changes | SHARDED | sharded)
        assert pools(n).run(results_with_prior, config, tmp_path / f"{n}-{sharding}", ease_up_to) == [alone] * n
