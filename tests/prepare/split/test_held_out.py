"""Who is left out of the sampled protocols, which targets are repeated, and what is said of both."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.split.held_out import HeldOutCounts
from bert4rec.prepare.split.splits import leave_one_out
from bert4rec.prepare.stages.split_rows import Cutter
from bert4rec.prepare.stages.survey import Survey
from tests.conftest import LOG, prepare_log

N_ITEMS = 9
HISTORIES = st.lists(st.lists(st.integers(2, 1 + N_ITEMS), min_size=1, max_size=14), min_size=1, max_size=12)


def block_of(histories: list[list[int]], n: int, validated: list[bool]) -> Any:
    users = pl.Series("user", range(len(histories)), dtype=pl.Int32)
    frame = pl.DataFrame([users, pl.Series("items", histories, dtype=pl.List(pl.Int32))])
    chosen = np.array([flag and len(items) >= 3 for flag, items in zip(validated, histories, strict=True)])
    survey = Survey(np.zeros(0, np.int64), np.arange(N_ITEMS), chosen, None)
    return Cutter(leave_one_out, survey, max_len=4, step=4, n_negatives=n, seed=1)((0, frame))


@settings(max_examples=100, deadline=None)
@given(HISTORIES, st.integers(1, N_ITEMS + 1), st.lists(st.booleans(), min_size=12, max_size=12))
def test_every_user_has_exactly_n_negatives_or_too_few_unseen_items_for_them(
    histories: list[list[int]], n: int, flags: list[bool]
) -> None:
    block = block_of(histories, n, flags[: len(histories)])
    unseen = [set(range(2, 2 + N_ITEMS)) - set(items) for items in histories]
    drawn: dict[int, Any] = {}
    for split in ("validation", "test"):
        repeated = left_out = 0
        for row in block.rows[split].to_dicts():
            lists = row["popular_negatives"], row["uniform_negatives"]
            for negatives in lists:
                assert len(negatives) == (n if len(unseen[row["user"]]) >= n else 0)
                assert len(set(negatives)) == len(negatives)
                assert set(negatives) <= unseen[row["user"]]
            assert drawn.setdefault(row["user"], lists) == lists
            repeated += row["target"] in row["items"]
            left_out += not lists[0]
        counts = block.held_out
        assert (counts.repeated[split], counts.left_out[split]) == (repeated, left_out)
        assert counts.users[split] == len(block.rows[split])
    for percent in (50, 95, 100):
        works = [v for v in range(n + 1) if 100 * sum(len(unseen[u]) >= v for u in drawn) >= percent * len(drawn)]
        assert block.held_out.keeps(percent) == max(works)


def test_who_is_left_out_changes_nothing_for_the_others() -> None:
    others, greedy = [[2, 3, 4], [5, 5, 6], [7, 8, 9]], [*range(2, 2 + N_ITEMS)]
    alone = block_of(others, 5, [True] * 3).rows["test"]
    beside = block_of([*others, greedy], 5, [True] * 4).rows["test"]
    assert beside[:3].equals(alone)
    assert beside[3].select("popular_negatives", "uniform_negatives").row(0) == ([], [])


def counts_of(unseen: list[int]) -> HeldOutCounts:
    """Counts of users by unseen items: as many as `unseen` says of each number."""
    return HeldOutCounts(len(unseen) - 1, unseen=Counter(dict(enumerate(unseen))))


WHAT = "3 unseen items (preprocessing.n_eval_negatives)"
ONE = f"has fewer than {WHAT} and is left out of the ranking among sampled items"
SOME = f"have fewer than {WHAT} and are left out of the ranking among sampled items"
HALF = "for at least half of them"
NONE = f"has {WHAT}: there will be no ranking among sampled items"


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        ([0, 0, 1, 19], f"1 of 20 evaluated users {ONE}; n_eval_negatives = 2 keeps all"),
        ([1, 0, 0, 19], f"1 of 20 evaluated users {ONE}; no number keeps all"),
        ([0, 1, 2, 17], f"3 of 20 evaluated users {SOME}; n_eval_negatives = 1 keeps all, 2 keeps 95 %"),
        ([0, 2, 0, 8], f"2 of 10 evaluated users {SOME}; n_eval_negatives = 1 keeps all"),
        ([1, 0, 2, 17], f"3 of 20 evaluated users {SOME}; no number keeps all, 2 keeps 95 %"),
        ([2, 0, 0, 8], f"2 of 10 evaluated users {SOME}; no number keeps 95 % of them"),
        ([1, 2, 3, 0], f"none of the 6 evaluated users {NONE}; 2 is the largest number that works {HALF}"),
        ([4, 2, 0, 0], f"none of the 6 evaluated users {NONE}; no number works {HALF}"),
    ],
)  # fmt: skip
def test_the_warning_names_numbers_that_work(unseen: list[int], said: str) -> None:
    assert counts_of(unseen).warning() == said


def test_there_is_no_warning_where_nobody_is_left_out() -> None:
    assert counts_of([0, 0, 0, 7]).warning() is None
    assert HeldOutCounts(3).warning() is None


def test_a_log_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare_log(tmp_path)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["repeated_targets"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 3, "of": 6}}
    assert metadata["left_out"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 2, "of": 6}}
    for split in ("validation", "test"):
        rows = datasets.load_from_disk(str(folder / split))
        for name in ("popular_negatives", "uniform_negatives"):
            assert [len(negatives) for negatives in rows[name]] == [5, 5, 5, 0, 5, 0]
    printed = capsys.readouterr().out
    assert (
        "\nwarning: 2 of 6 evaluated users have fewer than 5 unseen items (preprocessing.n_eval_negatives) and are "
        "left out of the ranking among sampled items; no number keeps 95 % of them\n"
    ) in printed
    report = """\
validation users                                  6
  target seen before                              2  33.3 %
  fewer than 5 unseen items                       2  33.3 %
test users                                        6
  target seen before                              3  50.0 %
  fewer than 5 unseen items                       2  33.3 %
"""
    card = (folder / "README.md").read_text()
    assert report in printed
    assert report in card
    assert (
        """
## Evaluation

- **Seen items.** 3 of 6 (50.0 %) test targets and 2 of 6 (33.3 %) validation targets are items that their user
  has seen before. `evaluation.seen_items` says whether seen items are ranked and recommended (`keep`) or not
  (`leave_out`: then these targets count as missed); `auto` keeps them where more than 5 % of the targets are so.
- **Negatives.** A user has 5 of each kind, none of them from the whole of its history. A user with
  fewer unseen items has none, and is left out of the ranking among negatives: 2 of 6 (33.3 %) test users and
  2 of 6 (33.3 %) validation users.

## Settings
"""
        in card
    )


@pytest.mark.parametrize("n", [7, 10**12])
def test_a_catalogue_too_small_for_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int) -> None:
    folder = prepare_log(tmp_path, **{"preprocessing.n_eval_negatives": n})
    assert json.loads((folder / "metadata.json").read_text())["left_out"]["test"] == {"users": 6, "of": 6}
    assert (
        f"none of the 6 evaluated users has {n:,} unseen items (preprocessing.n_eval_negatives): there will "
        "be no ranking among sampled items; 5 is the largest number that works for at least half of them\n"
    ) in capsys.readouterr().out


def test_nothing_is_said_where_nobody_is_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare_log(tmp_path, **{"preprocessing.split": "none"})
    metadata = json.loads((folder / "metadata.json").read_text())
    nobody = {"validation": {"users": 0, "of": 0}, "test": {"users": 0, "of": 0}}
    assert (metadata["repeated_targets"], metadata["left_out"]) == (nobody, nobody)
    assert "## Evaluation" not in (folder / "README.md").read_text()
    assert "warning" not in capsys.readouterr().out


def test_without_repeats_no_target_is_repeated(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"preprocessing.repeats": "first"})
    metadata = json.loads((folder / "metadata.json").read_text())
    assert {split: count["users"] for split, count in metadata["repeated_targets"].items()} == {
        "validation": 0,
        "test": 0,
    }
    assert sum(len(set(items)) for items in LOG.values()) == metadata["rows"]
