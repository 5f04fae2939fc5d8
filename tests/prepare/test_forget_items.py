"""Forgotten items: their rows, ids and titles are gone, and what is left is split as if they had never been there."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.id_tables import IdTable
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.prepare.forget_items import forget_items
from tests.checks import one_line
from tests.folders import id_table
from tests.preparation import metadata_of, prepared, stored
from tests.prepare.test_forget import COLUMNS, START, log, small_parts
from tests.shop import prepare_shop


def items_of(folder: Path, *names: Any) -> Any:
    return IdTable(folder, metadata_of(folder), "items").find([*names])


def histories(folder: Path) -> dict[Any, tuple[list[Any], list[int]]]:
    return {row["user"]: (row["items"], row["times"]) for row in stored(folder)}


def without(folder: Path, items: set[Any]) -> dict[Any, tuple[list[Any], list[int]]]:
    """The histories of a dataset without some items."""
    kept = {
        user: [(item, time) for item, time in zip(*lists, strict=True) if item not in items]
        for user, lists in histories(folder).items()
    }
    return {user: tuple(map(list, zip(*rows, strict=True))) for user, rows in kept.items() if rows}  # type: ignore[misc]


def day_after(place: Path, folder: Path, name: str, rows: dict[str, list[Any]]) -> Any:
    pl.DataFrame(rows).write_csv(place / f"{name}.csv")
    config = settings_to_append(folder, {"data.path": str(place / f"{name}.csv")})
    return append(folder, config, place / name, tail=0.5, scored=place / "scored")


@pytest.mark.parametrize("split", ["leave_one_out", "leave_last_basket", "time", "none"])
def test_the_rows_are_gone_from_a_first_dataset_and_the_rest_is_for_training(tmp_path: Path, split: str) -> None:
    options = ["--preprocessing.n_eval_negatives=3", "--preprocessing.validation_users=12"]
    with small_parts(60):
        folder = prepared(tmp_path, *COLUMNS, f"--split={split}", *options, table=log())
        n_rows = log().filter(pl.col("item").is_in([3, 17])).height
        assert forget_items(folder, items_of(folder, 3, 17), tmp_path / "after") == n_rows
        expected = without(folder, {3, 17})
        assert histories(tmp_path / "after") == expected
        check_dataset(tmp_path / "after")
        new, old = metadata_of(tmp_path / "after"), metadata_of(folder)
        assert (new["test_users"], new["rows"]) == (0, old["rows"] - n_rows)
        assert 0 < new["validation_users"] <= old["validation_users"] or not old["validation_users"]
        assert new["forgotten"] == {"users": 0, "items": 2}
        assert new["previous"]["fingerprints"][0] == old["fingerprint"]
        ids = [id_table(one, "items").sort("item")["original"].to_list() for one in (folder, tmp_path / "after")]
        assert [None if one in (3, 17) else one for one in ids[0]] == ids[1]
        assert forget_items(folder, items_of(folder, 3, 17), folder) == n_rows  # in its place
        assert metadata_of(folder)["files"] == metadata_of(tmp_path / "after")["files"]


def test_a_grown_dataset_keeps_its_split_and_the_parts_without_the_items(tmp_path: Path) -> None:
    with small_parts(60):
        folder = prepared(tmp_path, *COLUMNS, table=log(), name="first")
        later = START + 10**6
        users, items = [f"u{number}" for number in range(8)], [*range(24), 3, 3, 5, 6, 7, 8, 9, 3]
        day_after(tmp_path, folder, "day", {"user": 4 * users, "item": items, "time": [later + at for at in range(32)]})
        day = tmp_path / "day"
        rare = min(range(25), key=lambda item: sum(item in lists[0] for lists in histories(day).values()))
        expected, instant = without(day, {rare}), metadata_of(day)["split_instant"]
        forget_items(day, items_of(day, rare), tmp_path / "after")
        assert histories(tmp_path / "after") == expected
        check_dataset(tmp_path / "after")
        assert metadata_of(tmp_path / "after")["split_instant"] == instant
        assert metadata_of(tmp_path / "after")["test_users"] > 0
        parts = [{path.name: path for path in (one / "histories").glob("*.arrow")} for one in (day, tmp_path / "after")]
        n_same = sum(parts[1][name].samefile(path) for name, path in parts[0].items() if name in parts[1])
        assert 0 < n_same < len(parts[1])
        rows = {"user": ["u1", "u2"], "item": [rare, 4], "time": [later + 90, later + 91]}
        done = day_after(tmp_path, tmp_path / "after", "next", rows)
        assert (done.new, done.new_items) == (2, 1)  # its id is free again
        check_dataset(tmp_path / "next")
        assert items_of(tmp_path / "next", rare).tolist() == [25]
        assert metadata_of(tmp_path / "next")["forgotten"] == {"users": 0, "items": 1}


def test_users_without_other_rows_keep_their_numbers_and_kinds_are_counted_again(tmp_path: Path) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.hide_before_target": "visit"})
    rows = stored(folder)
    items = {item for row in rows[:5] for item in row["items"]}
    forget_items(folder, items_of(folder, *items), tmp_path / "after")
    metadata = check_dataset(tmp_path / "after")
    assert histories(tmp_path / "after") == without(folder, items)
    assert metadata["users"] == metadata_of(folder)["users"] > len(histories(tmp_path / "after"))
    assert sum(metadata["events"].values()) == metadata["rows"]


def test_titles_go_and_the_last_row_stays(tmp_path: Path) -> None:
    table = log().with_columns(title=pl.format("thing {}", "item"))
    folder = prepared(tmp_path, *COLUMNS, "--title=title", table=table)
    forget_items(folder, items_of(folder, 4), folder)
    titles = dict(id_table(folder, "items").select("original", "title").iter_rows())
    assert titles == {item: f"thing {item}" for item in range(25) if item != 4} | {None: None}
    with one_line(f"{folder}: all its", "rows are of these items"):
        forget_items(folder, np.arange(25), tmp_path / "after")
    assert not (tmp_path / "after").exists()
