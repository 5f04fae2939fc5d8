"""Lists of recommendations and their metrics, worked out once more with sorts over Python lists."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from bert4rec.dataset.histories import EvaluationSplit
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.metrics import Lists
from bert4rec.evaluation.ranker import Ranker
from bert4rec.evaluation.scorers import ModelScorer, Scorer
from bert4rec.models.baselines import PopularityScorer
from bert4rec.runtime.collectives import Partition
from tests.conftest import long
from tests.evaluation.test_ranker import model_for, scores_by, set_sizes

CPU = torch.device("cpu")


def lists_of(
    scorer: Scorer, dataset: Dataset, split: str, ks: Sequence[int], batch_size: int = 16, *,
    leaves_out_seen: bool = True,
) -> Lists:  # fmt: skip
    rows = dataset.splits[split]
    lists = Lists(len(rows), ks, dataset.popularity, Partition())
    ranker_ = Ranker(scorer, batch_size=batch_size, device=CPU, leaves_out_seen=leaves_out_seen)
    ranker_.rank(rows, ["full"], lists)
    return lists


def by_sorting(
    score: Callable[[int], list[float]], split: EvaluationSplit, *, leaves_out_seen: bool = True
) -> list[list[int]]:
    """The items of each row, the best ones first, from 0; `score` gives a row's scores of all items."""
    lists = []
    for row in range(len(split)):
        seen, scores = set(split.read(np.array([row])).items.tolist()), score(row)
        ranked = [item for item in range(len(scores)) if not leaves_out_seen or item not in seen]
        lists.append(sorted(ranked, key=lambda item: (-scores[item], item)))
    return lists


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


@pytest.mark.parametrize(
    ("split", "batch_size", "tile", "users_per_pass"),
    [
        ("test", 128, 4096, 4096), ("validation", 7, 11, 20), ("test", 7, 11, 3), ("validation", 1, 1, 3),
        long("validation", 128, 4096, 4096), long("test", 1, 1, 3),
    ],
)  # fmt: skip
def test_lists_of_a_model_and_of_popularity(
    small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, split: str, batch_size: int, tile: int, users_per_pass: int
) -> None:
    set_sizes(monkeypatch, USERS_PER_PASS=users_per_pass, USERS_AT_ONCE=batch_size)
    set_sizes(monkeypatch, MIN_TILE=tile, MAX_TILE=2 * tile, MIN_TILES=1)
    rows, ks, popularity = small_dataset.splits[split], [1, 3, 10], small_dataset.popularity.tolist()
    network = model_for(small_dataset)
    found = lists_of(ModelScorer(network, device=CPU, max_len=12), small_dataset, split, ks, batch_size)
    expected = by_sorting(scores_by(network, rows), rows)
    assert found.metrics() == pytest.approx(written_out(expected, popularity, ks), rel=1e-12)
    found = lists_of(PopularityScorer(small_dataset.popularity, Partition()), small_dataset, split, ks, batch_size)
    expected = by_sorting(lambda _: popularity, rows)
    assert found.metrics() == pytest.approx(written_out(expected, popularity, ks), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_who_has_seen_nearly_all_has_a_short_list_or_none(log_dataset: Dataset, batch_size: int) -> None:
    """Of eight items the last user has seen all: there is nothing to recommend, not even the target."""
    rows, ks, popularity = log_dataset.splits["test"], [1, 4, 500], log_dataset.popularity.tolist()
    network = model_for(log_dataset)
    for scorer, score in (
        (ModelScorer(network, device=CPU, max_len=12), scores_by(network, rows)),
        (PopularityScorer(log_dataset.popularity, Partition()), lambda _: popularity),
    ):
        found = lists_of(scorer, log_dataset, "test", ks, batch_size)
        expected = by_sorting(score, rows)
        assert [len(items) for items in expected] == [5, 6, 6, 1, 6, 0]
        assert found.metrics() == pytest.approx(written_out(expected, popularity, ks), rel=1e-12)
        kept = lists_of(scorer, log_dataset, "test", ks, batch_size, leaves_out_seen=False)
        expected = by_sorting(score, rows, leaves_out_seen=False)
        assert kept.metrics() == pytest.approx(written_out(expected, popularity, ks), rel=1e-12)
        for name, values in found.user_values().items():
            assert [at for at, value in enumerate(values) if np.isnan(value)] == [5], name


def test_nobody_with_anything_left_has_no_means(log_dataset: Dataset) -> None:
    lists = Lists(0, [2, 10**9], log_dataset.popularity, Partition())
    lists.finish()
    assert lists.metrics() == {"Coverage@2": 0.0, "Gini@2": 0.0}
