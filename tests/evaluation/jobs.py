"""Jobs of the processes of a pool, for the tests of this folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.config.kinds import KINDS
from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, Sizes
from bert4rec.evaluation import ratings
from bert4rec.evaluation.evaluator import Example, examples
from bert4rec.evaluation.ranker import Ranks
from bert4rec.evaluation.top_k import TopK
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError
from bert4rec.runtime.files import sha256
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.torchrec_internals import placed_parts
from bert4rec.training.build import build, feature_reader, make_evaluator, plan_of_all, resolved, sizes_of
from bert4rec.training.prior import count_prior, own_prior
from tests.features import some_features
from tests.processes import jobs
from tests.sharding.jobs import FEW, FewItems


def rank_equal_items(config: Config, split: str) -> Ranks:
    """The ranks of a model whose items all have the same vector."""
    _, dataset, model, _ = jobs.set_up(config)
    for part, _, column in placed_parts(unwrap(model).state_dict()["item_table.collection.embeddings.item.weight"]):
        part.copy_(torch.arange(column, column + part.shape[1]).add(1).sqrt().sin())
    with mock.patch("bert4rec.evaluation.tiles.MIN_TILE", 11):  # some tiles for every process
        return jobs.rank(model, config, dataset, split, jobs.PROTOCOLS)


def results_with_features(config: Config) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The figures of a freshly initialised model with features, without each feature, and without order."""
    features = property(lambda dataset: some_features(dataset.n_items))
    with mock.patch.object(Dataset, "features", features), mock.patch("bert4rec.evaluation.tiles.MIN_TILE", 11):
        dataset = jobs.open_folder(config)
        config = resolved(config, jobs.here(), dataset)
        reader = feature_reader(config, dataset)
        model, _ = build(config, jobs.here(), plan_of_all(config, jobs.here(), sizes_of(config, dataset)), reader)
        evaluator = make_evaluator(config, jobs.here(), dataset, reader)
        held_out, calls = evaluator.held_out(), []
        ranks = evaluator.ranks(model, held_out, lambda: calls.append(None))
        results = evaluator.results(ranks, held_out)
        differences = evaluator.feature_differences(model, ranks, lambda: calls.append(None))
        assert len(calls) == evaluator.n_batches(held_out)
        assert evaluator.feature_differences(model, ranks, lambda: None) == differences  # the weights are restored
        return results, differences, results["order"]


def results_with_model(config: Config) -> dict[str, Any]:
    """The figures of the freshly initialised model, and the fallback for new users."""
    _, dataset, model, _ = jobs.set_up(config)
    evaluator = make_evaluator(config, jobs.here(), dataset)
    held_out, fallback = evaluator.held_out(), evaluator.fallback(lambda: None)
    assert fallback is not None, "the dataset has times"
    results = evaluator.results(evaluator.ranks(model, held_out, lambda: None), held_out)
    return results | {"fallback": fallback.figures}


def results_with_prior(config: Config, folder: Path, ease_up_to: int) -> dict[str, Any]:
    """The file of a prior, its weights and the figures of the freshly initialised model with it.

    EASE is exact for at most `ease_up_to` items.
    """
    config, dataset, model, _ = jobs.set_up(config)
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    kinds = {"ease": replace(KINDS["ease"], most_items=ease_up_to)}
    with mock.patch("bert4rec.evaluation.tiles.MIN_TILE", 11), mock.patch.dict(KINDS, kinds):
        world = jobs.here()
        count_prior(folder, ["transitions", "neighbours", "ease"], dataset, Partition(world.rank, world.world_size))
        place = unwrap(model).item_table.world
        prior = own_prior(folder / "prior.safetensors", place, world.device, dataset.n_items)
        evaluator = replace(make_evaluator(config, jobs.here(), dataset), prior=prior, prior_is_auto=False)
        metrics = evaluator.validation_metrics(model, lambda: None)
        ranks = evaluator.ranks(model, evaluator.held_out(), lambda: None)
        figures = evaluator.prior_figures(model, ranks, lambda: None)
    return {
        "file": sha256(folder / "prior.safetensors"),
        "figures": figures,
        "metrics": metrics,
        "ranks": {name: values.tolist() for name, values in ranks["test"].ranks.items()},
    }


def example_users(config: Config) -> tuple[Ranks, list[Example]]:
    """The ranks of the test by an initial model, and the best items of some of its users."""
    config, dataset, model, _ = jobs.set_up(config)
    ranker, split = jobs.ranker(model, config), dataset.splits["test"]
    ranks = ranker.rank(split, ["full"])
    return ranks, examples(ranker, split, ranks["full"])


def rating_errors(config: Config) -> dict[str, float]:
    """Of the freshly initialised model on the held-out pairs, which are cut into several batches."""
    config, dataset, model, _ = jobs.set_up(config)
    with mock.patch.object(ratings, "PAIRS_AT_ONCE", 30):
        return make_evaluator(config, jobs.here(), dataset).ratings(model, lambda: None)


def rank_with_a_spoiled_item() -> str:
    """The error if the vector of an item that no user has is not a number."""
    config, n_items = resolve(load_config(None, FEW), "cpu", Facts(40)), 40
    model, _ = build(config, jobs.here(), plan_of_all(config, jobs.here(), Sizes(n_items)))
    users = FewItems(n_items, 3)
    rows = users.read(np.arange(3))
    seen = set(rows.items) | set(rows.targets)
    unseen = next(row for row in range(n_items) if row not in seen)
    for part, row, _ in placed_parts(unwrap(model).state_dict()["item_table.collection.embeddings.item.weight"]):
        part[max(0, unseen - row) : max(0, unseen - row + 1)] = torch.nan
    ranker = jobs.ranker(model, config)
    try:
        ranker.rank(users, ["full"])
    except DivergenceError as error:
        return str(error)
    return "nothing was raised"


def best_of_processes(scores: list[list[float]]) -> tuple[list[list[float]], list[list[int]]]:
    """The three best of `scores` [U, 6], whose items are dealt to the processes from the last one to the first."""
    rank, n = dist.get_rank(), dist.get_world_size()
    partition = Partition(rank, n, place=n - 1 - rank)
    best = TopK.nothing(len(scores), 3, dtype=torch.float32, device=jobs.CPU)
    own = partition.of(6)
    best.update(slice(None), torch.tensor(scores)[:, own.start : own.stop], own.start)
    found = best.merge_all(partition)
    return found.scores.tolist(), found.indices.tolist()
