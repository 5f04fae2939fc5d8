"""What is counted over all users, and whether `items.parquet` and `metadata.json` say the same."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bert4rec.dataset.check.metadata import REMAKE, SHARES, Metadata
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
    def empty(cls, metadata: Metadata) -> "Tally":
        """Nothing counted yet; 8 bytes an item up to 2^31 interactions."""
        kind = np.int32 if metadata.counts["rows"] < 2**31 else np.int64
        return cls(np.zeros(metadata.n_items, kind), np.zeros(metadata.n_items, kind))

    @property
    def positions(self) -> int:
        """Training positions, each once."""
        return int(self.trained.sum(dtype=np.int64))


def add(counts: Array, items: Array) -> None:
    """Count each of `items` (ids) once more in `counts` [items]."""
    # With an index or a number of another type this is 30 times slower.
    np.add.at(counts, items.astype(np.intp) - FIRST_ITEM_ID, counts.dtype.type(1))


def check_items(metadata: Metadata, table: TableReader, tally: Tally) -> None:
    """Raises `DataError` for the first row of `items.parquet` that is not its item's, or has other counts."""
    total = 0
    for first in range(0, metadata.n_items, ITEMS_AT_ONCE):
        part = slice(first, min(first + ITEMS_AT_ONCE, metadata.n_items))
        columns = table.take(part.stop - first)
        trained = tally.trained[part].astype(np.int64)
        stored = trained + tally.targets[part]
        _check_column(metadata, first, "item", columns["item"], np.arange(first, part.stop) + FIRST_ITEM_ID)
        _check_column(metadata, first, "train_count", columns["train_count"], trained)
        # What comes after the target of a test by time is in no split.
        _check_column(metadata, first, "count", columns["count"], stored, or_more=metadata.split == "time")
        if not metadata.sparse_items:
            _check_column(metadata, first, "count", columns["count"], np.ones_like(stored), or_more=True)
        total += int(columns["count"].sum())
    if total != (rows := metadata.counts["rows"]):
        place = metadata.folder / ITEMS
        raise DataError(f"{place}: the counts are {total} in all, metadata.json says rows = {rows}; {REMAKE}")


def check_found(metadata: Metadata, tally: Tally) -> None:
    """Raises `DataError` where `metadata.json` has another count than was found."""
    able = tally.able if metadata.split != "none" else 0
    expected = able if metadata.n_validated is None else min(able, metadata.n_validated)
    if tally.validated != expected:
        raise DataError(
            f"{metadata.folder / 'validation'}: has {tally.validated} users, preprocessing.validation_users and {able} "
            f"users who can be validated make {expected}; {REMAKE}"
        )
    found = {
        "rows": tally.rows,
        "train_windows": tally.windows,
        "train_positions": tally.positions,
        "validation_users": tally.validated,
        "test_users": tally.tested,
    }
    for name, count in found.items():
        if count != metadata.counts[name]:
            raise DataError(
                f"{metadata.folder / METADATA}: {name} = {metadata.counts[name]}, the folder holds {count}; {REMAKE}"
            )
    of = {"validation": tally.validated, "test": tally.tested}
    for name, stated in metadata.shares.items():
        shares = {split: {"users": tally.shares[name][split], "of": total} for split, total in of.items()}
        if stated != shares:
            raise DataError(f"{metadata.folder / METADATA}: {name} = {stated}, the folder holds {shares}; {REMAKE}")


def _check_column(
    metadata: Metadata, first: int, name: str, values: Ints, expected: Ints, *, or_more: bool = False
) -> None:
    if (wrong := first_true(values < expected if or_more else values != expected)) is not None:
        row = first + wrong
        what = f"{name} is {values[wrong]}, must be {expected[wrong]}{' or more' if or_more else ''}"
        raise DataError(f"{metadata.folder / ITEMS}: row {row} (item {row + FIRST_ITEM_ID}): {what}; {REMAKE}")
