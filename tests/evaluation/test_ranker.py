"""Ranks worked out once more with sorts over Python lists, whatever the batches, tiles, passes and processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.config.tables import Config
from bert4rec.dataset.format import LEFT_OUT
from bert4rec.dataset.histories import EvaluationSplit
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.metrics import MISSED, ranking_metrics
from bert4rec.evaluation.ranker import Ranker, Ranks, repeated_targets, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.evaluation.tiles import Catalogue
from bert4rec.feed.batch import Lookup
from bert4rec.feed.features import FeatureReader
from bert4rec.feed.inference import append_mask_batch
from bert4rec.models.baselines import PopularityScorer
from bert4rec.models.item_features import FeatureSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.parallelize import initialize
from tests.conftest import long
from tests.evaluation.jobs import (
    rank_by_content,
    rank_equal_items,
    rank_untrained,
    rank_with_a_spoiled_item,
    results_with_features,
    results_with_model,
)
from tests.features import InMemory
from tests.processes import jobs

PROTOCOLS = ["full", "popular", "uniform"]


def model_for(dataset: Dataset, head: str = "tied", features: FeatureSettings | None = None) -> RankingModel:
    network = Bert4Rec(
        n_items=dataset.n_items, embed_dim=16, n_heads=2, n_layers=1, ffn_dim=16, max_len=12,
        dropout=0.5, head=head, features=features, device="cpu",
    )  # fmt: skip
    initialize(network, seed=1)
    return network


def by_model(network: RankingModel, batch_size: int, *, leaves_out_seen: bool = True) -> Ranker:
    scorer = ModelScorer(network, device=torch.device("cpu"), max_len=12)
    return Ranker(scorer, batch_size=batch_size, device=torch.device("cpu"), leaves_out_seen=leaves_out_seen)


def rank_by_popularity(dataset: Dataset, batch_size: int = 16, *, leaves_out_seen: bool = True) -> Ranks:
    scorer = PopularityScorer(dataset.popularity, Partition())
    ranker_ = Ranker(scorer, batch_size=batch_size, device=torch.device("cpu"), leaves_out_seen=leaves_out_seen)
    return ranker_.rank(dataset.splits["test"], PROTOCOLS)


def ranks_by_sorting(
    score: Callable[[int], list[float]], split: EvaluationSplit, *, leaves_out_seen: bool = True
) -> dict[str, list[int]]:
    """`score` gives a row's scores of all items."""
    ranks: dict[str, list[int]] = {name: [] for name in PROTOCOLS}
    for row in range(len(split)):
        rows, scores = split.read(np.array([row])), score(row)
        target = int(rows.targets[0])
        catalogue = set(range(len(scores)))
        candidates = {name: negatives[0].tolist() for name, negatives in rows.negatives.items()}
        seen = set(rows.items.tolist()) if leaves_out_seen else set()
        candidates["full"] = sorted(catalogue - seen)
        for name, others in candidates.items():
            ordered = sorted({*others, target}, key=lambda item: (-scores[item], item))
            rank = MISSED if name == "full" and target in seen else 1 + ordered.index(target)
            ranks[name].append(rank if others or name == "full" else LEFT_OUT)
    return ranks


def set_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    for name, size in sizes.items():
        monkeypatch.setattr(f"bert4rec.evaluation.{'ranker' if name == 'USERS_PER_PASS' else 'tiles'}.{name}", size)


def as_lists(ranks: Ranks) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in ranks.items()}


@pytest.mark.parametrize(
    ("head", "batch_size", "tile", "users_per_pass", "rows_per_lookup"),
    [
        ("tied", 128, 4096, 4096, 4096), ("linear", 7, 11, 1, 30), ("tied", 2, 11, 20, 1), ("linear", 1, 1, 20, 30),
        long("linear", 128, 4096, 4096, 4096), long("tied", 1, 1, 1, 1),
    ],
)  # fmt: skip
def test_a_models_ranks(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, head: str, batch_size: int, tile: int,
    users_per_pass: int, rows_per_lookup: int,
) -> None:  # fmt: skip
    set_sizes(monkeypatch, USERS_PER_PASS=users_per_pass, USERS_AT_ONCE=batch_size, ROWS_PER_LOOKUP=rows_per_lookup)
    set_sizes(monkeypatch, MIN_TILE=tile, MAX_TILE=2 * tile)
    split, network = small_dataset.splits["test"], model_for(small_dataset, head)
    for leaves_out_seen in (True, False):
        found = by_model(network, batch_size, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS)
        assert as_lists(found) == ranks_by_sorting(scores_by(network, split), split, leaves_out_seen=leaves_out_seen)


def scores_by(network: RankingModel, split: EvaluationSplit) -> Callable[[int], list[float]]:
    @torch.no_grad()
    def score(row: int) -> list[float]:
        hidden, vectors = network.encode_queries(
            append_mask_batch(split.read(np.array([row])), 12),
            Lookup.of(torch.arange(network.item_table.n_items)),
        )
        return (hidden @ vectors.T)[0].tolist()

    return score


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 128])  # batches of whom all, some and none have negatives
@pytest.mark.parametrize("split_name", ["validation", "test"])
def test_who_has_too_few_unseen_items_is_left_out(log_dataset: Dataset, split_name: str, batch_size: int) -> None:
    split, network = log_dataset.splits[split_name], model_for(log_dataset)
    for leaves_out_seen in (False, True):
        found = by_model(network, batch_size, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS)
        assert as_lists(found) == ranks_by_sorting(scores_by(network, split), split, leaves_out_seen=leaves_out_seen)
    assert found["popular"].tolist()[3::2] == found["uniform"].tolist()[3::2] == [LEFT_OUT, LEFT_OUT]
    assert [users["users"] for users in to_metrics(found, [10]).values()] == [6, 4, 4]


def test_a_log_by_hand(log_dataset: Dataset) -> None:
    """By popularity the items come in the order 5, 4, 1, 2, 3, 6, 7, 8."""
    test = log_dataset.splits["test"]
    assert repeated_targets(test, Partition()).tolist() == [True, False, True, False, False, True]
    assert test.read(np.arange(6)).are_left_out("popular").tolist() == [False, False, False, True, False, True]
    ranks = rank_by_popularity(log_dataset)
    kept = rank_by_popularity(log_dataset, leaves_out_seen=False)["full"]
    assert kept.tolist() == [3, 6, 7, 8, 7, 8]
    assert as_lists(ranks) == {
        "full": [MISSED, 4, MISSED, 1, 5, MISSED],
        "popular": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
        "uniform": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
    }
    assert {values.dtype.name for values in ranks.values()} == {"int32"}
    metrics = {name: (row["users"], row["HR@5"], row["MRR"]) for name, row in to_metrics(ranks, [5]).items()}
    sampled = (4, 3 / 4, pytest.approx((1 / 3 + 1 / 4 + 1 / 6 + 1 / 5) / 4))
    assert metrics == {
        "full": (6, 3 / 6, pytest.approx((1 / 4 + 1 + 1 / 5) / 6)), "popular": sampled, "uniform": sampled,
    }  # fmt: skip


@pytest.mark.parametrize("tile", [4096, 11])
@pytest.mark.parametrize("form", ["", "dot", "bias", "neural"])
def test_a_model_with_equal_items_ranks_by_id(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, form: str, tile: int
) -> None:
    """However their scores are rounded, which depends on how they are computed: the hits are those of chance."""
    set_sizes(monkeypatch, MIN_TILE=tile, MAX_TILE=2 * tile)
    split, network = small_dataset.splits["test"], model_for(small_dataset)
    if form:
        sizes = {"n_items": small_dataset.n_items, "n_users": len(small_dataset.histories), "embed_dim": 16}
        network = MatrixFactorization(**sizes, form=form, dropout=0.0, device="cpu")
        initialize(network, seed=1)
    table = network.item_table.collection.embeddings["item"].weight
    with torch.no_grad():
        table.copy_(torch.randn(table.shape[1], generator=torch.Generator().manual_seed(2)))
    expected = ranks_by_sorting(lambda row: [0.0] * small_dataset.n_items, split)
    assert as_lists(by_model(network, 16).rank(split, PROTOCOLS)) == expected


def test_cold_items_with_the_same_features_tie(small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the catalogue are cold items of four brands; they also tie in the examples of a report."""
    set_sizes(monkeypatch, MIN_TILE=11, MAX_TILE=22)
    n_items, split = small_dataset.n_items, small_dataset.splits["test"]
    values, is_warm = [[item % 4, 4 + item % 2] for item in range(n_items)], np.arange(n_items) % 8 < 4
    pictures = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)[np.arange(n_items) % 4]
    features = InMemory(values, {"brand": 4, "tags": 2}, pictures)
    network = model_for(small_dataset, features=FeatureSettings(features.sizes))
    network.item_table.features.reader = FeatureReader(features, is_warm, 10**6)
    scores = scores_by(network, split)

    def tied(row: int) -> list[float]:
        item_scores = scores(row)
        return [score if is_warm[item] else item_scores[4 + item % 4] for item, score in enumerate(item_scores)]

    ranker = by_model(network, 16)
    found = ranker.rank(split, PROTOCOLS)
    assert as_lists(found) == ranks_by_sorting(tied, split)
    best = ranker.best(split, np.arange(len(split)), n_items).indices.tolist()
    rows = split.read(np.arange(len(split)))
    for target, rank, items in zip(rows.targets.tolist(), found["full"].tolist(), best, strict=True):
        assert rank == MISSED or items.index(target) == rank - 1


@pytest.mark.parametrize(("batch_size", "tile"), [(16, 4096), (7, 11), (1, 1)])
def test_ranks_by_popularity(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, batch_size: int, tile: int
) -> None:
    set_sizes(monkeypatch, MIN_TILE=tile, MAX_TILE=2 * tile)
    counts, test = small_dataset.popularity.tolist(), small_dataset.splits["test"]
    for leaves_out_seen in (True, False):
        found = rank_by_popularity(small_dataset, batch_size, leaves_out_seen=leaves_out_seen)
        assert as_lists(found) == ranks_by_sorting(lambda row: counts, test, leaves_out_seen=leaves_out_seen)


def test_only_what_is_asked_for(small_dataset: Dataset) -> None:
    split, ranker_ = small_dataset.splits["validation"], by_model(model_for(small_dataset), 16)
    everything = as_lists(ranker_.rank(split, PROTOCOLS))
    for protocols in (["full"], ["uniform"], ["uniform", "full"]):
        assert as_lists(ranker_.rank(split, protocols)) == {name: everything[name] for name in protocols}


PROCESSES = [(2, "ddp"), (3, "dmp"), long(3, "ddp"), long(1, "dmp"), long(2, "dmp")]


def assert_same(process_ranks: list[Ranks], alone: Ranks) -> None:
    for ranks in process_ranks:
        for protocol in PROTOCOLS:
            np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize(("n_processes", "mode"), PROCESSES)
@pytest.mark.parametrize(("head", "split"), [("tied", "validation"), ("linear", "test")])
def test_ranks_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str, split: str, head: str
) -> None:
    plain, other = (small_config(**{"parallelism.mode": name, "model.head": head}) for name in ("ddp", mode))
    (alone,) = pools(1).run(jobs.rank_with_model, plain, split)
    assert_same(pools(n_processes).run(jobs.rank_with_model, other, split), alone)


@pytest.mark.parametrize("mode", [long("ddp"), "dmp"])
def test_equal_items_tie_whatever_the_processes(pools: Any, small_config: Callable[..., Config], mode: str) -> None:
    config = small_config(**{"parallelism.mode": mode})
    (alone,) = pools(1).run(rank_equal_items, config, "test")
    assert_same(pools(3).run(rank_equal_items, config, "test"), alone)
    hits = ranking_metrics(alone["full"], [10])
    assert hits["HR@10"] < 0.2  # by chance a fifteenth


@pytest.mark.parametrize("kind", [kind for kind in UNTRAINED if not KINDS[kind].needs_features])
def test_kinds_without_training_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], kind: str
) -> None:
    (alone,) = pools(1).run(rank_untrained, small_config(), kind, "test")
    assert len({*alone["full"].tolist()}) > 10
    for n_processes in (2, 3):
        assert_same(pools(n_processes).run(rank_untrained, small_config(), kind, "test"), alone)


def test_content_neighbours_and_the_test_without_a_feature_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config]
) -> None:
    config = small_config(**{"parallelism.mode": "dmp"})
    (ranks,), ((results, differences),) = (
        pools(1).run(job, config) for job in (rank_by_content, results_with_features)
    )
    assert len({*ranks["full"].tolist()}) > 10
    assert list(differences) == ["genre", "tags", "picture"]
    for feature in differences.values():
        low, high = feature["interval"]
        assert low <= feature["difference"] <= high
    assert "content_neighbours" in results["baselines"]
    for n_processes in (2, 3):
        assert_same(pools(n_processes).run(rank_by_content, config), ranks)
        assert pools(n_processes).run(results_with_features, config) == [(results, differences)] * n_processes


@pytest.mark.parametrize("dataset", [long("small"), "log"])
def test_metrics_of_lists_intervals_and_slices_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], log_config: Callable[..., Config], dataset: str
) -> None:
    """Of the log's six users two have no negatives; batches of 4 leave a process without."""
    settings = {"parallelism.mode": "dmp", "evaluation.per_device_eval_batch_size": 4}
    config = {"small": small_config, "log": log_config}[dataset](**settings)
    (alone,) = pools(1).run(results_with_model, config)
    assert {"validation", "test", "popularity_baseline", "intervals", "slices", "fallback"} <= alone.keys()
    assert "Coverage@10" in alone["popularity_baseline"]["full"]
    for n_processes in (2, 3):
        assert pools(n_processes).run(results_with_model, config) == [alone] * n_processes


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_scores_that_are_no_numbers_are_met_by_all_processes(pools: Any, n_processes: int) -> None:
    """One process alone scores the tile where that item is; the others would wait for it."""
    (message,) = set(pools(n_processes).run(rank_with_a_spoiled_item))
    assert message != "nothing was raised"


@settings(deadline=None)
@given(n_items=st.integers(1, 200_000), n_processes=st.integers(1, 9))
def test_the_processes_share_the_tiles_in_equally_many_lookups(n_items: int, n_processes: int) -> None:
    catalogue = Catalogue(n_items)
    lookups = [list(catalogue.lookups(Partition(rank, n_processes))) for rank in range(n_processes)]
    assert len({len(tiles) for tiles in lookups}) == 1
    assert [tile for tiles in lookups for some in tiles for tile in some] == list(catalogue.tiles)
    bounds = [catalogue.items(range(tile, tile + 1)) for tile in catalogue.tiles]
    assert [bounds[0][0], *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), n_items]


@settings(deadline=None)
@given(n_items=st.integers(1, 20_000), n_processes=st.integers(1, 9), item=st.integers(0, 19_999))
def test_an_item_belongs_to_the_process_that_scores_its_tile(n_items: int, n_processes: int, item: int) -> None:
    catalogue, item = Catalogue(n_items), item % n_items
    shares = [Partition(rank, n_processes).of(len(catalogue.tiles)) for rank in range(n_processes)]
    for in_any_order in (shares, shares[::-1], shares[1::2] + shares[::2]):
        (owner,) = catalogue.owners(np.array([item], np.int32), in_any_order)
        assert item // catalogue.tile in in_any_order[int(owner)]
