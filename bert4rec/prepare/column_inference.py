"""Recognize which columns of a table have the users, items, times, ratings and titles, by names and first values."""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from bert4rec.prepare.columns import ITEMS, SESSIONS, TIMES, USERS, WORDS, looks_like_time, name_words
from bert4rec.runtime.errors import ColumnUnknownError

IDENTIFIERS = {"id", "uid", "uuid", "guid", "code", "number", "key", "hash", "pseudo", "ref", "slug", "handle"}
NAMES = {"name", "title"}
PREFIXES = {"line", "lineitem", "event", "my", "the", "of", "by", "anonymous", "external", "internal"}
WEAK_USERS = ({"email"}, {"mail"}, {"phone"}, SESSIONS)  # taken if nothing names users better
RATINGS = WORDS["rating"] - {"score"}  # which may be that of a search
STARTS = {"event", "timestamp", "created", "time", "ordered", "purchased", "viewed"}  # of two times, the earlier one
MOST_TITLES = 0.2  # largest share of items with several values in a column of titles
FIELDS = ("user", "item")  # that every table must have
MOST_MISSING = 0.5  # largest share of missing values in a column of ids, times or ratings


def infer_columns(first: pl.DataFrame, named: Mapping[str, str], path: str) -> dict[str, str]:
    """Return field → column of a table, given its `first` rows and the columns that are `named` already.

    `named` maps a field to a column, to "" if the table has no such column, or to "auto" to recognize it. Raises
    `ColumnUnknownError` if the users or the items could be in several columns or in none.

    >>> log = pl.DataFrame({"customer_id": ["c-1"], "sku": ["A"], "at": ["2026-03-01"], "product": ["Bed"]})
    >>> infer_columns(log, dict.fromkeys(("user", "item", "time", "rating", "title"), "auto"), "log.csv")
    {'user': 'customer_id', 'item': 'sku', 'time': 'at', 'title': 'product'}
    """
    found = {field: column for field, column in named.items() if column not in ("", "auto")}
    first = first.with_columns(pl.col(pl.String).replace("", None))
    free = [column.name for column in first if column.name not in found.values() and not column.dtype.is_nested()]
    for field, candidates in CANDIDATES.items():
        if named.get(field, "") != "auto":
            continue
        likely = candidates(first.select(free))
        if field in FIELDS and not likely:
            likely = _only_other(first.select(free), field)
        if field in FIELDS and len(likely) != 1:
            raise ColumnUnknownError(path, field, first.columns, likely)
        if likely:
            found[field] = likely[0]
            free.remove(likely[0])
    if named.get("title", "") == "auto" and (title := next(_titles(first, free, found["item"]), "")):
        found["title"] = title
    return {field: found[field] for field in named if field in found}


def _only_other(first: pl.DataFrame, field: str) -> list[str]:
    """Return the columns that can be the `field` if no name tells: all but times, ratings and the other field."""
    others = {*_times(first), *_ratings(first), *(_items if field == "user" else _users)(first)}
    left = [name for name in first.columns if name not in others]
    return left if len(left) == 1 else []


def columns_by_position(first: pl.DataFrame, named: Mapping[str, str], path: str) -> dict[str, str]:
    """Return field → column of a table without a header: user, item, then the first column that looks like a time.

    >>> rows = pl.DataFrame({"1": ["c-1"], "2": ["A"], "3": ["2026-03-01"]})
    >>> columns_by_position(rows, {"user": "auto", "item": "auto", "time": "auto"}, "log.csv")
    {'user': '1', 'item': '2', 'time': '3'}
    """
    found = {field: column for field, column in named.items() if column not in ("", "auto")}
    free = [name for name in first.columns if name not in found.values()]
    times = [name for name in free if named.get("time") == "auto" and looks_like_time(first[name])][:1]
    free = [name for name in free if name not in times]
    for field in FIELDS:
        if named.get(field, "") == "auto":
            if not free:
                raise ColumnUnknownError(path, field, first.columns, [])
            found[field] = free.pop(0)
    found |= {"time": times[0]} if times else {}
    return {field: found[field] for field in named if field in found}


def _ids(first: pl.DataFrame, words: set[str], weaker: Sequence[set[str]] = ()) -> list[str]:
    """Return the likeliest columns of ids: those named by `words` with an id, else by `words` alone, else by names."""
    present = [column.name for column in first if column.null_count() <= MOST_MISSING * len(column)]
    parts = {name: name_words(name) for name in present}
    for kinds in (words, *weaker):
        allowed = kinds | PREFIXES | IDENTIFIERS
        rest = {name: parts[name] - allowed for name in present if parts[name] & kinds}
        levels = (
            [name for name in rest if not rest[name] and parts[name] & IDENTIFIERS],
            [name for name in rest if not rest[name]],
            [name for name in rest if rest[name] <= NAMES],
        )
        if likely := next(filter(None, levels), []):
            return likely
    return []


def _users(first: pl.DataFrame) -> list[str]:
    return _ids(first, USERS - SESSIONS, WEAK_USERS)


def _items(first: pl.DataFrame) -> list[str]:
    likely = _ids(first, ITEMS)
    exact = [name for name in likely if name_words(name) & {"item", "sku", "asin", "isbn"}]
    return exact if len(likely) > 1 and len(exact) == 1 else likely


def item_columns(first: pl.DataFrame) -> list[str]:
    """Return the columns of a table of items that may have their ids, as a rule one."""
    plain = first.select(column.name for column in first if not column.dtype.is_nested())
    return [name for name in plain.columns if name in ("item", "movieId")] or _items(plain)


def _times(first: pl.DataFrame) -> list[str]:
    """Return the columns that look like times: those that name a start first, then those with the most values."""
    shown = [column for column in first if column.null_count() <= MOST_MISSING * len(column)]
    likely = [column for column in shown if looks_like_time(column)]
    named = [column for column in likely if name_words(column.name) & TIMES] or likely
    starts = {column.name: bool(name_words(column.name) & STARTS) for column in named}
    n_values = {column.name: column.n_unique() for column in named}
    return sorted(starts, key=lambda name: (-starts[name], -n_values[name]))


def _ratings(first: pl.DataFrame) -> list[str]:
    named = [column for column in first if name_words(column.name) & RATINGS]
    numbers = [column for column in named if column.cast(pl.Float64, strict=False).null_count() == 0]
    return [column.name for column in numbers]


CANDIDATES = {"user": _users, "item": _items, "time": _times, "rating": _ratings}


def _titles(first: pl.DataFrame, free: Sequence[str], item: str) -> Iterator[str]:
    """Yield the text columns of `free` that are named like a title of an item, and have one value for nearly every one.

    The likeliest name comes first.
    """
    words = {name: name_words(name) for name in free}
    levels = (
        [name for name in free if words[name] & NAMES and words[name] & (ITEMS | {"lineitem"})],
        [name for name in free if words[name] <= {"title"}],
        [name for name in free if words[name] <= ITEMS],
        [name for name in free if words[name] <= NAMES],
    )
    return (name for level in levels for name in level if _is_title(first, item, name))


def _is_title(first: pl.DataFrame, item: str, name: str) -> bool:
    if first.schema[name] != pl.String or not first[name].count():
        return False
    titles = first.drop_nulls([item, name]).group_by(item).agg(pl.col(name).n_unique())
    return int((titles[name] > 1).sum()) <= MOST_TITLES * len(titles)
