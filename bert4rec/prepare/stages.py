"""The stages of the preparation, in order: read, order, limit, survey, write. None holds more than a part of the rows.

Between two stages the rows lie on the disk, a part a file; a part holds whole users, and parts ascend by user.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.order.filters import (
    drop_consecutive_duplicates,
    drop_low_ratings,
    drop_rare_items,
    drop_unread,
    drop_users,
    keep_repeats,
    keep_times,
)
from bert4rec.prepare.order.histories import in_time_order, to_histories, with_codes
from bert4rec.prepare.order.ids import Distinct, same_type
from bert4rec.prepare.order.spool import Parts, Spool
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.read.sources import Part
from bert4rec.prepare.split.held_out import HeldOutCounts
from bert4rec.prepare.split.negatives import count_unseen, popular_negatives, train_counts, uniform_negatives
from bert4rec.prepare.split.splits import cut, is_tested, validation_sample, windows
from bert4rec.runtime.errors import DataError

Ints: TypeAlias = NDArray[np.int64]
Split: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Filters:
    """What is kept, as `config.toml` describes it; `newest_first`: the order of a source without times."""

    newest_first: bool = False
    only_read: bool = False
    min_rating: float = 0.0
    time_from: int | None = None
    time_until: int | None = None
    repeats: Literal["keep", "first", "last"] = "keep"
    drop_consecutive_duplicates: bool = False
    min_user_interactions: int = 1
    max_user_interactions: int = 0
    min_item_interactions: int = 1
    k_core: bool = True

    def by_row(self) -> dict[str, Callable[[pl.DataFrame], pl.DataFrame]]:
        """Filters that look at one row at a time, by the setting that asks for them."""
        return {
            "only_read": partial(drop_unread, only_read=self.only_read),
            "min_rating": partial(drop_low_ratings, min_rating=self.min_rating),
            "time_from": partial(keep_times, start=self.time_from),
            "time_until": partial(keep_times, end=self.time_until),
        }

    def in_order(self) -> dict[str, Callable[[pl.DataFrame], pl.DataFrame]]:
        """Filters that look at a user's rows in order of time."""
        duplicates = (
            {"drop_consecutive_duplicates": drop_consecutive_duplicates} if self.drop_consecutive_duplicates else {}
        )
        return {"repeats": partial(keep_repeats, which=self.repeats), **duplicates}

    def of_users(self) -> dict[str, Callable[[pl.DataFrame], pl.DataFrame]]:
        """Filters by how many rows a user has."""
        least, most = self.min_user_interactions, self.max_user_interactions
        return {
            "min_user_interactions": partial(drop_users, min_interactions=least),
            "max_user_interactions": partial(drop_users, min_interactions=1, max_interactions=most),
        }


@dataclass
class Raw:
    """All usable rows, on the disk: `known` of users with an id of an older dataset as `user`, `new` of the others."""

    known: Spool
    new: Spool
    items: Distinct = field(default_factory=Distinct)

    def __len__(self) -> int:
        return self.known.n_rows + self.new.n_rows

    @property
    def item_type(self) -> pl.DataType:
        """Of the original item ids."""
        return (self.new.schema or self.known.schema)["item"]


@dataclass
class Ordered:
    """Rows in order. Items are codes: places in the sorted `items`; `counts`: rows of each.

    The first `n_known` parts are of users with known ids.
    """

    parts: Parts
    items: pl.Series
    counts: Ints
    n_known: int = 0
    n_users_read: int = 0
    n_items_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass
class Survey:
    """What a look at all histories tells.

    `lengths` of each user's history; `train_counts` of each item; `validated` users; how many are `n_tested`; the first
    and the last time, where known.
    """

    lengths: Ints
    train_counts: Ints
    validated: NDArray[np.bool_]
    n_tested: int
    time_span: tuple[int, int] | None


def read(
    source: Iterable[Part], bad: BadRows, *, folder: Path, run_bytes: int, n_bytes: int, max_bad_rows: float,
    few_bad_rows: int, progress: Progress, known: pl.DataFrame | None = None,
) -> Raw:  # fmt: skip
    """Every usable row of `source`, sorted by user in runs on the disk.

    `known`: users (`original`, `user`) with an id of an older dataset. Raises `DataError` as soon as the share of `bad`
    rows is above `max_bad_rows`, unless there are no more than `few_bad_rows` and a tenth of all.
    """
    raw = Raw(Spool(folder / "known", run_bytes=run_bytes), Spool(folder / "new", run_bytes=run_bytes))
    before = last = 0
    with progress.stage("read", n_bytes) as stage:
        for frame, done in source:
            before, last = (last, done) if done > last else (before, last)
            if before:  # bytes whose rows have all been seen: of those up to `done` some may be still to come
                _refuse_bad_rows(
                    bad, (len(raw) + len(frame) + bad.total) * n_bytes / before, max_bad_rows, few_bad_rows
                )
            raw.items.add(frame["item"])
            for spool, rows in zip((raw.known, raw.new), _by_known(frame, known), strict=True):
                spool.add(rows)
            stage.advance(done, len(frame))
    _refuse_bad_rows(bad, len(raw) + bad.total, max_bad_rows, few_bad_rows)
    return raw


def order(raw: Raw, filters: Filters, *, folder: Path, progress: Progress, also: Iterable[pl.Series] = ()) -> Ordered:
    """The rows that pass, user by user in order of time; `also`: items that have a code with or without rows."""
    n_items_read = len(raw.items.sorted())
    for items in also:
        raw.items.add(items)
    originals = raw.items.sorted()
    codes = pl.DataFrame([originals.alias("original"), pl.Series("code", np.arange(len(originals)), dtype=pl.Int32)])
    done = Ordered(Parts(folder), originals, np.zeros(len(originals), np.int64), n_items_read=n_items_read)
    with progress.stage("order", len(raw)) as stage:
        for spool in (raw.known, raw.new):
            for rows in spool.partitions():
                frame = rows.collect()
                stage.advance(stage.n_rows + len(frame), len(frame))
                _order_part(frame, codes, filters, done)
            if spool is raw.known:
                done.n_known = len(done.parts)
            spool.remove()
    return done


def limit(ordered: Ordered, filters: Filters, *, progress: Progress) -> None:
    """Drop rare items, then users with too few or too many rows; again until both limits hold, where `k_core`."""
    least = filters.min_item_interactions
    n_rounds = 0
    while least > 1:
        n_rounds += 1
        before, ordered.counts = ordered.counts, np.zeros_like(ordered.counts)
        verbs = {"min_item_interactions": partial(drop_rare_items, counts=before, min_interactions=least)}
        with progress.stage(f"limits, round {n_rounds}", int(before.sum())) as stage:
            for index, frame in enumerate(ordered.parts):
                kept = _apply(frame, verbs | filters.of_users(), ordered.dropped)
                if len(kept) < len(frame):
                    ordered.parts.replace(index, kept)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(before))
                stage.advance(stage.n_rows + len(frame), len(frame))
        if not filters.k_core or not ((ordered.counts > 0) & (ordered.counts < least)).any():
            return


class Histories:
    """The histories in `ordered`, with dense ids, in frames of some users each; read from the disk each time.

    `item_ids`: the dense id of each code. `known`: the original ids of users with dense ids of an older dataset, in
    their order; new users are numbered after them, in the order of their original ids.
    """

    def __init__(self, ordered: Ordered, item_ids: NDArray[np.int32], *, known: pl.Series | None) -> None:
        self._ordered, self._ids, self._known = ordered, item_ids, known
        self._n_known = 0 if known is None else len(known)

    @property
    def n_rows(self) -> int:
        """Interactions in all."""
        return int(self._ordered.counts.sum())

    @property
    def columns(self) -> list[str]:
        """Those of the interactions."""
        return self._ordered.parts.columns

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for frame, first in self._numbered(self._ordered.parts):
            items = pl.Series("item", self._ids[frame["item"].to_numpy()])
            yield to_histories(frame.with_columns(_dense_user(first), items))

    def users(self) -> Iterator[pl.DataFrame]:
        """`user`, `original`, `count` of every user, by dense id; known ones may have no interaction."""
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
        """Each part that has rows and the dense id of its first user; None where users have theirs already."""
        first = self._n_known
        for index, frame in enumerate(parts):
            if not len(frame):
                continue
            is_new = index >= self._ordered.n_known
            yield frame, first if is_new else None
            if is_new:
                first += int(frame["user"].rle_id()[-1]) + 1


def survey(
    histories: Histories, split: Split, *, n_users: int, n_items: int, n_validated: int | Literal["all"], seed: int,
    progress: Progress,
) -> Survey:  # fmt: skip
    """Look at every history, marked by `split`: how long, how popular its training items, who may be validated."""
    lengths, counts = np.zeros(n_users, np.int64), np.zeros(n_items, np.int64)
    able: list[pl.DataFrame] = []
    times: list[int] = []
    n_tested = 0
    with progress.stage("split", histories.n_rows) as stage:
        for frame in histories:
            marked = split(frame)
            here = marked["items"].list.len().to_numpy()
            lengths[marked["user"].to_numpy()] = here
            counts += train_counts(marked.select(pl.col("items").list.head(pl.col("before"))), n_items=n_items)
            last = pl.col("items").list.get(pl.col("before") - 1, null_on_oob=True)
            able.append(marked.filter("able").select("user", target=last))
            n_tested += marked.filter(is_tested()).height
            times += _span(marked)
            stage.advance(stage.n_rows + int(here.sum()), int(here.sum()))
    users, targets = (pl.concat(able)[name].to_numpy() for name in ("user", "target"))
    validated = np.zeros(n_users, bool)
    validated[validation_sample(users.astype(np.int64), n_users=n_validated, seed=seed)] = True
    counts -= np.bincount(targets[validated[users]] - FIRST_ITEM_ID, minlength=n_items)
    return Survey(lengths, counts, validated, n_tested, (min(times), max(times)) if times else None)


def _span(histories: pl.DataFrame) -> list[int]:
    """The first and the last time of all; none where times are not known."""
    if "times" not in histories.columns:
        return []
    low, high = histories.select(low=pl.col("times").list.min().min(), high=pl.col("times").list.max().max()).row(0)
    return [low, high]


@dataclass(frozen=True)
class Block:
    """What a `Cutter` makes of a block of users: how many interactions, the rows of the splits, what is counted."""

    n_rows: int
    rows: dict[str, pl.DataFrame]
    held_out: HeldOutCounts


@dataclass(frozen=True)
class Cutter:
    """Cuts blocks of histories into windows and evaluation rows with negatives.

    A user with fewer than `n_negatives` unseen items gets none at all, so that every other one has exactly as many.
    """

    split: Split
    survey: Survey
    max_len: int
    step: int
    n_negatives: int
    seed: int

    def __call__(self, numbered: tuple[int, pl.DataFrame]) -> Block:
        """What becomes of `(number, histories)` of a block of users."""
        block, histories = numbered
        validated = pl.Series("validated", self.survey.validated[histories["user"].to_numpy()])
        marked = self.split(histories).with_columns(validated)
        parts = cut(marked)
        evaluated = marked.filter(is_tested() | pl.col("validated"))
        unseen = count_unseen(evaluated, n_items=len(self.survey.train_counts))
        negatives = self._negatives(evaluated.filter(pl.Series(unseen >= self.n_negatives)), block)
        rows = {
            "train": windows(parts.train, max_len=self.max_len, step=self.step),
            "validation": _with_negatives(parts.validation, negatives),
            "test": _with_negatives(parts.test, negatives),
        }
        n_rows = int(histories["items"].list.len().sum())
        return Block(n_rows, rows, HeldOutCounts.of(rows, unseen, self.n_negatives))

    def _negatives(self, whole: pl.DataFrame, block: int) -> pl.DataFrame:
        """`user` and the negatives of whole histories: of a user they are the same in validation and test."""
        counts = self.survey.train_counts
        how: dict[str, Any] = {"n": self.n_negatives, "seed": self.seed, "block": block}
        drawn = {
            "popular_negatives": popular_negatives(whole, counts, **how),
            "uniform_negatives": uniform_negatives(whole, n_items=len(counts), **how),
        }
        return whole.select("user", *[pl.Series(name, rows).arr.to_list() for name, rows in drawn.items()])


def _with_negatives(rows: pl.DataFrame, negatives: pl.DataFrame) -> pl.DataFrame:
    """`rows` with the `negatives` of their users; empty lists for a user who has none."""
    joined = rows.join(negatives, on="user", how="left", maintain_order="left")
    return joined.with_columns(pl.col(name).fill_null([]) for name in negatives.columns if name != "user")


def in_order(function: Callable[[T], R], arguments: Iterable[T], *, n_threads: int) -> Iterator[R]:
    """`function` of each argument, in order, a few at a time in threads; no more are begun than there are threads."""
    with ThreadPoolExecutor(n_threads) as pool:
        running: deque[Future[R]] = deque()
        for argument in arguments:
            if len(running) == n_threads:
                yield running.popleft().result()
            running.append(pool.submit(function, argument))
        while running:
            yield running.popleft().result()


def _by_known(frame: pl.DataFrame, known: pl.DataFrame | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows of users with a known id, which becomes their `user`, and the other rows."""
    if known is None:
        return frame.clear(), frame
    names, old = same_type(frame["user"], known["original"])
    ids = known.select(pl.col("user").cast(pl.Int64).alias("known"), original=old)
    found = frame.with_columns(original=names).join(ids, on="original", how="left", maintain_order="left")
    rows = found.drop("original", "known")
    is_known = found["known"].is_not_null()
    return rows.with_columns(user=found["known"]).filter(is_known), rows.filter(~is_known)


def _dense_user(first: int | None) -> pl.Expr:
    return (pl.col("user") if first is None else first + pl.col("user").rle_id()).cast(pl.Int32).alias("user")


def _refuse_bad_rows(bad: BadRows, n_rows: float, share: float, few: int) -> None:
    if bad.total > max(share * n_rows, min(few, n_rows / 10) if share else 0):
        n = f"{bad.total:,} of {round(n_rows):,} rows" if bad.total > 1 else "a row"
        raise DataError(
            f"{bad.shown[0]}; {n} cannot be used, more than preprocessing.max_bad_rows = {share:g} of all: correct or "
            "remove such rows, or allow more"
        )


def _order_part(frame: pl.DataFrame, codes: pl.DataFrame, filters: Filters, done: Ordered) -> None:
    done.n_users_read += frame["user"].n_unique()
    frame = _apply(frame, filters.by_row(), done.dropped)
    item, original = same_type(frame["item"], codes["original"])
    coded = with_codes(frame.with_columns(item), codes.with_columns(original))
    in_time = in_time_order(coded, newest_first=filters.newest_first)
    users = filters.of_users() if filters.min_item_interactions <= 1 else {}  # else limit() counts them
    kept = _apply(in_time, filters.in_order() | users, done.dropped)
    done.counts += np.bincount(kept["item"].to_numpy(), minlength=len(done.counts))
    done.parts.add(kept)


def _apply(
    frame: pl.DataFrame, verbs: dict[str, Callable[[pl.DataFrame], pl.DataFrame]], dropped: Counter[str]
) -> pl.DataFrame:
    """The frame after all `verbs`; how many rows each has dropped is added up in `dropped`."""
    for name, verb in verbs.items():
        kept = verb(frame)
        if len(kept) < len(frame):
            dropped[name] += len(frame) - len(kept)
        frame = kept
    return frame
