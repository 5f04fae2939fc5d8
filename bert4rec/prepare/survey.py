"""Count what may stand out in a log while its histories are read: repeats, heavy users, items that come and go."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.dataset.findings import RARE_ITEM_ROWS
from bert4rec.dataset.hidden import copies
from bert4rec.dataset.id_tables import IdTable
from bert4rec.prepare.ordering import read_ids
from bert4rec.prepare.shifts import SLOTS, shifts, slots_of
from bert4rec.prepare.ties import basket_key, explode, is_tied, tie_key
from bert4rec.runtime.arrays import Array, Bools, Int32s, Int64s
from bert4rec.sources.column_words import SESSION_WORDS, name_words
from bert4rec.sources.times import DAY, YEAR

EVENT_WORDS = {"event", "action", "behavior", "behaviour", "type", "interaction", "activity", "verb"}
EVENT_VALUES = {
    "view", "click", "cart", "purchase", "buy", "addtocart", "transaction", "fav", "like", "play", "skip", "wishlist",
    "remove_from_cart", "add_to_cart", "view_item", "pv", "impression", "order", "share", "download", "return",
}  # fmt: skip
MOST_EVENTS = 12  # distinct values of a column of events
RECENT = 0.1  # last share of the time span: items that begin there are new, items that end before it are gone
HEAVY, HEAVY_FROM = 20, 1000  # times the 95th percentile of the users' rows, and the least number of rows
LARGE_FROM, LARGE = 0.1, 10  # share of all rows of one user, and its rows as a multiple of the median
MOST_COMPARED_IDS = 5_000_000  # with more users, their letter case is not compared: that takes the ids' size in memory
MONTHS, IN_SEASON, SEEN_OFTEN = 4, 0.75, 20  # months of a season, share of an item's rows in it, rows of such an item
MOST_ITEMS = 200_000  # with more items, halves of months are not counted: that takes 96 bytes an item
LONG = 0.9 * YEAR  # seconds of a log that shows the seasons
COPY_COUNT = "copies "  # begins the names of their counts
SPANS = {"item": pl.Int64, "first": pl.Int64, "last": pl.Int64}
HALVES = {"half": pl.Int64, "n": pl.Int64}


class LogSurvey:
    """Count, over frames of histories (`items`, `times`, `events`), what `findings` tells about a log.

    `target_events` are the numbers of the kinds of events that are predicted, () = all. Parts of the histories may be
    counted apart: `save` writes what one has counted, and another `load`s it.
    """

    def __init__(self, n_items: int, *, has_times: bool, target_events: Sequence[int] = ()) -> None:
        self._target_events, self._n_items, self._has_times = target_events, n_items, has_times
        self._counts, self._has_dates_only = Counter[str](), has_times
        self._spans, self._halves = list[pl.DataFrame](), list[pl.DataFrame]()  # of items, and not in `_by_item` yet

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what was counted for each item to `folder`, and return the other counts."""
        spans = pl.concat([pl.DataFrame(schema=SPANS), *self._spans])
        spans = spans.group_by("item").agg(pl.col("first").min(), pl.col("last").max()).sort("item")
        spans.write_ipc(folder / "spans.arrow", compression="lz4")
        halves = pl.concat([pl.DataFrame(schema=HALVES), *self._halves])
        halves = halves.group_by("half").agg(pl.col("n").sum()).sort("half")
        halves.write_ipc(folder / "halves.arrow", compression="lz4")
        return {"counts": dict(self._counts), "dates_only": self._has_dates_only}

    def load(self, folder: Path, counted: Mapping[str, Any]) -> None:
        """Add what another survey has saved."""
        self._counts.update(counted["counts"])
        self._has_dates_only = self._has_dates_only and counted["dates_only"]
        self._spans.append(pl.read_ipc(folder / "spans.arrow"))
        self._halves.append(pl.read_ipc(folder / "halves.arrow"))
        self._by_item()  # now, since all parts together are several times as large

    def _by_item(self) -> tuple[Int64s, Int64s, Int32s | None]:
        """Return the first and the last time of each item [V], and its rows by half of a month [V, SLOTS].

        Of an item without rows, the first time is after the last. The rows are None without times or with many items.
        """
        first, last, slots = self._arrays
        while self._spans:
            spans = self._spans.pop()
            items = spans["item"].to_numpy()
            first[items] = np.minimum(first[items], spans["first"].to_numpy())
            last[items] = np.maximum(last[items], spans["last"].to_numpy())
        while self._halves and slots is not None:
            halves = self._halves.pop()
            slots.ravel()[halves["half"].to_numpy()] += halves["n"].to_numpy().astype(np.int32)
        return first, last, slots

    @cached_property
    def _arrays(self) -> tuple[Int64s, Int64s, Int32s | None]:
        """Return the arrays that `_by_item` fills."""
        limits, has_slots = np.iinfo(np.int64), self._has_times and self._n_items <= MOST_ITEMS
        slots = np.zeros((self._n_items, SLOTS), np.int32) if has_slots else None
        return np.full(self._n_items, limits.max), np.full(self._n_items, limits.min), slots

    def add(self, histories: pl.DataFrame) -> None:
        """Count the rows of some whole histories, with the place of each test target, `at_test`."""
        self._add_ties(histories)
        items, lengths = explode(histories, pl.col("items")), histories["items"].list.len().to_numpy()
        again = _is_repeated(items, lengths)
        if "events" in histories.columns:  # a purchase does not repeat the view before it
            again &= _is_repeated(explode(histories, pl.col("events")), lengths)
        self._counts["repeats"] += int(again.sum())
        if not self._has_times or not len(items):
            return
        times = explode(histories, pl.col("times"))
        if self._target_events:
            self._add_copies(histories, times)
        basket = explode(histories, basket_key(histories.columns))
        self._counts["duplicates"] += int((again & _is_repeated(basket, lengths)).sum())
        self._has_dates_only = self._has_dates_only and not (times % DAY).any()
        rows = pl.DataFrame({"item": items, "time": times}, schema={"item": pl.Int64, "time": pl.Int64})
        self._spans.append(rows.group_by("item").agg(first=pl.col("time").min(), last=pl.col("time").max()))
        if self._n_items <= MOST_ITEMS:
            slots = pl.Series("half", items.astype(np.int64) * SLOTS + slots_of(times) % SLOTS)
            self._halves.append(slots.value_counts(name="n").cast(pl.Int64))

    def _add_copies(self, histories: pl.DataFrame, times: Int64s) -> None:
        """Count the targets, and those whose item is in the input of their prediction."""
        lengths = histories["items"].list.len().to_numpy().astype(np.int64)
        items, events = (histories[name].explode(empty_as_null=False).to_numpy() for name in ("items", "events"))
        hides, is_target = "visible" in histories.columns, np.isin(events, self._target_events)
        n_visible = histories["visible"].explode(empty_as_null=False).to_numpy() if hides else None
        found = copies(items, times, is_target, lengths, np.flatnonzero(is_target), n_visible).counts
        self._counts.update({f"{COPY_COUNT}{name}": n for name, n in found.items()})

    def _add_ties(self, histories: pl.DataFrame) -> None:
        """Count the rows and the test targets that only the file orders, since they are tied with the row before."""
        if (key := tie_key(histories.columns)) is None:
            return
        lengths = histories["items"].list.len().to_numpy()
        self._counts["tied"] += int(_is_repeated(explode(histories, key), lengths).sum())
        at_test = pl.col("at_test")
        self._counts["targets"] += histories["at_test"].count()
        self._counts["tied_targets"] += histories.select(is_tied(key, at_test).sum()).item()

    def result(
        self, lengths: Int64s, counts: Int64s, span: tuple[int, int] | None, columns: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the numbers for `metadata.json`.

        `lengths` of the histories, `counts` of the items' rows in any order, `span`: first and last time.
        """
        counted, (firsts, lasts, slots) = self._counts, self._by_item()
        has_rows = firsts <= lasts
        copied = {name.removeprefix(COPY_COUNT): n for name, n in counted.items() if name.startswith(COPY_COUNT)}
        first, last = span or (0, 0)
        recent = int(last - RECENT * (last - first))
        is_long = last - first >= LONG
        return {
            "repeats_in_a_row": counted["repeats"],
            "duplicates": counted["duplicates"],
            "has_dates_only": self._has_dates_only,
            **({"copies": copied} if copied else {}),
            "tied": counted["tied"],
            "tied_targets": {"users": counted["tied_targets"], "of": counted["targets"]},
            "heavy_users": _heavy_users(lengths),
            "rare_items": int(((counts > 0) & (counts < RARE_ITEM_ROWS)).sum()),
            "recent_from": recent,
            "items_with_rows": int((counts > 0).sum()),
            "gone_items": int((lasts[has_rows] < recent).sum()) if span else 0,
            "new_items": int((firsts[has_rows] >= recent).sum()) if span else 0,
            "seasonal_items": _seasonal_items(slots) if is_long and slots is not None else 0,
            **columns,
        }

    def shift(self, span: tuple[int, int] | None, items: IdTable) -> dict[str, Any]:
        """Return the `shifts` of a log of less than a year; `items` has the columns of the items."""
        *_, slots = self._by_item()
        if slots is None or span is None or span[1] - span[0] >= LONG:
            return {}
        found = shifts(slots, span, pl.DataFrame(pl.from_arrow(items.in_order(items.schema.names))))
        return {"shift": found} if found else {}


def _seasonal_items(slots: Int32s) -> int:
    """Return the number of items with most rows in four months in a row; `slots`: their rows [V, SLOTS]."""
    months = slots.reshape(-1, 12, 2).sum(2)
    rows = months.sum(1)
    ring = np.concatenate([months, months[:, : MONTHS - 1]], axis=1)
    season = sum(ring[:, first : first + 12] for first in range(MONTHS)).max(1)  # type: ignore[union-attr]
    return int(((rows >= SEEN_OFTEN) & (season >= IN_SEASON * rows)).sum())


def _is_repeated(values: Array, lengths: Int64s) -> Bools:
    """Return for each row but the first whether it has the value of the row before, and is of the same user."""
    is_same: Bools = values[1:] == values[:-1]
    ends = lengths.cumsum()
    is_same[ends[(ends > 0) & (ends < len(values))] - 1] = False
    return is_same


def _heavy_users(lengths: Int64s) -> dict[str, int]:
    """Return how many users have far more rows than others, with how many rows; {} if there are none."""
    present = lengths[lengths > 0]
    limit = max(HEAVY_FROM, int(HEAVY * np.quantile(present, 0.95)))
    heavy = present[present > limit]
    return {"users": len(heavy), "rows": int(heavy.sum()), "limit": limit} if len(heavy) else {}


def survey_ids(users: IdTable, items: IdTable, lengths: Int64s) -> dict[str, Any]:
    """Return how many users and items differ from another in letter case alone, and the user with very many rows.

    `lengths` are those of the histories of `users`, by number.
    """
    tables = {name: table for name, table in (("users", users), ("items", items)) if len(table) <= MOST_COMPARED_IDS}
    twins = {name: _case_twins(read_ids(table, ["original"]).to_series()) for name, table in tables.items()}
    return {"case_twins": {name: found for name, found in twins.items() if found}, **_largest_user(users, lengths)}


def _case_twins(ids: pl.Series) -> dict[str, Any]:
    """Return how many ids differ from another in letter case alone, and two of them; {} without."""
    if ids.dtype != pl.String:
        return {}
    ids = ids.drop_nulls()  # those of forgotten ones are null
    lower = ids.str.to_lowercase()
    is_twin = lower.is_duplicated()
    if not is_twin.any():
        return {}
    return {"n": int(is_twin.sum()), "example": ids.filter(lower == lower.filter(is_twin)[0]).head(2).to_list()}


def _largest_user(users: IdTable, lengths: Int64s) -> dict[str, Any]:
    """Return the user with a large share of all rows, and the rows of the second largest; {} if there is none."""
    present = np.sort(lengths[lengths > 0])
    largest = int(present[-1])
    if len(present) < 2 or largest < max(LARGE_FROM * present.sum(), LARGE * np.median(present)):
        return {}
    (original,) = users.rows(np.array([lengths.argmax()]), ["original"])["original"].to_pylist()
    return {"largest_user": {"user": original, "rows": largest, "others_at_most": int(present[-2])}}


def survey_columns(first: pl.DataFrame) -> dict[str, Any]:
    """Return the columns, of those that no field has, with events (and their shares) and with sessions.

    >>> survey_columns(pl.DataFrame({"event": ["view", "view", "buy", "view"], "visit": [1, 1, 2, 2]}))
    {'events': {'event': {'view': 0.75, 'buy': 0.25}}, 'sessions': ['visit']}
    """
    words = {name: name_words(name) for name in first.columns}
    events = {name: shares for name in first.columns if (shares := _event_shares(first[name], words[name]))}
    sessions = [name for name in first.columns if words[name] & SESSION_WORDS and first[name].n_unique() > 1]
    return {"events": events, "sessions": sessions}


def _event_shares(column: pl.Series, words: set[str]) -> dict[str, float]:
    """Return the values of a column of events with their shares, the most frequent first; {} for another column."""
    known = column.drop_nulls()
    if known.dtype != pl.String or not 2 <= known.n_unique() <= MOST_EVENTS:
        return {}
    values = known.value_counts(sort=True, normalize=True).rows()
    is_events = words & EVENT_WORDS or {str(value).lower() for value, _ in values} & EVENT_VALUES
    return {str(value): round(share, 3) for value, share in values} if is_events else {}
