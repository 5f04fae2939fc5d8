"""Write a dataset without some items: their rows leave all histories, and their ids and titles the table of items.

All numbers stay, so the row of a forgotten item is there, without an id and a row of the log. Histories that lose rows
are split anew, and a target that the older dataset has trained on must not be held out. So the split is by time, as
after an update: at its instant, or, if no rows were appended yet, after the last row. What was held out for the test is
for training then, and there are no negatives.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.dataset.format import (
    EVENTS,
    FOLDERS,
    HISTORIES,
    ITEMS,
    LISTS,
    NO_TARGET,
    TRAIN_COUNTS,
)
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.folder import new_dataset
from bert4rec.prepare.forget import about_without, lengths_of_users
from bert4rec.prepare.grown_folder import (
    APPENDED,
    OldPart,
    finish_folder,
    held_out_of,
    kept_and_renewed,
    parts_of,
    split_by_time,
)
from bert4rec.prepare.grown_parts import Cut, count_kept, trained_on, write_split
from bert4rec.prepare.grown_tables import GrownTables
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError


def forget_items(previous: Path, items: Int64s, folder: Path) -> int:
    """Write the dataset `previous` without the `items`, given by number, to `folder`; return how many rows they had.

    `folder` may be `previous`: then it is replaced in one step. Users who have no other rows keep their numbers.
    Raises `DataError` if no row would be left, or if the dataset has no times.
    """
    metadata = read_metadata(previous)
    if not metadata["has_times"]:
        raise DataError(f"{previous}: has no times, by which its histories would be split again")
    lengths, gone = lengths_of_users(previous, metadata), pl.Series(items, dtype=pl.Int32).implode()
    parts, is_first = parts_of(previous, len(lengths)), APPENDED not in metadata
    has_changed, n_less = np.full(len(lengths), is_first), np.zeros(metadata["items"], np.int64)
    events = Counter[int]()
    for part in parts:
        columns = ["user", "items", *([EVENTS] if EVENTS in metadata else [])]
        rows = pl.read_ipc_stream(previous / HISTORIES / part.name, columns=columns)
        rows = rows.explode(columns[1:], empty_as_null=False).filter(pl.col("items").is_in(gone))
        np.subtract.at(lengths, rows["user"].to_numpy(), 1)
        np.add.at(n_less, rows["items"].to_numpy(), 1)
        has_changed[rows["user"].to_numpy()] = True
        events.update(rows[EVENTS].to_list() if EVENTS in rows.columns else ())
    n_rows = int(n_less.sum())
    if not lengths.any():
        raise DataError(f"{previous}: all its {n_rows:,} rows are of these items; remove the folder instead")
    instant = 1 + int(metadata["time_span"][1]) if is_first else metadata["split_instant"]
    cut = Cut.at(instant, metadata, len(lengths))
    kept, renewed = kept_and_renewed(parts, lengths, has_changed)
    with new_dataset(folder) as new:
        popularity = np.load(previous / TRAIN_COUNTS)
        written: dict[str, dict[int, Any]] = {name: {} for name in FOLDERS}
        held_out = [count_kept(new, previous / HISTORIES / part.name) for part in kept]
        for (first, stop), older in renewed:
            histories = _read(previous, older).filter(pl.col("user").is_between(first, stop - 1))
            split = cut.split(_without(histories, gone))
            for one, sign in ((histories, -1), (split, 1)):
                numbers, n = trained_on(one)
                popularity[numbers.to_numpy()] += (sign * n.to_numpy()).astype(popularity.dtype)
            result = write_split(new, first, split, has_ties=bool(metadata.get("has_ties")))
            held_out.append(result)
            for name, file in result["files"].items():
                written[name][first] = file
        tables = GrownTables(previous, metadata, new)
        nothing = pl.DataFrame(schema={"original": pl.Null, "user": pl.Int32, "item": pl.Int32})
        tables.write_users(lengths, nothing.drop("item"))
        tables.write_items(-n_less, popularity, nothing.drop("user"), forgotten=items)
        counts = held_out_of(held_out)
        about = about_without(metadata, lengths, {ITEMS: len(items)}, counts["validation_users"], events)
        about |= counts | {"train_positions": int(popularity.sum()), APPENDED: metadata.get(APPENDED, 0)}
        about |= split_by_time(about, instant) | tables.write_features(None, nothing)
        finish_folder(new, previous, about, written, kept)
    return n_rows


def _read(previous: Path, parts: Sequence[OldPart]) -> pl.DataFrame:
    return pl.concat(pl.read_ipc_stream(previous / HISTORIES / part.name) for part in parts)


def _without(histories: pl.DataFrame, gone: pl.Series) -> pl.DataFrame:
    """Return the histories without rows of the items that are `gone`, and whether each user is `validated`."""
    lists = [name for name in LISTS if name in histories.columns]
    rows = histories.select("user", *lists, validated=pl.col("validation") > NO_TARGET)
    rows = rows.explode(lists, empty_as_null=False).filter(~pl.col("items").is_in(gone))
    return rows.group_by("user", maintain_order=True).agg(pl.col("validated").first(), *lists)
