"""Kinds without training: popularity and transitions, counted by hand."""

import itertools
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.models import transitions
from bert4rec.models.baselines import BaselineFactory, TrainingHistories, newest_from, recent_counts, target_counts
from bert4rec.models.ease import REGULARIZATIONS, EaseScorer, ease_weights
from bert4rec.models.transitions import Transitions, TransitionScorer
from bert4rec.runtime.arrays import Float64s
from bert4rec.runtime.collectives import Partition
from tests.folders import histories_of
from tests.models.networks import rows_of, scores_of

FOLDERS, NUMBERS = tempfile.TemporaryDirectory(), itertools.count()


def dataset_of(histories: Sequence[Sequence[int]], *, n_items: int, **columns: Any) -> Dataset:
    """A dataset that trains on `histories`, whose items count from 0."""
    place = Path(FOLDERS.name) / str(next(NUMBERS))
    rows = histories_of(place, histories, **columns)
    dataset = Dataset(place, {"items": n_items}, rows, {"validation": EvaluationSplit("validation", rows, place)})
    vars(dataset)["popularity"] = np.bincount([item for items in histories for item in items], minlength=n_items)
    return dataset


def test_what_each_kind_finds_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 0, 0 comes most often of all, 3 most often of late, 1 directly, and 2 is near, or in the same histories."""
    histories = [[0, 0, 0, 0, 2, 2, 3], [0, 1, 2, 2, 3], [0, 1, 2, 2, 3]]
    monkeypatch.setattr("bert4rec.models.baselines.SMOOTHING", 0.1)
    counting = BaselineFactory(dataset=dataset_of(histories, n_items=5), partition=Partition())
    calls: list[str] = []
    found = {}
    kinds = [kind for kind in UNTRAINED if not KINDS[kind].needs_features]
    for kind in kinds:
        scores = np.array(scores_of(counting.scorer(kind, lambda kind=kind: calls.append(kind)), [4, 0])[0])
        scores[0] = 0 if kind not in ("popularity", "recent_popularity") else scores[0]
        found[kind] = int(scores.argmax())
    assert found == {"popularity": 0, "recent_popularity": 3, "markov": 1, "transition_graph": 2, "ease": 2}
    assert [calls.count(kind) for kind in kinds] == [counting.n_parts(kind) for kind in kinds] == [0, 1, 1, 1, 1]


def test_of_equally_recent_items_the_more_popular_one_is_first() -> None:
    dataset = dataset_of([[0, 0, 1], [2], [0, 2, 2, 1]], n_items=4)
    scorer = BaselineFactory(dataset=dataset, partition=Partition()).scorer("recent_popularity", lambda: None)
    np.testing.assert_array_equal(scorer.items(torch.arange(4)), [1, 3, 2, 0])


# Without times, of 4, 1, 5 and 0 interactions half are the last 2, 1, 3 and none.
UNTIMED: list[list[int]] = [[0, 1, 2, 3], [2], [3, 3, 0, 2, 2], []]
# The two newest are of the second user, and a third one is as new as the older of these.
TIMED, TIMES = [[0, 1, 2], [2, 3, 4]], [[10, 20, 80], [50, 80, 90]]


@pytest.mark.parametrize("positions_at_once", [1, 4, 10**6])
@pytest.mark.parametrize(
    ("histories", "times", "expected"),
    [
        (UNTIMED, None, {0.5: [1, 0, 4, 1, 0], 0.01: [0, 0, 2, 1, 0], 1.0: [2, 1, 4, 3, 0]}),
        (TIMED, TIMES, {2 / 6: [0, 0, 1, 1, 1], 1 / 6: [0, 0, 0, 0, 1], 4 / 6: [0, 0, 2, 1, 1], 1.0: [1, 1, 2, 1, 1]}),
    ],
    ids=["without times the last of every user", "with times the newest of all"],
)
def test_recent_items_are_counted(
    histories: list[list[int]], times: list[list[int]] | None, expected: dict[float, list[int]],
    positions_at_once: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(transitions, "POSITIONS_AT_ONCE", positions_at_once)
    training = TrainingHistories(dataset_of(histories, n_items=5, times=times))
    assert {share: recent_counts(training, share).tolist() for share in expected} == expected


@pytest.mark.parametrize("spread", [3, 70_000, 2**33])
def test_the_instant_is_that_of_a_sort(spread: int) -> None:
    draw = random.Random(spread)
    times = [draw.randrange(-spread, spread) + 1_600_000_000 for _ in range(200)]
    for n_newest in (1, 2, 77, 200):
        parts = [np.array(times[:50]), np.array(times[50:])]
        assert newest_from(lambda parts=parts: parts, n_newest) == sorted(times)[-n_newest]


def scorer_of(histories: list[list[int]], n_items: int, *, n_last_items: int, smoothing: float) -> TransitionScorer:
    dataset = dataset_of(histories, n_items=n_items)
    transitions = Transitions.count(TrainingHistories(dataset), reach=n_last_items, decay=0.5)
    settings = {"decay": 0.5, "smoothing": smoothing, "n_last_items": n_last_items}
    return TransitionScorer(transitions, dataset.popularity, Partition(), **settings)


AS_PAIRS_AND_MATRIX = pytest.mark.parametrize("dense_from", [2, 0], ids=["pairs", "matrix"])
SHARES = np.array([2, 3, 1]) / 6
AFTER_0, AFTER_1 = ((np.array(weights) + 2 * SHARES) / (2.5 + 2) for weights in ([0.5, 2, 0], [1, 0.5, 1]))


@AS_PAIRS_AND_MATRIX
@pytest.mark.parametrize(
    ("histories", "n_last_items", "smoothing", "expected"),
    [
        # Of six positions the items 0, 1 and 2 have 3, 2 and 1; item 3 none. Nothing has followed item 2.
        (
            [[0, 1, 0, 1], [0, 2]], 1, 1.0,
            {(1, 2, 0): [(0 + 3 / 6) / (3 + 1), (2 + 2 / 6) / 4, (1 + 1 / 6) / 4, 0],
             (1,): [(1 + 3 / 6) / (1 + 1), (0 + 2 / 6) / 2, (0 + 1 / 6) / 2, 0],
             (2,): [3 / 6, 2 / 6, 1 / 6, 0], (0, 3): [3 / 6, 2 / 6, 1 / 6, 0]},
        ),
        # 0 → 1 twice, 1 → 0 and 1 → 2 once; 0 → 0 and 1 → 1 two places apart, which counts half.
        (
            [[0, 1, 0, 1], [1, 2]], 2, 2.0,
            {(2, 0, 1): AFTER_1 + 0.5 * AFTER_0, (1, 0): AFTER_0 + 0.5 * AFTER_1, (0,): AFTER_0,
             (1, 2): SHARES + 0.5 * AFTER_1},
        ),
        ([[0], [1], [1]], 2, 5.0, {(0,): [1 / 3, 2 / 3, 0.0]}),  # no transition at all
    ],
    ids=["a chain", "a graph", "popularity alone"],
)  # fmt: skip
def test_scores_after_the_last_items_written_out(
    histories: list[list[int]], n_last_items: int, smoothing: float, expected: dict[tuple[int, ...], Sequence[float]],
    dense_from: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(transitions, "DENSE_FROM", dense_from)
    n_items = len(next(iter(expected.values())))
    scorer = scorer_of(histories, n_items, n_last_items=n_last_items, smoothing=smoothing)
    np.testing.assert_allclose(scores_of(scorer, *map(list, expected)), [*expected.values()], rtol=1e-15)


@AS_PAIRS_AND_MATRIX
@pytest.mark.parametrize("n_last_items", [1, 3, 10])
def test_scores_of_tiles_are_those_of_single_items_to_the_last_bit(
    n_last_items: int, dense_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a target would be better or worse than an item with which it ties."""
    monkeypatch.setattr(transitions, "DENSE_FROM", dense_from)
    random = np.random.default_rng(n_last_items)
    histories = [random.integers(0, 40, size).tolist() for size in random.integers(1, 30, 60)]
    scorer = scorer_of(histories, 40, n_last_items=n_last_items, smoothing=0.3)
    everything = torch.arange(40)
    users, chosen = scorer.encode(rows_of(*histories[:20], [7]), everything.expand(21, -1))
    for start in range(0, 40, 7):
        tile = everything[start : start + 7]
        assert torch.equal(scorer.scores(users, scorer.items(tile), start, 7), chosen[:, start : start + 7])
    for first in range(0, 21, 5):
        assert torch.equal(scorer.scores(users[first : first + 5], everything, 0, 40), chosen[first : first + 5])


Weights = dict[tuple[int, int], float]
N_ITEMS = 6


def by_hand(histories: Sequence[Sequence[tuple[int, bool]]], reach: int) -> Weights:
    """The weights of pairs with a decay of a half, whose sums are exact."""
    found: Weights = defaultdict(float)
    for items in histories:
        for later, (target, is_target) in enumerate(items):
            for earlier in range(max(0, later - reach), later if is_target else 0):
                found[items[earlier][0], target] += 0.5 ** (later - earlier - 1)
    return found


@settings(max_examples=40, deadline=None)
@given(
    histories=st.lists(st.lists(st.tuples(st.integers(0, N_ITEMS - 1), st.booleans()), max_size=14), min_size=1,
                       max_size=8).filter(any),
    n_held_out=st.integers(0, 2), reach=st.integers(1, 5), positions_at_once=st.sampled_from([1, 5, 12, 10**6]),
)  # fmt: skip
def test_transitions_to_events_that_are_predicted_are_counted_over_parts(
    histories: list[list[tuple[int, bool]]], n_held_out: int, reach: int, positions_at_once: int
) -> None:
    training = [items[: max(0, len(items) - n_held_out)] for items in histories]
    items, events = ([[pair[column] for pair in pairs] for pairs in histories] for column in (0, 1))
    columns = {"events": [[1 + is_target for is_target in user] for user in events], "target_kinds": [2]}
    dataset = dataset_of(items, n_items=N_ITEMS, n_train=[*map(len, training)], **columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "POSITIONS_AT_ONCE", positions_at_once)
        counted = TrainingHistories(dataset)
        found = Transitions.count(counted, reach=reach, decay=0.5)
        targets, recent = target_counts(counted).tolist(), recent_counts(counted, 1.0).tolist()
    expected, (keys, weights) = by_hand(training, reach), found.pairs
    pairs = [divmod(key, N_ITEMS) for key in keys.tolist()]
    assert pairs == sorted(set(pairs))
    assert dict(zip(pairs, weights.tolist(), strict=True)) == expected
    assert found.totals.tolist() == [sum(expected[key] for key in pairs if key[0] == item) for item in range(N_ITEMS)]
    flat = [item for user in training for item, is_target in user if is_target]
    assert targets == recent == [flat.count(item) for item in range(N_ITEMS)]


def test_of_equally_many_purchases_the_more_popular_item_is_first() -> None:
    columns = {"events": [[1, 2, 2], [1, 1, 2, 1]], "target_kinds": [2]}
    dataset = dataset_of([[0, 1, 1], [3, 3, 2, 0]], n_items=5, **columns)
    counting, calls = BaselineFactory(dataset=dataset, partition=Partition()), []
    scorer = counting.scorer("popularity", lambda: calls.append(None))
    assert len(calls) == counting.n_parts("popularity") == 1
    np.testing.assert_array_equal(scorer.items(torch.arange(5)), [1, 3, 2, 1, 0])


def test_ease_is_its_formula_with_the_regularization_that_validation_prefers(small_dataset: Dataset) -> None:
    n_items, n_train = small_dataset.n_items, small_dataset.histories.n_train
    read = small_dataset.histories.read(np.arange(len(n_train)), np.zeros_like(n_train), n_train)
    validation, test = (small_dataset.splits[name] for name in ("validation", "test"))

    def who_has_what(rows: Rows) -> Float64s:
        found = np.zeros((len(rows.lengths), n_items))
        found[rows.numbers, rows.items] = 1
        return found

    def expected(regularization: float, rows: Rows) -> Float64s:
        counts = who_has_what(read)
        inverse = np.linalg.inv(counts.T @ counts + regularization * np.eye(n_items))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0)
        return who_has_what(rows) @ weights

    def ndcg(regularization: float) -> float:
        rows = validation.read(np.arange(len(validation)))
        scores = np.where(who_has_what(rows) > 0, -np.inf, expected(regularization, rows))
        ranks = 1 + (scores > scores[np.arange(len(validation)), rows.targets][:, None]).sum(1)
        return float(np.where((ranks <= 10) & ~rows.are_repeated(), 1 / np.log2(ranks + 1), 0).sum())

    scorer, rows, items = (
        EaseScorer(ease_weights(TrainingHistories(small_dataset), validation), Partition()),
        test.read(np.arange(9)),
        torch.arange(n_items),
    )
    users, scores = scorer.encode(rows, items.expand(9, -1))
    assert torch.equal(torch.cat([scorer.scores(users, tile, int(tile[0]), 40) for tile in items.split(40)], 1), scores)
    (chosen,) = (one for one in REGULARIZATIONS if np.allclose(scores, expected(one, rows), atol=1e-4))
    at = REGULARIZATIONS.index(chosen)
    assert all(ndcg(chosen) >= ndcg(one) for one in REGULARIZATIONS[max(0, at - 1) : at + 2])


def test_ease_reconstructs_what_is_predicted_from_all_events() -> None:
    """Each column is the least-squares solution with a zero on the diagonal."""
    histories, events = [[0, 1, 2], [1, 2, 3], [0, 3], [0, 1, 3]], [[1, 1, 2], [1, 2, 2], [1, 2], [2, 1, 2]]
    dataset = dataset_of(histories, n_items=4, events=events, target_kinds=[2])
    has, buys = np.zeros((4, 4)), np.zeros((4, 4))
    for user, (items, kinds) in enumerate(zip(histories, events, strict=True)):
        has[user, items] = 1
        buys[user, [item for item, kind in zip(items, kinds, strict=True) if kind == 2]] = 1
    expected = np.zeros((4, 4))
    for item in range(4):
        others = [other for other in range(4) if other != item]
        gram = has[:, others].T @ has[:, others] + 200 * np.eye(3)
        expected[others, item] = np.linalg.solve(gram, has[:, others].T @ buys[:, item])
    scores = scores_of(
        EaseScorer(ease_weights(TrainingHistories(dataset), dataset.splits["validation"]), Partition()), [1, 3]
    )[0]
    np.testing.assert_allclose(scores, expected[1] + expected[3], atol=1e-5)
