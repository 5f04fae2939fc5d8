"""The tables: their columns, their rows, and original ids that stand there twice."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.dataset.check import tables
from tests.dataset.check.damages import (
    Cases,
    Damage,
    Sound,
    cases,
    damaged,
    damaged_files,
    more,
    table,
)
from tests.dataset.check.folders import Event, Maker, accepted, check, load, refused

LEAVE_ONE_OUT: Cases = {
    "item missing": (lambda f: f.tables["items"].pop(9), r"items\.parquet: has 59 rows, metadata\.json says 60"),
    "user missing": (lambda f: f.tables["users"].pop(9), r"users\.parquet: has 23 rows, metadata\.json says 24"),
    "original of two items": (
        table("items", 50, original=42),
        r"items\.parquet: row 50: original 42 is that of row 4 too",
    ),
    "original of two users": (
        table("users", 7, original="u3"),
        r"users\.parquet: row 7: original 'u3' is that of row 3",
    ),
    "original is null": (table("items", 3, original=None), r"items\.parquet: row 3: original is null"),
    "count is null": (table("users", 3, count=None), r"users\.parquet: row 3: count is null"),
    "no originals": (lambda f: [row.pop("original") for row in f.tables["users"]], r"must have a column original"),
    "counts are text": (
        lambda f: [row.update(count="1") for row in f.tables["items"]],
        r"items\.parquet: must have a column count of integers",
    ),
    "ranks of other users": (lambda f: f.tables.update(oracle=[{"user": 0}]), r"oracle\.parquet: has 1 rows, metadata"),
    "users": (more("users"), r"users\.parquet: has 24 rows, metadata\.json says 25"),
    "items": (more("items"), r"items\.parquet: has 60 rows, metadata\.json says 61"),
}


@pytest.mark.parametrize(("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT))
def test_tables_that_are_not_those_of_the_dataset_are_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)


def test_a_table_that_is_no_parquet_file_is_refused(sound: Sound, tmp_path: Path) -> None:
    def spoil(path: Path) -> None:
        (path / "users.parquet").write_text("x")

    path = damaged_files(sound["leave_one_out"], spoil, tmp_path / "dataset", sealed=True)
    refused(path, r"users\.parquet: cannot be read")


def test_the_first_pass_of_an_original_may_be_a_later_one(
    sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEYS_AT_ONCE", 8)
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 3)
    folder = load(sound["leave_one_out"])
    folder.tables["users"][20]["original"] = "u11"
    refused(folder.save(tmp_path / "dataset"), r"users\.parquet: row 20: original 'u11' is that of row 11 too")


def test_originals_of_one_key_are_told_apart(sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BASE", 1)  # u12 and u21 have the same key
    assert check(sound["leave_one_out"])[0] == 0
    folder = load(sound["leave_one_out"])
    folder.tables["users"][21]["original"] = "u12"
    refused(folder.save(tmp_path / "dataset"), r"users\.parquet: row 21: original 'u12' is that of row 12 too")


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("originals", [["", "a", "aa", "ä"], [-1, 0, 1, 2**62], [0.5, 1.5, -1.0, 2.0]])
def test_originals_may_be_of_any_type(tmp_path: Path, originals: list[Any], extends: bool) -> None:
    folder = Maker([[Event(2 + user, 0, 1.0)] for user in range(4)], n_items=4, extends=extends).make()
    for name in ("users", "items"):
        for row, original in zip(folder.tables[name], originals, strict=True):
            row["original"] = original
    accepted(folder.save(tmp_path / "dataset"))
