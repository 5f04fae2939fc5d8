"""Forgotten users: their rows and ids are gone, the histories of all others and all numbers are what they were."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.format import part_starts
from bert4rec.dataset.id_tables import UNKNOWN, IdTable
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare import grown_folder, id_files, writer
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.prepare.forget import forget_users
from bert4rec.serving.stored_items import StoredItemIds
from bert4rec.serving.users import UserHistories
from tests.checks import one_line
from tests.conftest import prepare_with_items
from tests.folders import id_table
from tests.preparation import metadata_of, prepared, stored
from tests.shop import prepare_shop

COLUMNS = ["--user=user", "--item=item", "--time=time"]
START = 1_700_000_000


@contextmanager
def small_parts(most_rows: int) -> Iterator[None]:
    """Parts of at most `most_rows` interactions, so that there are several, and small files of ids."""
    starts = partial(part_starts, most_rows=most_rows)
    with (
        patch.object(writer, "part_starts", starts), patch.object(grown_folder, "part_starts", starts),
        patch.object(id_files, "ROWS_PER_FILE", 8), patch.object(id_files, "ROWS_PER_GROUP", 4),
    ):  # fmt: skip
        yield


def log(*, n_users: int = 40, n_items: int = 25, seed: int = 1) -> pl.DataFrame:
    """The rows of users u0, u1, …, who have up to 12 each."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"u{user}", int(rng.integers(n_items)), START + user * 1000 + at)
        for user in range(n_users)
        for at in range(int(rng.integers(1, 13)))
    ]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def numbers_of(folder: Path, *names: Any) -> Any:
    return IdTable(folder, metadata_of(folder), "users").find([*names])


def rows_of(folder: Path, name: str = "histories") -> dict[int, dict[str, Any]]:
    """The rows of a folder by the numbers of their users."""
    rows = datasets.load_from_disk(str(folder / name), keep_in_memory=True).to_list()
    return {row["user"]: row for row in rows}


def assert_forgotten(before: Path, after: Path, users: list[int]) -> None:
    """Nothing but the users is gone, and nothing of them is left."""
    check_dataset(after)
    for name in ("histories", "negatives"):
        old, new = rows_of(before, name), rows_of(after, name)
        assert new == {user: row for user, row in old.items() if user not in users}
    old_users, new_users = id_table(before, "users"), id_table(after, "users")
    is_gone = pl.col("user").is_in(users)
    expected = old_users.with_columns(
        original=pl.when(~is_gone).then("original"), count=pl.when(is_gone).then(0).otherwise("count")
    )
    assert new_users.equals(expected.select(new_users.columns).cast(new_users.schema))
    assert (
        id_table(after, "items")
        .drop("count", "train_count")
        .equals(id_table(before, "items").drop("count", "train_count"))
    )
    old, new = metadata_of(before), metadata_of(after)
    assert [new[name] for name in ("users", "items", "segments", "time_span", "preprocessing")] == [
        old[name] for name in ("users", "items", "segments", "time_span", "preprocessing")
    ]
    assert new["previous"]["fingerprints"][0] == old["fingerprint"] != new["fingerprint"]


@pytest.mark.parametrize("split", ["leave_one_out", "leave_last_basket", "time", "none"])
def test_the_users_are_gone_and_all_others_are_what_they_were(tmp_path: Path, split: str) -> None:
    options = ["--preprocessing.n_eval_negatives=3", "--preprocessing.validation_users=12"]
    with small_parts(60):
        folder = prepared(tmp_path, *COLUMNS, f"--split={split}", *options, table=log())
        users = numbers_of(folder, "u7", "u9", "u30")
        n_rows = log().filter(pl.col("user").is_in(["u7", "u9", "u30"])).height
        assert forget_users(folder, users, tmp_path / "after") == n_rows
        assert_forgotten(folder, tmp_path / "after", users.tolist())
        parts = [
            {path.name: path for path in (one / "histories").glob("*.arrow")} for one in (folder, tmp_path / "after")
        ]
        same = [name for name, path in parts[0].items() if parts[1][name].samefile(path)]
        assert len(parts[0]) > 4
        assert len(parts[0]) - 3 <= len(same) < len(parts[0])
        assert forget_users(folder, users, folder) == n_rows  # in its place
        assert metadata_of(folder)["files"] == metadata_of(tmp_path / "after")["files"]


def test_the_files_are_those_of_a_preparation_without_the_user(tmp_path: Path) -> None:
    folder = prepared(tmp_path, *COLUMNS, "--split=none", table=log(), name="first")
    forget_users(folder, numbers_of(folder, "u39", "u5"), tmp_path / "after")
    whole = prepared(tmp_path, *COLUMNS, "--split=none", table=log().filter(~pl.col("user").is_in(["u39", "u5"])))
    counts = [
        dict(id_table(one, "items").select("original", "count").iter_rows()) for one in (tmp_path / "after", whole)
    ]
    rows = [{row["user"]: (row["items"], row["times"]) for row in stored(one)} for one in (tmp_path / "after", whole)]
    assert rows[0] == rows[1]
    assert {item: n for item, n in counts[0].items() if n} == counts[1]
    keys = ("rows", "lengths", "train_positions", "test_users")
    assert [metadata_of(tmp_path / "after")[key] for key in keys] == [metadata_of(whole)[key] for key in keys]


def test_kinds_of_events_and_hidden_ones_are_counted_again(tmp_path: Path) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.hide_before_target": "visit"})
    users = np.arange(3, 60)
    forget_users(folder, users, tmp_path / "after")
    assert_forgotten(folder, tmp_path / "after", users.tolist())


def test_features_of_items_stay(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    table = pl.DataFrame([(user, item) for user in range(30) for item in draw.permutation(25)[:8]], orient="row",
                         schema=["user", "item"]).with_row_index("time")  # fmt: skip
    folder = prepare_with_items(tmp_path, table, draw)
    forget_users(folder, np.array([2]), tmp_path / "after")
    assert_forgotten(folder, tmp_path / "after", [2])
    files = [*(folder / "item_features").iterdir()]
    assert files
    assert all((tmp_path / "after" / "item_features" / path.name).samefile(path) for path in files)
    assert open_dataset(tmp_path / "after").metadata["item_features"] == metadata_of(folder)["item_features"]


def test_a_later_row_with_the_same_id_is_one_of_a_new_user(tmp_path: Path) -> None:
    with small_parts(60):
        folder = prepared(tmp_path, *COLUMNS, table=log(), name="first")
        (number,) = numbers_of(folder, "u7")
        forget_users(folder, np.array([number]), folder)
        day = pl.DataFrame(
            {"user": ["u7", "u7", "u8"], "item": [3, 4, 5], "time": [START + 10**6 + at for at in range(3)]}
        )
        day.write_csv(tmp_path / "day.csv")
        config = settings_to_append(folder, {"data.path": str(tmp_path / "day.csv")})
        done = append(folder, config, tmp_path / "grown", tail=0.25, scored=tmp_path / "scored")
        assert (done.new, done.new_users) == (3, 1)
        (grown,) = numbers_of(tmp_path / "grown", "u7")
        assert grown == 40
        check_dataset(tmp_path / "grown")
        assert id_table(tmp_path / "grown", "users")["original"].to_list()[number] is None
        assert rows_of(tmp_path / "grown")[grown]["times"] == [START + 10**6, START + 10**6 + 1]
        extended = prepared(tmp_path, *COLUMNS, f"--data.extends={folder}", table=pl.concat([log(), day]), name="again")
    check_dataset(extended)
    assert numbers_of(extended, "u7") == [40]
    assert metadata_of(extended)["forgotten"] == {"users": 1, "items": 0}


def test_other_users_are_found_and_answered(tmp_path: Path) -> None:
    with small_parts(60):
        folder = prepared(tmp_path, *COLUMNS, table=log(), name="first")
    ids = StoredItemIds(folder)
    before = dict(pair for part in UserHistories(folder, ids).all() for pair in part)
    # a whole file of ids, the first row of a group, and a last row
    gone = [*range(8, 16), 0, 39]
    names = id_table(folder, "users")["original"].gather(gone).to_list()
    forget_users(folder, np.array(gone), folder)
    users = UserHistories(folder, ids)
    after = dict(pair for part in users.all() for pair in part)
    assert after == {user: items for user, items in before.items() if user not in names}
    assert len(users) == len(after) == 30
    assert dict(users.of([*after])) == after
    assert (numbers_of(folder, *names, None) == UNKNOWN).all()
    with one_line("1 of 1 user not in the dataset", "such as") as caught:
        users.of(names[:1])
    assert "None" not in str(caught.value)


def test_a_dataset_without_a_row_is_refused_and_a_null_id_with_rows_is_damage(tmp_path: Path) -> None:
    folder = prepared(tmp_path, *COLUMNS, table=log())
    with one_line(str(folder), "are of these users"):
        forget_users(folder, np.arange(40), folder)
    forget_users(folder, np.array([4]), folder)
    path = folder / "metadata.json"
    path.write_text(json.dumps(metadata_of(folder) | {"forgotten": {"users": 2, "items": 0}}))
    with one_line(str(folder), "1 ids are null, must be 2"):
        check_dataset(folder)
