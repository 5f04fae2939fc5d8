"""Forget users or items of a model: their rows leave the dataset, and their ids all files of its versions.

Each step can be done again, and the dataset comes last: killed anywhere, the same command does the rest, and until then
they are found. What the versions have learnt stays learnt; forgotten items are not recommended.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec.checkpoint.models_folder import DATASET, find_versions
from bert4rec.dataset.format import USERS
from bert4rec.dataset.id_tables import UNKNOWN, IdTable
from bert4rec.dataset.ids import canonical_value
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.forget import forget_users
from bert4rec.prepare.forget_items import forget_items
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError, join_names
from bert4rec.runtime.files import atomic_write, put_back, replace_directory, withdraw_directory
from bert4rec.serving.events import EVENTS_FILE, Events
from bert4rec.update.clean_run import clean_of_items, clean_of_users
from bert4rec.update.finish import DECISION, TAILS, UNFINISHED_UPDATE, UPDATE_PLAN, finish

REPLACED_DATASET = ".dataset.old"  # the dataset while it is replaced, on a file system that cannot exchange two names


class Forgotten(NamedTuple):
    """Count what was forgotten: the number of users or items, `n`, and of their `rows`.

    `unknown`: ids that the dataset does not have; `versions`: names of those that learnt from the rows; `events` that
    a server had kept.
    """

    n: int
    rows: int
    unknown: list[str]
    versions: list[str]
    events: int = 0


def ids_of(models: Path, table: str, names: Sequence[str]) -> list[int | str]:
    """Return the different ids that the `names` of users or items mean, as the dataset of a models folder writes them.

    `table` is USERS or ITEMS. Raises `DataError` for a name that is no id.
    """
    are_numbers, ids = _table(models, table).are_numbers, list[int | str]()
    for name in names:
        if (one := canonical_value(name, is_number=are_numbers)) is None:
            expected = f"expected: {'a whole number' if are_numbers else 'text'}, as in the log"
            raise DataError(f"{name or '(nothing)'}: is no {table[:-1]} of {models}; {expected}")
        ids.append(one)
    return [*dict.fromkeys(ids)]


def forget(models: Path, table: str, names: Sequence[str], events: str = "") -> Forgotten:
    """Forget the users or items, as `table` says, with these `names`, and return what was forgotten.

    Their `events`, by default those in the models folder, go first. An unfinished update is removed; if it was decided,
    it is finished first. Raises `DataError` if the dataset has none of them, or no other rows.
    """
    unfinished, dataset, replaced = models / UNFINISHED_UPDATE, models / DATASET, models / REPLACED_DATASET
    if replaced.is_dir():
        put_back(replaced, dataset)
    if (unfinished / DECISION).is_file():
        finish(models)
    if not (unfinished / UPDATE_PLAN).is_file():
        withdraw_directory(unfinished)  # of a call that was killed; it may have the older dataset
    ids = ids_of(models, table, names)
    found = _table(models, table).find(ids)
    unknown = [str(one) for one, number in zip(ids, found, strict=True) if number == UNKNOWN]
    numbers = np.sort(found[found != UNKNOWN])
    n_events = _forget_events(events or models / EVENTS_FILE, table, ids)
    if n_events and not len(numbers):
        return Forgotten(0, 0, unknown, [], n_events)
    if not len(numbers):
        advice = "they are forgotten already, or written in another way: --prove looks for them in every file"
        raise DataError(f"{models}: has no {table[:-1]} {join_names(unknown)}; {advice}")
    withdraw_directory(unfinished)
    versions, tails = find_versions(models), sorted((models / TAILS).glob("*.npz"))
    if table == USERS:
        n_rows = forget_users(dataset, numbers, unfinished / DATASET)
        for version in versions:
            clean_of_users(version.folder, ids)
        for path in tails:
            _clean_tail(path, numbers)
    else:
        n_rows = forget_items(dataset, numbers, unfinished / DATASET)
        for version in versions:
            clean_of_items(version.folder, numbers, ids)
    replace_directory(unfinished / DATASET, dataset, replaced=replaced)
    withdraw_directory(unfinished)
    learnt = [version.name for version in versions if numbers[0] < version.about[table]]
    return Forgotten(len(numbers), n_rows, unknown, learnt, n_events)


def _forget_events(place: str | Path, table: str, ids: Sequence[int | str]) -> int:
    """Remove the events of users or items that a server has kept, and return how many there were."""
    if isinstance(place, Path) and not place.is_file():
        return 0
    events = Events(place)
    n_events = events.forget("user_id" if table == USERS else "item_id", [str(one) for one in ids])
    events.close()
    return n_events


def _table(models: Path, table: str) -> IdTable:
    return IdTable(models / DATASET, read_metadata(models / DATASET), table)


def _clean_tail(path: Path, numbers: Int64s) -> None:
    """Remove the users with these numbers from the gains on the tail of a day."""
    with np.load(path) as loaded:
        arrays: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    is_kept = ~np.isin(arrays["users"], numbers)
    if not is_kept.all():
        content = io.BytesIO()
        np.savez(content, **{name: values[is_kept] for name, values in arrays.items()})
        atomic_write(path, content.getvalue())
