"""Which interactions are for training, validation and test."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.dataset.format import MIN_EVALUATED, NO_TARGET
from bert4rec.prepare.ordering import Parts
from bert4rec.runtime.errors import DataError

Ints: TypeAlias = NDArray[np.int64]
N_BINS = 1 << 16  # of the times, to find an instant: two or three looks at all of them


def leave_one_out(histories: pl.DataFrame) -> pl.DataFrame:
    """Mark the last interaction of every history of 3 or more as the target of its test; it may be validated, too.

    >>> leave_one_out(pl.DataFrame({"items": [[5, 2, 3], [2, 3]]})).select("before", "eligible").rows()
    [(2, True), (2, False)]
    """
    length = pl.col("items").list.len().cast(pl.Int64)
    eligible = length >= MIN_EVALUATED
    return histories.with_columns(before=length - eligible, eligible=eligible)


def by_time(histories: pl.DataFrame, *, instant: int) -> pl.DataFrame:
    """Mark the first interaction from `instant` (seconds) on as the target; with 2 or more before it, it may be
    validated.

    One instant for all users: nothing that anybody trains on is later than anything that is tested (see Ji et al.,
    "A critical study on data leakage in recommender system offline evaluation", 2023).

    >>> frame = by_time(pl.DataFrame({"times": [[1, 3, 9], [6]]}), instant=5)
    >>> frame.select("before", "eligible").rows()
    [(2, True), (0, False)]
    """
    before = pl.col("times").list.eval(pl.element() < instant).list.sum().cast(pl.Int64)
    return histories.with_columns(before=before, eligible=before >= 2)


def all_for_training(histories: pl.DataFrame) -> pl.DataFrame:
    """Mark all of every history for training.

    >>> all_for_training(pl.DataFrame({"items": [[5, 2, 3]]})).select("before", "eligible").rows()
    [(3, False)]
    """
    return histories.with_columns(before=pl.col("items").list.len().cast(pl.Int64), eligible=False)


def instant_of_share(times: Callable[[], Iterable[pl.Series]], share: float) -> int:
    """Return the first instant (seconds) from which on no more than `share` of all rows are; `times` reads those of
    all rows.

    >>> instant_of_share(lambda: [pl.Series([10, 20]), pl.Series([30, 40])], 0.5)
    21
    """
    spans: list[Any] = [(part.min(), part.max(), len(part)) for part in times() if len(part)]
    low, high = min(first for first, *_ in spans), 1 + max(last for _, last, _ in spans)
    n_after, later = share * sum(n for *_, n in spans), 0
    while high - low > 1:  # of bins of equal width, continue in the one in which the share is reached
        width = -(-(high - low) // N_BINS)
        counts = np.zeros(N_BINS, np.int64)
        for part in times():
            inside = part.filter((part >= low) & (part < high))
            counts += np.bincount(((inside - low) // width).to_numpy(), minlength=N_BINS)
        from_bin = later + np.append(counts[::-1].cumsum()[::-1], 0)
        reached = int(np.flatnonzero(from_bin > n_after).max())
        later = int(from_bin[reached + 1])
        low, high = low + reached * width, min(low + (reached + 1) * width, high)
    return high


def is_tested() -> pl.Expr:
    """Return whether a history with `before` has something before its target, and the target.

    >>> frame = pl.DataFrame({"items": [[5, 2], [5, 2], [5, 2]], "before": [0, 1, 2]})
    >>> frame.select(is_tested()).to_series().to_list()
    [False, True, False]
    """
    return (pl.col("before") > 0) & (pl.col("before") < pl.col("items").list.len())


def validation_sample(users: Ints, *, n_users: int | Literal["all"], seed: int) -> Ints:
    """Return `n_users` of `users`, seeded, or all of them.

    >>> validation_sample(np.array([4, 7]), n_users=5, seed=1).tolist()
    [4, 7]
    """
    if n_users == "all" or n_users >= len(users):
        return users
    return np.random.default_rng([seed, 2]).choice(users, n_users, replace=False)


def with_offsets(histories: pl.DataFrame) -> pl.DataFrame:
    """Return histories with `before` and `validated` (a Boolean) with the columns `OFFSETS` of a dataset folder.

    Test: the target is the interaction at `before`. Validation, of the validated ones: the last before it. Training:
    what comes before both.

    >>> frame = pl.DataFrame({"items": [[5, 2, 3], [5, 2]], "before": [2, 2], "validated": [True, False]})
    >>> with_offsets(frame).select("n_train", "validation", "test").rows()
    [(1, 1, 2), (2, -1, -1)]
    """
    before = pl.col("before")
    offsets = {
        "n_train": before - pl.col("validated"),
        "validation": pl.when("validated").then(before - 1).otherwise(NO_TARGET),
        "test": pl.when(is_tested()).then(before).otherwise(NO_TARGET),
    }
    return histories.with_columns(**{name: place.cast(pl.Int32) for name, place in offsets.items()})


SplitRule: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]


def choose_split(settings: Preprocessing, parts: Parts) -> tuple[SplitRule, int | None]:
    """Return the rule, and the second from which on a split by time tests, None of another one; `parts`: all rows.

    Raises `DataError` for a split by time of rows without times.
    """
    if settings.split == "none":
        return all_for_training, None
    if settings.split == "leave_one_out":
        return leave_one_out, None
    if "time" not in parts.columns:
        raise DataError('preprocessing.split = "time": the source has no times; choose "leave_one_out" or "none"')
    at = settings.split_at
    second = (
        instant(at) if isinstance(at, str) else instant_of_share(lambda: (p["time"] for p in parts.read("time")), at)
    )
    return partial(by_time, instant=second), second
