"""Splits that do not hold what the counts of the users demand; and damage at random."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataset.check.damages import (
    FIRST,
    LONG,
    N_ITEMS,
    ONE,
    SHORT,
    Cases,
    Damage,
    Sound,
    cases,
    damaged,
    flip,
    made,
    swap,
    table,
    without,
)
from tests.dataset.check.folders import LISTS, Folder, check, load, refused, seal


def untested(folder: Folder) -> None:
    """No test of a user who must be tested, and the counts say so too."""
    without("test", LONG)(folder)
    folder.metadata["test_users"] -= 1


def short_test(folder: Folder) -> None:
    """A test of a user with two interactions."""
    (row,) = folder.rows("train", SHORT)
    drawn = {name: [2, 3, 4] for name in ("popular_negatives", "uniform_negatives")}
    history = {name: row[name][:1] for name in LISTS}
    folder.splits["test"].insert(
        1, {"user": SHORT, **history, "target": row["items"][1], "target_time": row["times"][1], **drawn}
    )
    folder.cut_again({"user": SHORT, **history})


def one_test(folder: Folder) -> None:
    """A test where there is none."""
    folder.splits["test"] = made().splits["test"][:1]
    folder.cut_again({name: folder.splits["test"][0][name] for name in ("user", *LISTS)})
    folder.metadata["test_users"] = 1


LEAVE_ONE_OUT: Cases = {
    "user not tested": (untested, r"test: no row of user 2, who has 19 interactions"),
    "test row missing": (without("test", LONG), r"test: no row of user 2, who has 19 interactions"),
    "too short for a test": (short_test, r"test: row 1 \(user 1\): this user has 2 interactions, evaluation needs 3"),
    "untested user missing in train": (
        without("train", SHORT),
        r"users\.parquet: row 1 \(user 1\): count is 2, .* hold 0",
    ),
    "count of a user": (table("users", SHORT, count=1), r"test: no row of user 1, who has 3 interactions"),
    "count of a tested user": (
        table("users", LONG, count=1),
        r"users\.parquet: row 2 \(user 2\): count is 20, the splits hold 19 interactions",
    ),
    "user without interactions": (table("users", ONE, count=-1), r"row 4 \(user 4\): count is 0, must be 1 or more"),
    "users swapped": (swap("users", 3, 4), r"users\.parquet: row 3 \(user 4\): user 3 must stand here"),
    "ranks in another order": (
        lambda f: f.tables.update(oracle=[{"user": row["user"]} for row in f.splits["test"]][::-1]),
        r"oracle\.parquet: row 0 \(user \d+\): user 0 must stand here, as in test",
    ),
}

BY_TIME: Cases = {
    "test row missing": (without("test", LONG), r"users\.parquet: row 2 \(user 2\): count is 19, the splits hold \d+"),
    "count of a user": (
        table("users", LONG, count=-9),
        r"users\.parquet: row 2 \(user 2\): count is 10, the splits hold",
    ),
}

WITHOUT_TEST: Cases = {
    "a test": (one_test, r"test: row 0 \(user 0\): with preprocessing\.split = none there is no evaluation"),
    "window missing": (without("train", LONG, window=-1), r"users\.parquet: row 2 \(user 2\): count is 19, .* hold 15"),
}


@pytest.mark.parametrize(
    ("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT, time=BY_TIME, none=WITHOUT_TEST)
)
def test_splits_and_users_that_contradict_each_other_are_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)


def test_fewer_ranks_than_tests_are_refused(sound: Sound, tmp_path: Path) -> None:
    folder = load(sound["leave_one_out"])
    folder.tables["oracle"] = [{"user": row["user"]} for row in folder.splits["test"]][:5]
    folder.metadata["test_users"] = 5
    refused(folder.save(tmp_path / "dataset"), r"test: row 5 \(user \d+\): oracle\.parquet has no row of this user")


# Damage at random. What another folder could rightly hold is left out: other ratings, other times in the same order,
# other unseen negatives, and by time another target, as the counts do not tell what stands behind it.


def other(data: st.DataObject, values: Iterable[int], value: int) -> int:
    return data.draw(st.sampled_from([new for new in values if new != value]))


def one_element(data: st.DataObject, folder: Folder, split: str) -> None:
    """Another value for one element of one row."""
    row = data.draw(st.sampled_from(folder.splits[split]))
    names = ["items", *(name for name in row if name.endswith("negatives"))]
    names += ["times"] if len(row["items"]) > 1 else []
    names += ["target"] if "target" in row and folder.metadata["preprocessing"]["split"] == "leave_one_out" else []
    name = data.draw(st.sampled_from(names))
    if name == "target":
        row["target"] = other(data, range(2, 2 + N_ITEMS), row["target"])
        return
    place = data.draw(st.integers(0, len(row[name]) - 1))
    choice: Iterable[int] = range(2, 2 + N_ITEMS)
    if name == "times":
        choice = [min(row[name]) - 1 if place else max(row[name]) + 1]
    elif name != "items":
        choice = [0, 2 + N_ITEMS, row["target"], *row["items"], *row[name]]
    row[name][place] = other(data, choice, row[name][place])


def one_row(data: st.DataObject, folder: Folder, split: str) -> None:
    """A row is gone, or stands in another place, or twice; the counts of rows say so too."""
    rows = folder.splits[split]
    place = data.draw(st.integers(0, len(rows) - 1))
    kind = data.draw(st.sampled_from(["gone", "moved", "twice"]))
    row = rows[place] if kind == "twice" else rows.pop(place)
    if kind != "gone":
        rows.insert(other(data, range(len(rows) + 1), -1 if kind == "twice" else place), row)
    counts = {"train": "train_windows", "validation": "validation_users", "test": "test_users"}
    folder.metadata[counts[split]] = len(rows)


@given(st.sampled_from(["leave_one_out", "time", "none"]), st.sampled_from([one_element, one_row]), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_at_random_is_refused(sound: Sound, kind: str, damage: Callable[..., None], data: st.DataObject) -> None:
    folder = load(sound[kind])
    damage(data, folder, data.draw(st.sampled_from([name for name, rows in folder.splits.items() if rows])))
    with tempfile.TemporaryDirectory() as place:
        refused(folder.save(Path(place) / "dataset"))


@pytest.mark.parametrize("name", [FIRST, "test/data-00001-of-00002.arrow", "users.parquet", "items.parquet"])
def test_no_byte_makes_it_stumble(sound: Sound, tmp_path: Path, name: str) -> None:
    """A byte changed in a file that is sealed then: refused in a line, or accepted where the byte means nothing."""
    rng = random.Random(name)
    for _ in range(40):
        path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset", dirs_exist_ok=True))
        flip(path / name, rng.randrange(1 << 20), 1 << rng.randrange(8))
        seal(path)
        status, _, err = check(path)
        assert (status, err) == (0, "") or (status == 2 and err.startswith("error: ") and err.count("\n") == 1)
