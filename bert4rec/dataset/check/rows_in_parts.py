"""Some rows of a split as arrays, and the one line for a row that is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bert4rec.dataset.check.metadata import REMAKE
from bert4rec.runtime.errors import DataError

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Rows of a split, one after another, of which the first is row `first` of the split.

    `users` [B] int64; `lengths` [B] int64: items of each row; `lists`: `items`, `times`, `ratings` of all rows end to
    end, [total] each; in evaluation splits `targets` [B], `target_times` [B] or None, `drawn` [D]: the rows that have
    negatives, and `negatives`: name → [D, n], those of these rows.
    """

    place: Path
    first: int
    users: Ints
    lengths: Ints
    lists: Mapping[str, Array]
    targets: Array
    target_times: Array | None
    drawn: Ints
    negatives: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.users)

    @property
    def ends(self) -> Ints:
        """Where each row ends in `lists` [B]."""
        return np.cumsum(self.lengths)

    @property
    def starts(self) -> Ints:
        """Where each row begins in `lists` [B]."""
        return self.ends - self.lengths

    @property
    def repeated(self) -> Bools:
        """Which targets [B] stand in the history before them."""
        rows = np.repeat(np.arange(len(self)), self.lengths)
        same = self.lists["items"] == self.targets[rows]
        return np.bincount(rows[same], minlength=len(self)) > 0

    def refusal(self, row: int, what: str) -> DataError:
        """The error of the row `row` of this part."""
        return refusal(self.place, self.first + row, int(self.users[row]), what)

    def refusal_at(self, position: int, name: str, what: str) -> DataError:
        """The error of one element of the lists `name`, which stands at `position` of all of them."""
        row = int(np.searchsorted(self.ends, position, side="right"))
        return self.refusal(row, f"{name}[{position - self.starts[row]}] is {self.lists[name][position]}, {what}")


def refusal(place: Path, row: int, user: int, what: str) -> DataError:
    """The error of one row of the split or table at `place`."""
    return DataError(f"{place}: row {row} (user {user}): {what}; {REMAKE}")


def first_true(flags: Array) -> int | None:
    """Where the first true one of `flags` [N] stands; None where none is."""
    place = int(flags.argmax()) if len(flags) else 0
    return place if len(flags) and flags[place] else None
