"""Counts over all users that contradict `items.parquet` or `metadata.json`."""

from pathlib import Path

import pytest

from tests.dataset.check.damages import (
    CHECKED,
    LONG,
    SHORT,
    Cases,
    Damage,
    Sound,
    another,
    cases,
    change,
    damaged,
    metadata,
    more,
    put,
    setting,
    swap,
    table,
    without,
)
from tests.dataset.check.folders import LISTS, Folder, refused


def not_validated(folder: Folder) -> None:
    """A user fewer is validated than the settings say, and everything else is as it must be then."""
    (row,) = folder.rows("test", CHECKED)
    folder.cut_again({name: row[name] for name in ("user", *LISTS)})
    without("validation", CHECKED)(folder)
    folder.tables["items"][row["items"][-1] - 2]["train_count"] += 1
    folder.metadata["train_positions"] += 1
    folder.metadata["train_windows"] = len(folder.splits["train"])
    folder.metadata["validation_users"] -= 1


LEAVE_ONE_OUT: Cases = {
    "item in one window only": (
        put("train", SHORT, "items", 0, another),
        r"items\.parquet: row \d+ \(item \d+\): train_count is",
    ),
    "test target changed": (change("test", LONG, target=another), r"items\.parquet: row \d+ \(item \d+\): count is"),
    "user not validated": (not_validated, r"validation: has 7 users, preprocessing\.validation_users and .* make 8"),
    "count of an item": (table("items", 5, count=1), r"items\.parquet: row 5 \(item 7\): count is \d+, must be \d+;"),
    "train_count of an item": (
        table("items", 5, train_count=-1),
        r"row 5 \(item 7\): train_count is \d+, must be \d+;",
    ),
    "items swapped": (swap("items", 3, 4), r"items\.parquet: row 3 \(item 5\): item is 6, must be 5"),
    "validation_users, the setting": (setting(validation_users="all"), r"validation: has 8 users, .* make \d\d"),
    "rows": (more("rows"), r"items\.parquet: the counts are \d+ in all, metadata\.json says rows = \d+"),
    "train_windows": (more("train_windows"), r"json: train_windows = \d+, the folder holds \d+"),
    "train_positions": (more("train_positions"), r"json: train_positions = \d+, the folder holds \d+"),
    "validation_users": (more("validation_users"), r"json: validation_users = 9, the folder holds 8"),
    "test_users": (more("test_users"), r"json: test_users = \d+, the folder holds \d+"),
    "repeated_targets": (
        lambda f: f.metadata["repeated_targets"]["test"].update(users=99),
        r"json: repeated_targets = .*'test': {'users': 99, .*, the folder holds .*'test': {'users': 1, 'of': 20}}",
    ),
    "left_out": (
        lambda f: f.metadata["left_out"]["validation"].update(of=9),
        r"json: left_out = {'validation': {'users': 0, 'of': 9}, .* holds {'validation': {'users': 0, 'of': 8}, ",
    ),
    "left_out is no table": (metadata(left_out=3), r"json: left_out = 3, the folder holds {'validation': "),
}

BY_TIME: Cases = {
    "item trained on": (put("train", SHORT, "items", 0, another), r"items\.parquet: .* train_count is"),
    "user missing": (without("train", SHORT), r"metadata\.json|users\.parquet|items\.parquet"),
    "counts of items": (table("items", 5, count=1), r"items\.parquet: the counts are \d+ in all, metadata\.json says"),
    "count of an item": (
        table("items", 5, count=-99),
        r"items\.parquet: row 5 \(item 7\): count is -\d+, must be \d+ or",
    ),
}

WITHOUT_TEST: Cases = {
    "item changed": (put("train", LONG, "items", 0, another), r"items\.parquet: row \d+ \(item \d+\): train_count is"),
}


@pytest.mark.parametrize(
    ("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT, time=BY_TIME, none=WITHOUT_TEST)
)
def test_another_count_than_that_of_the_rows_is_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)
