"""Negatives are unseen, distinct and drawn by weight; who has too few unseen items is left out and counted."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare import negatives
from bert4rec.prepare.negatives import SeenItems, draw_negatives, held_out_metadata, left_out_warning
from bert4rec.prepare.split import Targets, leave_last_out
from bert4rec.prepare.writer import SplitBlock, SplitUsers, split_block
from tests.checks import Capture, Patch
from tests.conftest import prepare_log
from tests.preparation import metadata_of

N_ITEMS = 12


def seen(items: list[list[int]], n_items: int = N_ITEMS) -> SeenItems:
    return SeenItems.of(pl.DataFrame({"items": items}, schema={"items": pl.List(pl.Int32)}), n_items)


def test_the_dense_draw_alone_gives_unseen_and_distinct_items_by_weight(monkeypatch: Patch) -> None:
    monkeypatch.setattr(negatives, "DENSE_CELLS", 2 * N_ITEMS)  # two users at once
    items = [[0, 1], [2], [3, 3, 4], [11], [0, 11]]
    drawn = draw_negatives(seen(items), np.arange(N_ITEMS).cumsum(), n=10, seed=[1, 0], rounds=0).tolist()
    assert [len({*row} & {*range(N_ITEMS)} - {*mine}) for row, mine in zip(drawn, items, strict=True)] == [10] * 5
    assert drawn[2][-1] == 0  # item 0 has no training positions: it comes last, or not at all
    assert 0 not in drawn[1]


def test_rejection_and_dense_draw_have_the_same_distribution() -> None:
    cumulated = np.cumsum([0, 40, 30, 20, 10])
    many = [[1]] * 20_000
    for rounds in (negatives.MAX_ROUNDS, 0):
        drawn = draw_negatives(seen(many, 5), cumulated, n=2, seed=[1, 0], rounds=rounds)
        first = np.bincount(drawn[:, 0], minlength=5) / len(many)
        np.testing.assert_allclose(first, [0, 0, 30 / 60, 20 / 60, 10 / 60], atol=0.015)
        last = draw_negatives(seen([[1]] * 50, 5), cumulated, n=4, seed=[1, 0], rounds=rounds)[:, 3]
        assert {*last.tolist()} == {0}  # without training positions: only when no other item is left
        second = np.bincount(drawn[drawn[:, 0] == 2, 1], minlength=5) / (drawn[:, 0] == 2).sum()
        np.testing.assert_allclose(second, [0, 0, 0, 20 / 30, 10 / 30], atol=0.02)


def test_blocks_and_seeds_are_drawn_apart() -> None:
    items = [[user % N_ITEMS, 1] for user in range(4)]
    draws = [draw_negatives(seen(items), None, n=5, seed=[s, b]) for s in (1, 2) for b in (0, 1, 0)]
    assert [(draws[0] == draw).all() for draw in draws[1:4]] == [False, True, False]


def test_nobody_may_be_there_and_nothing_may_be_trained() -> None:
    for cumulated in (np.zeros(N_ITEMS, np.int64), None):
        assert draw_negatives(seen([]), cumulated, n=99, seed=[1, 0]).shape == (0, 99)


N_NINE = 9
NINE_HISTORIES = st.lists(st.lists(st.integers(0, N_NINE - 1), min_size=1, max_size=14), min_size=1, max_size=12)


def block_of(histories: list[list[int]], n: int, validated: list[bool]) -> SplitBlock:
    numbers = pl.Series("user", range(len(histories)), dtype=pl.Int32)
    frame = pl.DataFrame([numbers, pl.Series("items", histories, dtype=pl.List(pl.Int32))])
    chosen = np.array([flag and len(items) >= 3 for flag, items in zip(validated, histories, strict=True)])
    users = SplitUsers(np.arange(N_NINE).cumsum(), chosen, None)
    return split_block((0, frame), leave_last_out(Targets()), users, n_negatives=n, seed=1)


@settings(max_examples=40, deadline=None)
@given(NINE_HISTORIES, st.integers(1, N_NINE + 1), st.lists(st.booleans(), min_size=12, max_size=12))
def test_every_user_has_exactly_n_negatives_or_too_few_unseen_items_for_them(
    histories: list[list[int]], n: int, flags: list[bool]
) -> None:
    block = block_of(histories, n, flags[: len(histories)])
    unseen = [set(range(N_NINE)) - set(items) for items in histories]
    drawn = {user: (popular, uniform) for user, popular, uniform in block.negatives.rows()}
    for user, lists in drawn.items():
        for found in lists:
            assert len(found) == (n if len(unseen[user]) >= n else 0)
            assert len(set(found)) == len(found)
            assert set(found) <= unseen[user]
    rows, counts = block.histories.to_dicts(), held_out_metadata(block.held_out)
    assert [*drawn] == [row["user"] for row in rows if max(row["validation"], row["test"]) >= 0]
    for split in ("validation", "test"):
        held_out = [row for row in rows if row[split] >= 0]
        are_repeated = [row["items"][row[split]] in row["items"][: row[split]] for row in held_out]
        assert counts[f"{split}_users"] == len(held_out)
        assert counts["repeated_targets"][split] == {"users": sum(are_repeated), "of": len(held_out)}
        assert counts["left_out"][split]["users"] == sum(not drawn[row["user"]][0] for row in held_out)


def test_who_is_left_out_changes_nothing_for_the_others() -> None:
    others, greedy = [[0, 1, 2], [3, 3, 4], [5, 6, 7]], [*range(N_NINE)]
    alone = block_of(others, 5, [True] * 3).negatives
    beside = block_of([*others, greedy], 5, [True] * 4).negatives
    assert beside[:3].equals(alone)
    assert beside[3].select("popular_negatives", "uniform_negatives").row(0) == ([], [])


@pytest.mark.parametrize(
    ("unseen", "numbers"),  # how many users have 0, 1, 2, 3 unseen items; the numbers that the warning names
    [
        ([0, 0, 1, 19], "1 20 3 2 100"), ([1, 0, 0, 19], "1 20 3"), ([0, 1, 2, 17], "3 20 3 1 100 2 95"),
        ([0, 2, 0, 8], "2 10 3 1 100"), ([1, 0, 2, 17], "3 20 3 2 95"), ([1, 2, 3, 0], "6 6 3 2 50"),
        ([4, 2, 0, 0], "6 6 3"), ([0, 0, 0, 7], ""), ([0, 0, 0, 0], ""),
    ],
)  # fmt: skip
def test_the_warning_names_numbers_that_work(unseen: list[int], numbers: str) -> None:
    counts = Counter({("unseen", n): users for n, users in enumerate(unseen)})
    assert re.findall(r"\d+", left_out_warning(counts, 3)) == numbers.split()


@pytest.mark.parametrize(
    ("changes", "repeated", "left_out", "n_users"),  # of the users with a target of validation, and of test
    [
        ({}, (2, 3), (2, 2), 6), ({"preprocessing.n_eval_negatives": 10**12}, (2, 3), (6, 6), 6),
        ({"preprocessing.split": "none"}, (0, 0), (0, 0), 0),
    ],
)  # fmt: skip
def test_a_log_by_hand(
    tmp_path: Path, capsys: Capture, changes: dict[str, object], repeated: object, left_out: object, n_users: int
) -> None:
    metadata = metadata_of(prepare_log(tmp_path, **changes))
    for name, counts in (("repeated_targets", repeated), ("left_out", left_out)):
        assert tuple(metadata[name][split]["users"] for split in ("validation", "test")) == counts
        assert {metadata[name][split]["of"] for split in ("validation", "test")} == {n_users}
    assert ("preprocessing.n_eval_negatives" in capsys.readouterr().out) == (n_users > 0)
