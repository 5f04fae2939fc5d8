"""Numbered histories, what they are like, and the table of items."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import MIN_EVALUATED, NO_ITEM
from bert4rec.prepare.negatives import Ints, train_counts
from bert4rec.prepare.ordering import to_histories
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.rows import OrderedRows
from bert4rec.prepare.splitting import SplitRule, is_tested, validation_sample
from bert4rec.runtime.errors import DataError, pluralize


class NumberedHistories:
    """Hold the histories in `ordered`, with dense ids, in frames of some users each; read from the disk each time.

    `item_ids`: the dense id of each code. `known`: the original ids of users with dense ids of an older dataset, in
    their order; new users are numbered after them, in the order of their original ids.
    """

    def __init__(self, ordered: OrderedRows, item_ids: NDArray[np.int32], *, known: pl.Series | None) -> None:
        self._ordered, self._ids, self._known = ordered, item_ids, known
        self._n_known = 0 if known is None else len(known)

    @property
    def n_rows(self) -> int:
        """Return the number of all interactions."""
        return int(self._ordered.counts.sum())

    @property
    def columns(self) -> list[str]:
        """Return the columns of the interactions."""
        return self._ordered.parts.columns

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for frame, first in self._numbered(self._ordered.parts):
            user = pl.col("user") if first is None else first + pl.col("user").rle_id()
            items = pl.Series("item", self._ids[frame["item"].to_numpy()])
            yield to_histories(frame.with_columns(user.cast(pl.Int32).alias("user"), items))

    def users(self) -> Iterator[pl.DataFrame]:
        """Yield `user`, `original`, `count` of every user, by dense id; known ones may have no interaction."""
        counts = np.zeros(self._n_known, np.int64)
        new: list[pl.DataFrame] = []
        for frame, first in self._numbered(self._ordered.parts.read("user")):
            found = frame.group_by(original="user", maintain_order=True).len("count")
            if first is None:
                counts[found["original"].to_numpy()] = found["count"].to_numpy()
            else:
                dense = pl.int_range(first, first + pl.len(), dtype=pl.Int32)
                new.append(found.select(dense.alias("user"), "original", pl.col("count").cast(pl.Int64)))
        if self._known is not None:
            ids = pl.int_range(0, self._n_known, dtype=pl.Int32, eager=True).alias("user")
            new.insert(0, pl.DataFrame([ids, self._known, pl.Series("count", counts)]))
        is_text = any(frame["original"].dtype == pl.String for frame in new)
        yield from (frame.cast({"original": pl.String}) if is_text else frame for frame in new)

    def _numbered(self, parts: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, int | None]]:
        """Yield each part that has rows and the dense id of its first user; None if users have theirs already."""
        first = self._n_known
        for index, frame in enumerate(parts):
            if not len(frame):
                continue
            is_new = index >= self._ordered.n_known
            yield frame, first if is_new else None
            if is_new:
                first += int(frame["user"].rle_id()[-1]) + 1


DAY = 86_400  # seconds: local times are up to 14 hours ahead of UTC


@dataclass(frozen=True)
class HistoryStats:
    """Hold the results of one look at all histories.

    `lengths` of each user's history; `train_counts` of each item; `validated` users; the first and the last time, where
    known; whether the histories of all users `are_alike`.
    """

    lengths: Ints
    train_counts: Ints
    validated: NDArray[np.bool_]
    time_span: tuple[int, int] | None
    are_alike: bool = False

    def warnings(self, *, is_table: bool, now: float) -> list[str]:
        """Return what is probably wrong with the rows, a line each; `now`: seconds since 1970."""
        n_users, n_rows = int((self.lengths > 0).sum()), int(self.lengths.sum())
        first, last = self.time_span or (0, 0)
        found = []
        if last > now + DAY:
            until = _moment(int(now)).partition("T")[0]
            found.append(
                f"times go up to {_moment(last)}, which is in the future: a wrong clock, or another unit than "
                f"data.time_unit says; later rows are left out with --preprocessing.time_until={until}"
            )
        if self.time_span and first == last and n_rows > 1:
            advice = "; if another column has the times: --data.time_column=…" if is_table else ""
            found.append(f"all times are {_moment(first)}: the order of the file's rows counts{advice}")
        advice = "; if another column has the users: --data.user_column=…" if is_table else ""
        if n_users == 1:
            found.append(f"all {pluralize(n_rows, 'row')} are of one user: one test target tells nothing{advice}")
        elif self.are_alike:
            same = pluralize(n_rows // n_users, "item")
            found.append(f"all {n_users:,} users have the same history of {same}: no user differs from another{advice}")
        return found


def history_stats(
    histories: NumberedHistories, rule: SplitRule, settings: Preprocessing, *, n_users: int, n_items: int,
    progress: Progress,
) -> HistoryStats:  # fmt: skip
    """Look at every history, marked by `rule`: how long, how popular its training items, who may be validated.

    Raises `DataError` where nobody could be tested and somebody should.
    """
    lengths, counts = np.zeros(n_users, np.int64), np.zeros(n_items, np.int64)
    eligible: list[pl.DataFrame] = []
    times: list[int] = []
    n_tested = 0
    are_alike, first_items = True, None
    with progress.stage("split", histories.n_rows) as stage:
        for frame in histories:
            marked = rule(frame)
            here = marked["items"].list.len().to_numpy()
            lengths[marked["user"].to_numpy()] = here
            counts += train_counts(marked.select(pl.col("items").list.head(pl.col("before"))), n_items=n_items)
            last = pl.col("items").list.get(pl.col("before") - 1, null_on_oob=True)
            eligible.append(marked.filter("eligible").select("user", target=last))
            n_tested += marked.filter(is_tested()).height
            times += _span(marked)
            if are_alike and len(marked):
                first_items = marked["items"][0].to_numpy() if first_items is None else first_items
                are_alike = _are_all(marked["items"], first_items)
            stage.advance(stage.n_rows + int(here.sum()), int(here.sum()))
    if not n_tested and settings.split != "none":
        raise DataError(_no_test(settings.split, n_users))
    users, targets = (pl.concat(eligible)[name].to_numpy() for name in ("user", "target"))
    validated = np.zeros(n_users, bool)
    validated[validation_sample(users.astype(np.int64), n_users=settings.validation_users, seed=settings.seed)] = True
    counts -= np.bincount(targets[validated[users]], minlength=n_items)
    return HistoryStats(lengths, counts, validated, (min(times), max(times)) if times else None, are_alike)


def _are_all(histories: pl.Series, items: NDArray[np.int32]) -> bool:
    """Return whether each of the `histories` has these `items`, in their order."""
    if not (histories.list.len() == len(items)).all():
        return False
    return bool((histories.explode().to_numpy().reshape(-1, len(items)) == items).all())


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _span(histories: pl.DataFrame) -> list[int]:
    """Return the first and the last time of all; none where times are not known."""
    if "times" not in histories.columns:
        return []
    low, high = histories.select(low=pl.col("times").list.min().min(), high=pl.col("times").list.max().max()).row(0)
    return [low, high]


def _no_test(split: str, n_users: int) -> str:
    if split == "time":
        return (
            f"none of the {n_users} users has interactions both before and after preprocessing.split_at: no test could "
            "be made; choose another instant or share"
        )
    return (
        f"none of the {n_users} users has {MIN_EVALUATED} interactions, as leave-one-out needs: no test could be made; "
        'bring longer histories, relax the filters of [preprocessing], or train on all with split = "none"'
    )


def item_table(
    ordered: OrderedRows, ids: NDArray[np.int32], survey: HistoryStats, titles: pl.DataFrame | None
) -> pl.DataFrame:
    """Return `item`, `original`, `count`, `train_count` and, where known, `title` of every item, by dense id."""
    codes = np.flatnonzero(ids != NO_ITEM)
    codes = codes[np.argsort(ids[codes])]
    table = pl.DataFrame(
        [
            pl.Series("item", ids[codes]),
            ordered.items.gather(codes).alias("original"),
            pl.Series("count", ordered.counts[codes]),
            pl.Series("train_count", survey.train_counts),
        ]
    )
    if titles is None:
        return table
    return table.join(titles, left_on="original", right_on="item", how="left", maintain_order="left")
