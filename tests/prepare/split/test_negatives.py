import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.split import negatives
from bert4rec.prepare.split.negatives import SeenItems, count_unseen, draw_negatives, train_counts

N_ITEMS = 12
HISTORIES = st.lists(st.lists(st.integers(2, 1 + N_ITEMS), min_size=1, max_size=9), min_size=1, max_size=20)


def frame(items: list[list[int]]) -> pl.DataFrame:
    return pl.DataFrame({"items": items}, schema={"items": pl.List(pl.Int32)})


def seen(items: list[list[int]], n_items: int = N_ITEMS) -> SeenItems:
    return SeenItems.of(frame(items), n_items)


def assert_unseen_and_distinct(drawn: np.ndarray, items: list[list[int]]) -> None:
    for row, seen in zip(drawn.tolist(), items, strict=True):
        assert len(set(row)) == len(row)
        assert not set(row) & set(seen)
        assert all(2 <= item < 2 + N_ITEMS for item in row)


@settings(max_examples=30, deadline=None)
@given(HISTORIES, st.integers(1, 3), st.integers(0, 9), st.lists(st.integers(0, 50), min_size=12, max_size=12))
def test_negatives_are_unseen_and_distinct(items: list[list[int]], n: int, seed: int, counts: list[int]) -> None:
    assert_unseen_and_distinct(draw_negatives(seen(items), np.array(counts), n=n, seed=[seed, 0]), items)
    assert_unseen_and_distinct(draw_negatives(seen(items), np.ones(N_ITEMS, int), n=n, seed=[seed, 0]), items)


def test_the_dense_draw_alone_keeps_the_same_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "MAX_ROUNDS", 0)
    monkeypatch.setattr(negatives, "DENSE_CELLS", 2 * N_ITEMS)  # two users at once
    items = [[2, 3], [4], [5, 5, 6], [13], [2, 13]]
    drawn = draw_negatives(seen(items), np.arange(N_ITEMS), n=10, seed=[1, 0])
    assert_unseen_and_distinct(drawn, items)
    assert drawn[2, -1] == 2  # nobody has trained on item 2: last, or not at all
    assert 2 not in drawn[1]


def test_rejection_and_dense_draw_have_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.array([0, 40, 30, 20, 10])
    many = [[3]] * 20_000
    by_rejection = draw_negatives(seen(many, 5), counts, n=2, seed=[1, 0])
    monkeypatch.setattr(negatives, "MAX_ROUNDS", 0)
    by_keys = draw_negatives(seen(many, 5), counts, n=2, seed=[1, 0])
    for drawn in (by_rejection, by_keys):
        first = np.bincount(drawn[:, 0], minlength=7)[2:] / len(many)
        np.testing.assert_allclose(first, [0, 0, 30 / 60, 20 / 60, 10 / 60], atol=0.015)
        second = np.bincount(drawn[drawn[:, 0] == 4, 1], minlength=7)[2:] / (drawn[:, 0] == 4).sum()
        np.testing.assert_allclose(second, [0, 0, 0, 20 / 30, 10 / 30], atol=0.02)


def test_uniform_negatives_are_equally_likely() -> None:
    drawn = draw_negatives(seen([[2]] * 20_000, 5), np.ones(5, int), n=2, seed=[3, 0])
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=7)[3:] / 20_000, [0.5] * 4, atol=0.015)


def test_an_item_without_training_positions_comes_only_when_no_other_is_left() -> None:
    drawn = draw_negatives(seen([[2]] * 50, 5), np.array([1, 1, 0, 1, 0]), n=3, seed=[1, 0])
    assert {tuple(sorted(row[:2])) for row in drawn.tolist()} == {(3, 5)}
    assert set(drawn[:, 2].tolist()) == {4, 6}


def test_blocks_and_seeds_are_drawn_apart() -> None:
    items = [[2 + user % N_ITEMS, 3] for user in range(4)]
    draws = [draw_negatives(seen(items), np.ones(N_ITEMS, int), n=5, seed=[s, b]) for s in (1, 2) for b in (0, 1, 0)]
    assert (draws[0] == draws[2]).all()
    assert (draws[0] != draws[1]).any()
    assert (draws[0] != draws[3]).any()


def test_all_unseen_items_may_be_drawn_and_nobody_may_be_there() -> None:
    items = [[2, 3, 3], [4, 2]]
    assert count_unseen(frame([*items, []]), n_items=N_ITEMS).tolist() == [10, 10, 12]
    drawn = draw_negatives(seen(items), np.ones(N_ITEMS, int), n=10, seed=[1, 0])
    assert np.sort(drawn).tolist() == [list(range(4, 14)), [3, *range(5, 14)]]
    for counts in (np.zeros(N_ITEMS, np.int64), np.ones(N_ITEMS, np.int64)):
        assert draw_negatives(seen([]), counts, n=99, seed=[1, 0]).shape == (0, 99)


def test_many_items_are_drawn_by_another_search_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    items, weights = [[2, 3], [4]] * 40, np.arange(N_ITEMS)
    expected = draw_negatives(seen(items), weights, n=5, seed=[1, 0])
    monkeypatch.setattr(negatives, "IN_CACHE", N_ITEMS - 1)
    assert draw_negatives(seen(items), weights, n=5, seed=[1, 0]).tolist() == expected.tolist()


def test_draws_are_those_of_one_after_another() -> None:
    """What is dropped of draws with replacement: what the user has seen or has been given before."""
    keys = np.array([[0, 4, 0, 1, 4, 3], [8, 8, 11, 7, 6, 6]])  # of six items
    kept = negatives._first_of_each(keys, np.array([1, 11]), np.array([3]))
    assert kept.tolist() == [0, 4, 8, 7, 6]


def test_training_positions_are_counted_once_per_position() -> None:
    assert train_counts(frame([[2, 3, 2], [4]]), n_items=4).tolist() == [2, 1, 1, 0]
