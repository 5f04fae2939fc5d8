"""What is counted of the users who are evaluated: targets that they have seen before, and too few items unseen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
EVALUATED = ("validation", "test")


@dataclass(frozen=True)
class HeldOutCounts:
    """Counts of the evaluation splits, or of a part of them; parts add up.

    Of each split of `EVALUATED`: `users`; `repeated`, those whose target stands in their own history; `left_out`, those
    without negatives. `unseen` [n + 1]: the users of both splits, each once, by how many items they have not seen; n or
    more in the last place, where n is the number of negatives that a user is to have.
    """

    users: Mapping[str, int]
    repeated: Mapping[str, int]
    left_out: Mapping[str, int]
    unseen: Ints

    @classmethod
    def none(cls, n_negatives: int) -> "HeldOutCounts":
        """Nobody."""
        zeros = dict.fromkeys(EVALUATED, 0)
        return cls(zeros, zeros, zeros, np.zeros(n_negatives + 1, np.int64))

    @classmethod
    def of(cls, rows: Mapping[str, pl.DataFrame], unseen: Ints, n_negatives: int) -> "HeldOutCounts":
        """The counts of `rows`, split → frame; `unseen` [users] items of each user in one of them."""
        is_repeated = pl.col("items").list.contains(pl.col("target"))
        is_left_out = pl.col("popular_negatives").list.len() == 0
        return cls(
            {name: len(rows[name]) for name in EVALUATED},
            {name: rows[name].filter(is_repeated).height for name in EVALUATED},
            {name: rows[name].filter(is_left_out).height for name in EVALUATED},
            np.bincount(np.minimum(unseen, n_negatives), minlength=n_negatives + 1),
        )

    def __add__(self, other: "HeldOutCounts") -> "HeldOutCounts":
        return HeldOutCounts(
            _sum(self.users, other.users),
            _sum(self.repeated, other.repeated),
            _sum(self.left_out, other.left_out),
            self.unseen + other.unseen,
        )

    def metadata(self) -> dict[str, Any]:
        """What `metadata.json` says of it."""
        return {
            "repeated_targets": {name: {"users": self.repeated[name], "of": self.users[name]} for name in EVALUATED},
            "left_out": {name: {"users": self.left_out[name], "of": self.users[name]} for name in EVALUATED},
        }

    def keeps(self, percent: int) -> int:
        """The largest number of negatives, up to n, for which so many of all users have unseen items enough.

        >>> HeldOutCounts({}, {}, {}, np.array([1, 0, 0, 3])).keeps(75)
        3
        """
        have = self.unseen[::-1].cumsum()[::-1]  # as many unseen items, or more
        return int(np.flatnonzero(100 * have >= percent * have[0]).max())

    def warning(self) -> str | None:
        """One line where users are left out: how many, and which number of negatives would keep them."""
        n, total = len(self.unseen) - 1, int(self.unseen.sum())
        few = total - int(self.unseen[n])
        if not few:
            return None
        what = f"{n:,} unseen items (preprocessing.n_eval_negatives)"
        if few == total:
            return (
                f"warning: none of the {total:,} evaluated users has {what}: there will be no ranking among sampled "
                f"items; {_largest(self.keeps(50))}"
            )
        has, is_ = ("has", "is") if few == 1 else ("have", "are")
        return (
            f"warning: {few:,} of {total:,} evaluated users {has} fewer than {what} and {is_} left out of the ranking "
            f"among sampled items; {self._advice(are_many=100 * few > 5 * total)}"
        )

    def _advice(self, *, are_many: bool) -> str:
        """The numbers that keep all users, and where more than a twentieth is left out, 95 % of them."""
        least, most = self.keeps(100), self.keeps(95)
        if are_many and not most:
            return "no number keeps 95 % of them"
        every = f"n_eval_negatives = {least} keeps all" if least else "no number keeps all"
        return f"{every}, {most} keeps 95 %" if are_many and most > least else every


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: some[name] + others[name] for name in EVALUATED}


def _largest(n: int) -> str:
    works = "works for at least half of them"
    return f"{n} is the largest number that {works}" if n else f"no number {works}"
