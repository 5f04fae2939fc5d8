"""Scores of users and items, with and without items that the model does not know."""

from dataclasses import replace

import numpy as np
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.evaluation.scorers import UNKNOWN_SCORE, KnownItems, KnownItemsScorer, ModelScorer, Scorer
from bert4rec.models.baselines import PopularityScorer
from bert4rec.models.transitions import Pairs, Transitions, TransitionScorer
from bert4rec.runtime.collectives import Partition
from tests.models.networks import N_ITEMS, model

ROWS = Rows(items=np.array([5, 6, 7, 8, 9], np.int32), lengths=np.array([2, 3]), targets=np.array([3, 4], np.int32))


def scorers() -> list[Scorer]:
    counts = np.arange(N_ITEMS)[::-1] + 2**24  # of which float32 would make ties
    keys = np.arange(0, N_ITEMS**2, 3)
    pairs = Pairs(keys, np.sqrt(keys + 1).astype(np.float32))
    totals = np.bincount(keys // N_ITEMS, pairs.weights, minlength=N_ITEMS)
    graph = TransitionScorer(
        Transitions(N_ITEMS, pairs, totals), counts, Partition(), n_last_items=4, decay=0.7, smoothing=3.0
    )
    return [ModelScorer(model(), device=torch.device("cpu"), max_len=12), PopularityScorer(counts, Partition()), graph]


@torch.no_grad()
def test_the_scores_of_the_catalogue_are_those_of_chosen_items() -> None:
    everything = torch.arange(N_ITEMS)
    chosen = torch.tensor([[3, 20, 3], [37, 0, 11]])
    for scorer in scorers():
        users, chosen_scores = scorer.encode(ROWS, chosen)
        scores = scorer.scores(users, scorer.items(everything))
        assert users.shape == (2, scorer.width)
        assert users.dtype == scores.dtype == scorer.dtype
        assert scores.shape == (2, scorer.n_items) == (2, N_ITEMS)
        torch.testing.assert_close(scores.gather(1, chosen), chosen_scores)
        assert scores[0, 0] != scores[0, 1]


def test_scores_can_be_written_to() -> None:
    """What users have seen is struck out."""
    scorer = PopularityScorer(np.array([3, 1]), Partition())
    users, _ = scorer.encode(ROWS, torch.tensor([[0], [1]]))
    scores = scorer.scores(users, scorer.items(torch.tensor([0, 1])))
    scores[0, 1] = -torch.inf
    assert scores.tolist() == [[3.0, -torch.inf], [3.0, 1.0]]


# The dataset's items 0, 1, 2 and 3; the model knows 0 as 7, 2 as 3 and 3 as 2.
KNOWN = KnownItems(np.array([7, NO_ITEM, 3, 2], np.int32))


def rows(*histories: list[int]) -> Rows:
    items = np.array([item for history in histories for item in history], np.int32)
    lengths = np.array([len(history) for history in histories])
    numbers, targets = np.arange(len(items)) + 10, np.zeros(len(histories), np.int32)
    return Rows(items, lengths, targets=targets, times=numbers, events=numbers.astype(np.int16))


def test_unknown_items_are_dropped_from_histories() -> None:
    part = KNOWN.translate_rows(rows([0, 1, 2], [1, 3], [1, 1], [3]))
    assert part.lengths.tolist() == [2, 1, 2, 1]
    assert part.items.tolist() == [7, 3, 2, 0, 0, 2]
    assert part.times.tolist() == part.events.tolist() == [10, 12, 14, 15, 16, 17]
    assert KNOWN.known_lengths(rows([0, 1, 2], [1, 3], [1, 1], [3])).tolist() == [2, 1, 0, 1]
    assert KNOWN.n_unknown == 1


@torch.no_grad()
def test_scores_are_those_of_the_model_and_nothing_for_unknown_items() -> None:
    inner = ModelScorer(model(), device=torch.device("cpu"), max_len=12)
    back = N_ITEMS - 1  # the dataset counts the items from the other end, and has one more
    ids = np.append(back - np.arange(N_ITEMS), NO_ITEM).astype(np.int32)
    scorer = KnownItemsScorer(inner, KnownItems(ids))
    mirrored = Rows((back - ROWS.items).astype(np.int32), ROWS.lengths, targets=ROWS.targets)
    chosen = torch.tensor([[2, 9, N_ITEMS], [N_ITEMS, 4, 4]])
    users, chosen_scores = scorer.encode(mirrored, chosen)
    everything = torch.arange(scorer.n_items)
    scores = scorer.scores(users, scorer.items(everything))
    assert scores.shape == (2, N_ITEMS + 1)
    assert scores[:, -1].tolist() == [-torch.inf, -torch.inf]
    inner_vectors, _ = inner.encode(ROWS, chosen[:, :1].clamp(max=3))
    expected = inner.scores(inner_vectors, inner.items(everything[:-1])).flip(1)
    torch.testing.assert_close(scores[:, :-1], expected)
    is_known = chosen < N_ITEMS
    torch.testing.assert_close(chosen_scores[is_known], scores[[0, 0, 1, 1], chosen[is_known]])
    assert (chosen_scores[~is_known] == UNKNOWN_SCORE).all()


@torch.no_grad()
def test_a_user_without_a_known_item_has_no_candidates() -> None:
    scorer = KnownItemsScorer(ModelScorer(model(), device=torch.device("cpu"), max_len=12), KNOWN)
    without_times = replace(rows([1, 1], [1, 3]), times=None, events=None)
    users, _ = scorer.encode(without_times, torch.tensor([[0], [0]]))
    scores = scorer.scores(users, scorer.items(torch.arange(4)))
    assert users.shape == (2, scorer.width)
    assert torch.isinf(scores).tolist() == [[True] * 4, [False, True, False, False]]
