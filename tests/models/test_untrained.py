"""Kinds without training: popularity and transitions, counted by hand."""

import itertools
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.config.tables import Evaluation, Model
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.models import transitions
from bert4rec.models.baselines import (
    BaselineFactory,
    TrainingHistories,
    newest_from,
    recent_counts,
    target_counts,
)
from bert4rec.models.transitions import Transitions, TransitionScorer
from bert4rec.runtime.collectives import Partition
from tests.conftest import LOG, prepare_log
from tests.folders import histories_of

FOLDERS, NUMBERS = tempfile.TemporaryDirectory(), itertools.count()


def dataset_of(
    histories: Sequence[Sequence[int]], *, n_items: int, times: Sequence[Sequence[int]] | None = None
) -> Dataset:
    """A dataset that trains on `histories`, whose items count from 0."""
    place = Path(FOLDERS.name) / str(next(NUMBERS))
    dataset = Dataset(place, {"items": n_items}, histories_of(place, histories, times=times), {})
    vars(dataset)["popularity"] = np.bincount([item for items in histories for item in items], minlength=n_items)
    return dataset


@pytest.mark.parametrize("positions_at_once", [1, 7, 10**6])
def test_every_position_once(monkeypatch: pytest.MonkeyPatch, positions_at_once: int) -> None:
    monkeypatch.setattr(transitions, "POSITIONS_AT_ONCE", positions_at_once)
    draw = random.Random(7)
    items = [[draw.randrange(9) for _ in range(draw.choice([0, 1, 2, 4, 5, 6, 11, 23]))] for _ in range(30)]
    times = [[100 * user + place for place in range(len(user_items))] for user, user_items in enumerate(items)]
    calls: list[None] = []
    found = TrainingHistories(dataset_of(items, n_items=9, times=times), lambda: calls.append(None))
    parts = list(found.parts())
    assert len(parts) == len(calls) == found.n_parts
    together = {
        name: np.concatenate([getattr(part, name) for part in parts]).tolist()
        for name in ("users", "items", "lengths", "left", "times")
    }
    places = [(user, place) for user, user_items in enumerate(items) for place in range(len(user_items))]
    assert together == {
        "users": [user for user, _ in places],
        "items": [items[user][place] for user, place in places],
        "lengths": [len(items[user]) for user, _ in places],
        "left": [len(items[user]) - 1 - place for user, place in places],
        "times": [times[user][place] for user, place in places],
    }
    assert found.n_positions == len(places)


def test_a_dataset_folder(tmp_path: Path) -> None:
    """Of each user all but the last two items, which are held out; times are seconds from an instant on."""
    dataset = open_dataset(prepare_log(tmp_path))
    (part,) = TrainingHistories(dataset).parts()
    users = pq.read_table(dataset.folder / "users.parquet")["original"].to_pylist()
    items = dataset.originals(8)
    found: dict[str, list[int]] = {}
    for user, item in zip(part.users.tolist(), part.items.tolist(), strict=True):
        found.setdefault(str(users[user]), []).append(int(items[item]))
    assert found == {user: user_items[:-2] for user, user_items in LOG.items()}
    assert (part.times - 1_600_000_000 == part.lengths - 1 - part.left).all()
    assert np.bincount(part.items, minlength=8).tolist() == dataset.popularity.tolist()


def test_every_kind_is_known_everywhere() -> None:
    assert {*get_args(Model.model_fields["kind"].annotation)} == {*KINDS} > {*UNTRAINED}
    _, listed = get_args(Evaluation.model_fields["baselines"].annotation)
    assert list(get_args(*get_args(listed))) == [*UNTRAINED]


def test_what_each_kind_finds_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 0, 0 comes most often of all, 3 most often of late, 1 directly, and 2 counts all that is near."""
    histories = [[0, 0, 0, 0, 2, 2, 3], [0, 1, 2, 2, 3], [0, 1, 2, 2, 3]]
    monkeypatch.setattr("bert4rec.models.baselines.SMOOTHING", 0.1)
    counting = BaselineFactory(dataset=dataset_of(histories, n_items=5), partition=Partition())
    calls: list[str] = []
    found = {}
    kinds = [kind for kind in UNTRAINED if not KINDS[kind].needs_features]
    for kind in kinds:
        scorer = counting.scorer(kind, lambda kind=kind: calls.append(kind))
        users, _ = scorer.encode(rows_of([4, 0]), torch.tensor([[0]]))
        scores = scorer.scores(users, scorer.items(torch.arange(5)))[0]
        scores[0] = 0 if kind not in ("popularity", "recent_popularity") else scores[0]
        found[kind] = int(scores.argmax())
    assert found == {"popularity": 0, "recent_popularity": 3, "markov": 1, "transition_graph": 2}
    assert [calls.count(kind) for kind in kinds] == [counting.n_parts(kind) for kind in kinds] == [0, 1, 1, 1]


def test_of_equally_recent_items_the_more_popular_one_is_first() -> None:
    dataset = dataset_of([[0, 0, 1], [2], [0, 2, 2, 1]], n_items=4)
    counting = BaselineFactory(dataset=dataset, partition=Partition())
    scorer = counting.scorer("recent_popularity", lambda: None)
    np.testing.assert_array_equal(scorer.items(torch.arange(4)), [1, 3, 2, 0])


def test_without_times_the_last_of_every_user_count() -> None:
    """Of 4, 1, 5 and 0 interactions half are the last 2, 1, 3 and none."""
    histories = [[0, 1, 2, 3], [2], [3, 3, 0, 2, 2], []]
    found = TrainingHistories(dataset_of(histories, n_items=5))
    assert recent_counts(found, 0.5).tolist() == [1, 0, 4, 1, 0]
    assert recent_counts(found, 0.01).tolist() == [0, 0, 2, 1, 0]
    assert recent_counts(found, 1.0).tolist() == [2, 1, 4, 3, 0]


def test_with_times_the_newest_of_all_count() -> None:
    """The two newest are of the second user, and a third one is as new as the older of these."""
    histories, times = [[0, 1, 2], [2, 3, 4]], [[10, 20, 80], [50, 80, 90]]
    found = TrainingHistories(dataset_of(histories, n_items=5, times=times))
    assert recent_counts(found, 2 / 6).tolist() == [0, 0, 1, 1, 1]
    assert recent_counts(found, 1 / 6).tolist() == [0, 0, 0, 0, 1]
    assert recent_counts(found, 4 / 6).tolist() == [0, 0, 2, 1, 1]
    assert recent_counts(found, 1.0).tolist() == [1, 1, 2, 1, 1]


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


def rows_of(*histories: list[int]) -> Rows:
    items = np.array([item for items in histories for item in items], np.int32)
    return Rows(items, np.array([len(items) for items in histories]))


def scores_of(scorer: TransitionScorer, rows: Rows) -> list[list[float]]:
    everything = torch.arange(scorer.n_items)
    users, chosen = scorer.encode(rows, everything.expand(len(rows.lengths), -1))
    scores = scorer.scores(users, scorer.items(everything))
    assert torch.equal(scores, chosen)
    return scores.tolist()


def test_a_chain_is_smoothed_by_popularity() -> None:
    """Of six positions the items 0, 1 and 2 have 3, 2 and 1; item 3 none."""
    scorer = scorer_of([[0, 1, 0, 1], [0, 2]], 4, n_last_items=1, smoothing=1.0)
    after_0 = [(0 + 3 / 6) / (3 + 1), (2 + 2 / 6) / 4, (1 + 1 / 6) / 4, 0]
    after_1 = [(1 + 3 / 6) / (1 + 1), (0 + 2 / 6) / 2, (0 + 1 / 6) / 2, 0]
    never_left = [3 / 6, 2 / 6, 1 / 6, 0]  # nothing has followed item 2
    found = scores_of(scorer, rows_of([1, 2, 0], [1], [2], [0, 3]))
    np.testing.assert_allclose(found, [after_0, after_1, never_left, never_left], rtol=1e-15)


def test_a_graph_adds_up_several_last_items() -> None:
    """0 → 1 twice, 1 → 0 and 1 → 2 once; 0 → 0 and 1 → 1 two places apart, which counts half."""
    scorer = scorer_of([[0, 1, 0, 1], [1, 2]], 3, n_last_items=2, smoothing=2.0)
    shares = np.array([2, 3, 1]) / 6
    row0 = (np.array([0.5, 2, 0]) + 2 * shares) / (2.5 + 2)
    row1 = (np.array([1, 0.5, 1]) + 2 * shares) / (2.5 + 2)
    row2 = shares  # nothing has followed it
    found = scores_of(scorer, rows_of([2, 0, 1], [1, 0], [0], [1, 2]))
    np.testing.assert_allclose(found, [row1 + 0.5 * row0, row0 + 0.5 * row1, row0, row2 + 0.5 * row1], rtol=1e-15)


@pytest.mark.parametrize(("n_last_items", "dense"), [(1, 2), (3, 0), (10, 0), (10, 2)])
def test_scores_of_tiles_are_those_of_single_items_to_the_last_bit(
    n_last_items: int, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a target would be better or worse than an item with which it ties; as a matrix and as pairs."""
    monkeypatch.setattr(transitions, "DENSE_FROM", dense)
    random = np.random.default_rng(n_last_items)
    histories = [random.integers(0, 40, size).tolist() for size in random.integers(1, 30, 60)]
    scorer = scorer_of(histories, 40, n_last_items=n_last_items, smoothing=0.3)
    rows = rows_of(*histories[:20], [7])
    everything = torch.arange(40)
    users, chosen = scorer.encode(rows, everything.expand(21, -1))
    for start in range(0, 40, 7):
        tile = everything[start : start + 7]
        assert torch.equal(scorer.scores(users, scorer.items(tile)), chosen[:, start : start + 7])
    for first in range(0, 21, 5):
        assert torch.equal(scorer.scores(users[first : first + 5], everything), chosen[first : first + 5])


def test_without_any_transition_popularity_is_all_there_is() -> None:
    scorer = scorer_of([[0], [1], [1]], 3, n_last_items=2, smoothing=5.0)
    assert scores_of(scorer, rows_of([0])) == [[1 / 3, 2 / 3, 0.0]]


N_ITEMS = 6


def by_hand(histories: Sequence[Sequence[int]], reach: int, decay: float) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = defaultdict(float)
    for items in histories:
        for later in range(len(items)):
            for earlier in range(max(0, later - reach), later):
                found[items[earlier], items[later]] += decay ** (later - earlier - 1)
    return found


def as_dict(transitions: Transitions) -> dict[tuple[int, int], float]:
    keys, weights = transitions.pairs
    pairs = [divmod(key, transitions.n_items) for key in keys.tolist()]
    assert pairs == sorted(set(pairs))
    return dict(zip(pairs, weights.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    histories=st.lists(st.lists(st.integers(0, N_ITEMS - 1), max_size=14), min_size=1, max_size=8).filter(any),
    reach=st.integers(1, 5), positions_at_once=st.sampled_from([1, 5, 12, 10**6]),
)  # fmt: skip
def test_the_counts_are_those_of_whole_histories(
    histories: list[list[int]], reach: int, positions_at_once: int
) -> None:
    """None is lost between two parts."""
    dataset = dataset_of(histories, n_items=N_ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "POSITIONS_AT_ONCE", positions_at_once)
        found = Transitions.count(TrainingHistories(dataset), reach=reach, decay=0.5)
    assert as_dict(found) == by_hand(histories, reach, 0.5)  # halves are exact
    totals = np.zeros(N_ITEMS)
    for (source, _), weight in by_hand(histories, reach, 0.5).items():
        totals[source] += weight
    assert found.totals.tolist() == totals.tolist()


def test_pairs_are_looked_up_one_by_one_and_added_up_row_by_row() -> None:
    histories = [[0, 3, 1, 0, 3, 2], [4, 4, 0]]
    graph = Transitions.count(TrainingHistories(dataset_of(histories, n_items=N_ITEMS)), reach=2, decay=0.5)
    expected = by_hand(histories, 2, 0.5)
    sources, targets = (values.ravel() for values in np.mgrid[:N_ITEMS, :N_ITEMS])
    assert graph.weights(sources, targets).tolist() == [
        expected.get(pair, 0.0) for pair in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    last, factors = np.array([[3, 0], [5, NO_ITEM]]), np.array([[2.0, 1.0], [1.0, 0.0]])
    sums = [2 * expected.get((3, target), 0.0) + expected.get((0, target), 0.0) for target in range(1, 4)]
    assert graph.added(last, factors, 1, 3).tolist() == [sums, [0.0] * 3]


def test_with_target_events_baselines_count_what_is_predicted(event_folder: Path) -> None:
    dataset = open_dataset(event_folder)
    (purchase,) = dataset.histories.target_kinds
    rows = [
        (row["items"][: row["n_train"]], row["events"][: row["n_train"]])
        for file in (event_folder / "histories").glob("*.arrow")
        for row in pl.read_ipc_stream(file).iter_rows(named=True)
    ]
    purchases = Counter(item for items, events in rows for item, event in zip(items, events, strict=True)
                        if event == purchase)  # fmt: skip
    counting = BaselineFactory(dataset=dataset, partition=Partition())
    ids = torch.arange(dataset.n_items)
    calls: list[None] = []
    scores = counting.scorer("popularity", lambda: calls.append(None)).items(ids).tolist()
    assert len(calls) == counting.n_parts("popularity") == 1
    expected = sorted(range(dataset.n_items), key=lambda item: (purchases[item], dataset.popularity[item]))
    assert sorted(range(dataset.n_items), key=lambda item: (scores[item], item)) == sorted(
        expected, key=lambda item: (purchases[item], dataset.popularity[item], item)
    )
    assert target_counts(TrainingHistories(dataset)).tolist() == [purchases[item] for item in range(dataset.n_items)]
    assert recent_counts(TrainingHistories(dataset), 1.0).sum() == purchases.total()
    found = as_dict(Transitions.count(TrainingHistories(dataset), reach=2, decay=0.5))
    by_kind: dict[tuple[int, int], float] = defaultdict(float)
    for items, events in rows:
        for later, earlier in itertools.product(range(len(items)), range(len(items))):
            if 0 < later - earlier <= 2 and events[later] == purchase:
                by_kind[items[earlier], items[later]] += 0.5 ** (later - earlier - 1)
    assert found == by_kind
