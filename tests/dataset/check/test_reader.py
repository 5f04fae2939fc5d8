"""The files of a split, their columns, and users out of order."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.dataset.check.damages import (
    CHECKED,
    FIRST,
    LONG,
    Cases,
    Damage,
    FileCases,
    FileDamage,
    Sound,
    cases,
    change,
    damaged,
    damaged_files,
    metadata,
    put,
    setting,
    swap,
    truncate,
    twice,
    typed,
)
from tests.dataset.check.folders import refused

LEAVE_ONE_OUT: Cases = {
    "train out of order": (swap("train", 0, -1), r"train: row 1 \(user 0\): stands behind user 23"),
    "test out of order": (swap("test", 1, 2), r"test: row 2 \(user 2\): stands behind user 3"),
    "user tested twice": (twice("test", LONG), r"test: row 2 \(user 2\): a second row of this user"),
    "no such user": (change("test", LONG, user=24), r"test: row 1 \(user 24\): there is no such user.* from 0 to 23"),
    "negative user": (change("train", 0, user=-1), r"train: row 0 \(user -1\): there is no such user"),
    "negatives of one kind only": (
        change("test", LONG, popular_negatives=[]),
        r"\(user 2\): popular_negatives has 0 elements, not 3 as preprocessing\.",
    ),
    "too few negatives": (
        change("test", LONG, popular_negatives=[2, 3], uniform_negatives=[2, 3]),
        r"\(user 2\): popular_negatives has 2 elements, not 3 as preprocessing\.",
    ),
    "too many negatives": (
        change("validation", CHECKED, uniform_negatives=[2, 3, 4, 5]),
        r"\(user 3\): uniform_negatives has 4 elements, not 3",
    ),
    "lists of unequal length": (
        change("train", 0, times=[1]),
        r"train: row 0 \(user 0\): times has 1 elements, not \d as it",
    ),
    "item is null": (put("train", 0, "items", 0, None), r"train: rows 0 to \d+: column items has a null"),
    "list is null": (change("train", 0, times=None), r"train: rows 0 to \d+: column times has a null"),
    "target is null": (change("test", 0, target=None), r"test: rows 0 to \d+: column target has a null"),
    "column missing": (
        lambda f: [row.pop("times") for row in f.splits["test"]],
        r"test/data-0\S+: has the columns user int32, items",
    ),
    "column too many": (
        lambda f: [row.update(x=1) for row in f.splits["train"]] and typed(train__x=pa.int32())(f),
        r"train/data-00000-of-00002\.arrow: has the columns .* x int32; must be user int32",
    ),
    "items of another type": (
        typed(validation__items=pa.list_(pa.int64())),
        r"validation/data-0\S+: has the columns .* items list<item: int64>",
    ),
    "users of another type": (typed(train__user=pa.int64()), r"train/data-0\S+: .* user int64, .* must be user int32"),
    "has_ratings": (metadata(has_ratings=False), r"train/data-0\S+: has the columns .* ratings"),
    "n_eval_negatives": (setting(n_eval_negatives=2), r"popular_negatives has 3 elements, not 2"),
}


def swapped(split: Path) -> None:
    """The shards in another order."""
    names = json.loads((split / "state.json").read_text())["_data_files"]
    (split / "state.json").write_text(json.dumps({"_data_files": names[::-1]}))


SEALED: FileCases = {
    "list of files broken": (
        lambda p: (p / "test" / "state.json").write_text("{}"),
        r"state\.json: does not list the f",
    ),
    "shard missing": (lambda p: (p / FIRST).unlink(), r"train/state\.json: lists the files .*, the folder holds"),
    "shard not listed": (
        lambda p: shutil.copy(p / FIRST, p / "train" / "data-2.arrow"),
        r"train/state\.json: lists the files .*, the folder holds .*'data-2\.arrow'",
    ),
    "shards swapped": (lambda p: swapped(p / "test"), r"test: row \d+ \(user \d+\): stands behind user \d+"),
    "truncated": (lambda p: truncate(p / FIRST), r"train/data-00000-of-00002\.arrow: cannot be read"),
    "no Arrow": (lambda p: (p / FIRST).write_text("x" * 99), r"train/data-00000-of-00002\.arrow: cannot be read"),
}


@pytest.mark.parametrize(("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT))
def test_rows_that_are_not_those_of_the_split_are_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)


@pytest.mark.parametrize(("damage", "words"), SEALED.values(), ids=SEALED)
def test_files_that_are_not_those_of_the_split_are_refused(
    sound: Sound, tmp_path: Path, damage: FileDamage, words: str
) -> None:
    refused(damaged_files(sound["leave_one_out"], damage, tmp_path / "dataset", sealed=True), words)
