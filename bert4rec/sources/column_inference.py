"""Recognize which columns of a table have the users, items, times, ratings and titles, by names and first values."""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from bert4rec.runtime.errors import ColumnUnknownError, pluralize
from bert4rec.sources.column_times import MOST_MISSING, is_moment, likely_times
from bert4rec.sources.column_words import (
    BARCODE_WORDS,
    CODE_WORDS,
    DURATION_WORDS,
    END_WORDS,
    IDENTIFIER_WORDS,
    ITEM_WORDS,
    NAME_WORDS,
    NEUTRAL_WORDS,
    OTHER_ITEM_WORDS,
    OTHER_USER_WORDS,
    OTHER_WORDS,
    RATING_WORDS,
    SESSION_WORDS,
    USER_WORDS,
    name_words,
    ordered_words,
)
from bert4rec.sources.columns import ID_FIELDS, looks_like_time
from bert4rec.sources.times import fits, stripped, without_missing

ADDRESSES = ({"email", "mail"}, {"phone"})  # of users, taken if nothing better is there
CONNECTIONS = {"ip"}  # of users, taken last
ACCOUNTS = {"account", "konto", "compte", "cuenta", "conta"}  # of a user, beside a word for users
COARSE_ITEMS = {"artist", "album", "author", "channel", "podcast", "series", "show"}  # whose parts have own ids
KINDLESS = {"item", "element", "object", "content", "product", "article", "asin", "sku", "page", "url"}  # any items
RANKED = RATING_WORDS - {"score", "note"}  # a score may be that of a search, and a note a text
MOST_TITLES = 0.2  # largest share of items with several values in a column of titles
LEAST_TITLES = 0.8  # least number of titles for an item, else they are categories
LEAST_ITEM_ROWS = 2  # rows of an item, from which on values alone tell that a text depends on it
NO_ID_WORDS = OTHER_WORDS | NAME_WORDS | RATING_WORDS | SESSION_WORDS | OTHER_USER_WORDS | DURATION_WORDS
FEW_VALUES = 5  # of a category
ENOUGH_ROWS = 20  # from which on values count
FINER = 1.25  # times as many values has an id that others depend on
NUMBERED_SHARE = 0.98  # share of distinct values among all, from which on a column numbers the rows


def infer_columns(first: pl.DataFrame, named: Mapping[str, str], path: str) -> dict[str, str]:
    """Return field → column of a table, given its `first` rows and the columns that are `named` already.

    `named` maps a field to a column, to "" if the table has no such column, or to "auto" to recognize it. Raises
    `ColumnUnknownError` if the users or the items could be in several columns or in none.

    >>> log = pl.DataFrame({"customer_id": ["c-1"], "sku": ["A"], "at": ["2026-03-01"], "product": ["Bed"]})
    >>> infer_columns(log, dict.fromkeys(("user", "item", "time", "rating", "title"), "auto"), "log.csv")
    {'user': 'customer_id', 'item': 'sku', 'time': 'at', 'title': 'product'}
    """
    found = {field: column for field, column in named.items() if column not in ("", "auto")}
    first = _plain(first)
    free = [name for name in first.columns if name not in found.values()]
    unknown: dict[str, list[str]] = {}
    for field, candidates in (("user", _users), ("item", _items)):
        if named.get(field, "") != "auto":
            continue
        likely = candidates(first.select(free))
        if len(likely) == 1:
            found[field] = likely[0]
            free.remove(likely[0])
        else:
            unknown[field] = likely
    for field, likely in unknown.items():
        left = [] if likely or len(unknown) > 1 else _unnamed(first.select(free))
        if len(left) != 1:
            raise _refusal(first, found, unknown, path)
        found[field] = left[0]
        free.remove(left[0])
    for field, likely_columns in (("time", likely_times), ("rating", _ratings), ("title", _titles)):
        if named.get(field, "") == "auto" and (column := next(iter(likely_columns(first, free, found)), "")):
            found[field] = column
            free.remove(column)
    return {field: found[field] for field in named if field in found}


def other_times(first: pl.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Return the columns that may have the times of the events, too; if `columns` have no time, all with moments."""
    first = _plain(first)
    time, fields = columns.get("time", ""), {field: column for field, column in columns.items() if field != "time"}
    free = [name for name in first.columns if name not in fields.values()]
    if not time:
        return [name for name in free if is_moment(first[name]) and not name_words(name) & IDENTIFIER_WORDS]
    likely = [name for name in likely_times(first, free, fields) if first[name].n_unique() > 1]
    return [name for name in likely if name != time and not name_words(name) & END_WORDS]


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
    for field in ID_FIELDS:
        if named.get(field, "") == "auto":
            if not free:
                raise _refusal(first, found, {field: []}, path)
            found[field] = free.pop(0)
    found |= {"time": times[0]} if times else {}
    return {field: found[field] for field in named if field in found}


def item_columns(first: pl.DataFrame) -> list[str]:
    """Return the columns of a table of items that may have their ids, as a rule one."""
    plain = _plain(first)
    return [name for name in plain.columns if name in ("item", "movieId")] or _items(plain)


def _plain(first: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that are not nested, with null for empty text."""
    plain = first.select(column.name for column in first if not column.dtype.is_nested())
    return plain.with_columns(pl.col(pl.String).replace("", None))


def _users(first: pl.DataFrame) -> list[str]:
    stages = (
        *((words, level) for two in ((0, 1), (2, 3)) for words in (USER_WORDS, OTHER_USER_WORDS) for level in two),
        *((words, 1) for words in ADDRESSES),
        *((words, level) for words in (SESSION_WORDS, CONNECTIONS) for level in (0, 1)),
    )
    return _with_keys(first, _ids(first, stages, ACCOUNTS))


def _items(first: pl.DataFrame) -> list[str]:
    stages = tuple((words, level) for words in (ITEM_WORDS, OTHER_ITEM_WORDS) for level in range(4))
    likely = _ids(first, stages, OTHER_ITEM_WORDS)
    exact = [name for name in likely if name_words(name) & {"item", "sku", "asin", "isbn"}]
    most = max((first[name].n_unique() for name in likely), default=0)
    if len(likely) > 1 and len(exact) == 1 and most <= FINER * first[exact[0]].n_unique():
        likely = exact
    others = [name for name in likely if not name_words(name) & BARCODE_WORDS]
    return _with_keys(first, others if len(likely) > 1 and len(others) == 1 else likely)


def _ids(first: pl.DataFrame, stages: Sequence[tuple[set[str], int]], allowed: set[str]) -> list[str]:
    """Return the columns of ids of the first of the `stages` (words, level of `_level`) that has any.

    A column of few values, such as the client "web" or "app", is taken only if no stage has another one. The ids of
    sessions, devices and the like must repeat. Where there is no other, it is one that is mostly empty.
    """
    present = [column.name for column in first if column.null_count() <= MOST_MISSING * len(column)]
    words = {name: ordered_words(name) for name in present}
    categories: list[str] = []
    for kinds, wanted in stages:
        named = [name for name in present if _level(words[name], kinds, allowed) == wanted]
        likely = [name for name in named if not _is_category(first[name])]
        if kinds in (USER_WORDS, ITEM_WORDS):
            categories = categories or (named if wanted < 2 else [])
        else:
            likely = [name for name in likely if len(first) < ENOUGH_ROWS or not _is_row_number(first[name])]
        if likely:
            return _finest(first, likely)
    rare = [column.name for column in first if column.name not in present and column.count()]
    main = stages[0][0]
    return categories or [name for name in rare if _level(ordered_words(name), main, allowed) in (0, 1)]


def _with_keys(first: pl.DataFrame, likely: list[str]) -> list[str]:
    """Return `likely`, and if it is only a text or an artist, the unnamed columns on which that depends, as its id."""
    if len(likely) != 1:
        return likely
    name, words = likely[0], name_words(likely[0])
    is_text = first.schema[name] == pl.String and not words & (IDENTIFIER_WORDS | CODE_WORDS)
    is_coarse = bool(words & COARSE_ITEMS)
    if not is_coarse and not (is_text and _has_several_words(first[name])):
        return likely
    n_values = {other: first[other].n_unique() for other in [*_unnamed(first), name]}
    least = n_values.pop(name) * (FINER if is_coarse else 1)
    most = len(first) / LEAST_ITEM_ROWS
    keys = [other for other, n in n_values.items() if least <= n <= most and _depends(first, name, other)]
    return [*keys, *likely]


def _is_row_number(column: pl.Series) -> bool:
    """Return whether nearly every row has its own value, as in a column of orders or events."""
    return column.drop_nulls().n_unique() >= NUMBERED_SHARE * column.count()


def _level(words: Sequence[str], kinds: set[str], allowed: set[str]) -> int | None:
    """Return how clearly the `words` of a name say that a column has the ids of `kinds`; None if they do not.

    0: with an id (`customer_no`), 1: alone (`customer`), 2: with a name (`customer_name`), 3: an id after other words
    (`challenge_user_id`).
    """
    if not kinds.intersection(words):
        return None
    rest = {*words} - kinds - allowed - NEUTRAL_WORDS - IDENTIFIER_WORDS
    has_id = bool({*words} & (IDENTIFIER_WORDS | CODE_WORDS))
    if not rest:
        return 0 if has_id else 1
    if rest <= NAME_WORDS:
        return 2
    is_last = len(words) > 2 and words[-1] in IDENTIFIER_WORDS and words[-2] in kinds
    others = OTHER_WORDS | NAME_WORDS | SESSION_WORDS | USER_WORDS | ITEM_WORDS | OTHER_USER_WORDS
    return 3 if is_last and not rest & others else None


def _is_category(column: pl.Series) -> bool:
    """Return whether a column has very few values, which alternate: the rows of a file may also be sorted by user."""
    if len(column) < 5 * ENOUGH_ROWS or (n_values := column.n_unique()) > FEW_VALUES:
        return False
    return int((column != column.shift()).sum()) > 2 * n_values


def _finest(first: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the column of `names` on which the others depend, such as the track beside its artist; else those left.

    Columns with one value, and those that number the rows, are not ids of users or items.
    """
    if len(first) < ENOUGH_ROWS or len(names) < 2:
        return [*names]
    n_values = {name: first[name].drop_nulls().n_unique() for name in names}
    varied = [name for name in names if n_values[name] > 1 and not _is_row_number(first[name])] or [*names]
    if len(varied) < 2:
        return varied
    finest = max(varied, key=lambda name: n_values[name])
    others = [name for name in varied if name != finest]
    is_finest = all(n_values[finest] >= FINER * n_values[name] and _depends(first, name, finest) for name in others)
    return [finest] if is_finest else varied


def _depends(first: pl.DataFrame, name: str, key: str) -> bool:
    """Return whether nearly every value of `key` has only one value of the column `name`."""
    values = first.drop_nulls([key, name]).group_by(key).agg(pl.col(name).n_unique())
    return int((values[name] > 1).sum()) <= (1 - NUMBERED_SHARE) * len(values)


def _unnamed(first: pl.DataFrame) -> list[str]:
    """Return the columns that may have ids although their names say nothing."""
    return [column.name for column in first if not _is_other(column)]


def _is_other(column: pl.Series) -> bool:
    """Return whether name or values say that a column has no ids."""
    words = name_words(column.name)
    if looks_like_time(column) or words & NO_ID_WORDS:
        return True
    known = column.drop_nulls()
    is_id_type = known.dtype.is_integer() or known.dtype == pl.String
    if not is_id_type or len(known) < max(1, MOST_MISSING * len(column)):
        return True
    if len(known) >= ENOUGH_ROWS and (known.n_unique() == 1 or _is_row_number(known)):
        return True
    numbers = stripped(known).cast(pl.Float64, strict=False)
    if numbers.null_count():
        return _is_category(known)
    return (len(known) >= ENOUGH_ROWS and known.n_unique() < ENOUGH_ROWS) or bool((numbers != numbers.floor()).any())


def _refusal(
    first: pl.DataFrame, found: Mapping[str, str], unknown: Mapping[str, Sequence[str]], path: str
) -> ColumnUnknownError:
    """Return the error for the `unknown` fields (field → likely columns), with the best guess for each."""
    guesses = {field: found.get(field, "") for field in ID_FIELDS}
    for field, likely in unknown.items():
        left = [name for name in first.columns if name not in {*guesses.values(), *found.values()}]
        ids = [name for name in _unnamed(first.select(left)) if not _is_category(first[name])]
        guesses[field] = next(iter([*likely, *ids]), "")
    field, *_ = unknown
    options = [f"--{name}={guesses[name] or 'COLUMN'}" for name in unknown]
    present = [name for name in guesses.values() if name in first.columns]
    counts = ", ".join(f"{name}: {first[name].drop_nulls().n_unique():,}" for name in present)
    text = f"{counts} values in the first {pluralize(len(first), 'row')}" if present and len(first) else ""
    return ColumnUnknownError(path, field, first.columns, unknown[field], options, text)


def _ratings(first: pl.DataFrame, free: Sequence[str], _: Mapping[str, str]) -> Iterator[str]:
    for name in free:
        known, words = without_missing(first[name]), name_words(name)
        is_named = words & RANKED and not words & IDENTIFIER_WORDS
        if is_named and fits(known.cast(pl.Float64, strict=False).count(), len(known)):
            yield name


def _titles(first: pl.DataFrame, free: Sequence[str], found: Mapping[str, str]) -> Iterator[str]:
    """Yield the columns of `free` with titles: text that has one value for nearly every item of `found`.

    The likeliest name comes first. If no name tells, a text of several words must have another value for every item.
    """
    item, words = found["item"], {name: name_words(name) for name in free}
    allowed = ITEM_WORDS | OTHER_ITEM_WORDS
    own = name_words(item) & allowed
    free = [name for name in free if not _is_coarser(first, item, name)]
    levels = (
        [name for name in free if words[name] & NAME_WORDS and words[name] & own],
        [name for name in free if words[name] <= {"title"}],
        [name for name in free if words[name] & NAME_WORDS and words[name] & allowed and _are_apart(first, item, name)],
        [name for name in free if words[name] <= allowed],
        [name for name in free if words[name] <= NAME_WORDS],
    )
    yield from (name for level in levels for name in level if _is_title(first, item, name))
    yield from (
        name for name in free if not words[name] & (OTHER_WORDS | USER_WORDS) and _is_title_by_values(first, item, name)
    )


def _is_coarser(first: pl.DataFrame, item: str, name: str) -> bool:
    """Return whether a column is named like what has several items, such as the artist of a track.

    Of items that are named without their kind, it is no title only if it does not tell them apart.
    """
    own, words = name_words(item), name_words(name)
    if not words & (COARSE_ITEMS | {"brand"}) or words & COARSE_ITEMS & own or "title" in words:
        return False
    return bool(own & (ITEM_WORDS | OTHER_ITEM_WORDS) - KINDLESS) or not _are_apart(first, item, name)


def _is_title(first: pl.DataFrame, item: str, name: str) -> bool:
    if first.schema[name] != pl.String or not first[name].count():
        return False
    titles = first.drop_nulls([item, name]).group_by(item).agg(pl.col(name).n_unique())
    return int((titles[name] > 1).sum()) <= MOST_TITLES * len(titles)


def _is_title_by_values(first: pl.DataFrame, item: str, name: str) -> bool:
    """Return whether a text of several words depends on the item, and tells the items apart."""
    if not _is_title(first, item, name):
        return False
    known = first.select(item, name).drop_nulls()
    n_items = known[item].n_unique()
    is_told = n_items >= ENOUGH_ROWS and len(known) >= LEAST_ITEM_ROWS * n_items and _are_apart(first, item, name)
    return is_told and _has_several_words(known[name]) and not is_moment(known[name])


def _are_apart(first: pl.DataFrame, item: str, name: str) -> bool:
    """Return whether nearly every item has an own title, unlike a category or the name of an artist."""
    known = first.select(item, name).drop_nulls()
    return known[name].n_unique() >= LEAST_TITLES * known[item].n_unique()


def _has_several_words(texts: pl.Series) -> bool:
    known = texts.drop_nulls().unique()
    words = known.str.strip_chars().str.contains(r"\p{L}\S*\s+\S") & ~known.str.contains("://", literal=True)
    return int(words.sum()) > len(known) / 2
