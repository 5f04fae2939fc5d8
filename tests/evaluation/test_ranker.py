"""Ranks worked out once more with sorts over Python lists, whatever the batches, the tiles and the passes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bert4rec.config.tables import Config
from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.reader import Dataset, Split, open_dataset
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation import ranker
from bert4rec.evaluation.metrics import MISSED, ranking_metrics
from bert4rec.evaluation.ranker import HeldOut, Ranker, Ranks, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.feed.inference import with_mask
from bert4rec.feed.lookup import Lookup
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.untrained.popularity import PopularityScorer
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.initialization import initialize

PROTOCOLS = ["full", "popular", "uniform"]


def model_for(dataset: Dataset, head: str = "tied") -> Bert4Rec:
    network = Bert4Rec(
        n_items=dataset.n_items, embed_dim=16, n_heads=2, n_layers=1, ffn_dim=16, max_len=12,
        dropout=0.5, head=head, output_bias=True, device="cpu",
    )  # fmt: skip
    initialize(network, seed=1)
    return network


def by_model(network: Bert4Rec, batch_size: int, *, leaves_out_seen: bool = True) -> Ranker:
    scorer = ModelScorer(network, device=torch.device("cpu"), max_len=12)
    return Ranker(scorer, batch_size=batch_size, device=torch.device("cpu"), leaves_out_seen=leaves_out_seen)


def rank_by_popularity(dataset: Dataset, batch_size: int = 16, *, leaves_out_seen: bool = True) -> Ranks:
    scorer = PopularityScorer(dataset.popularity, Partition())
    ranker_ = Ranker(scorer, batch_size=batch_size, device=torch.device("cpu"), leaves_out_seen=leaves_out_seen)
    return ranker_.rank(dataset.splits["test"], PROTOCOLS)


def ranks_by_sorting(
    score: Callable[[int], list[float]], split: Split, *, leaves_out_seen: bool = True
) -> dict[str, list[int]]:
    """`score` gives a row's scores of all items."""
    ranks: dict[str, list[int]] = {name: [] for name in PROTOCOLS}
    for row in range(len(split)):
        rows, scores = split.read(np.array([row])), score(row)
        assert rows.targets is not None
        assert rows.negatives is not None
        target = int(rows.targets[0])
        catalogue = set(range(FIRST_ITEM_ID, FIRST_ITEM_ID + len(scores)))
        candidates = {name: negatives[0].tolist() for name, negatives in rows.negatives.items()}
        seen = set(rows.items.tolist()) if leaves_out_seen else set()
        candidates["full"] = sorted(catalogue - seen)
        for name, others in candidates.items():
            ordered = sorted({*others, target}, key=lambda item: (-scores[item - FIRST_ITEM_ID], item))
            rank = MISSED if name == "full" and target in seen else 1 + ordered.index(target)
            ranks[name].append(rank if others or name == "full" else LEFT_OUT)
    return ranks


@pytest.mark.parametrize("head", ["tied", "linear"])
@pytest.mark.parametrize(
    ("batch_size", "tile", "users_per_pass", "rows_per_lookup"),
    [(128, 4096, 4096, 4096), (7, 11, 20, 30), (1, 1, 1, 1)],
)
def test_a_models_ranks(
    small_dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    head: str,
    batch_size: int,
    tile: int,
    users_per_pass: int,
    rows_per_lookup: int,
) -> None:
    monkeypatch.setattr(ranker, "USERS_PER_PASS", users_per_pass)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.USERS_AT_ONCE", batch_size)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.ROWS_PER_LOOKUP", rows_per_lookup)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", tile)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MAX_TILE", 2 * tile)
    split, network = small_dataset.splits["test"], model_for(small_dataset, head)
    for leaves_out_seen in (True, False):
        found = by_model(network, batch_size, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS)
        expected = ranks_by_sorting(scores_by(network, split), split, leaves_out_seen=leaves_out_seen)
        assert {name: values.tolist() for name, values in found.items()} == expected


def scores_by(network: Bert4Rec, split: Split) -> Callable[[int], list[float]]:
    @torch.no_grad()
    def score(row: int) -> list[float]:
        hidden, vectors = network.represent(
            with_mask(split.read(np.array([row])), 12),
            Lookup.of(FIRST_ITEM_ID + torch.arange(network.item_table.n_items)),
        )
        return (hidden @ vectors.T)[0].tolist()

    return score


@pytest.fixture
def log_dataset(log_config: Callable[..., Config]) -> Dataset:
    config = log_config()
    return open_dataset(config.data.folder, max_len=12, preprocessing=config.preprocessing.recipe)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 128])  # batches of whom all, some and none have negatives
@pytest.mark.parametrize("split_name", ["validation", "test"])
@pytest.mark.parametrize("head", ["tied", "linear"])
def test_who_has_too_few_unseen_items_is_left_out(
    log_dataset: Dataset, head: str, split_name: str, batch_size: int
) -> None:
    split, network = log_dataset.splits[split_name], model_for(log_dataset, head)
    for leaves_out_seen in (False, True):
        found = by_model(network, batch_size, leaves_out_seen=leaves_out_seen).rank(split, PROTOCOLS)
        expected = ranks_by_sorting(scores_by(network, split), split, leaves_out_seen=leaves_out_seen)
        assert {name: values.tolist() for name, values in found.items()} == expected
    assert found["popular"].tolist()[3::2] == found["uniform"].tolist()[3::2] == [LEFT_OUT, LEFT_OUT]
    assert [users["users"] for users in to_metrics(found, [10]).values()] == [6, 4, 4]


def test_a_log_by_hand(log_dataset: Dataset) -> None:
    """By popularity the items come in the order 5, 4, 1, 2, 3, 6, 7, 8."""
    test = log_dataset.splits["test"]
    held_out = HeldOut.of(test, Partition())
    assert held_out.repeated.tolist() == [True, False, True, False, False, True]
    assert held_out.left_out.tolist() == [False, False, False, True, False, True]
    ranks = rank_by_popularity(log_dataset)
    kept = rank_by_popularity(log_dataset, leaves_out_seen=False)["full"]
    assert kept.tolist() == [3, 6, 7, 8, 7, 8]
    assert {name: values.tolist() for name, values in ranks.items()} == {
        "full": [MISSED, 4, MISSED, 1, 5, MISSED],
        "popular": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
        "uniform": [3, 4, 6, LEFT_OUT, 5, LEFT_OUT],
    }
    assert {values.dtype.name for values in ranks.values()} == {"int32"}
    sampled = {"users": 4, "HR@5": 3 / 4, "NDCG@5": NDCG[3] + NDCG[4] + NDCG[5], "MRR": 1 / 3 + 1 / 4 + 1 / 6 + 1 / 5}
    full = {"users": 6, "HR@5": 3 / 6, "NDCG@5": NDCG[4] + NDCG[1] + NDCG[5], "MRR": 1 / 4 + 1 + 1 / 5}
    expected = {"full": full, "popular": sampled, "uniform": sampled}
    for name, found in to_metrics(ranks, [5]).items():
        means = {"NDCG@5", "MRR"}
        assert found == {
            key: pytest.approx(value / found["users"]) if key in means else value
            for key, value in expected[name].items()
        }


NDCG = {rank: 1 / np.log2(rank + 1) for rank in range(1, 6)}


def test_a_model_that_says_nothing_ranks_by_id(small_dataset: Dataset) -> None:
    split, network = small_dataset.splits["test"], model_for(small_dataset)
    with torch.no_grad():
        network.item_table.collection.embeddings["item"].weight.zero_()
    model_ranker = by_model(network, 16)
    expected = ranks_by_sorting(lambda row: [0.0] * small_dataset.n_items, split)
    assert {name: values.tolist() for name, values in model_ranker.rank(split, PROTOCOLS).items()} == expected


@pytest.mark.parametrize(("batch_size", "tile"), [(16, 4096), (7, 11), (1, 1)])
def test_ranks_by_popularity(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, batch_size: int, tile: int
) -> None:
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", tile)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MAX_TILE", 2 * tile)
    counts = small_dataset.popularity
    for leaves_out_seen in (True, False):
        found = rank_by_popularity(small_dataset, batch_size, leaves_out_seen=leaves_out_seen)
        expected = ranks_by_sorting(
            lambda row: counts.tolist(), small_dataset.splits["test"], leaves_out_seen=leaves_out_seen
        )
        assert {name: values.tolist() for name, values in found.items()} == expected


@pytest.mark.parametrize("protocols", [["full"], ["uniform"], ["uniform", "full"]])
def test_only_what_is_asked_for(small_dataset: Dataset, protocols: list[str]) -> None:
    split, network = small_dataset.splits["validation"], model_for(small_dataset)
    model_ranker = by_model(network, 16)
    everything, some = model_ranker.rank(split, PROTOCOLS), model_ranker.rank(split, protocols)
    assert list(some) == protocols
    for name in protocols:
        np.testing.assert_array_equal(some[name], everything[name])


def test_nobody_to_rank_has_no_metrics() -> None:
    ranks = np.array([1, 4], np.int32)
    assert to_metrics({"full": ranks}, [10]) == {"full": ranking_metrics(ranks, [10])}
    assert to_metrics({"full": np.zeros(0, np.int32)}, [10]) == {}
    assert to_metrics({"popular": np.array([LEFT_OUT, LEFT_OUT])}, [10]) == {}
