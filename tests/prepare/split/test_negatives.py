"""Negatives are unseen, distinct and drawn by weight; who has too few unseen items is left out and counted."""

import json
import re
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare import negatives
from bert4rec.prepare.histories import LEAVE_ONE_OUT, HistoryStats
from bert4rec.prepare.negatives import SeenItems, count_unseen, draw_negatives, held_out_metadata, left_out_warning
from bert4rec.prepare.survey import LogSurvey
from bert4rec.prepare.writer import SplitBlock, split_block
from tests.conftest import prepare_log

N_ITEMS = 12

NO_LOG = LogSurvey(0, has_times=False)


def frame(items: list[list[int]]) -> pl.DataFrame:
    return pl.DataFrame({"items": items}, schema={"items": pl.List(pl.Int32)})


def seen(items: list[list[int]], n_items: int = N_ITEMS) -> SeenItems:
    return SeenItems.of(frame(items), n_items)


def assert_unseen_and_distinct(drawn: np.ndarray, items: list[list[int]]) -> None:
    for row, seen in zip(drawn.tolist(), items, strict=True):
        assert len(set(row)) == len(row)
        assert not set(row) & set(seen)
        assert all(0 <= item < N_ITEMS for item in row)


def test_the_dense_draw_alone_keeps_the_same_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "DENSE_CELLS", 2 * N_ITEMS)  # two users at once
    items = [[0, 1], [2], [3, 3, 4], [11], [0, 11]]
    drawn = draw_negatives(seen(items), np.arange(N_ITEMS), n=10, seed=[1, 0], rounds=0)
    assert_unseen_and_distinct(drawn, items)
    assert drawn[2, -1] == 0  # item 0 has no training positions: it comes last, or not at all
    assert 0 not in drawn[1]


def test_rejection_and_dense_draw_have_the_same_distribution() -> None:
    counts = np.array([0, 40, 30, 20, 10])
    many = [[1]] * 20_000
    for rounds in (negatives.MAX_ROUNDS, 0):
        drawn = draw_negatives(seen(many, 5), counts, n=2, seed=[1, 0], rounds=rounds)
        first = np.bincount(drawn[:, 0], minlength=5) / len(many)
        np.testing.assert_allclose(first, [0, 0, 30 / 60, 20 / 60, 10 / 60], atol=0.015)
        second = np.bincount(drawn[drawn[:, 0] == 2, 1], minlength=5) / (drawn[:, 0] == 2).sum()
        np.testing.assert_allclose(second, [0, 0, 0, 20 / 30, 10 / 30], atol=0.02)


def test_an_item_without_training_positions_comes_only_when_no_other_is_left() -> None:
    drawn = draw_negatives(seen([[0]] * 50, 5), np.array([1, 1, 0, 1, 0]), n=3, seed=[1, 0])
    assert {tuple(sorted(row[:2])) for row in drawn.tolist()} == {(1, 3)}
    assert set(drawn[:, 2].tolist()) == {2, 4}


def test_blocks_and_seeds_are_drawn_apart() -> None:
    items = [[user % N_ITEMS, 1] for user in range(4)]
    draws = [draw_negatives(seen(items), np.ones(N_ITEMS, int), n=5, seed=[s, b]) for s in (1, 2) for b in (0, 1, 0)]
    assert (draws[0] == draws[2]).all()
    assert (draws[0] != draws[1]).any()
    assert (draws[0] != draws[3]).any()


def test_all_unseen_items_may_be_drawn_and_nobody_may_be_there() -> None:
    items = [[0, 1, 1], [2, 0]]
    assert count_unseen(frame([*items, []]), n_items=N_ITEMS).tolist() == [10, 10, 12]
    drawn = draw_negatives(seen(items), np.ones(N_ITEMS, int), n=10, seed=[1, 0])
    assert np.sort(drawn).tolist() == [list(range(2, 12)), [1, *range(3, 12)]]
    for counts in (np.zeros(N_ITEMS, np.int64), np.ones(N_ITEMS, np.int64)):
        assert draw_negatives(seen([]), counts, n=99, seed=[1, 0]).shape == (0, 99)


N_NINE = 9
NINE_HISTORIES = st.lists(st.lists(st.integers(0, N_NINE - 1), min_size=1, max_size=14), min_size=1, max_size=12)


def block_of(histories: list[list[int]], n: int, validated: list[bool]) -> SplitBlock:
    users = pl.Series("user", range(len(histories)), dtype=pl.Int32)
    frame = pl.DataFrame([users, pl.Series("items", histories, dtype=pl.List(pl.Int32))])
    chosen = np.array([flag and len(items) >= 3 for flag, items in zip(validated, histories, strict=True)])
    survey = HistoryStats(np.zeros(0, np.int64), np.arange(N_NINE), chosen, None, NO_LOG)
    return split_block((0, frame), LEAVE_ONE_OUT, survey, n_negatives=n, seed=1)


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
    warning = left_out_warning(block.held_out, n)
    for kept, percent in re.findall(r"(\d+) keeps (\d+) %", warning):
        share = int(percent) * len(drawn) / 100
        assert sum(len(unseen[user]) >= int(kept) for user in drawn) >= share
        assert sum(len(unseen[user]) > int(kept) for user in drawn) < share


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
        ([0, 2, 0, 8], "2 10 3 1 100"), ([1, 0, 2, 17], "3 20 3 2 95"), ([2, 0, 0, 8], "2 10 3"),
        ([1, 2, 3, 0], "6 6 3 2 50"), ([4, 2, 0, 0], "6 6 3"), ([0, 0, 0, 7], ""), ([0, 0, 0, 0], ""),
    ],
)  # fmt: skip
def test_the_warning_names_numbers_that_work(unseen: list[int], numbers: str) -> None:
    counts = Counter({("unseen", n): users for n, users in enumerate(unseen)})
    assert re.findall(r"\d+", left_out_warning(counts, 3)) == numbers.split()


def test_a_log_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare_log(tmp_path)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["repeated_targets"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 3, "of": 6}}
    assert metadata["left_out"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 2, "of": 6}}
    rows = datasets.load_from_disk(str(folder / "negatives"))
    for name in ("popular_negatives", "uniform_negatives"):
        assert [*map(len, rows[name])] == [5, 5, 5, 0, 5, 0]
    warnings = {line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")}
    assert any("2 of 6" in line and "n_eval_negatives" in line for line in warnings)


@pytest.mark.parametrize("n", [7, 10**12])
def test_a_catalogue_too_small_for_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int) -> None:
    folder = prepare_log(tmp_path, **{"preprocessing.n_eval_negatives": n})
    assert json.loads((folder / "metadata.json").read_text())["left_out"]["test"] == {"users": 6, "of": 6}
    assert f"{n:,} " in capsys.readouterr().out


def test_nothing_is_said_where_nobody_is_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare_log(tmp_path, **{"preprocessing.split": "none"})
    metadata = json.loads((folder / "metadata.json").read_text())
    nobody = {"validation": {"users": 0, "of": 0}, "test": {"users": 0, "of": 0}}
    assert (metadata["repeated_targets"], metadata["left_out"]) == (nobody, nobody)
    assert "warning" not in capsys.readouterr().out
