"""A sound folder, and the damages that the tests of each module choose from, with the words that refuse them."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dataset.check.folders import LISTS, Event, Folder, Maker, Row, load, seal

Damage = Callable[[Folder], object]
FileDamage = Callable[[Path], object]
Cases = dict[str, tuple[Damage, str]]  # name → the damage, and the words of the line that refuses it
FileCases = dict[str, tuple[FileDamage, str]]
Sound = dict[str, Path]  # a sound folder of each kind of split

N_USERS, N_ITEMS = 24, 60
FIRST = "train/data-00000-of-00002.arrow"
SHORT, LONG, CHECKED = 1, 2, 3  # users with 2, 19 and 18 interactions; of them only CHECKED is validated
ONE = 4  # a user with one interaction


def histories(seed: int) -> list[list[Event]]:
    """Histories of 1 to 20 interactions at increasing times; together they hold every item."""
    rng = random.Random(seed)
    lengths = [20, 2, 19, 18, 1, *(rng.randint(1, 20) for _ in range(N_USERS - 5))]
    every = rng.sample(range(2, 2 + N_ITEMS), N_ITEMS)
    items = iter([*every, *(rng.randint(2, 1 + N_ITEMS) for _ in range(sum(lengths)))])
    return [
        [Event(next(items), 10 * place + rng.randint(0, 9), rng.randint(1, 5) / 2) for place in range(length)]
        for length in lengths
    ]


def made(split: str = "leave_one_out", **settings: Any) -> Folder:
    """A sound folder."""
    for seed in range(1000):
        folder = Maker(histories(seed), split=split, n_items=N_ITEMS, wanted=8, seed=seed, **settings).make()
        validated = {row["user"] for row in folder.splits["validation"]}
        if split == "none" or (CHECKED in validated and LONG not in validated):
            return folder
    raise AssertionError("no seed makes it")


def cases(**splits: Cases) -> list[Any]:
    """The parameters `split`, `damage`, `words` of a test: the damages to the sound folder of each kind of split."""
    return [
        pytest.param(split, *case, id=f"{split}: {name}")
        for split, table in splits.items()
        for name, case in table.items()
    ]


def damaged(sound: Path, damage: Damage, place: Path) -> Path:
    """A copy of the folder `sound` with another content, and with the checksums of that."""
    folder = load(sound)
    damage(folder)
    return folder.save(place)


def damaged_files(sound: Path, damage: FileDamage, place: Path, *, sealed: bool) -> Path:
    """A copy of the folder `sound` with other files; where `sealed`, with the checksums of those."""
    shutil.copytree(sound, place)
    damage(place)
    if sealed:
        seal(place)
    return place


# Verbs: each makes a damage.


def put(split: str, user: int, name: str, place: int, value: Any, /, *, window: int = 0) -> Damage:
    """Another value in a list; `value` may be a function of the folder and the row."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[window]
        row[name][place] = value(folder, row) if callable(value) else value

    return damage


def change(split: str, user: int, /, *, window: int = 0, **values: Any) -> Damage:
    """Other values in a row; each may be a function of the folder and the row."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[window]
        row.update({name: value(folder, row) if callable(value) else value for name, value in values.items()})

    return damage


def table(name: str, place: int, /, **values: Any) -> Damage:
    """Other values in a row of a table; numbers by which `count` and `train_count` grow."""

    def damage(folder: Folder) -> None:
        row = folder.tables[name][place]
        for column, value in values.items():
            row[column] = row[column] + value if column.endswith("count") and value is not None else value

    return damage


def metadata(**values: Any) -> Damage:
    return lambda folder: folder.metadata.update(values)


def setting(**values: Any) -> Damage:
    return lambda folder: folder.metadata["preprocessing"].update(values)


def more(name: str) -> Damage:
    """One more in a count of the metadata."""
    return lambda folder: folder.metadata.update({name: folder.metadata[name] + 1})


def without(split: str, user: int, *, window: int | None = None) -> Damage:
    """No row of the user; or only one of its windows is gone."""

    def damage(folder: Folder) -> None:
        gone = folder.rows(split, user)
        gone = gone if window is None else [gone[window]]
        folder.splits[split] = [row for row in folder.splits[split] if not any(row is other for other in gone)]

    return damage


def swap(split: str, a: int, b: int) -> Damage:
    """Two rows in each other's place."""

    def damage(folder: Folder) -> None:
        rows = folder.tables[split] if split in folder.tables else folder.splits[split]
        rows[a], rows[b] = rows[b], rows[a]

    return damage


def twice(split: str, user: int) -> Damage:
    """The first row of a user a second time."""

    def damage(folder: Folder) -> None:
        rows, row = folder.splits[split], folder.rows(split, user)[0]
        rows.insert(rows.index(row), row)

    return damage


def typed(**kinds: pa.DataType) -> Damage:
    """Columns (`split__name`) of another type."""
    return lambda folder: folder.types.update({name.replace("__", "."): kind for name, kind in kinds.items()})


def leaked(user: int, split: str) -> Damage:
    """The target of the user in `split` is trained on too, in windows that are as they must be for that."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[0]
        last = {"items": row["target"], "times": row["times"][-1], "ratings": 1.0}
        folder.cut_again({"user": user} | {name: [*row[name], last[name]] for name in LISTS})

    return damage


# Values.


def another(folder: Folder, row: Row) -> int:
    """An item that the user has not taken and that was not drawn."""
    taken = {item for name in ("items", "popular_negatives", "uniform_negatives") for item in row.get(name, ())}
    return next(item for item in range(2, 2 + N_ITEMS) if item not in taken and item != row.get("target"))


def target_in(split: str) -> Callable[[Folder, Row], int]:
    return lambda folder, row: folder.rows(split, row["user"])[0]["target"]


# Damages to a file.


def flip(path: Path, place: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= bits
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
