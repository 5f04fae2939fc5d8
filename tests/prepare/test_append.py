"""Appended rows: the histories are those of one preparation of the whole log, and numbers stay."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.format import part_starts
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare import grown_folder
from bert4rec.prepare.append import Appended, append, settings_to_append
from bert4rec.runtime.errors import DataError
from bert4rec.sources.database import fetch_database
from bert4rec.sources.times import moment
from tests.conftest import long
from tests.folders import id_table
from tests.preparation import prepared, stored

DAY, FIRST = 86_400, 1_700_006_400
COLUMNS = ["--user=user", "--item=item", "--time=time"]


def appended(
    previous: Path, table: pl.DataFrame, name: str, *, tail: float = 0.25, **given: Any
) -> tuple[Path, Appended]:
    """The dataset `previous` with the rows of `table`, in the folder `name` beside it, and what was appended."""
    folder = previous.with_name(name)
    table.write_csv(path := previous.with_name(f"{name}.csv"))
    config = settings_to_append(previous, {"data.path": str(path)} | given)
    return folder, append(previous, config, folder, tail=tail, scored=folder.with_name(f"{name}-scored"))


def histories(folder: Path) -> dict[Any, tuple[list[Any], list[int]]]:
    """The items and times of each user, with original ids."""
    return {row["user"]: (row["items"], row["times"]) for row in stored(folder)}


def shop(n_days: int, *, seed: int = 1, n_users: int = 30, n_items: int = 40) -> list[pl.DataFrame]:
    """The rows of each day of a shop: users and items come over time, and no two rows of a user have one second."""
    rng = np.random.default_rng(seed)
    days = []
    for day in range(n_days):
        n = int(rng.integers(5, 60))
        users = rng.integers(0, min(n_users, 5 + 2 * day), n)
        items = rng.integers(0, min(n_items, 9 + day), n)
        times = FIRST + day * DAY + rng.choice(DAY, n, replace=False)
        days.append(pl.DataFrame({"user": users, "item": [f"i{item}" for item in items], "time": np.sort(times)}))
    return days


@pytest.mark.parametrize("n_days", [12, long(30)])
def test_days_one_after_another_are_the_log_prepared_at_once(tmp_path: Path, n_days: int) -> None:
    days = shop(n_days)
    folder = prepared(tmp_path, *COLUMNS, table=pl.concat(days[:5]), name="first")
    with patch.object(grown_folder, "part_starts", lambda lengths: part_starts(lengths, most_rows=60)):
        for number, table in enumerate(days[5:]):
            before = id_table(folder, "users"), id_table(folder, "items")
            folder, done = appended(folder, table, f"day-{number}")
            for old, name in zip(before, ("users", "items"), strict=True):  # numbers stay
                new = id_table(folder, name)
                assert new.head(len(old)).select("original").equals(old.select("original"))
            assert (done.rows, done.new, done.late) == (len(table), len(table), 0)
    check_dataset(folder)
    whole = prepared(tmp_path, *COLUMNS, "--split=time", table=pl.concat(days), name="whole")
    assert histories(folder) == histories(whole)
    for name in ("users", "items"):
        counts = [dict(id_table(one, name).select("original", "count").iter_rows()) for one in (folder, whole)]
        assert counts[0] == counts[1]


def test_what_comes_late_or_again_finds_its_place(tmp_path: Path) -> None:
    """Rows in any order and in several files: each row is once in the dataset, at its time."""
    rows = pl.concat(shop(6))
    order = np.random.default_rng(2).permutation(len(rows))
    parts = [rows[np.sort(order[start::4])] for start in range(4)]
    folder = prepared(tmp_path, *COLUMNS, table=parts[0], name="first")
    folder, done = appended(folder, pl.concat([parts[1], parts[0][:7]]), "second")
    assert (done.rows, done.new) == (len(parts[1]) + 7, len(parts[1]))
    assert 0 < done.late <= len(parts[1])
    folder, done = appended(folder, pl.concat([parts[2], parts[3]]), "third")
    whole = prepared(tmp_path, *COLUMNS, table=rows, name="whole")
    assert histories(folder) == histories(whole)
    again, done = appended(folder, parts[2], "again")
    assert (done.rows, done.new, done.late) == (len(parts[2]), 0, 0)
    assert histories(again) == histories(whole)


def test_equal_rows_are_as_many_as_the_input_or_the_dataset_has(tmp_path: Path) -> None:
    one = pl.DataFrame({"user": [1, 1, 1, 2, 2], "item": [5, 5, 6, 5, 7], "time": [9, 9, 10, 9, 11]})
    folder = prepared(tmp_path, *COLUMNS, table=one, name="first")
    again = pl.DataFrame({"user": [1, 1, 1, 2, 2], "item": [5, 5, 5, 5, 7], "time": [9, 9, 9, 9, 12]})
    folder, done = appended(folder, again, "again")
    assert (done.rows, done.new, done.late) == (5, 2, 1)
    assert histories(folder) == {1: ([5, 5, 5, 6], [9, 9, 9, 10]), 2: ([5, 7, 7], [9, 11, 12])}


def test_the_end_of_the_day_is_held_out_and_the_rest_is_trained_on(tmp_path: Path) -> None:
    first = pl.DataFrame({"user": [1, 1, 1, 2, 2, 3], "item": [1, 2, 3, 1, 4, 2], "time": [1, 2, 3, 1, 2, 3]})
    folder = prepared(tmp_path, *COLUMNS, "--preprocessing.validation_users=1", table=first, name="first")
    day = pl.DataFrame({"user": [1, 2, 1, 4, 4], "item": [5, 5, 2, 1, 6], "time": [101, 102, 109, 103, 110]})
    folder, done = appended(folder, day, "day", tail=0.4)
    assert (done.instant, done.users, done.new_users, done.new_items) == (109, 3, 1, 2)
    rows = {row["user"]: row for row in stored(folder)}
    assert {user: (row["items"], row["n_train"], row["test"]) for user, row in rows.items() if user != 1} == {
        2: ([1, 4, 5], 3, -1), 3: ([2], 1, -1), 4: ([1, 6], 1, 1),
    }  # fmt: skip
    assert rows[1]["items"] == [1, 2, 3, 5, 2]
    assert (rows[1]["n_train"], rows[1]["validation"], rows[1]["test"]) in [(4, -1, 4), (3, 3, 4)]
    opened = open_dataset(folder)
    trained = sum(row["n_train"] for row in rows.values())
    assert opened.popularity.sum() == opened.metadata["train_positions"] == trained
    scored = stored(folder.with_name("day-scored"))
    assert {row["user"]: (row["items"], row["n_train"], row["test"]) for row in scored} == {
        1: ([1, 2, 3, 5, 2], 3, 3), 2: ([1, 4, 5], 2, 2), 4: ([1, 6], 1, 1),
    }  # fmt: skip
    assert (
        open_dataset(folder.with_name("day-scored")).popularity.sum()
        == open_dataset(tmp_path / "first").popularity.sum()
    )


def test_only_parts_with_new_rows_or_rows_that_were_held_out_are_written(tmp_path: Path) -> None:
    days = shop(12, n_users=20)
    folder = prepared(tmp_path, *COLUMNS, table=pl.concat(days), name="first")
    with patch.object(grown_folder, "part_starts", lambda lengths: part_starts(lengths, most_rows=40)):
        folder, _ = appended(folder, pl.DataFrame({"user": [3], "item": ["i1"], "time": [FIRST + 20 * DAY]}), "one")
        one = {path.name: path for path in (folder / "histories").glob("*.arrow")}
        folder, _ = appended(folder, pl.DataFrame({"user": [0], "item": ["i1"], "time": [FIRST + 21 * DAY]}), "two")
    same = [name for name, path in one.items() if (folder / "histories" / name).samefile(path)]
    assert len(one) > 4
    assert len(same) == len(one) - 1  # no row is held out, since each day has a single time
    check_dataset(folder)


def test_the_files_do_not_depend_on_workers_or_on_the_order_of_parts(tmp_path: Path) -> None:
    days = shop(8)
    first = prepared(tmp_path, *COLUMNS, table=pl.concat(days[:7]), name="first")
    with patch.object(grown_folder, "part_starts", lambda lengths: part_starts(lengths, most_rows=60)):
        one, _ = appended(first, days[7], "one")
        two, _ = appended(first, days[7], "two", **{"preprocessing.workers": 2})
    files = [json.loads((folder / "metadata.json").read_text())["files"] for folder in (one, two)]
    assert files[0] == files[1]


def with_kinds(table: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The rows with a rating and a kind of event each, and a text for an id in some later ones."""
    rng = np.random.default_rng(seed)
    kinds, ratings = rng.choice(["view", "buy"], len(table), p=[0.7, 0.3]), rng.integers(1, 6, len(table))
    return table.with_columns(event=pl.Series(kinds), rating=pl.Series(ratings, dtype=pl.Float64))


@pytest.mark.parametrize(
    "options",
    [
        ["--preprocessing.min_rating=2", "--preprocessing.repeats=first"],
        ["--preprocessing.repeats=last", '--preprocessing.target_events=["buy"]'],
        ['--preprocessing.target_events=["buy"]', "--preprocessing.hide_before_target=visit"],
    ],
)
def test_ratings_kinds_of_events_and_filters_are_those_of_the_log(tmp_path: Path, options: list[str]) -> None:
    days = [with_kinds(table, number) for number, table in enumerate(shop(8))]
    options = [*COLUMNS, "--rating=rating", "--data.event_column=event", *options]
    folder = prepared(tmp_path, *options, table=pl.concat(days[:4]), name="first")
    for number, table in enumerate(days[4:]):
        folder, _ = appended(folder, table, f"day-{number}")
    check_dataset(folder)
    split = ["--split=time", "--preprocessing.split_at=" + open_dataset(folder).metadata["preprocessing"]["split_at"]]
    whole = prepared(tmp_path, *options, *split, table=pl.concat(days), name="whole")
    rows = [{row["user"]: row for row in stored(one)} for one in (folder, whole)]
    names = ("items", "times", "ratings", "events", "test")
    assert [{name: row[name] for name in names} for row in sorted(rows[0].values(), key=lambda row: row["user"])] == [
        {name: row[name] for name in names} for row in sorted(rows[1].values(), key=lambda row: row["user"])
    ]


def test_ids_that_become_text_and_features_of_new_items(tmp_path: Path) -> None:
    first = pl.DataFrame({"user": [1, 1, 1, 1, 2, 2, 2], "item": [1, 2, 3, 1, 3, 2, 1], "time": [1, 2, 3, 4, 4, 5, 6]})
    about = pl.DataFrame({"item": [1, 2, 3], "brand": ["a", "b", "a"]})
    about.write_csv(items := tmp_path / "items.csv")
    folder = prepared(
        tmp_path, *COLUMNS, f"--items={items}", "--data.item_features.brand=category", table=first, name="first"
    )
    day = pl.DataFrame({"user": ["1", "ann"], "item": ["4", "x-5"], "time": [100, 101]})
    unknown, done = appended(folder, day, "unknown")
    assert (done.new_users, done.new_items) == (1, 2)
    pl.DataFrame({"item": ["4", "x-5"], "brand": ["b", "c"]}).write_csv(more := tmp_path / "more.csv")
    known, _ = appended(folder, day, "known", **{"data.items_path": str(more)})
    rows = {
        "1": (["1", "2", "3", "1", "4"], [1, 2, 3, 4, 100]),
        "2": (["3", "2", "1"], [4, 5, 6]),
        "ann": (["x-5"], [101]),
    }
    brands = []
    for grown in (folder, unknown, known):
        check_dataset(grown)
        dataset = open_dataset(grown)
        assert dataset.features is not None
        names = dataset.features.categories_of(np.arange(dataset.n_items))["brand"]
        brands.append(dict(zip(map(str, dataset.originals(9)), names, strict=True)))
        assert grown == folder or histories(grown) == rows
    old = {"1": "a", "2": "b", "3": "a"}
    assert brands[0] == old
    assert brands[1] == old | {"4": "", "x-5": ""}
    assert brands[2] == old | {"4": "b", "x-5": ""}  # no item of the training has the brand c


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pl.DataFrame({"user": [1], "item": [1], "at": [9]}), "time"),
        (pl.DataFrame({"user": [1], "article": [1], "time": [9]}), "item"),
        (pl.DataFrame({"user": [1], "item": [1], "time": ["yesterday"]}), "time"),
    ],
)
def test_a_day_that_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, table: pl.DataFrame, words: str
) -> None:
    folder = prepared(tmp_path, *COLUMNS, table=pl.concat(shop(3)), name="first")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataError, match=words):
        appended(folder, table, "day")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "day.csv"])


def test_a_dataset_without_times_has_no_place_for_new_rows(tmp_path: Path) -> None:
    table = shop(3)[2].drop("time")
    folder = prepared(tmp_path, "--user=user", "--item=item", table=table, name="first")
    with pytest.raises(DataError, match="has no times"):
        appended(folder, table, "day")


def test_new_kinds_of_events_are_refused(tmp_path: Path) -> None:
    table = with_kinds(pl.concat(shop(3)), 1)
    folder = prepared(tmp_path, *COLUMNS, "--data.event_column=event", table=table, name="first")
    with pytest.raises(DataError, match="does not have: gift"):
        appended(folder, table[:3].with_columns(event=pl.lit("gift")), "day")


def test_a_query_is_asked_for_what_is_new_with_an_overlap_that_is_not_doubled(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    days = shop(6)
    database = tmp_path / "shop.db"
    folder = prepared(tmp_path, *COLUMNS, table=pl.concat(days[:5]), name="first")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE log (user INTEGER, item TEXT, time INTEGER, at TEXT)")
        rows = [(*row, moment(row[2]).removesuffix("Z").replace("T", " ")) for row in pl.concat(days).rows()]
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    last = int(pl.concat(days[:5])["time"].max())  # type: ignore[arg-type]
    n_again = pl.concat(days[:5]).filter(pl.col("time") > last - 6 * 3600).height
    for number, where in enumerate(("time > {since:s}", "1000 * time > {since:ms}", "at > {since} AND at > {since}")):
        query = f"SELECT user, item, time FROM log WHERE {where}"
        config = settings_to_append(folder, {"data.path": str(database), "data.query": query})
        new = tmp_path / f"new-{number}"
        done = append(folder, config, new, tail=0.25, scored=tmp_path / "scored", overlap_hours=6)
        assert (done.rows, done.new) == (len(days[5]) + n_again, len(days[5]))
    with pytest.raises(DataError, match="only `bert4rec update` knows"):
        fetch_database(str(database), "", "SELECT * FROM log WHERE time > {since}", tmp_path / "x", print, print)


@pytest.mark.parametrize("dtype", [pl.Date, pl.Datetime("ms"), pl.Datetime("us", "Europe/Berlin"), pl.Int64])
def test_of_a_lake_only_what_is_new_is_read_with_the_overlap(tmp_path: Path, dtype: Any) -> None:
    pytest.importorskip("deltalake")
    table = pl.concat(days := shop(6))
    n_new, last = len(days[5]), int(table["time"][: -len(days[5])].max())  # type: ignore[arg-type]
    day_before = last - last % DAY - DAY  # of which 6 hours before a date are
    since = {pl.Date: day_before, pl.Int64: 0}.get(dtype, last - 6 * 3600)
    n_read = table.filter(pl.col("time") >= since).height
    if dtype != pl.Int64:
        table = table.with_columns(pl.from_epoch("time").dt.replace_time_zone("UTC").cast(dtype))
    table.write_delta(tmp_path / "orders")
    folder = prepared(tmp_path, *COLUMNS, table=table[:-n_new], name="first")
    config = settings_to_append(folder, {"data.path": str(tmp_path / "orders")})
    done = append(folder, config, tmp_path / "new", tail=0.25, scored=tmp_path / "scored", overlap_hours=6)
    assert (done.rows, done.new) == (n_read, n_new)


def test_rows_of_the_future_are_left_out_and_do_not_make_the_next_day_late(tmp_path: Path) -> None:
    days = shop(5)
    folder = prepared(tmp_path, *COLUMNS, table=pl.concat(days[:3]), name="first")
    wrong = days[3][:2].with_columns(time=pl.lit(4_000_000_000))
    folder, done = appended(folder, pl.concat([days[3], wrong]), "day")
    assert (done.rows, done.new, done.future) == (len(days[3]), len(days[3]), 2)
    folder, done = appended(folder, days[4], "next")
    assert (done.new, done.late, done.future) == (len(days[4]), 0, 0)
    check_dataset(folder)
    with pytest.raises(DataError, match="2 are in the future"):
        appended(folder, wrong, "wrong")
