"""Number and split the histories, compute their statistics, and make the table of items."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.dataset.format import EVALUATED, ITEMS, MIN_EVALUATED, NO_TARGET
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.histories import Histories
from bert4rec.prepare.ordering import ExistingIds, to_histories
from bert4rec.prepare.rows import OrderedRows
from bert4rec.prepare.stages import Done, Stages, saved
from bert4rec.prepare.survey import LogSurvey
from bert4rec.prepare.ties import MOMENT
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.times import DAY, moment

SplitRule: TypeAlias = Mapping[str, pl.Expr]
"""The expressions `before`, the number of interactions of a history for training and validation; `at_test`, the place
of its test target; `at_validation`, the place of what may be held out for validation. A place is null if there is none.
"""

VALIDATION_STREAM, TEST_STREAM = 2, 5  # of random numbers; negatives are drawn from 3 and 4
N_TIME_BINS = 1 << 16  # bins of the search for an instant: two or three passes over all times
USERS_FILE = "users.arrow"  # of a part: its users and their numbers of rows


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
        done = stages.run(f"instant-{n_passes}", count_times, [(path, low, high, width) for path in paths])
        return np.sum([np.load(folder / "counts.npy") for folder, _ in done], axis=0)

    low, high = min(span["first"] for span in spans), 1 + max(span["last"] for span in spans)
    return instant_of_share(count, low, high, share * sum(part.n_rows for part in ordered.parts))


def time_span(folder: Path, part: Path) -> dict[str, Any]:
    """Return the first and the last time of a part."""
    times = pl.read_ipc(part, columns=["time"]).to_series()
    return {"first": times.min(), "last": times.max()}


def count_times(folder: Path, part: Path, low: int, high: int, width: int) -> dict[str, Any]:
    """Write how many times of a part are in each bin of `width` seconds from `low` to before `high`."""
    times = pl.read_ipc(part, columns=["time"]).to_series()
    bins = (times.filter((times >= low) & (times < high)) - low) // width
    np.save(folder / "counts.npy", np.bincount(bins.to_numpy(), minlength=-(-(high - low) // width)))
    return {}


class NumberedPart(NamedTuple):
    """A part of the rows, the dense id of its first user (None: users have dense ids), and the number of its users.

    `before`: the number of histories of the parts before it.
    """

    path: Path
    first: int | None
    n_users: int
    before: int

    def histories(
        self, item_ids: Path, hidden: HiddenEvents | None, numbers: tuple[int, int] | None = None
    ) -> pl.DataFrame:
        """Return the histories with dense ids; `item_ids`: the file with the dense id of each code.

        With `hidden` events, they have the lists `visible`, as `with_visible` adds them. With `numbers`, returns only
        those from the first to before the last.
        """
        rows = pl.read_ipc(self.path)
        number = rows["user"].rle_id()
        user = rows["user"] if self.first is None else self.first + number.cast(pl.Int64)
        if numbers is not None:
            bounds = (min(max(0, place), self.n_users) for place in numbers)
            start, stop = (int(number.search_sorted(place, side="left")) for place in bounds)
            rows, user = rows[start:stop], user[start:stop]
        items = pl.Series("item", np.load(item_ids, mmap_mode="r")[rows["item"].to_numpy()])
        histories = to_histories(rows.with_columns(user.cast(pl.Int32).alias("user"), items))
        return histories if hidden is None else with_visible(histories, hidden)


class NumberedHistories:
    """The histories of `ordered`, whose users have dense ids.

    `known`: the original ids of the users of the dataset to extend, in the order of their dense ids; new users are
    numbered after them, in the order of their original ids.
    """

    def __init__(self, ordered: OrderedRows, *, known: pl.Series | None) -> None:
        self._known, self.n_known = known, 0 if known is None else len(known)
        self.n_rows, self.columns = int(ordered.counts.sum()), ordered.columns
        self.parts: list[NumberedPart] = []
        first = self.n_known
        before = 0
        for part in ordered.parts:
            if part.n_rows:
                self.parts.append(NumberedPart(part.path, None if part.is_known else first, part.n_users, before))
                first, before = first + (0 if part.is_known else part.n_users), before + part.n_users
        self.n_users, self.sizes = first, [part.n_rows for part in ordered.parts if part.n_rows]

    def users(self, stages: Stages) -> Iterator[pl.DataFrame]:
        """Yield `user`, `original`, `count` of every user, by dense id; known users may have no interaction."""
        done = stages.run("users", count_users, [(part.path, part.first) for part in self.parts])
        counts, new = np.zeros(self.n_known, np.int64), []
        for part, (folder, _) in zip(self.parts, done, strict=True):
            if part.first is None:
                users = pl.read_ipc(folder / USERS_FILE)
                counts[users["user"].to_numpy()] = users["count"].to_numpy()
            else:
                new.append(folder / USERS_FILE)
        types = {pl.read_ipc_schema(path)["original"] for path in new}
        types |= set() if self._known is None else {self._known.dtype}
        dtype = pl.String() if pl.String in types else pl.Int64()
        if self._known is not None:
            ids = pl.int_range(0, self.n_known, dtype=pl.Int32, eager=True).alias("user")
            yield pl.DataFrame([ids, self._known.cast(dtype), pl.Series("count", counts)])
        for path in new:
            yield pl.read_ipc(path).cast({"original": dtype})


def count_users(folder: Path, part: Path, first: int | None) -> dict[str, Any]:
    """Write the number of rows of each user of a part, who has a dense id if `first` is None, else the next one."""
    rows = pl.read_ipc(part, columns=["user"])
    if first is None:
        users = rows.group_by("user", maintain_order=True).len("count")
    else:
        users = rows.group_by(original="user", maintain_order=True).len("count")
        users = users.select(pl.int_range(first, first + pl.len(), dtype=pl.Int32).alias("user"), "original", "count")
    users.cast({"count": pl.Int64}).write_ipc(folder / USERS_FILE, compression="lz4")
    return {}


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


def split_part(
    folder: Path, part: NumberedPart, item_ids: Path, rule: SplitRule, tested: Path | None, targets: Sequence[int],
    hidden: HiddenEvents | None, n_items: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the statistics of the histories of a part, split by `rule`; write those of each user and item.

    `tested`: the file with the users that are in the test sample, None for all.
    """
    marked = mark(part.histories(item_ids, hidden), rule, None if tested is None else np.load(tested, mmap_mode="r"))
    log = LogSurvey(n_items, has_times="times" in marked.columns, target_events=targets)
    log.add(marked)
    marked.select("user", n=pl.col("items").list.len()).write_ipc(folder / "lengths.arrow", compression="lz4")
    trained = marked.select(pl.col("items").list.head(pl.col("before")).explode(empty_as_null=False))
    trained["items"].value_counts(name="n").sort("items").write_ipc(folder / "trained.arrow", compression="lz4")
    place = pl.col("at_validation")
    held_out = pl.col("items").list.slice(place, pl.col("before") - place)
    eligible = marked.filter(place.is_not_null()).select("user", place=place, held_out=held_out)
    eligible.write_ipc(folder / "eligible.arrow", compression="lz4")
    events = marked["events"].explode(empty_as_null=False).value_counts().sort("events") if "events" in marked else None
    is_one = (marked["items"] == pl.Series([marked["items"][0].to_list()], dtype=pl.List(pl.Int32))).all()
    times = pl.col("times").list
    return {
        "rows": int(marked["items"].list.len().sum()),
        "n_tested": marked["at_test"].count(),
        "events": [] if events is None else events.rows(),
        "times": list(marked.select(times.min().min(), last=times.max().max()).row(0)) if "times" in marked else [],
        "one_history": hashlib.sha256(marked["items"][0].to_numpy().tobytes()).hexdigest() if is_one else "",
        "log": log.save(folder),
    }


def history_stats(
    histories: NumberedHistories, item_ids: Path, rule: SplitRule, settings: Preprocessing, stages: Stages, *,
    n_items: int, known: KnownSplit | None = None, targets: Sequence[int] = (), hidden: HiddenEvents | None = None,
) -> HistoryStats:  # fmt: skip
    """Return the statistics of all histories, split by `rule`, and draw the validated and the tested users.

    Users of a `known` split, that of the dataset to extend, stay validated and tested or not. `targets` are the
    numbers of the kinds of events that are predicted, () = all. Raises `DataError` if the split needs test users and
    there are none.
    """
    n_users = histories.n_users
    tested = _sample_tested(histories, item_ids, rule, settings, known, stages, hidden)
    path = None if tested is None else saved(stages.work / "tested.npy", tested)
    arguments = [(part, item_ids, rule, path, targets, hidden, n_items) for part in histories.parts]
    done = stages.run("split", split_part, arguments, sizes=histories.sizes, title="split")
    if not any(result["n_tested"] for _, result in done) and settings.split != "none":
        raise _no_test_targets(settings, n_users)
    lengths, counts, events = np.zeros(n_users, np.int64), np.zeros(n_items, np.int64), Counter[int]()
    log = LogSurvey(n_items, has_times="time" in histories.columns, target_events=targets)
    for folder, result in done:
        for total, name in ((lengths, "lengths"), (counts, "trained")):
            places, numbers = pl.read_ipc(folder / f"{name}.arrow")
            total[places.to_numpy()] += numbers.to_numpy()
        events.update(dict(result["events"]))
        log.load(folder, result["log"])
    candidates = pl.concat(_read_column(done, "eligible", "user", "place"))
    validated = sample_held_out(candidates, known, "validated", settings, n_users=n_users)
    for held_out in _read_column(done, "eligible", "user", "held_out"):
        items = held_out.filter(pl.Series(validated[held_out["user"].to_numpy()], dtype=pl.Boolean))["held_out"]
        np.subtract.at(counts, items.explode(empty_as_null=False).to_numpy(), 1)
    n_events = [events[kind] for kind in range(max(events, default=-1) + 1)]
    times = [time for _, result in done for time in result["times"]]
    are_alike = len({result["one_history"] for _, result in done}) == 1 and bool(done[0].result["one_history"])
    span = (min(times), max(times)) if times else None
    return HistoryStats(lengths, counts, validated, span, log, are_alike, n_events, tested)


def _read_column(done: Sequence[Done], name: str, *columns: str) -> Iterator[pl.DataFrame]:
    for folder, _ in done:
        yield pl.read_ipc(folder / f"{name}.arrow", columns=[*columns])


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
    histories: NumberedHistories, item_ids: Path, rule: SplitRule, settings: Preprocessing, known: KnownSplit | None,
    stages: Stages, hidden: HiddenEvents | None,
) -> Bools | None:  # fmt: skip
    """Return which users are tested, None for all that have a test target; a sample takes a pass over all histories."""
    if settings.test_users == "all" or settings.split == "none":
        return None
    done = stages.run("tested", find_targets, [(part, item_ids, rule, hidden) for part in histories.parts])
    targets = pl.concat(_read_column(done, "targets", "user", "place"))
    return sample_held_out(targets, known, "tested", settings, n_users=histories.n_users)


def find_targets(
    folder: Path, part: NumberedPart, item_ids: Path, rule: SplitRule, hidden: HiddenEvents | None
) -> dict[str, Any]:
    """Write the users of a part with a test target, and its place in the history."""
    marked = part.histories(item_ids, hidden).with_columns(tested=True).with_columns(**rule)
    marked.select("user", place="at_test").drop_nulls().write_ipc(folder / "targets.arrow", compression="lz4")
    return {}


def item_rows(
    ordered: OrderedRows, ids: Int32s, train_counts: Int64s, known: ExistingIds | None
) -> Iterator[Iterator[pl.DataFrame]]:
    """Yield for each segment of the table of items its rows: `item`, `original`, `count`, `train_count`.

    `ids`: the dense id of each code; `train_counts`: of each item; `known`: the dataset to extend.
    """

    def rows(originals: pl.Series, codes: Int64s) -> pl.DataFrame:
        items, counts = ids[codes], ordered.counts[codes]
        return pl.DataFrame({"item": items, "original": originals, "count": counts, "train_count": train_counts[items]})

    def new() -> Iterator[pl.DataFrame]:
        catalogue, n_known = ordered.catalogue, len(known.items) if known else 0
        for first, frame in zip(catalogue.firsts, catalogue.ranges("item"), strict=False):
            codes = first + np.flatnonzero(ids[first : first + len(frame)] >= n_known)
            yield rows(frame["item"].gather(codes - first), codes)

    if known:
        originals, codes = known.items["original"], ordered.catalogue.codes(known.items["original"])
        sizes = [n for n, _ in known.segments[ITEMS]]
        for dtype, (first, stop) in zip(known.id_types[ITEMS], pairwise([0, *accumulate(sizes)]), strict=True):
            yield iter([rows(originals[first:stop].cast(dtype), codes[first:stop])])
    yield new()
