"""What is counted over all users, and whether `items.parquet` and `metadata.json` say the same."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bert4rec.dataset.check.metadata import REMAKE, SHARES, Facts
from bert4rec.dataset.check.rows_in_parts import Array, Ints, first_true
from bert4rec.dataset.check.tables import TableReader
from bert4rec.dataset.schema import FIRST_ITEM_ID, ITEMS, METADATA
from bert4rec.runtime.errors import DataError

ITEMS_AT_ONCE = 1 << 20


@dataclass
class Tally:
    """Counts, the two first ones by item: `trained`, `targets` [items]: positions in training, and as a target.

    `rows`: interactions that `users.parquet` gives the users; `windows`, `validated`, `tested`: rows of the splits;
    `able`: users who can be validated; `overlaps`: positions of windows that an earlier window holds too; `shares`: for
    each of `SHARES`, split → users.
    """

    trained: Array
    targets: Array
    rows: int = 0
    windows: int = 0
    validated: int = 0
    tested: int = 0
    able: int = 0
    overlaps: int = 0
    shares: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in SHARES})

    @classmethod
    def empty(cls, facts: Facts) -> "Tally":
        """Nothing counted yet; 8 bytes an item up to 2^31 interactions."""
        kind = np.int32 if facts.counts["rows"] < 2**31 else np.int64
        return cls(np.zeros(facts.n_items, kind), np.zeros(facts.n_items, kind))

    @property
    def positions(self) -> int:
        """Training positions, each once."""
        return int(self.trained.sum(dtype=np.int64))


def add(counts: Array, items: Array) -> None:
    """Count each of `items` (ids) once more in `counts` [items]."""
    # With an index or a number of another type this is 30 times slower.
    np.add.at(counts, items.astype(np.intp) - FIRST_ITEM_ID, counts.dtype.type(1))


def items_table(facts: Facts) -> TableReader:
    """The counts of `items.parquet`."""
    return TableReader(facts.folder / ITEMS, ("item", "count", "train_count"), facts.n_items)


def check_items(facts: Facts, table: TableReader, tally: Tally) -> None:
    """Raises `DataError` for the first row of `items.parquet` that is not its item's, or has other counts."""
    total = 0
    for first in range(0, facts.n_items, ITEMS_AT_ONCE):
        part = slice(first, min(first + ITEMS_AT_ONCE, facts.n_items))
        columns = table.take(part.stop - first)
        trained = tally.trained[part].astype(np.int64)
        stored = trained + tally.targets[part]
        _check_column(facts, first, "item", columns["item"], np.arange(first, part.stop) + FIRST_ITEM_ID)
        _check_column(facts, first, "train_count", columns["train_count"], trained)
        # What comes after the target of a test by time is in no split.
        _check_column(facts, first, "count", columns["count"], stored, or_more=facts.split == "time")
        if not facts.sparse_items:
            _check_column(facts, first, "count", columns["count"], np.ones_like(stored), or_more=True)
        total += int(columns["count"].sum())
    if total != facts.counts["rows"]:
        raise DataError(
            f"{facts.folder / ITEMS}: the counts are {total} in all, metadata.json says rows = {facts.counts['rows']}; "
            f"{REMAKE}"
        )


def check_found(facts: Facts, tally: Tally) -> None:
    """Raises `DataError` where `metadata.json` has another count than was found."""
    able = tally.able if facts.split != "none" else 0
    wanted = able if facts.wanted is None else min(able, facts.wanted)
    if tally.validated != wanted:
        raise DataError(
            f"{facts.folder / 'validation'}: has {tally.validated} users, preprocessing.validation_users and {able} "
            f"users who can be validated make {wanted}; {REMAKE}"
        )
    found = {
        "rows": tally.rows,
        "train_windows": tally.windows,
        "train_positions": tally.positions,
        "validation_users": tally.validated,
        "test_users": tally.tested,
    }
    for name, count in found.items():
        if count != facts.counts[name]:
            raise DataError(
                f"{facts.folder / METADATA}: {name} = {facts.counts[name]}, the folder holds {count}; {REMAKE}"
            )
    of = {"validation": tally.validated, "test": tally.tested}
    for name, stated in facts.shares.items():
        shares = {split: {"users": tally.shares[name][split], "of": total} for split, total in of.items()}
        if stated != shares:
            raise DataError(f"{facts.folder / METADATA}: {name} = {stated}, the folder holds {shares}; {REMAKE}")


def _check_column(facts: Facts, first: int, name: str, values: Ints, wanted: Ints, *, or_more: bool = False) -> None:
    if (wrong := first_true(values < wanted if or_more else values != wanted)) is not None:
        row = first + wrong
        what = f"{name} is {values[wrong]}, must be {wanted[wrong]}{' or more' if or_more else ''}"
        raise DataError(f"{facts.folder / ITEMS}: row {row} (item {row + FIRST_ITEM_ID}): {what}; {REMAKE}")
