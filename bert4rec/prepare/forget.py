"""Write a dataset without the histories of some users: all numbers stay, and other parts are linked.

The row of a forgotten user in the table of users stays, with a null id and no interactions, since a user's number is
the row. So the fingerprint of the older dataset is among those that the new one extends, and a model of the older one
can read the histories of all others. A later row with the same id is one of a new user.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.dataset.format import (
    EVALUATED,
    EVENTS,
    FOLDERS,
    FORGOTTEN,
    HISTORIES,
    ITEMS,
    ORACLE,
    PREVIOUS,
    TRAIN_COUNTS,
    USERS,
    fingerprints_of,
    kinds_of,
    lengths_of,
    n_forgotten,
)
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.id_tables import IdTable
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.folder import new_dataset
from bert4rec.prepare.grown_folder import MOST_FINGERPRINTS, OldPart, finish_folder, kept_and_renewed, parts_of
from bert4rec.prepare.grown_parts import columns_of, evaluated_of, trained_on
from bert4rec.prepare.grown_tables import GrownTables
from bert4rec.prepare.histories import with_visible
from bert4rec.prepare.id_files import write_table
from bert4rec.prepare.negatives import HeldOutCounts, count_held_out
from bert4rec.prepare.new_items import OF_THE_FOLDER
from bert4rec.prepare.ordering import read_ids
from bert4rec.prepare.writer import PartWriter
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError


class Removed(NamedTuple):
    """The counts of interactions that are removed: of each item, all and those for training, and of each event.

    `held_out`: the counts of users who are held out.
    """

    items: Int64s
    trained: Int64s
    events: Counter[int]
    held_out: HeldOutCounts


def forget_users(previous: Path, users: Int64s, folder: Path) -> int:
    """Write the dataset `previous` without the `users`, given by number, to `folder`; return how many rows they had.

    `folder` may be `previous`: then it is replaced in one step. The histories of all others are what they were, and the
    parts without these users are links to the same files. Raises `DataError` if no row would be left.
    """
    metadata = read_metadata(previous)
    lengths = lengths_of_users(previous, metadata)
    n_items = int(metadata["items"])
    removed = Removed(np.zeros(n_items, np.int64), np.zeros(n_items, np.int64), Counter(), Counter())
    n_rows = int(lengths[users].sum())
    lengths[users] = 0
    if not lengths.any():
        raise DataError(f"{previous}: all its {n_rows:,} rows are of these users; remove the folder instead")
    with new_dataset(folder) as new:
        written, kept = _write_parts(previous, metadata, users, lengths, new, removed)
        popularity = np.load(previous / TRAIN_COUNTS)
        popularity -= removed.trained.astype(popularity.dtype)
        schema = {"original": pl.Null, "user": pl.Int32, "item": pl.Int32}
        tables, nothing = GrownTables(previous, metadata, new), pl.DataFrame(schema=schema)
        tables.write_users(lengths, nothing.drop("item"), forgotten=users)
        tables.write_items(-removed.items, popularity, nothing.drop("user"))
        about = _about(metadata, lengths, removed, len(users)) | {"train_positions": int(popularity.sum())}
        about |= tables.write_features(None, nothing)
        _write_oracle(previous, users, new)
        finish_folder(new, previous, about, written, kept)
    return n_rows


def lengths_of_users(previous: Path, metadata: Mapping[str, Any]) -> Int64s:
    """Return the number of interactions of each user of a dataset."""
    counts = read_ids(IdTable(previous, metadata, USERS), ["count"])["count"]
    return counts.cast(pl.Int64).to_numpy().copy()


def _write_parts(
    previous: Path, metadata: Mapping[str, Any], users: Int64s, lengths: Int64s, new: Path, removed: Removed
) -> tuple[dict[str, dict[int, Any]], list[OldPart]]:
    """Write the parts without the `users`; return their entries by folder and first user, and the parts that stay.

    What leaves them is added to `removed`.
    """
    written: dict[str, dict[int, Any]] = {name: {} for name in FOLDERS}
    is_forgotten = np.zeros(len(lengths), bool)
    is_forgotten[users] = True
    kept, renewed = kept_and_renewed(parts_of(previous, len(lengths)), lengths, is_forgotten)
    for (first, stop), parts in renewed:
        gone = pl.Series(first + np.flatnonzero(is_forgotten[first:stop]), dtype=pl.Int32)
        is_inside, is_gone = pl.col("user").is_between(first, stop - 1), pl.col("user").is_in(gone.implode())
        columns: dict[str, Any] = {}
        for name in FOLDERS:
            rows = pl.concat(pl.read_ipc_stream(previous / name / part.name) for part in parts).filter(is_inside)
            columns = columns or columns_of(rows.columns)  # the histories tell those of both folders
            if name == HISTORIES:
                _count(rows.filter(is_gone), metadata, removed)
            writer = PartWriter(new / name, first, columns[name])
            writer.add(rows.filter(~is_gone))
            written[name][first] = writer.close()
    return written, kept


def _count(histories: pl.DataFrame, metadata: Mapping[str, Any], removed: Removed) -> None:
    """Add what the `histories` have to the counts of what is `removed`."""
    np.add.at(removed.items, histories["items"].explode(empty_as_null=False).to_numpy(), 1)
    items, n = trained_on(histories)
    removed.trained[items.to_numpy()] += n.to_numpy()
    if EVENTS in histories.columns:
        removed.events.update(histories[EVENTS].explode(empty_as_null=False).to_list())
    evaluated = evaluated_of(histories)
    hidden = HiddenEvents.of(metadata["preprocessing"], kinds_of(metadata))
    if hidden is not None and len(evaluated):
        evaluated = with_visible(evaluated, hidden)
    n_candidates = metadata.get("negative_items", metadata["items"])
    unseen = n_candidates - evaluated["items"].list.n_unique().to_numpy().astype(np.int64)
    removed.held_out.update(count_held_out(evaluated, unseen, metadata["preprocessing"]["n_eval_negatives"]))


def _about(metadata: Mapping[str, Any], lengths: Int64s, removed: Removed, n_users: int) -> dict[str, Any]:
    """Return the metadata without the `removed` rows of `n_users`, but for its features and its files.

    The span of time is that of all rows that were read: it says from when on the next ones are asked for.
    """
    held_out = {f"{split}_users": metadata[f"{split}_users"] - removed.held_out["users", split] for split in EVALUATED}
    for kind in ("repeated_targets", "left_out"):
        counts = {split: metadata[kind][split]["users"] - removed.held_out[kind, split] for split in EVALUATED}
        held_out[kind] = {split: {"users": n, "of": held_out[f"{split}_users"]} for split, n in counts.items()}
    validated = held_out["validation_users"]
    return about_without(metadata, lengths, {USERS: n_users}, validated, removed.events) | held_out


def about_without(
    metadata: Mapping[str, Any], lengths: Int64s, forgotten: Mapping[str, int], n_validated: int, events: Counter[int]
) -> dict[str, Any]:
    """Return the metadata of a dataset with users or items `forgotten`, but for held-out users, features and files.

    `lengths` are those of the users now, of whom `n_validated` are validated; `events` how many of each kind are gone.
    """
    before = {name: value for name, value in metadata.items() if name not in (*OF_THE_FOLDER, "log")}
    kinds, n_rows = before.get(EVENTS, {}), int(lengths.sum())
    left = {kind: n - events[number] for number, (kind, n) in enumerate(kinds.items())}
    return before | {
        "extends": True,
        FORGOTTEN: {name: n_forgotten(metadata, name) + forgotten.get(name, 0) for name in (USERS, ITEMS)},
        PREVIOUS: {
            "fingerprints": fingerprints_of(metadata)[:MOST_FINGERPRINTS], "validation_users": n_validated,
        },
        "rows": n_rows,
        "density": n_rows / (len(lengths) * metadata["items"]),
        "lengths": lengths_of(lengths[lengths > 0]),
        **({EVENTS: left} if left else {}),
    }  # fmt: skip


def _write_oracle(previous: Path, users: Sequence[int] | Int64s, new: Path) -> None:
    """Write the ranks by the generator of synthetic data, if there are any, without those of the `users`."""
    if (previous / ORACLE).is_file():
        oracle = pl.read_parquet(previous / ORACLE)
        write_table(new / ORACLE, [oracle.filter(~pl.col("user").is_in(pl.Series(users).implode()))])
