"""Number and split the histories, and compute their statistics."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import MIN_EVALUATED
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.prepare.ordering import to_histories
from bert4rec.prepare.rows import OrderedRows
from bert4rec.prepare.shared_work import fetched
from bert4rec.prepare.split import KnownSplit, SplitRule, mark, sample_held_out
from bert4rec.prepare.stages import Done, Stages, saved
from bert4rec.prepare.survey import LogSurvey
from bert4rec.runtime.arrays import Bools, Int64s, load_array
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.times import DAY, moment

USERS_FILE = "users.arrow"  # of a part: its users and their numbers of rows


class NumberedPart(NamedTuple):
    """A part of the rows, the dense id of its first user (None: users have dense ids), and the number of its users.

    `before`: the number of histories of the parts before it; `item_ids`: the file with the dense id of each code.
    """

    path: Path
    first: int | None
    n_users: int
    before: int
    item_ids: Path
    hidden: HiddenEvents | None

    def histories(self, numbers: tuple[int, int] | None = None) -> pl.DataFrame:
        """Return the histories with dense ids; with `numbers`, only those from the first to before the last.

        With `hidden` events, they have the lists `visible`, as `with_visible` adds them.
        """
        rows = pl.read_ipc(fetched(self.path))
        number = rows["user"].rle_id()
        user = rows["user"] if self.first is None else self.first + number.cast(pl.Int64)
        if numbers is not None:
            bounds = (min(max(0, place), self.n_users) for place in numbers)
            start, stop = (int(number.search_sorted(place, side="left")) for place in bounds)
            rows, user = rows[start:stop], user[start:stop]
        items = pl.Series("item", load_array(fetched(self.item_ids), is_mapped=True)[rows["item"].to_numpy()])
        histories = to_histories(rows.with_columns(user.cast(pl.Int32).alias("user"), items))
        return histories if self.hidden is None else with_visible(histories, self.hidden)


class NumberedHistories:
    """The histories of `ordered`, whose users have dense ids; `item_ids`: the file with the dense id of each code.

    `known`: the original ids of the users of the dataset to extend, in the order of their dense ids; new users are
    numbered after them, in the order of their original ids. `hidden`: the events before a target that are no input.
    """

    def __init__(
        self, ordered: OrderedRows, item_ids: Path, *, known: pl.Series | None, hidden: HiddenEvents | None
    ) -> None:
        self._known, self.n_known = known, 0 if known is None else len(known)
        self.n_rows, self.columns = int(ordered.counts.sum()), ordered.columns
        self.parts: list[NumberedPart] = []
        first, before = self.n_known, 0
        for part in ordered.parts:
            if part.n_rows:
                start = None if part.is_known else first
                self.parts.append(NumberedPart(part.path, start, part.n_users, before, item_ids, hidden))
                first, before = first + (0 if part.is_known else part.n_users), before + part.n_users
        self.n_users, self.sizes = first, [part.n_rows for part in ordered.parts if part.n_rows]

    def users(self, stages: Stages) -> Iterator[pl.DataFrame]:
        """Yield `user`, `original`, `count` of every user, by dense id; known users may have no interaction."""
        done = stages.run("users", count_users, [(part.path, part.first) for part in self.parts], reads=["*"])
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
    rows = pl.read_ipc(fetched(part), columns=["user"])
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
    event, [] without kinds; the file of the `tested` users, None for all that have a test target.
    """

    lengths: Int64s
    train_counts: Int64s
    validated: Bools
    time_span: tuple[int, int] | None
    log: LogSurvey
    are_alike: bool = False
    event_counts: Sequence[int] = ()
    tested: Path | None = None

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
    folder: Path, part: NumberedPart, rule: SplitRule, tested: Path | None, targets: Sequence[int], n_items: int
) -> dict[str, Any]:
    """Return the statistics of the histories of a part, split by `rule`; write those of each user and item.

    `tested`: the file with the users that are in the test sample, None for all.
    """
    marked = mark(part.histories(), rule, None if tested is None else load_array(fetched(tested), is_mapped=True))
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
    histories: NumberedHistories, rule: SplitRule, settings: Preprocessing, stages: Stages, *, n_items: int,
    known: KnownSplit | None = None, targets: Sequence[int] = (),
) -> HistoryStats:  # fmt: skip
    """Return the statistics of all histories, split by `rule`, and draw the validated and the tested users.

    Users of a `known` split, that of the dataset to extend, stay validated and tested or not. `targets` are the
    numbers of the kinds of events that are predicted, () = all. Raises `DataError` if the split needs test users and
    there are none.
    """
    n_users = histories.n_users
    tested = _sample_tested(histories, rule, settings, known, stages)
    arguments = [(part, rule, tested, targets, n_items) for part in histories.parts]
    done = stages.run("split", split_part, arguments, sizes=histories.sizes, title="split", are_small=True, reads=["*"])
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
    histories: NumberedHistories, rule: SplitRule, settings: Preprocessing, known: KnownSplit | None, stages: Stages
) -> Path | None:
    """Return the file that says for each user whether they are tested; None for all that have a test target.

    A sample takes a pass over all histories.
    """
    if settings.test_users == "all" or settings.split == "none":
        return None
    done = stages.run("tested", find_targets, [(part, rule) for part in histories.parts], reads=["*"])
    targets = pl.concat(_read_column(done, "targets", "user", "place"))
    tested = sample_held_out(targets, known, "tested", settings, n_users=histories.n_users)
    return saved(stages.work / "tested.npy", tested)


def find_targets(folder: Path, part: NumberedPart, rule: SplitRule) -> dict[str, Any]:
    """Write the users of a part with a test target, and its place in the history."""
    marked = part.histories().with_columns(tested=True).with_columns(**rule)
    marked.select("user", place="at_test").drop_nulls().write_ipc(folder / "targets.arrow", compression="lz4")
    return {}
