"""Map the original ids of items to indices, and hold histories to recommend for, with timestamps if needed.

Arrow is imported where it is used: a model package needs none.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.config.kinds import POPULARITY, RECENT_POPULARITY
from bert4rec.dataset.format import NO_EVENT, NO_ITEM
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.ids import canonical_value
from bert4rec.runtime.arrays import Array, Bools, Float64s, Int64s, Integers
from bert4rec.runtime.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

LINES_AT_ONCE = 65_536
TRAIN_COUNT, RECENT_COUNT, AGAIN = "train_count", "recent_count", "comes_again"

Column: TypeAlias = "pa.Array | list[Any]"
"""The ids or titles of items: packed by Arrow if they are those of a dataset, a list if they are those of a package."""

AT_ONCE = 4096  # histories in memory at the same time


class ItemIds:
    """The original ids of items 0 … V - 1, and their titles ("" for an item without one), or None for no titles.

    The id of a forgotten item is None.
    `train_counts` [V] is the number of training positions of each item, by default 0; `others` are further columns, or
    a function that reads them when rules need them. `recent_counts` [V] are known if the items that are popular of late
    are recommended without a history; else those that are popular overall are. `again` returns which items [V] may come
    again although a user has them; it is called when a rule needs it.
    """

    def __init__(
        self, originals: Column, titles: "Column | None" = None, train_counts: Integers | None = None,
        others: "Mapping[str, pa.Array] | Callable[[], Mapping[str, pa.Array]]" = MappingProxyType({}),
        recent_counts: Int64s | None = None, again: Callable[[], Bools] | None = None,
    ) -> None:  # fmt: skip
        self.originals, self.titles, self._others = originals, titles, others
        self.recent_counts, self._again = recent_counts, again
        self.train_counts: Integers = np.zeros(len(originals), np.int64) if train_counts is None else train_counts

    @cached_property
    def others(self) -> "Mapping[str, pa.Array]":
        """Return the further columns as JSON has them: dates as text, NaN as a missing value, no vectors or bytes."""
        columns = self._others() if callable(self._others) else self._others
        return {name: plain(column) for name, column in columns.items() if is_plain(column.type)}

    @cached_property
    def comes_again(self) -> Bools:
        """Return which items [V] may come again although a user has them. Raises `DataError` if that is unknown."""
        if self._again is None:
            raise DataError("this model does not know which items people take again; export it with --seen=by-item")
        return self._again()

    @cached_property
    def columns(self) -> "pa.Table":
        """Return all that is known of the items, in their order: `item` (its original id), `title`, and the others."""
        import pyarrow as pa

        titles = {} if self.titles is None else {"title": self.titles}
        return pa.table({"item": self.originals, **titles, TRAIN_COUNT: self.train_counts, **self.others})

    def slice(self, indices: range) -> "pa.Table":
        """Return the `columns` of the items at consecutive `indices`."""
        return self.columns.slice(indices.start, len(indices))

    @property
    def have_titles(self) -> bool:
        """Return whether any item may have a title."""
        return self.titles is not None

    @classmethod
    def read_lines(cls, path: Path, *, are_numbers: bool) -> "ItemIds":
        """Return the items from JSON lines of `write_lines`. Raises `DataError` if they cannot be read."""
        kind = int if are_numbers else str
        originals, titles, counts, has_recent = list[Any](), list[str](), list[tuple[int, int]](), False
        again = list[bool | None]()
        try:
            for rows in _rows(path):
                originals += [row["id"] for row in rows]
                titles += [row.get("title", "") for row in rows]
                counts += [(row.get(TRAIN_COUNT, 0), row.get(RECENT_COUNT, 0)) for row in rows]
                again += [row.get(AGAIN) for row in rows]
                has_recent = has_recent or any(RECENT_COUNT in row for row in rows)
            if any(type(item) is not kind for item in originals if item is not None):
                raise ValueError(f"an id is no {kind.__name__}")
            train_counts, recent_counts = np.array(counts, np.int64).reshape(-1, 2).T
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: cannot be read: {error!r}") from None
        recent = recent_counts.copy() if has_recent else None
        titled = titles if any(titles) else None
        known = None if None in again else partial(np.array, again, bool)
        return cls(originals, titled, train_counts.copy(), partial(_read_line_columns, path), recent, known)

    def write_lines(self, path: Path, *, with_again: bool = False) -> None:
        """Write one line for each item by index: {"id": …, "title": …, "train_count": …, "columns": {…}}.

        An empty title is left out, as is a missing value. "recent_count" follows "train_count" if it is known, and
        `with_again` "comes_again".
        """
        with path.open("w", encoding="utf-8") as file:
            for first in range(0, len(self), LINES_AT_ONCE):
                rows = self.slice(range(first, min(first + LINES_AT_ONCE, len(self)))).to_pylist()
                for index, more in enumerate(rows, first):
                    line = {"id": more.pop("item")}
                    if title := more.pop("title", ""):
                        line["title"] = title
                    line[TRAIN_COUNT] = more.pop(TRAIN_COUNT)
                    if self.recent_counts is not None:
                        line[RECENT_COUNT] = int(self.recent_counts[index])
                    if with_again:
                        line[AGAIN] = bool(self.comes_again[index])
                    if known := {name: value for name, value in more.items() if value is not None}:
                        line["columns"] = known
                    file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    @cached_property
    def are_numbers(self) -> bool:
        """Return whether ids are whole numbers; otherwise they are text."""
        return isinstance(next((one for one in self._listed if one is not None), ""), int)

    @cached_property
    def forgotten(self) -> Bools | None:
        """Return which items [V] are forgotten, so that they are not recommended; None if none is."""
        forgotten = np.fromiter((one is None for one in self._listed), bool, len(self))
        return forgotten if forgotten.any() else None

    def __len__(self) -> int:
        return len(self.originals)

    def indices(self, originals: Iterable[Any]) -> Int64s:
        """Return the index of each item, `NO_ITEM` for an unknown one. Numbers may be given as text, 7 as 7.0."""
        return np.fromiter(map(self._index_of, originals), np.int64)

    def look_up(self, originals: Iterable[Any]) -> None:
        """Make it faster to ask for the `indices` of these items in small groups afterwards."""

    def parts(self) -> Iterator[tuple[Int64s, list[Any]]]:
        """Yield the indices and the original ids of all items in parts, in any order."""
        yield np.arange(len(self)), self.of(range(len(self)))

    def of(self, indices: Sequence[int]) -> list[Any]:
        """Return the original ids at `indices`."""
        return _values(self.originals, indices)

    def titles_of(self, indices: Sequence[int]) -> list[str]:
        """Return the titles at `indices`; "" for an unknown title."""
        return [""] * len(indices) if self.titles is None else _values(self.titles, indices)

    @property
    def fallback(self) -> str:
        """Return by which kind of popularity items are recommended without a history."""
        return POPULARITY if self.recent_counts is None else RECENT_POPULARITY

    @cached_property
    def popularity(self) -> Array:
        """Return the counts [V] by which items are recommended without a history: training positions, or recent ones.

        One more position is added to the recent ones, shared out among all items by their training positions, so that
        these decide among items with equally many recent ones.
        """
        if self.recent_counts is None:
            return self.train_counts
        return self.recent_counts + self.train_counts / max(1, int(self.train_counts.sum()))

    def log_shares(self, indices: Int64s) -> Float64s:
        """Return the logarithms of the shares of the items at `indices` in `popularity`.

        An item without training positions counts as one with one.
        """
        least = 1 if self.recent_counts is None else 1 / max(1, int(self.train_counts.sum()))
        return np.log(np.maximum(self.popularity[indices], least) / max(1, self.popularity.sum()))

    def most_popular(self, k: int, hidden: Bools | None = None) -> Int64s:
        """Return the indices of the `k` items with the highest `popularity`, without `hidden` [V] items.

        The most popular item comes first; ties go to the lower index.
        """
        shown = np.arange(len(self)) if hidden is None else np.flatnonzero(~hidden)
        counts = self.popularity[shown]
        if k < len(shown):
            is_high = counts >= np.partition(counts, -k)[-k]
            shown, counts = shown[is_high], counts[is_high]
        return shown[np.argsort(-counts, kind="stable")][:k]

    @property
    def _listed(self) -> list[Any]:
        return self.originals if isinstance(self.originals, list) else self.originals.to_pylist()

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {original: index for index, original in enumerate(self._listed) if original is not None}

    def _index_of(self, value: Any) -> int:
        index = self._index.get(value) if type(value) in (int, str) else None  # most ids are canonical
        return self._index.get(canonical_value(value, is_number=self.are_numbers), NO_ITEM) if index is None else index


def _values(column: Column, indices: Sequence[int]) -> list[Any]:
    if isinstance(column, list):
        return [column[index] for index in indices]
    from bert4rec.dataset.id_tables import to_arrow  # imports Arrow

    return list(column.take(to_arrow(np.array(indices, np.int64))).to_pylist())


def _rows(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON lines of a file, some at a time, which are read as one list."""
    with path.open("rb") as file:
        while lines := list(itertools.islice(file, LINES_AT_ONCE)):
            yield json.loads(b"[" + b",".join(lines) + b"]")


def _read_line_columns(path: Path) -> "dict[str, pa.Array]":
    """Return the further columns in JSON lines of `ItemIds.write_lines`; text that looks like a date stays text."""
    import pyarrow as pa

    try:
        rows = [row.get("columns", {}) for part in _rows(path) for row in part]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: pa.array([row.get(name) for row in rows]) for name in names}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: its columns cannot be read: {error}") from None


def is_plain(dtype: "pa.DataType") -> bool:
    """Return whether JSON has the values of a column, which is no vector."""
    import pyarrow as pa

    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return not pa.types.is_floating(dtype.value_type)
    return not (pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype))


def plain(column: "pa.Array") -> "pa.Array":
    """Return a column as JSON has it: numbers, dates as text, a missing value for NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), None, column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s", column.type.tz), safe=False)
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


class TimedHistory(NamedTuple):
    """Items by original id, the oldest first, and their `times` in seconds, ascending.

    `at` is the query time in seconds; None: the time of the last item. `events` are the kinds of events of the items;
    None or "" for an unknown one, () if all are unknown. `times` may be () for a model that does not use them. A model
    that was trained with preprocessing.hide_before_target leaves out what it hides before a query at `at`, or now; a
    history without times or events is taken whole, as what came before.
    """

    items: Sequence[Any]
    times: Sequence[float] = ()
    at: float | None = None
    events: Sequence[Any] = ()


History: TypeAlias = Sequence[Any] | TimedHistory
"""Items by original id, the oldest first; for a model that uses timestamps or kinds of events a `TimedHistory`."""


Histories: TypeAlias = list[tuple[Any, History]]
"""The id of each user, and the history."""


def items_of(history: History) -> Sequence[Any]:
    """Return the items of a history by original id."""
    return history.items if isinstance(history, TimedHistory) else history


@dataclass(frozen=True)
class KnownHistory:
    """The known items [n] of a history by index; for a model with timestamps also `seconds` [n] and `at`.

    For a model with kinds of events, `events` [n] are their numbers. `seen` are the items that the seen-item filter
    leaves out.
    """

    items: Int64s
    seen: Int64s
    seconds: Int64s | None = None
    at: int = 0
    events: Int64s | None = None

    @classmethod
    def of(
        cls, history: History, ids: ItemIds, *, with_times: bool, kinds: Sequence[str] = (),
        hidden: HiddenEvents | None = None,
    ) -> "tuple[KnownHistory, Int64s]":  # fmt: skip
        """Return the known items, and the indices of all items (`NO_ITEM` if unknown).

        The items behind `hidden` events are left out, if the history has times and events; only their targets are seen.
        For a model `with_times`, the items of a plain list are as of now.
        Raises `ArgumentError` for bad times: `with_times` needs ascending numbers, one per item, and none after `at`;
        and for events that are none of the `kinds`, if there are any.
        """
        indices = ids.indices(items_of(history))
        is_known = indices != NO_ITEM
        numbers, seen = _events(history, kinds) if kinds else None, indices[is_known]
        if hidden is not None and isinstance(history, TimedHistory) and len(history.times) and len(history.events):
            assert numbers is not None, "target events are kinds of events"
            seconds = _seconds(history)
            now = _asked_at(history, seconds, default=time.time())
            is_input = np.arange(len(indices)) < hidden.n_visible_now(seconds, numbers, now)
            seen = indices[is_known & (is_input | np.isin(numbers, hidden.target_events))]
            is_known &= is_input
        events = None if numbers is None else numbers[is_known]
        if not with_times:
            return cls(indices[is_known], seen, events=events), indices
        if not isinstance(history, TimedHistory):
            now = int(time.time()) if len(history) else 0
            history = TimedHistory(history, [now] * len(history), now)
        seconds = _seconds(history)
        at = _asked_at(history, seconds, default=seconds[-1] if len(seconds) else 0)
        return cls(indices[is_known], seen, seconds[is_known], at, events), indices

    def __len__(self) -> int:
        return len(self.items)

    def last(self, n: int) -> "KnownHistory":
        """Return the last `n` items of the history."""
        seconds, events = (None if part is None else part[-n:] for part in (self.seconds, self.events))
        return KnownHistory(self.items[-n:], self.seen, seconds, self.at, events)


def _events(history: History, kinds: Sequence[str]) -> Int64s:
    """Return the number of the kind of each event of a history; 0 where it is unknown."""
    events = history.events if isinstance(history, TimedHistory) else ()
    if not len(events):
        return np.zeros(len(items_of(history)), np.int64)
    if len(events) != (n_items := len(items_of(history))):
        raise ArgumentError(f"a history has {n_items} items and {len(events)} events; each item needs one")
    numbers = {kind: number for number, kind in enumerate(kinds)}
    names = [NO_EVENT if event is None else str(event).strip() for event in events]
    if unknown := next((name for name in names if name not in numbers), ""):
        raise ArgumentError(
            f"{unknown}: the model knows no such kind of event; it knows: {', '.join(kinds[1:])}; null or an empty "
            "text is an unknown kind"
        )
    return np.array([numbers[name] for name in names], np.int64)


def _asked_at(history: TimedHistory, seconds: Int64s, *, default: float) -> int:
    """Return the query time of a history with items at `seconds` [n]."""
    if history.at is None:
        return int(default)
    try:
        last, at = int(seconds[-1]) if len(seconds) else 0, int(history.at)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"at = {history.at!r}: must be a number, seconds since 1970") from None
    if at < last:
        raise ArgumentError(
            f"at = {_instant(at)}: is before the last item of a history, {_instant(last)}; it must be at least that"
        )
    return at


def _instant(seconds: int) -> str:
    """Return seconds since 1970 as --at takes them: with the date and the time of day, if there is such a year."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _seconds(history: TimedHistory) -> Int64s:
    try:
        seconds = np.array(history.times, np.float64)
    except (TypeError, ValueError):
        seconds = np.array([np.nan])
    if not np.isfinite(seconds).all():
        raise ArgumentError("the times of a history must be numbers, seconds since 1970")
    if seconds.shape != (len(history.items),):
        raise ArgumentError(f"a history has {len(history.items)} items and {seconds.size} times; each item needs one")
    if (np.diff(seconds) < 0).any():
        raise ArgumentError("the times of a history descend; items must be in the order of time, the oldest first")
    return seconds.astype(np.int64)
