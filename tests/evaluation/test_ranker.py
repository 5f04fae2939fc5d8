"""Ranks and lists are those of a sort over Python lists, whatever the batches, tiles and processes."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bert4rec
from bert4rec.config.tables import Config
from bert4rec.dataset.format import LEFT_OUT, NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation import top_k as module
from bert4rec.evaluation.metrics import MISSED, Lists, ranking_metrics
from bert4rec.evaluation.ranker import Ranker, Ranks, repeated_targets, to_metrics
from bert4rec.evaluation.scorers import KnownItems, ModelScorer, OrderlessScorer, Scorer
from bert4rec.evaluation.seen_items import LeavesOut
from bert4rec.evaluation.tiles import Catalogue
from bert4rec.evaluation.top_k import top_k
from bert4rec.feed.batch import Lookup
from bert4rec.feed.features import FeatureReader
from bert4rec.feed.inference import append_mask_batch
from bert4rec.models.baselines import BaselineFactory, PopularityScorer
from bert4rec.models.item_features import FeatureSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.parallelize import initialize
from tests.conftest import long
from tests.evaluation.jobs import (
    best_of_processes,
    example_users,
    rank_equal_items,
    rank_with_a_spoiled_item,
    results_with_features,
    results_with_model,
)
from tests.features import InMemory
from tests.processes import jobs
from tests.processes.jobs import CPU

PROTOCOLS = ["full", "popular", "uniform"]
Score = Callable[[int], list[float]]  # the scores of all items for a row


def model_for(dataset: Dataset, head: str = "tied", features: FeatureSettings | None = None) -> RankingModel:
    network = Bert4Rec(
        n_items=dataset.n_items, embed_dim=16, n_heads=2, n_layers=1, ffn_dim=16, max_len=12,
        dropout=0.5, head=head, features=features, device="cpu",
    )  # fmt: skip
    initialize(network, seed=1)
    return network


def scores_by(network: RankingModel, split: EvaluationSplit) -> Score:
    @torch.no_grad()
    def score(row: int) -> list[float]:
        hidden, vectors = network.encode_queries(
            append_mask_batch(split.read(np.array([row])), 12),
            Lookup.of(torch.arange(network.item_table.n_items)),
        )
        return (hidden @ vectors.T)[0].tolist()

    return score


def ranker_of(scorer: RankingModel | Scorer, batch_size: int = 16, *, leaves_out_seen: LeavesOut = True) -> Ranker:
    if isinstance(scorer, RankingModel):
        scorer = ModelScorer(scorer, device=CPU, max_len=12)
    return Ranker(scorer, batch_size=batch_size, device=CPU, leaves_out_seen=leaves_out_seen)


def by_sorting(
    score: Score, split: EvaluationSplit, *, leaves_out_seen: LeavesOut = True
) -> tuple[dict[str, list[int]], list[list[int]]]:
    """The ranks of the targets by protocol, and the items of each row, the best ones first."""
    ranks: dict[str, list[int]] = {name: [] for name in PROTOCOLS}
    lists = []
    for row in range(len(split)):
        rows, scores = split.read(np.array([row])), score(row)
        left_out = np.broadcast_to(leaves_out_seen, len(scores))
        target, seen = int(rows.targets[0]), {item for item in rows.items.tolist() if left_out[item]}
        candidates = {name: negatives[0].tolist() for name, negatives in rows.negatives.items()}
        candidates["full"] = [item for item in range(len(scores)) if item not in seen]
        for name, others in candidates.items():
            ordered = sorted({*others, target}, key=lambda item: (-scores[item], item))
            rank = MISSED if name == "full" and target in seen else 1 + ordered.index(target)
            ranks[name].append(rank if others or name == "full" else LEFT_OUT)
        lists.append(sorted(candidates["full"], key=lambda item: (-scores[item], item)))
    return ranks, lists


def written_out(lists: list[list[int]], popularity: list[int], ks: Sequence[int]) -> dict[str, float]:
    metrics = {}
    for k in ks:
        shown = [items[:k] for items in lists if items]
        counts = Counter(item for items in shown for item in items)
        ordered = sorted(counts[item] for item in range(len(popularity)))
        n, total = len(ordered), sum(ordered)
        metrics[f"Coverage@{k}"] = len(counts) / n
        metrics[f"Gini@{k}"] = sum((2 * i - n - 1) * x for i, x in enumerate(ordered, 1)) / (n * total)
        means = [sum(popularity[item] for item in items) / len(items) for items in shown]
        metrics[f"AveragePopularity@{k}"] = sum(means) / len(means)
        shares = [[max(popularity[item], 1) / sum(popularity) for item in items] for items in shown]
        novelties = [sum(-math.log2(share) for share in list_shares) / len(list_shares) for list_shares in shares]
        metrics[f"Novelty@{k}"] = sum(novelties) / len(novelties)
    return metrics


def set_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    for name, size in sizes.items():
        monkeypatch.setattr(f"bert4rec.evaluation.{'ranker' if name == 'USERS_PER_PASS' else 'tiles'}.{name}", size)


def as_lists(ranks: Ranks) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in ranks.items()}


def require_sorted(dataset: Dataset, split_name: str, head: str, batch_size: int, ks: Sequence[int]) -> list[Lists]:
    """Compare ranks and lists, by a model and by popularity, with every filter, with those by sorting."""
    split, popularity, network = dataset.splits[split_name], dataset.popularity, model_for(dataset, head)
    all_lists = []
    for scorer, score in (
        (network, scores_by(network, split)),
        (PopularityScorer(popularity, Partition()), lambda _: popularity.tolist()),
    ):
        for leaves_out_seen in (False, np.arange(dataset.n_items) % 3 > 0, True):
            lists = Lists(len(split), ks, popularity, Partition())
            ranks = ranker_of(scorer, batch_size, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS, lists)
            expected_ranks, expected_lists = by_sorting(score, split, leaves_out_seen=leaves_out_seen)
            assert as_lists(ranks) == expected_ranks
            assert lists.metrics() == pytest.approx(written_out(expected_lists, popularity.tolist(), ks), rel=1e-12)
            all_lists.append(lists)
    return all_lists


@pytest.mark.parametrize(
    ("head", "batch_size", "tile", "users_per_pass", "rows_per_lookup"),
    [
        ("tied", 128, 4096, 4096, 4096), ("linear", 7, 11, 3, 30), ("tied", 2, 11, 20, 1),
        long("linear", 128, 4096, 4096, 4096), long("tied", 1, 1, 1, 1),
    ],
)  # fmt: skip
def test_ranks_and_lists_are_those_by_sorting(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, head: str, batch_size: int, tile: int,
    users_per_pass: int, rows_per_lookup: int,
) -> None:  # fmt: skip
    set_sizes(monkeypatch, USERS_PER_PASS=users_per_pass, USERS_AT_ONCE=batch_size, ROWS_PER_LOOKUP=rows_per_lookup)
    set_sizes(monkeypatch, MIN_TILE=tile, MAX_TILE=2 * tile, MIN_TILES=1)
    require_sorted(small_dataset, "test", head, batch_size, [1, 3, 10])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 128])  # batches of whom all, some and none have negatives
@pytest.mark.parametrize("split_name", ["validation", "test"])
def test_who_has_seen_nearly_all_has_no_negatives_and_a_short_list(
    log_dataset: Dataset, split_name: str, batch_size: int
) -> None:
    all_lists = require_sorted(log_dataset, split_name, "tied", batch_size, [1, 4, 500])
    for name, values in all_lists[-1].user_values().items():
        empty = [5] if split_name == "test" else []  # the user has seen all items, the target included
        assert np.flatnonzero(np.isnan(values)).tolist() == empty, name


def test_a_seen_target_is_missed_only_if_its_item_does_not_come_again(log_dataset: Dataset) -> None:
    """The items in the order of popularity are 5, 4, 1, 2, 3, 6, 7, 8; the users 0, 2 and 5 have their targets."""
    test, scorer = log_dataset.splits["test"], PopularityScorer(log_dataset.popularity, Partition())
    targets = test.read(np.arange(6)).targets
    leaving = np.isin(np.arange(8), targets[[0, 5]])
    ranks = ranker_of(scorer, leaves_out_seen=leaving).rank(test, PROTOCOLS)
    missed = np.isin(targets, targets[[0, 5]]) & repeated_targets(test, Partition())
    assert [rank == MISSED for rank in ranks["full"]] == missed.tolist()
    assert not missed[2]


def test_lists_without_items_have_no_means(log_dataset: Dataset) -> None:
    lists = Lists(0, [2, 10**9], log_dataset.popularity, Partition())
    lists.finish()
    assert lists.metrics() == {"Coverage@2": 0.0, "Gini@2": 0.0}


def test_a_log_by_hand(log_dataset: Dataset) -> None:
    """The items in the order of popularity are 5, 4, 1, 2, 3, 6, 7, 8."""
    test, scorer = log_dataset.splits["test"], PopularityScorer(log_dataset.popularity, Partition())
    assert repeated_targets(test, Partition()).tolist() == [True, False, True, False, False, True]
    assert test.read(np.arange(6)).are_left_out("popular").tolist() == [False, False, False, True, False, True]
    ranks, kept = (ranker_of(scorer, leaves_out_seen=leaves).rank(test, PROTOCOLS) for leaves in (True, False))
    assert kept["full"].tolist() == [3, 6, 7, 8, 7, 8]
    assert as_lists(ranks) == {
        "full": [MISSED, 4, MISSED, 1, 5, MISSED],
        "popular": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
        "uniform": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
    }
    metrics = {name: (row["users"], row["HR@5"], row["MRR"]) for name, row in to_metrics(ranks, [5]).items()}
    sampled = (4, 3 / 4, pytest.approx((1 / 3 + 1 / 4 + 1 / 6 + 1 / 5) / 4))
    assert metrics == {
        "full": (6, 3 / 6, pytest.approx((1 / 4 + 1 + 1 / 5) / 6)), "popular": sampled, "uniform": sampled,
    }  # fmt: skip
    for protocols in (["full"], ["uniform"], ["uniform", "full"]):
        asked = ranker_of(scorer).rank(test, protocols)
        assert as_lists(asked) == {name: ranks[name].tolist() for name in protocols}


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
    expected, _ = by_sorting(lambda row: [0.0] * small_dataset.n_items, split)
    assert as_lists(ranker_of(network).rank(split, PROTOCOLS)) == expected


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

    ranker = ranker_of(network)
    ranks = ranker.rank(split, PROTOCOLS)
    assert as_lists(ranks) == by_sorting(tied, split)[0]
    best = ranker.best(split, np.arange(len(split)), n_items).indices.tolist()
    rows = split.read(np.arange(len(split)))
    for target, rank, items in zip(rows.targets.tolist(), ranks["full"].tolist(), best, strict=True):
        assert rank == MISSED or items.index(target) == rank - 1


def assert_same(process_ranks: list[Ranks], alone: Ranks) -> None:
    for ranks in process_ranks:
        for protocol in PROTOCOLS:
            np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize(
    ("n_processes", "mode"), [(2, "ddp"), (3, "dmp"), long(3, "ddp"), long(1, "dmp"), long(2, "dmp")]
)
@pytest.mark.parametrize(("head", "split"), [("tied", "validation"), ("linear", "test")])
def test_ranks_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str, split: str, head: str
) -> None:
    plain, other = (small_config(**{"parallelism.mode": name, "model.head": head}) for name in ("ddp", mode))
    (alone,) = pools(1).run(jobs.rank_with_model, plain, split)
    assert_same(pools(n_processes).run(jobs.rank_with_model, other, split), alone)


def test_equal_items_tie_whatever_the_processes(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**{"parallelism.mode": "dmp"})
    (alone,) = pools(1).run(rank_equal_items, config, "test")
    assert_same(pools(3).run(rank_equal_items, config, "test"), alone)
    assert ranking_metrics(alone["full"], [10])["HR@10"] < 0.2  # by chance a fifteenth


def test_baselines_and_the_test_without_a_feature_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config]
) -> None:
    config = small_config(**{"parallelism.mode": "dmp"})
    ((results, differences, orders),) = pools(1).run(results_with_features, config)
    assert list(orders) == ["bert4rec", "markov", "transition_graph"]
    assert list(differences) == ["genre", "tags", "picture"]
    for feature in differences.values():
        low, high = feature["interval"]
        assert low <= feature["difference"] <= high
    assert {"recent_popularity", "content_neighbours"} <= results["baselines"].keys()
    assert pools(3).run(results_with_features, config) == [(results, differences, orders)] * 3


def test_metrics_of_lists_intervals_and_slices_do_not_depend_on_the_processes(
    pools: Any, log_config: Callable[..., Config]
) -> None:
    """Two of six users have no negatives; with batches of 4 a process has none."""
    config = log_config(**{"parallelism.mode": "dmp", "evaluation.per_device_eval_batch_size": 4})
    (alone,) = pools(1).run(results_with_model, config)
    assert {"validation", "test", "popularity_baseline", "intervals", "slices", "fallback"} <= alone.keys()
    assert "Coverage@10" in alone["popularity_baseline"]["full"]
    for n_processes in (2, 3):
        assert pools(n_processes).run(results_with_model, config) == [alone] * n_processes


@pytest.mark.parametrize("n_processes", [1, 3])
def test_scores_that_are_no_numbers_are_met_by_all_processes(pools: Any, n_processes: int) -> None:
    """One process alone scores the tile where that item is; the others would wait for it."""
    (message,) = set(pools(n_processes).run(rank_with_a_spoiled_item))
    assert message != "nothing was raised"


@settings(deadline=None)
@given(n_items=st.integers(1, 200_000), n_processes=st.integers(1, 9), item=st.integers(0, 199_999))
def test_the_processes_share_the_tiles_in_equally_many_lookups(n_items: int, n_processes: int, item: int) -> None:
    catalogue, item = Catalogue(n_items), item % n_items
    lookups = [list(catalogue.lookups(Partition(rank, n_processes))) for rank in range(n_processes)]
    assert len({len(tiles) for tiles in lookups}) == 1
    assert [tile for tiles in lookups for some in tiles for tile in some] == list(catalogue.tiles)
    bounds = [catalogue.items(range(tile, tile + 1)) for tile in catalogue.tiles]
    assert [bounds[0][0], *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), n_items]
    shares = [Partition(rank, n_processes).of(len(catalogue.tiles)) for rank in range(n_processes)]
    for in_any_order in (shares, shares[::-1], shares[1::2] + shares[::2]):
        (owner,) = catalogue.owners(np.array([item], np.int32), in_any_order)
        assert item // catalogue.tile in in_any_order[int(owner)]


def test_unknown_items_are_dropped_from_histories() -> None:
    """The model knows the dataset's items 0, 2 and 3 as 7, 3 and 2."""
    known, numbers = KnownItems(np.array([7, NO_ITEM, 3, 2], np.int32)), np.arange(8)
    items, lengths = np.array([0, 1, 2, 1, 3, 1, 1, 3], np.int32), np.array([3, 2, 2, 1])
    part = known.translate_rows(Rows(items, lengths, times=numbers, events=numbers.astype(np.int16)))
    assert part.lengths.tolist() == [2, 1, 2, 1]
    assert part.items.tolist() == [7, 3, 2, 0, 0, 2]
    assert part.times.tolist() == part.events.tolist() == [0, 2, 4, 5, 6, 7]


@given(
    values=st.sampled_from([9, 75]).flatmap(
        lambda n: st.lists(st.lists(st.integers(-2, 2), min_size=n, max_size=n), min_size=1, max_size=3)
    ),
    k=st.integers(1, 9),
    tile=st.integers(1, 100),
    blocks=st.integers(1, 16),
    excluded=st.sets(st.integers(0, 8), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_the_best_of_all_in_order_and_ties_to_the_lower_index(
    values: list[list[int]], k: int, tile: int, blocks: int, excluded: set[int]
) -> None:
    def exclude(scores: Tensor, first: int) -> None:
        for index in excluded:
            if first <= index < first + scores.shape[1]:
                scores[:, index - first] = -torch.inf

    hidden = torch.tensor(values, dtype=torch.float32)  # their scores, since the vectors are the unit vectors
    n_items = hidden.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        patch.setattr(module, "BLOCKS_PER_TILE", blocks)
        scores, indices = top_k(hidden, torch.eye(n_items), k, adjust=exclude)
    for row, own in enumerate(values):
        allowed = (index for index in range(n_items) if index not in excluded)
        expected = sorted(allowed, key=lambda i: (-own[i], i))[:k]
        n = len(expected)
        assert indices[row, :n].tolist() == expected
        assert scores[row, :n].tolist() == [own[index] for index in expected]
        assert scores[row, n:].tolist() == [-torch.inf] * (k - n)


@pytest.mark.usefixtures("group_of_one")
def test_what_order_is_worth_where_it_tells_everything_or_nothing(tmp_path: Path) -> None:
    """Each item follows the one before it: without order Markov is lost, and its drawn order is that of the user."""
    rows = [f"{user},{(user + place) % 40},{place}" for user in range(200) for place in range(8)]
    (tmp_path / "log.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]))
    dataset = bert4rec.prepare(tmp_path / "log.csv", {"data.dataset_dir": str(tmp_path / "log")})
    counting = BaselineFactory(dataset=dataset, partition=Partition())
    markov, popularity = (counting.scorer(kind, lambda: None) for kind in ("markov", "popularity"))
    split, n_users = dataset.splits["test"], 200

    def ranks(scorer: Scorer, batch_size: int = 64) -> list[int]:
        ranker = Ranker(scorer, batch_size=batch_size, device=CPU)
        return ranker.rank(split, ["full"])["full"].tolist()

    assert ranks(markov) == [1] * n_users
    drawn = ranks(OrderlessScorer(markov))
    assert drawn.count(1) == pytest.approx(n_users / 7, abs=25)  # the last of seven items stays the last
    assert ranks(OrderlessScorer(markov), batch_size=7) == drawn
    assert ranks(OrderlessScorer(popularity)) == ranks(popularity)


@pytest.mark.parametrize("n_processes", [1, 3])
def test_the_best_of_all_processes_whichever_has_which_items(pools: Any, n_processes: int) -> None:
    scores = [[1.0, 3, 3, 0, 3, 3], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]
    expected = ([[3, 3, 3], [5, 4, 3], [0, 0, 0], [5, 4, 3]], [[1, 2, 4], [0, 1, 2], [0, 1, 2], [5, 4, 3]])
    assert pools(n_processes).run(best_of_processes, scores) == [expected] * n_processes


@pytest.mark.parametrize(("n_processes", "mode"), [long(2, "dmp"), (3, "dmp"), (2, "ddp")])
def test_the_target_stands_at_its_rank_whatever_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str
) -> None:
    ((_, alone),) = pools(1).run(example_users, small_config(**{"parallelism.mode": "ddp"}))
    assert len(alone) == 10
    for ranks, found in pools(n_processes).run(example_users, small_config(**{"parallelism.mode": mode})):
        for example, twin in zip(found, alone, strict=True):
            assert (example.user, example.target, example.rank) == (twin.user, twin.target, twin.rank)
            np.testing.assert_array_equal(example.items, twin.items)
            np.testing.assert_array_equal(example.scores, twin.scores)
            assert ranks["full"][example.user] == example.rank
            places = np.flatnonzero(example.items == example.target)
            assert places.tolist() == ([example.rank - 1] if example.rank <= 10 else [])
