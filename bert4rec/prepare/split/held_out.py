"""What is counted of the users who are evaluated: targets that they have seen before, and too few items unseen."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
EVALUATED = ("validation", "test")


@dataclass(frozen=True)
class HeldOutCounts:
    """Hold counts of the evaluation splits, or of a part of them; parts add up.

    Of each split of `EVALUATED`: `users`; `repeated`, those whose target stands in their own history; `left_out`, those
    without negatives. `unseen`: how many users, of both splits and each once, have so many unseen items; who has the
    `n_negatives` that a user is to have, or more, is counted there.
    """

    n_negatives: int
    users: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unseen: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, rows: Mapping[str, pl.DataFrame], unseen: Ints, n_negatives: int) -> "HeldOutCounts":
        """Return the counts of `rows`, split → frame; `unseen` [users] items of each user in one of them."""
        is_repeated = pl.col("items").list.contains(pl.col("target"))
        is_left_out = pl.col("popular_negatives").list.len() == 0
        return cls(
            n_negatives,
            Counter({name: len(rows[name]) for name in EVALUATED}),
            Counter({name: rows[name].filter(is_repeated).height for name in EVALUATED}),
            Counter({name: rows[name].filter(is_left_out).height for name in EVALUATED}),
            Counter(np.minimum(unseen, n_negatives).tolist()),
        )

    def add(self, other: "HeldOutCounts") -> None:
        """Add the counts of another part."""
        self.users.update(other.users)
        self.repeated.update(other.repeated)
        self.left_out.update(other.left_out)
        self.unseen.update(other.unseen)

    def metadata(self) -> dict[str, Any]:
        """Return the entries of `metadata.json`."""
        return {
            "repeated_targets": {name: {"users": self.repeated[name], "of": self.users[name]} for name in EVALUATED},
            "left_out": {name: {"users": self.left_out[name], "of": self.users[name]} for name in EVALUATED},
        }

    def keeps(self, percent: int) -> int:
        """Return the largest number of negatives, up to `n_negatives`, for which so many users have enough unseen
        items.

        >>> HeldOutCounts(3, unseen=Counter({0: 1, 2: 4, 3: 5})).keeps(90)
        2
        """
        have, total = 0, self.unseen.total()
        for n, users in sorted(self.unseen.items(), reverse=True):
            have += users
            if 100 * have >= percent * total:
                return n
        return self.n_negatives

    def warning(self) -> str | None:
        """Return one line if users are left out: how many, and which number of negatives would keep them; else None."""
        n, total = self.n_negatives, self.unseen.total()
        few = total - self.unseen[n]
        if not few:
            return None
        what = f"{n:,} unseen items (preprocessing.n_eval_negatives)"
        if few == total:
            return (
                f"none of the {total:,} evaluated users has {what}: there will be no ranking among sampled "
                f"items; {_largest(self.keeps(50))}"
            )
        has, is_ = ("has", "is") if few == 1 else ("have", "are")
        return (
            f"{few:,} of {total:,} evaluated users {has} fewer than {what} and {is_} left out of the ranking "
            f"among sampled items; {self._advice(are_many=100 * few > 5 * total)}"
        )

    def _advice(self, *, are_many: bool) -> str:
        """Return the numbers that keep all users, and where more than a twentieth is left out, 95 % of them."""
        least, most = self.keeps(100), self.keeps(95)
        if are_many and not most:
            return "no number keeps 95 % of them"
        every = f"n_eval_negatives = {least} keeps all" if least else "no number keeps all"
        return f"{every}, {most} keeps 95 %" if are_many and most > least else every


def _largest(n: int) -> str:
    works = "works for at least half of them"
    return f"{n} is the largest number that {works}" if n else f"no number {works}"
