"""Split histories: the rules for their targets, and the users who are held out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.dataset.format import EVALUATED, MIN_EVALUATED, NO_TARGET
from bert4rec.dataset.histories import Histories
from bert4rec.prepare.rows import OrderedRows
from bert4rec.prepare.shared_work import fetched
from bert4rec.prepare.stages import Stages
from bert4rec.prepare.ties import MOMENT
from bert4rec.runtime.arrays import Bools, Int64s

SplitRule: TypeAlias = Mapping[str, pl.Expr]
"""The expressions `before`, the number of interactions of a history for training and validation; `at_test`, the place
of its test target; `at_validation`, the place of what may be held out for validation. A place is null if there is none.
"""

VALIDATION_STREAM, TEST_STREAM = 2, 5  # of random numbers; negatives are drawn from 3 and 4
N_TIME_BINS = 1 << 16  # bins of the search for an instant: two or three passes over all times
HISTORY_LENGTH = pl.col("items").list.len().cast(pl.Int64)


NO_OFFSET = pl.lit(None, pl.Int64)


ALL_FOR_TRAINING: SplitRule = {"before": HISTORY_LENGTH, "at_test": NO_OFFSET, "at_validation": NO_OFFSET}


class Targets:
    """Count and find the interactions of a history that may be targets: those of the `kinds` of events; () = all.

    With `hides`, a target is only held out if some of its history is visible; histories have the column `visible`.
    """

    def __init__(self, kinds: Sequence[int] = (), *, hides: bool = False) -> None:
        self._is_kind, self._hides = pl.element().is_in(list(kinds)) if kinds else None, hides

    def count(self, first: pl.Expr = HISTORY_LENGTH) -> pl.Expr:
        """Return the number of targets among the `first` interactions, by default of all."""
        if self._is_kind is None:
            return first
        return pl.col("events").list.head(first).list.eval(self._is_kind).list.sum().cast(pl.Int64)

    def place(self, number: pl.Expr, least: int) -> pl.Expr:
        """Return the place of the target with this `number`, from 0, if it is `least` or later; else null."""
        place = number
        if self._is_kind is not None:
            places = pl.int_range(pl.len(), dtype=pl.Int64).filter(self._is_kind)
            at = pl.when(number >= 0).then(number)
            place = pl.col("events").list.eval(places).list.get(at, null_on_oob=True)
        is_held_out = (place >= least) & (place < HISTORY_LENGTH)
        if self._hides:
            is_held_out &= pl.col("visible").list.get(place, null_on_oob=True) > 0
        return pl.when(is_held_out).then(place)


def leave_last_out(targets: Targets, moments: pl.Expr | None = None) -> SplitRule:
    """Return the rule that the last target of a user is the test target, and the one before it that of the validation.

    With `moments` (lists, ascending), whole baskets are held out: the rows of a user with equal moments. The place of a
    basket is that of its first row, where `ties.draw_targets` puts the target.

    >>> frame = pl.DataFrame({"items": [[5, 2, 3, 4], [5, 2]], "events": [[2, 1, 2, 1], [2, 2]]})
    >>> frame.select(**leave_last_out(Targets())).rows(), frame.select(**leave_last_out(Targets([2]))).rows()
    ([(3, 3, 2), (2, None, None)], [(2, 2, None), (2, None, None)])
    >>> frame = pl.DataFrame({"items": [[5, 2, 3, 4, 6], [5, 2]], "times": [[1, 1, 2, 3, 3], [2, 2]]})
    >>> frame.select(**leave_last_out(Targets(), pl.col("times"))).rows()
    [(3, 3, 2), (2, None, None)]
    """

    def last(n_targets: pl.Expr, least: int) -> pl.Expr:
        place = targets.place(n_targets - 1, least)
        if moments is None:
            return place
        first_rows = moments.list.eval(pl.element().search_sorted(pl.element(), side="left"))
        first = first_rows.list.get(place, null_on_oob=True).cast(pl.Int64)
        return pl.when(first >= least).then(first)

    test = last(targets.count(), MIN_EVALUATED - 1)
    validation = last(targets.count(test.fill_null(0)), MIN_EVALUATED - 2)
    return {"before": test.fill_null(HISTORY_LENGTH), "at_test": test, "at_validation": validation}


def by_time(instant: int, targets: Targets) -> SplitRule:
    """Return the rule that the first target from `instant` (seconds) on is the test target.

    The instant is the same for all users, so no training interaction is later than a test target (see Ji et al., "A
    critical study on data leakage in recommender system offline evaluation", 2023).

    >>> frame = pl.DataFrame({"items": [[5, 2, 3], [5]], "times": [[1, 3, 9], [6]]})
    >>> frame.select(**by_time(5, Targets())).rows()
    [(2, 2, 1), (0, None, None)]
    """
    before = pl.col("times").list.eval(pl.element() < instant).list.sum().cast(pl.Int64)
    n_targets = targets.count(before)
    test = pl.when(before > 0).then(targets.place(n_targets, 1))
    return {"before": before, "at_test": test, "at_validation": targets.place(n_targets - 1, 1)}


def after_first(targets: Targets) -> SplitRule:
    """Return the rule that the first target after a user's first interaction is the test target.

    >>> frame = pl.DataFrame({"items": [[5, 2, 3], [5]]})
    >>> frame.select(**after_first(Targets())).rows()
    [(1, 1, None), (1, None, None)]
    """
    before = pl.lit(1, pl.Int64)
    return {"before": before, "at_test": targets.place(targets.count(before), 1), "at_validation": NO_OFFSET}


def only_tested(rule: SplitRule, untested: SplitRule) -> SplitRule:
    """Return the rule for histories with the column `tested`, Boolean: `rule` where it is true, else `untested`."""
    return {name: pl.when("tested").then(rule[name]).otherwise(untested[name]) for name in rule}


def instant_of_share(
    count: Callable[[int, int, int], Int64s], low: int, high: int, n_after: float, n_bins: int = N_TIME_BINS
) -> int:
    """Return the first instant (seconds) at or after which lie at most `n_after` rows.

    All times are from `low` to before `high`; `count` returns how many are in each bin, from one instant to before
    another, of a width in seconds.
    """
    later = 0
    while high - low > 1:  # cut the range into bins of equal width, and continue in the bin that reaches the share
        width = -(-(high - low) // n_bins)
        counts = count(low, high, width)
        from_bin = later + np.append(counts[::-1].cumsum()[::-1], 0)
        reached = int(np.flatnonzero(from_bin > n_after).max())
        later = int(from_bin[reached + 1])
        low, high = low + reached * width, min(low + (reached + 1) * width, high)
    return high


def sample_users(users: Int64s, *, n_users: int | Literal["all"], seed: int, stream: int = VALIDATION_STREAM) -> Int64s:
    """Return `n_users` of `users`, or all of them; the choice depends on `seed` and `stream`.

    >>> sample_users(np.array([4, 7]), n_users=5, seed=1).tolist()
    [4, 7]
    """
    if n_users == "all" or n_users >= len(users):
        return users
    return np.random.default_rng([seed, stream]).choice(users, n_users, replace=False)


class KnownSplit(NamedTuple):
    """The split of the dataset to extend, by dense user id [N].

    `n_train`: the number of interactions that were trained on; whether a user is `validated` and `tested`.
    """

    n_train: Int64s
    validated: Bools
    tested: Bools


def read_known_split(folder: Path, *, n_users: int, n_items: int) -> KnownSplit:
    """Return the split of the dataset at `folder`, which has `n_users` and `n_items`."""
    histories, n_train = Histories(folder, n_items), np.zeros(n_users, np.int64)
    n_train[histories.users] = histories.n_train
    held_out = np.zeros((2, n_users), bool)
    for is_held_out, name in zip(held_out, EVALUATED, strict=True):
        is_held_out[histories.users] = histories.targets(name) != NO_TARGET
    return KnownSplit(n_train, *held_out)


def sample_held_out(
    targets: pl.DataFrame, known: KnownSplit | None, split: Literal["validated", "tested"], settings: Preprocessing, *,
    n_users: int,
) -> Bools:  # fmt: skip
    """Return which of all `n_users` have a target that is held out, of those that have one.

    `targets`: each `user` with a target, and its `place` in the history. Users of a `known` dataset stay what they are
    there, unless the target was trained on, since rows are missing now. Of the new users, the share is drawn that all
    users would have.

    >>> known = KnownSplit(np.array([2, 4]), np.array([True, False]), np.array([True, True]))
    >>> targets = pl.DataFrame({"user": [0, 1, 2, 3], "place": [2, 4, 1, 1]})
    >>> sample_held_out(targets, known, "validated", Preprocessing(validation_users="all"), n_users=4).tolist()
    [True, False, True, True]
    """
    users, drawn = targets["user"].to_numpy().astype(np.int64), np.zeros(n_users, bool)
    n_wanted = settings.validation_users if split == "validated" else settings.test_users
    if known is not None:
        is_known = users < len(known.n_train)
        old, new = users[is_known], users[~is_known]
        drawn[old] = getattr(known, split)[old] & (targets["place"].to_numpy()[is_known] >= known.n_train[old])
        n_wanted = n_wanted if n_wanted == "all" else round(n_wanted * len(new) / max(n_wanted, len(users)))
        users = new
    stream = VALIDATION_STREAM if split == "validated" else TEST_STREAM
    drawn[sample_users(users, n_users=n_wanted, seed=settings.seed, stream=stream)] = True
    return drawn


def mark(histories: pl.DataFrame, rule: SplitRule, tested: Bools | None) -> pl.DataFrame:
    """Return the histories with the columns of `rule`; `tested` marks the users in the test sample, None for all."""
    if tested is not None:
        histories = histories.with_columns(pl.Series("tested", tested[histories["user"].to_numpy()]))
    return histories.with_columns(**rule)


def with_offsets(histories: pl.DataFrame) -> pl.DataFrame:
    """Return the histories, marked by a `SplitRule` and `validated` (Boolean), with the columns `OFFSETS` of a dataset.

    Of validated users only what comes before the validation target is for training.

    >>> frame = pl.DataFrame({"items": [[5, 2, 3], [5, 2]], "validated": [True, False]})
    >>> with_offsets(frame.with_columns(**leave_last_out(Targets()))).select("n_train", "validation", "test").rows()
    [(1, 1, 2), (2, -1, -1)]
    """
    validation = pl.when("validated").then("at_validation")
    offsets = {
        "n_train": validation.fill_null(pl.col("before")),
        "validation": validation.fill_null(NO_TARGET),
        "test": pl.col("at_test").fill_null(NO_TARGET),
    }
    return histories.with_columns(**{name: offset.cast(pl.Int32) for name, offset in offsets.items()})


def choose_split(
    settings: Preprocessing, ordered: OrderedRows, stages: Stages, kinds: Sequence[int] = ()
) -> tuple[SplitRule, int | None]:
    """Return the split rule and, for a split by time, the instant (seconds) at which the test begins, else None.

    `kinds`: the numbers of the kinds of events that are predicted, () = all.
    """
    targets = Targets(kinds, hides=settings.hide_before_target != "nothing")
    if settings.split == "none":
        return ALL_FOR_TRAINING, None
    is_sampled = settings.test_users != "all"
    if settings.split != "time":
        moments = pl.col(f"{MOMENT}s" if MOMENT in ordered.columns else "times")
        rule = leave_last_out(targets, moments if settings.split == "leave_last_basket" else None)
        return only_tested(rule, ALL_FOR_TRAINING) if is_sampled else rule, None
    at = settings.split_at
    second = instant(at) if isinstance(at, str) else _instant_of_share(ordered, stages, at)
    rule = by_time(second, targets)
    return only_tested(rule, {**rule, "at_test": NO_OFFSET}) if is_sampled else rule, second


def _instant_of_share(ordered: OrderedRows, stages: Stages, share: float) -> int:
    """Return the first instant (seconds) at or after which lie at most `share` of all rows."""
    paths, n_passes = [part.path for part in ordered.parts if part.n_rows], 0
    spans = [result for _, result in stages.run("span", time_span, [(path,) for path in paths])]

    def count(low: int, high: int, width: int) -> Int64s:
        nonlocal n_passes
        n_passes += 1
        done = stages.run(f"instant-{n_passes}", count_times, [(path, low, high, width) for path in paths], reads=["*"])
        return np.sum([np.load(folder / "counts.npy") for folder, _ in done], axis=0)

    low, high = min(span["first"] for span in spans), 1 + max(span["last"] for span in spans)
    return instant_of_share(count, low, high, share * sum(part.n_rows for part in ordered.parts))


def time_span(folder: Path, part: Path) -> dict[str, Any]:
    """Return the first and the last time of a part."""
    times = pl.read_ipc(fetched(part), columns=["time"]).to_series()
    return {"first": times.min(), "last": times.max()}


def count_times(folder: Path, part: Path, low: int, high: int, width: int) -> dict[str, Any]:
    """Write how many times of a part are in each bin of `width` seconds from `low` to before `high`."""
    times = pl.read_ipc(fetched(part), columns=["time"]).to_series()
    bins = (times.filter((times >= low) & (times < high)) - low) // width
    np.save(folder / "counts.npy", np.bincount(bins.to_numpy(), minlength=-(-(high - low) // width)))
    return {}
