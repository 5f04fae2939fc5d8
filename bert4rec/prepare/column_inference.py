"""Guesses of what a column of a log holds, by its name and first values: they advise and never decide."""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

import polars as pl

from bert4rec.prepare.times import PER_SECOND, SINCE, UNTIL, Times, stripped

TIMES = {"time", "timestamp", "date", "datetime", "ts", "at", "when", "day", "moment", "instant", "epoch", "unixtime"}
SESSIONS = {"session", "visit"}
USERS = {
    *SESSIONS, "user", "customer", "member", "visitor", "client", "account", "person", "reader", "viewer", "buyer",
    "shopper", "reviewer", "listener", "player", "subscriber",
}  # fmt: skip
ITEMS = {
    "item", "sku", "product", "movie", "film", "book", "article", "isbn", "asin", "song", "track", "artist", "video",
    "game", "page", "url", "offer", "anime", "recipe", "goods",
}  # fmt: skip
EXCEL_SINCE, EXCEL_UNTIL = 34_700, 50_424  # days since 1899-12-30: from 1995 to 2038
NEARLY_ALL = 0.9
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
DATE = r"^\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[T ,]|$)"
WORDS = {"user": USERS, "item": ITEMS, "time": TIMES, "rating": {"rating", "star", "score", "overall", "grade"}}
CLOSE = 0.75  # of 1, as difflib measures how much of two names is the same


def name_words(name: str) -> set[str]:
    """Return the words in a column's name, in the singular and without "id" at the end.

    >>> sorted(name_words("customerIds")), sorted(name_words("movieid")), sorted(name_words("created_at"))
    (['customer', 'id'], ['movie'], ['at', 'created'])
    """
    found = [word.lower() for word in WORD.findall(name)]
    singular = [word if len(word) <= 2 or word in TIMES else word.removesuffix("s") for word in found]
    return {word.removesuffix("id") or word for word in singular}


def are_columns_swapped(user_column: str, item_column: str) -> bool:
    """Return whether the column of the users is called as items are, or that of the items as users are.

    >>> are_columns_swapped("sku", "customer"), are_columns_swapped("customer", "sku")
    (True, False)
    >>> are_columns_swapped("user", "followed_user")
    False
    """
    users, items = name_words(user_column), name_words(item_column)
    return bool(
        (users & ITEMS and not users & USERS and not items & ITEMS)
        or (items & USERS and not items & ITEMS and not users & USERS)
    )


def looks_like_time(values: pl.Series) -> bool:
    """Return whether the first `values` of a column, by its name, its type or what they are, may be times."""
    known = values.drop_nulls()
    if not len(known):
        return False
    if known.dtype in (pl.Datetime, pl.Date):
        return True
    is_named_so = bool(name_words(values.name) & TIMES)
    if known.dtype.is_integer() or known.dtype.is_float():
        return _are_instants(known) or (is_named_so and bool(known.min() >= 0))  # type: ignore[operator]
    if known.dtype != pl.String:
        return False
    numbers = known.str.strip_chars().cast(pl.Float64, strict=False)
    if not numbers.null_count():
        return _are_instants(numbers) or (is_named_so and bool(numbers.min() >= 0))  # type: ignore[operator]
    pattern = r"\d" if is_named_so else DATE
    return bool(known.str.contains(pattern).all())


def find_excel_days(values: pl.Series) -> pl.Series:
    """Return the numbers among `values` if nearly all are days from 1995 to 2038 as Excel counts them, else no number.

    Some must have a time of day: whole numbers give the order as well.

    >>> find_excel_days(pl.Series(["45231.5", "45232"])).to_list(), find_excel_days(pl.Series([45231, 45232])).to_list()
    ([45231.5, 45232.0], [])
    """
    if not (values.dtype.is_numeric() or values.dtype == pl.String):
        return pl.Series([], dtype=pl.Float64)
    numbers = stripped(values).cast(pl.Float64, strict=False).drop_nulls()
    days = numbers.filter((numbers >= EXCEL_SINCE) & (numbers < EXCEL_UNTIL))
    is_likely = len(days) >= NEARLY_ALL * values.count() and (days != days.floor()).any()
    return days if is_likely else days.clear()


def needs_format(values: pl.Series) -> bool:
    """Return whether not one of `values`, which look like times, can be read without being told their form."""
    known = values.drop_nulls()
    return known.dtype == pl.String and Times().seconds(known).count() == 0


def _are_instants(numbers: pl.Series) -> bool:
    """Return whether all are moments from 1995 to 2038 in one of the units."""
    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    return any(SINCE * ticks <= low and high < UNTIL * ticks for ticks in PER_SECOND.values())


def column_advice(named: Mapping[str, str], present: Sequence[str]) -> str:
    """Return the end of a message that a column is missing: the options that name the columns, ready for the shell.

    `named`: field → column, as the settings say; `present`: the columns of the file, or its first row.

    >>> column_advice({"user": "user", "item": "item"}, ["customer", "product id", "at", "price"])
    "; try --data.user_column=customer '--data.item_column=product id' --data.time_column=at"
    >>> column_advice({"user": "user", "item": "what"}, ["user", "x"])
    '; name it with --data.item_column=…'
    """
    numbered = [str(number) for number in range(1, len(present) + 1)]
    if [*present] != numbered and any(re.fullmatch(r"-?\d+(\.\d*)?", name) for name in present):
        return f"; if this is a row and not a header, add {_options(_numbered_columns(named, present))}"
    left = [name for name in present if name not in named.values()]
    found: dict[str, str] = {}
    for field in WORDS:
        is_missing = field in named and named[field] not in present
        if is_missing or (field == "time" and field not in named):
            guess = _guess(field, named.get(field, ""), [name for name in left if name not in found.values()])
            if guess or is_missing:
                found[field] = guess
    verb = "try" if any(found.values()) else "name it with"
    return f"; {verb} {_options({f'{field}_column': name for field, name in found.items()})}"


def _guess(field: str, named: str, present: Sequence[str]) -> str:
    """Return the column that is probably meant; "" where none is likely."""
    if close := difflib.get_close_matches(named, present, n=1, cutoff=CLOSE):
        return close[0]
    whole = [name for name in present if not re.search(r"[;,|\t]", name)]  # else it is a row that was not cut
    found = [name for name in whole if name_words(name) & WORDS[field]]
    return min(found, key=_doubt, default="") if field in ("user", "item") else next(iter(found), "")


def _doubt(name: str) -> int:
    """Return how unlikely the column `name` has the ids: 0 = has ids, 1 = other facts of a user or item, 2 = sessions.

    >>> _doubt("user_pseudo_id"), _doubt("customer"), _doubt("user_agent"), _doubt("session_id")
    (0, 0, 1, 2)
    """
    words = name_words(name)
    if words & SESSIONS and not words & (USERS - SESSIONS):
        return 2
    return 0 if "id" in words or words <= USERS | ITEMS else 1


def _numbered_columns(named: Mapping[str, str], row: Sequence[str]) -> dict[str, str]:
    """Return the options for a file without a header whose first `row` is given; "" for a column that is not known."""
    numbers = [str(number) for number in range(1, len(row) + 1)]
    times = [number for number, cell in zip(numbers, row, strict=True) if looks_like_time(pl.Series("", [cell]))]
    user, item, *_ = [*(number for number in numbers if number not in times[:1]), "", ""]
    options = {"has_header": "false", "user_column": user, "item_column": item}
    if times or "time" in named:
        options["time_column"] = times[0] if times else ""
    return options | {f"{field}_column": "" for field in named if field not in ("user", "item", "time")}


def _options(values: Mapping[str, str]) -> str:
    return " ".join(
        shlex.quote(f"--data.{key}={value}") if value else f"--data.{key}=…" for key, value in values.items()
    )
