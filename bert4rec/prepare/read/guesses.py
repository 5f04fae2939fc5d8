"""What a column of a log may hold, guessed from its name and its first values: only to warn, never to decide."""

import re

import polars as pl

from bert4rec.prepare.read.times import PER_SECOND, Times

TIMES = {"time", "timestamp", "date", "datetime", "ts", "at", "when", "day", "moment", "instant", "epoch", "unixtime"}
USERS = {
    "user", "customer", "member", "session", "visitor", "client", "account", "person", "reader", "viewer", "buyer",
    "shopper", "reviewer", "listener", "player", "subscriber",
}  # fmt: skip
ITEMS = {
    "item", "sku", "product", "movie", "film", "book", "article", "isbn", "asin", "song", "track", "artist", "video",
    "game", "page", "url", "offer", "anime", "recipe", "goods",
}  # fmt: skip
SINCE, UNTIL = 788_918_400, 2**31  # seconds: from 1995 to 2038; a log is hardly from before or after
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
DATE = r"^\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[T ,]|$)"


def words_of(name: str) -> set[str]:
    """The words in a column's name, in the singular and without "id" at the end.

    >>> sorted(words_of("customerIds")), sorted(words_of("movieid")), sorted(words_of("created_at"))
    (['customer', 'id'], ['movie'], ['at', 'created'])
    """
    found = [word.lower() for word in WORD.findall(name)]
    singular = [word if len(word) <= 2 or word in TIMES else word.removesuffix("s") for word in found]
    return {word.removesuffix("id") or word for word in singular}


def look_swapped(user_column: str, item_column: str) -> bool:
    """Whether the column of the users is called as items are, or that of the items as users are.

    >>> look_swapped("sku", "customer"), look_swapped("customer", "sku"), look_swapped("user", "followed_user")
    (True, False, False)
    """
    users, items = words_of(user_column), words_of(item_column)
    return bool(
        (users & ITEMS and not users & USERS and not items & ITEMS)
        or (items & USERS and not items & ITEMS and not users & USERS)
    )


def looks_like_time(values: pl.Series) -> bool:
    """Whether the first `values` of a column, by its name, its type or what they are, may be times."""
    known = values.drop_nulls()
    if not len(known):
        return False
    if known.dtype in (pl.Datetime, pl.Date):
        return True
    is_named_so = bool(words_of(values.name) & TIMES)
    if known.dtype.is_integer() or known.dtype.is_float():
        return _are_instants(known) or (is_named_so and bool(known.min() >= 0))  # type: ignore[operator]
    if known.dtype != pl.String:
        return False
    numbers = known.str.strip_chars().cast(pl.Float64, strict=False)
    if not numbers.null_count():
        return _are_instants(numbers) or (is_named_so and bool(numbers.min() >= 0))  # type: ignore[operator]
    pattern = r"\d" if is_named_so else DATE
    return bool(known.str.contains(pattern).all())


def needs_format(values: pl.Series) -> bool:
    """Whether not one of `values`, which look like times, can be read without being told their form."""
    known = values.drop_nulls()
    return known.dtype == pl.String and Times().seconds(known).count() == 0


def _are_instants(numbers: pl.Series) -> bool:
    """Whether all are moments from 1995 to 2038 in one of the units."""
    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    return any(SINCE * ticks <= low and high < UNTIL * ticks for ticks in PER_SECOND.values())
