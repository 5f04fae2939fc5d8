"""Number and split the histories, compute their statistics, and make the table of items."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.dataset.format import EVALUATED, MIN_EVALUATED, NO_ITEM, NO_TARGET
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.histories import Histories
from bert4rec.prepare.ordering import Parts, to_histories
from bert4rec.prepare.rows import OrderedRows
from bert4rec.prepare.survey import LogSurvey
from bert4rec.prepare.ties import MOMENT
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.progress import Progress
from bert4rec.sources.times import DAY, moment

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


def only_tested(rule: SplitRule, untested: SplitRule) -> SplitRule:
    """Return the rule for histories with the column `tested`, Boolean: `rule` where it is true, else `untested`."""
    return {name: pl.when("tested").then(rule[name]).otherwise(untested[name]) for name in rule}


def instant_of_share(times: Callable[[], Iterable[pl.Series]], share: float, n_bins: int = N_TIME_BINS) -> int:
    """Return the first instant (seconds) at or after which lie at most `share` of all rows; `times` reads all times.

    >>> instant_of_share(lambda: [pl.Series([10, 20]), pl.Series([30, 40])], 0.5)
    21
    """
    spans: list[Any] = [(part.min(), part.max(), len(part)) for part in times() if len(part)]
    low, high = min(first for first, *_ in spans), 1 + max(last for _, last, _ in spans)
    n_after, later = share * sum(n for *_, n in spans), 0
    while high - low > 1:  # cut the range into bins of equal width, and continue in the bin that reaches the share
        width = -(-(high - low) // n_bins)
        counts = np.zeros(n_bins, np.int64)
        for part in times():
            inside = part.filter((part >= low) & (part < high))
            counts += np.bincount(((inside - low) // width).to_numpy(), minlength=n_bins)
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


def choose_split(settings: Preprocessing, parts: Parts, kinds: Sequence[int] = ()) -> tuple[SplitRule, int | None]:
    """Return the split rule and, for a split by time, the instant (seconds) at which the test begins, else None.

    `parts` are all rows, `kinds` the numbers of the kinds of events that are predicted, () = all.
    """
    targets = Targets(kinds, hides=settings.hide_before_target != "nothing")
    if settings.split == "none":
        return ALL_FOR_TRAINING, None
    is_sampled = settings.test_users != "all"
    if settings.split != "time":
        moments = pl.col(f"{MOMENT}s" if MOMENT in parts.columns else "times")
        rule = leave_last_out(targets, moments if settings.split == "leave_last_basket" else None)
        return only_tested(rule, ALL_FOR_TRAINING) if is_sampled else rule, None
    at = settings.split_at
    second = (
        instant(at) if isinstance(at, str) else instant_of_share(lambda: (p["time"] for p in parts.read("time")), at)
    )
    rule = by_time(second, targets)
    return only_tested(rule, {**rule, "at_test": NO_OFFSET}) if is_sampled else rule, second


class NumberedHistories:
    """The histories of `ordered` with dense ids, in frames of some users each; each pass reads them from the disk.

    `item_ids`: the dense id of each code. `known`: the original ids of the users of the dataset to extend, in the order
    of their dense ids; new users are numbered after them, in the order of their original ids. With `hidden` events,
    frames have the lists `visible`, as `with_visible` adds them.
    """

    def __init__(
        self, ordered: OrderedRows, item_ids: Int32s, *, known: pl.Series | None, hidden: HiddenEvents | None = None
    ) -> None:
        self._ordered, self._ids, self._known, self._hidden = ordered, item_ids, known, hidden
        self._n_known = 0 if known is None else len(known)
        self.n_rows, self.columns = int(ordered.counts.sum()), ordered.parts.columns  # of the interactions

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for frame, first in self._numbered(self._ordered.parts.read()):
            user = pl.col("user") if first is None else first + pl.col("user").rle_id()
            items = pl.Series("item", self._ids[frame["item"].to_numpy()])
            histories = to_histories(frame.with_columns(user.cast(pl.Int32).alias("user"), items))
            yield histories if self._hidden is None else with_visible(histories, self._hidden)

    def users(self) -> Iterator[pl.DataFrame]:
        """Yield `user`, `original`, `count` of every user, by dense id; known users may have no interaction."""
        counts = np.zeros(self._n_known, np.int64)
        new: list[pl.DataFrame] = []
        for frame, first in self._numbered(self._ordered.parts.read("user")):
            users = frame.group_by(original="user", maintain_order=True).len("count")
            if first is None:
                counts[users["original"].to_numpy()] = users["count"].to_numpy()
            else:
                dense = pl.int_range(first, first + pl.len(), dtype=pl.Int32)
                new.append(users.select(dense.alias("user"), "original", pl.col("count").cast(pl.Int64)))
        if self._known is not None:
            ids = pl.int_range(0, self._n_known, dtype=pl.Int32, eager=True).alias("user")
            new.insert(0, pl.DataFrame([ids, self._known, pl.Series("count", counts)]))
        is_text = any(frame["original"].dtype == pl.String for frame in new)
        yield from (frame.cast({"original": pl.String}) if is_text else frame for frame in new)

    def _numbered(self, parts: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, int | None]]:
        """Yield each part with rows, and the dense id of its first user; None if its users have dense ids already."""
        first = self._n_known
        for index, frame in enumerate(parts):
            if not len(frame):
                continue
            is_new = index >= self._ordered.n_known
            yield frame, first if is_new else None
            if is_new:
                first += int(frame["user"].rle_id()[-1]) + 1


def with_visible(histories: pl.DataFrame, hidden: HiddenEvents) -> pl.DataFrame:
    """Return the histories with lists `visible`: how many first interactions are input when each one is predicted."""
    lengths = histories["items"].list.len().to_numpy().astype(np.int64)
    times, events = (histories[name].explode(empty_as_null=False).to_numpy() for name in ("times", "events"))
    ends = pa.array(np.append(0, lengths.cumsum()))
    lists = pa.LargeListArray.from_arrays(ends, pa.array(hidden.n_visible(times, events, lengths)))
    return histories.with_columns(pl.Series("visible", pl.from_arrow(lists)))


@dataclass(frozen=True)
class HistoryStats:
    """Statistics of all histories.

    `lengths` of each user's history; `train_counts` of each item; `validated` users; `time_span`, the first and the
    last time, if known; whether the histories of all users `are_alike`; the number of interactions of each kind of
    event, [] without kinds; `tested` users, None for all that have a test target.
    """

    lengths: Int64s
    train_counts: Int64s
    validated: Bools
    time_span: tuple[int, int] | None
    log: LogSurvey
    are_alike: bool = False
    event_counts: Sequence[int] = ()
    tested: Bools | None = None

    def known_span(self, now: float) -> tuple[int, int] | None:
        """Return the first and the last time; None without times, or if some are in the future and therefore wrong.

        `now`: seconds since 1970; local times are up to 14 hours ahead of UTC.
        """
        return self.time_span if self.time_span and self.time_span[1] <= now + DAY else None

    def warnings(self, *, is_table: bool, now: float) -> list[str]:
        """Return a line for each probable problem of the rows; `now`: seconds since 1970."""
        n_users, n_rows = int((self.lengths > 0).sum()), int(self.lengths.sum())
        first, last = self.time_span or (0, 0)
        found = []
        if self.time_span and not self.known_span(now):
            until = moment(int(now)).partition("T")[0]
            found.append(
                f"times go up to {moment(last)}, which is in the future: a clock or data.time_format is wrong; "
                f"--preprocessing.time_until={until} leaves later rows out (new, gone and seasonal items are not "
                "counted with them)"
            )
        if self.time_span and first == last and n_rows > 1:
            advice = "; if another column has the times: --time=…" if is_table else ""
            found.append(f"all times are {moment(first)}: the order of the rows in the file is used{advice}")
        advice = "; if another column has the users: --user=…" if is_table else ""
        if n_users == 1:
            found.append(f"all {pluralize(n_rows, 'row')} are of one user: a test with one user is meaningless{advice}")
        elif self.are_alike:
            same = pluralize(n_rows // n_users, "item")
            found.append(f"all {n_users:,} users have the same history of {same}: no user differs from another{advice}")
        return found


def history_stats(
    histories: NumberedHistories, rule: SplitRule, settings: Preprocessing, *, n_users: int, n_items: int,
    progress: Progress, known: KnownSplit | None = None, targets: Sequence[int] = (),
) -> HistoryStats:  # fmt: skip
    """Return the statistics of all histories, split by `rule`, and draw the validated and the tested users.

    Users of a `known` split, that of the dataset to extend, stay validated and tested or not. `targets` are the
    numbers of the kinds of events that are predicted, () = all. Raises `DataError` if the split needs test users and
    there are none.
    """
    lengths, counts = np.zeros(n_users, np.int64), np.zeros(n_items, np.int64)
    eligible: list[pl.DataFrame] = []
    times: list[int] = []
    events: Counter[int] = Counter()
    n_tested = 0
    are_alike, first_items = True, None
    log = LogSurvey(n_items, has_times="time" in histories.columns, target_events=targets)
    with progress.stage("split", histories.n_rows) as stage:
        tested = _sample_tested(histories, rule, settings, known, n_users=n_users)
        for frame in histories:
            marked = mark(frame, rule, tested)
            log.add(marked)
            frame_lengths = marked["items"].list.len().to_numpy()
            lengths[marked["user"].to_numpy()] = frame_lengths
            trained = marked.select(pl.col("items").list.head(pl.col("before")).explode(empty_as_null=False))
            counts += np.bincount(trained["items"].to_numpy(), minlength=n_items)
            place = pl.col("at_validation")
            held_out = pl.col("items").list.slice(place, pl.col("before") - place)
            eligible.append(marked.filter(place.is_not_null()).select("user", place=place, held_out=held_out))
            n_tested += marked["at_test"].count()
            if "events" in marked.columns:
                events.update(dict(marked["events"].explode(empty_as_null=False).value_counts().iter_rows()))
            if "times" in marked.columns:
                times += marked.select(pl.col("times").list.min().min(), last=pl.col("times").list.max().max()).row(0)
            if are_alike and len(marked):
                first_items = marked["items"][0].to_list() if first_items is None else first_items
                are_alike = bool((marked["items"] == pl.Series([first_items], dtype=pl.List(pl.Int32))).all())
            stage.advance(int(frame_lengths.sum()))
    if not n_tested and settings.split != "none":
        raise _no_test_targets(settings, n_users)
    candidates = pl.concat(eligible)
    validated = sample_held_out(candidates, known, "validated", settings, n_users=n_users)
    is_drawn = pl.Series(validated[candidates["user"].to_numpy()])
    items = candidates.filter(is_drawn)["held_out"].explode(empty_as_null=False)
    counts -= np.bincount(items.to_numpy(), minlength=n_items)
    n_events = [events[kind] for kind in range(max(events, default=-1) + 1)]
    time_span = (min(times), max(times)) if times else None
    return HistoryStats(lengths, counts, validated, time_span, log, are_alike, n_events, tested)


def _no_test_targets(settings: Preprocessing, n_users: int) -> DataError:
    """Return the error that none of the `n_users` has a test target, with what they lack."""
    targets = ", ".join(settings.target_events)
    if settings.split == "time":
        lacks = "interactions both before and after preprocessing.split_at"
        advice = "choose another instant or share"
    elif settings.split == "leave_last_basket":
        lacks = f"{MIN_EVALUATED - 1} interactions before the last time of its targets"
        advice = 'bring longer histories, or choose split = "leave_one_out" or "none"'
    elif settings.hide_before_target != "nothing":
        lacks = f"an interaction of {targets} with a visible interaction before it"
        advice = "hide less with preprocessing.hide_before_target, or bring longer histories"
    elif settings.target_events:
        lacks = f"an interaction of {targets} after {MIN_EVALUATED - 1} interactions"
        advice = "name other kinds in preprocessing.target_events, or bring longer histories"
    else:
        lacks = f"{MIN_EVALUATED} interactions, as leave-one-out needs"
        advice = 'bring longer histories, relax the filters of [preprocessing], or train on all with split = "none"'
    return DataError(f"none of the {n_users} users has {lacks}: no test could be made; {advice}")


def _sample_tested(
    histories: NumberedHistories, rule: SplitRule, settings: Preprocessing, known: KnownSplit | None, *, n_users: int
) -> Bools | None:
    """Return which users are tested, None for all that have a test target; a sample takes a pass over all histories."""
    if settings.test_users == "all" or settings.split == "none":
        return None
    all_users = np.ones(n_users, bool)
    marked = (mark(frame, rule, all_users) for frame in histories)
    targets = pl.concat(frame.select("user", place="at_test").drop_nulls() for frame in marked)
    return sample_held_out(targets, known, "tested", settings, n_users=n_users)


def item_table(ordered: OrderedRows, ids: Int32s, survey: HistoryStats, titles: pl.DataFrame | None) -> pl.DataFrame:
    """Return `item`, `original`, `count`, `train_count` and, if known, `title` of every item, by dense id."""
    codes = np.flatnonzero(ids != NO_ITEM)
    codes = codes[np.argsort(ids[codes])]
    counts = {"count": ordered.counts[codes], "train_count": survey.train_counts}
    table = pl.DataFrame({"item": ids[codes], "original": ordered.items.gather(codes), **counts})
    if titles is None:
        return table
    return table.join(titles, left_on="original", right_on="item", how="left", maintain_order="left")
