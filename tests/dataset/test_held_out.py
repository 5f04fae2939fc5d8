"""Targets of a split by time other than the first of each user: those of a plain loop over the log."""

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.held_out import targets_from
from bert4rec.dataset.reader import Dataset, open_dataset
from tests.preparation import prepared, small_parts

INSTANT = 1_000


@pytest.fixture(scope="module")
def log() -> dict[str, list[tuple[str, int]]]:
    """The items and times of each user: some before the instant alone, some after it alone, one with a single row."""
    draw = np.random.default_rng(3)
    rows = {}
    for user in range(60):
        times = np.sort(draw.integers(900 * (user % 3 == 1), 1000 + 100 * (user % 3 > 0), draw.integers(1, 12)))
        items = draw.permutation(40)[: len(times)]
        rows[f"u{user}"] = [(f"i{item}", int(time)) for item, time in zip(items, times, strict=True)]
    return rows | {"single": [("i1", 1_050)], "edge": [("i1", 999), ("i2", 1_000), ("i3", 1_000)]}


@pytest.fixture(scope="module")
def by_time(log: dict[str, list[tuple[str, int]]], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows = [(user, item, time) for user, mine in log.items() for item, time in mine]
    table = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    split = ["--split=time", f"--preprocessing.split_at={INSTANT}", "--preprocessing.validation_users=5"]
    with small_parts(50):  # several
        folder = prepared(tmp_path_factory.mktemp("by-time"), "--data.time_column=time", *split, table=table)
    return open_dataset(folder)


def found(dataset: Dataset, which: str, seed: int = 1) -> list[tuple[str, list[str], str]]:
    """User, history and target of each row."""
    split = targets_from(dataset.histories, dataset.folder, which, instant=INSTANT, seed=seed)
    rows = split.read(np.arange(len(split)))
    users, items = dataset.user_table.rows(rows.users.astype(np.int64), ["original"]), dataset.originals(99)
    histories = np.split(rows.items, rows.lengths.cumsum()[:-1])
    return [
        (user, [items[item] for item in history], items[target])
        for user, history, target in zip(users["original"].to_pylist(), histories, rows.targets, strict=True)
    ]


def expected(log: dict[str, list[tuple[str, int]]]) -> dict[str, list[tuple[str, list[str], str]]]:
    """All interactions from the instant on by user, but no user's first, each with all before it."""
    asked = {}
    for user, mine in log.items():
        items = [item for item, _ in mine]
        places = [place for place, (_, time) in enumerate(mine) if place and time >= INSTANT]
        asked[user] = [(user, items[:place], items[place]) for place in places]
    return asked


def test_targets_are_those_of_a_loop(by_time: Dataset, log: dict[str, list[tuple[str, int]]]) -> None:
    by_user = {user: asked for user, asked in expected(log).items() if asked}
    assert 20 < len(by_user) < len(log)
    assert sorted(found(by_time, "successive")) == sorted(one for asked in by_user.values() for one in asked)
    assert sorted(found(by_time, "last")) == sorted(asked[-1] for asked in by_user.values())
    drawn = found(by_time, "random")
    assert sorted(user for user, *_ in drawn) == sorted(by_user)
    assert all(one in by_user[one[0]] for one in drawn)
    assert drawn == found(by_time, "random")
    assert len({str(found(by_time, "random", seed)) for seed in range(9)}) > 1


def test_each_of_a_users_targets_is_drawn(by_time: Dataset, log: dict[str, list[tuple[str, int]]]) -> None:
    user, asked = max(expected(log).items(), key=lambda each: len(each[1]))
    drawn = [one[2] for seed in range(200) for one in found(by_time, "random", seed) if one[0] == user]
    counts = [drawn.count(target) for _, _, target in asked]
    assert min(counts) > 200 / len(asked) / 3
