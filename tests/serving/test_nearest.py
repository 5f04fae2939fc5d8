"""A search among near items finds what a search of all finds, as far as it looks at them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bert4rec.models.prior import Prior
from bert4rec.serving import nearest
from bert4rec.serving.candidates import CandidateSet, Queries
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.nearest import NearestItems
from bert4rec.serving.recommender import NO_RULES, Recommender
from tests.fixture_types import Patch
from tests.models.networks import N_ITEMS, model
from tests.serving.conftest import network_of, random_prior

pytest.importorskip("usearch")


@pytest.mark.parametrize("prior", [None, random_prior()], ids=["alone", "with a prior"])
@pytest.mark.parametrize("seen", [True, False])
def test_it_is_exact_if_it_looks_at_all_items(prior: Prior | None, seen: bool) -> None:
    recommender = Recommender(network_of(model()), ItemIds(list(range(N_ITEMS))), prior=prior, leaves_out_seen=seen)
    vectors = recommender.network.item_vectors
    near = replace(recommender, nearest=NearestItems(vectors, prior, threads=1))
    draw = np.random.default_rng(1)
    histories = [draw.integers(N_ITEMS, size=n).tolist() for n in draw.integers(1, 9, 100)]
    for found, best in zip(near.recommend(histories, 6), recommender.recommend(histories, 6), strict=True):
        assert [one.item for one in found] == [one.item for one in best]
        assert [one.score for one in found] == pytest.approx([one.score for one in best], abs=1e-4)
    # conditions and lists of items are for the search of all
    assert near.recommend(histories, 3, deny=[1, 2]) == recommender.recommend(histories, 3, deny=[1, 2])


def test_few_are_missed_among_many_and_all_scores_are_exact(monkeypatch: Patch) -> None:
    monkeypatch.setattr(nearest, "AT_ONCE_SCORED", 7)
    draw = torch.Generator().manual_seed(1)
    mixing = torch.randn(8, 16, generator=draw)
    vectors = torch.randn(20_000, 8, generator=draw) @ mixing
    vectors *= 0.5 + torch.rand(len(vectors), 1, generator=draw)  # norms differ
    hidden = torch.randn(40, 8, generator=draw) @ mixing
    best = CandidateSet.of(vectors, None, NO_RULES).best(Queries(hidden, [np.empty(0, np.int64)] * 40), 12)[1]
    queries = Queries(hidden, [row[:2].numpy() for row in best])  # the two best of each are left out
    scores, found = NearestItems(vectors, None, threads=1).best(queries, 10)
    n_found = sum(len({*row.tolist()} & {*all_of.tolist()}) for row, all_of in zip(found, best[:, 2:], strict=True))
    assert n_found > 0.95 * best[:, 2:].numel()
    torch.testing.assert_close(scores, (hidden[:, None] * vectors[found]).sum(2))
    assert (scores.diff(dim=1) <= 0).all()
    assert not any({*row.tolist()} & {*all_of[:2].tolist()} for row, all_of in zip(found, best, strict=True))
