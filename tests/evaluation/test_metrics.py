"""Ranks, metrics and comparisons as written-out arithmetic and as other programs compute them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR, RetrievalNormalizedDCG

from bert4rec.dataset.format import LEFT_OUT, outranks
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.intervals import Ranking, hits_by_rank, paired_difference, strongest_baseline
from bert4rec.evaluation.metrics import count_outranking, is_finite, ranking_metrics
from bert4rec.evaluation.ranker import Ranker
from bert4rec.models.baselines import PopularityScorer
from bert4rec.runtime.collectives import Partition


@settings(deadline=None)
@given(
    scores=st.lists(st.sampled_from([-1.0, 0.0, 0.5, -math.inf]), min_size=1, max_size=12),
    first=st.integers(2, 9),
    target=st.integers(2, 30),
    target_score=st.sampled_from([-1.0, 0.0, 0.5]),
)
def test_the_count_in_one_pass_is_that_of_the_comparison(
    scores: list[float], first: int, target: int, target_score: float
) -> None:
    row, targets, target_scores = torch.tensor([scores]), torch.tensor([target]), torch.tensor([target_score])
    expected = outranks(row, torch.arange(first, first + len(scores)), target_scores, targets).sum(1)
    assert count_outranking(row, first, target_scores, targets).tolist() == expected.tolist()
    twice = [values.repeat(2) for values in (target_scores, targets)]
    for rows in (row.repeat(2, 1), row):
        assert count_outranking(rows, first, *twice).tolist() == 2 * expected.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_numbers_that_are_not_finite_are_found(bad: float) -> None:
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1.0, -2.0]))
    assert not is_finite(torch.tensor([[0.1, bad, 0.3]]))


KS = [1, 10]


def test_a_thousand_random_cases_as_torchmetrics_and_by_written_out_sums() -> None:
    generator = torch.Generator().manual_seed(1)
    n_cases, n_items = 1000, 40
    scores = torch.rand(n_cases, n_items, generator=generator, dtype=torch.float64)
    targets = torch.randint(n_items, (n_cases,), generator=generator)
    everybody = torch.arange(n_cases)
    ranks = 1 + count_outranking(scores, 0, scores[everybody, targets], targets).numpy()
    found = Ranking({"full": ranks}).metrics(KS)["full"]
    positions = [
        sum(other >= row[target] for other in row)
        for row, target in zip(scores.tolist(), targets.tolist(), strict=True)
    ]
    assert ranks.tolist() == positions
    for k in KS:
        hits = [position for position in positions if position <= k]
        assert found[f"HR@{k}"] == pytest.approx(len(hits) / n_cases, abs=1e-12)
        assert found[f"NDCG@{k}"] == pytest.approx(sum(1 / np.log2(hit + 1) for hit in hits) / n_cases, abs=1e-12)
    assert found["MRR"] == pytest.approx(sum(1 / position for position in positions) / n_cases, abs=1e-12)
    case = everybody.repeat_interleave(n_items)
    is_target = torch.zeros(n_cases, n_items, dtype=torch.bool)
    is_target[everybody, targets] = True
    theirs = {"MRR": RetrievalMRR()}
    theirs |= {f"HR@{k}": RetrievalHitRate(top_k=k) for k in KS}
    theirs |= {f"NDCG@{k}": RetrievalNormalizedDCG(top_k=k) for k in KS}
    for name, metric in theirs.items():
        assert found[name] == pytest.approx(float(metric(scores.flatten(), is_target.flatten(), case)), abs=1e-6), name


def ranks_by(scores: np.ndarray, dataset: Dataset) -> dict[str, np.ndarray]:
    ranker = Ranker(PopularityScorer(scores, Partition()), batch_size=64, device=torch.device("cpu"))
    return ranker.rank(dataset.splits["test"], ["full", "popular", "uniform"])


def test_equal_scores_are_ranked_by_the_id_and_random_ones_as_by_chance(small_dataset: Dataset) -> None:
    """By chance a target is among the first k of n candidates with a probability of k / n."""
    test, n_items = small_dataset.splits["test"], small_dataset.n_items
    rows = test.read(np.arange(len(test)))
    ends, targets = rows.lengths.cumsum(), rows.targets.tolist()
    unseen = [
        {*range(n_items)} - {*rows.items[end - n : end].tolist()} for end, n in zip(ends, rows.lengths, strict=True)
    ]
    constant = ranks_by(np.ones(n_items, np.int64), small_dataset)
    lower = [sum(item < target for item in items) for items, target in zip(unseen, targets, strict=True)]
    assert constant["full"].tolist() == [1 + n for n in lower]
    generator, n_draws = np.random.default_rng(1), 60
    draws = [ranks_by(generator.permutation(n_items), small_dataset) for _ in range(n_draws)]
    n_candidates = {"full": np.array([len(i | {t}) for i, t in zip(unseen, targets, strict=True)])}
    n_candidates |= dict.fromkeys(("popular", "uniform"), np.full(len(test), 11))
    for protocol, n in n_candidates.items():
        ranks = np.stack([draw[protocol] for draw in draws])
        assert (ranks != LEFT_OUT).all()
        for k in KS:
            found = (ranks <= k).mean(axis=1)  # of each draw: all users of one have the same order of items
            margin = 4 * found.std() / n_draws**0.5
            assert found.mean() == pytest.approx(np.minimum(1, k / n).mean(), rel=0, abs=margin), (protocol, k)


def test_figures_and_intervals_have_the_same_protocols() -> None:
    ranking = Ranking({"full": np.array([1, 2, 30], np.int32), "popular": np.full(3, LEFT_OUT, np.int32)})
    assert list(ranking.metrics([10])) == list(ranking.intervals([10])) == ["full"]


def test_the_strongest_baseline_by_ndcg_and_the_difference_of_the_same_users() -> None:
    """Popularity has more hits, Markov the higher NDCG@10: that decides."""
    model = Ranking({"full": np.array([1, 2, 0, 30])})
    baselines = {
        "popularity": Ranking({"full": np.array([9, 9, 9, 9])}),
        "markov": Ranking({"full": np.array([2, 1, 1, 0])}),
    }
    found = strongest_baseline(model, baselines)
    differences = np.array([1 - 1 / np.log2(3), 1 / np.log2(3) - 1, -1.0, 0.0])
    expected = paired_difference(differences)
    assert found == {
        "kind": "markov", "protocol": "full", "metric": "NDCG@10", "difference": pytest.approx(expected.value),
        "interval": [pytest.approx(expected.low), pytest.approx(expected.high)], "p": pytest.approx(expected.p),
    }  # fmt: skip
    assert strongest_baseline(model, {}) == {}


def test_the_shares_are_hit_rates() -> None:
    ranks = np.random.default_rng(1).integers(1, 800, 1000)
    found = hits_by_rank({"test": {"full": ranks}, "popularity_baseline": {"full": ranks + 100}})
    assert found["ks"] == [1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1000]
    metrics = ranking_metrics(ranks, found["ks"])
    assert found["test"] == [metrics[f"HR@{k}"] for k in found["ks"]]
    assert (found["test"][-1], found["popularity_baseline"][0]) == (1.0, 0.0)


def test_who_is_left_out_does_not_count_and_a_protocol_that_was_not_run_is_absent() -> None:
    assert hits_by_rank({"test": {"full": np.array([1, LEFT_OUT])}}) == {"ks": [1], "test": [1.0]}
    assert hits_by_rank({"test": {"popular": np.array([1])}}) == {}
    assert hits_by_rank({}) == {}
