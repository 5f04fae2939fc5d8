"""Tell which columns of a table have the times of its events: moments before numbers that only a name calls times."""

from collections.abc import Mapping, Sequence

import polars as pl

from bert4rec.prepare.column_words import DURATIONS, ENDS, IDENTIFIERS, NEVER, SESSIONS, STARTS, TIMES, name_words
from bert4rec.prepare.times import PER_SECOND, SINCE, UNTIL, fits, form_of, stripped, without_missing

DATE = (
    r"^\s*(?:\d{4}[-/.年]\s?\d{1,2}[-/.月]\s?\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:$|[일日]|[T ,])"
    r"|^\s*(?:[A-Za-z]{3,9},? )?(?:[A-Za-z]{3,9}\.? \d{1,2},?|\d{1,2}[. /-]{1,2}[A-Za-z]{3,9}\.?)[ :/-].*\d{4}"
    r"|^\s*\d{4}\. ?\d{1,2}\. ?\d{1,2}"
)  # of text: with a year, month and day
FULL_DAY = r"^(?:199[5-9]|20[0-3]\d)(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?$"  # 20260131, 202601311530
CLOCK = r"^\s*\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?\s*(?:[AaPp][Mm])?\s*$"
MOST_MISSING = 0.5
FEW_ITEMS, FEW_ROWS = 20, 2  # items with several rows, from which on values tell that a time is the item's
FEW_DAYS = 5  # a log that is sorted by time may begin with fewer
MOMENTS = (0, 1)  # ranks of columns whose values are moments
OFFSETS = {"timeframe"}  # time since the begin of a session
HOURS = {"hour", "heure", "hora", "ora", "saat"}
FIRST_CLOCK, LAST_CLOCK = 1000, 2359  # the largest number of a column of times of day, such as 1730


def is_moment(column: pl.Series) -> bool:
    """Return whether nearly all values are moments by themselves: dates, or numbers of seconds from 1995 to 2038.

    >>> is_moment(pl.Series(["2026-01-05 08:00:00"])), is_moment(pl.Series([1_767_600_000])), is_moment(pl.Series([31]))
    (True, True, False)
    """
    known = without_missing(column)
    if not len(known) or known.dtype in (pl.Datetime, pl.Date):
        return len(known) > 0
    if not (known.dtype.is_numeric() or known.dtype == pl.String):
        return False
    text = stripped(known.cast(pl.String))
    if fits(int((text.str.contains(DATE) | text.str.contains(FULL_DAY)).sum()), len(known)):
        return True
    numbers = known.cast(pl.Float64, strict=False)
    if not fits(numbers.count(), len(known)):
        return bool(form_of(known))
    return any(
        fits(int(((numbers >= SINCE * ticks) & (numbers < UNTIL * ticks)).sum()), len(known))
        for ticks in PER_SECOND.values()
    )


def is_duration(words: set[str]) -> bool:
    """Return whether the words of a name say how long something took, as in `play_time`."""
    return bool(words & TIMES and words & DURATIONS)


def likely_times(first: pl.DataFrame, free: Sequence[str], found: Mapping[str, str]) -> list[str]:
    """Return the columns of `free` with times of events, the likeliest first; `found`: field → other columns.

    Moments come before numbers that are named like times, those of an event's start before its end, and of equal ones
    that with the most values within the users. Half empty columns, times of a load, an edit, a birth or a release, and
    durations are never among them.
    """
    ranks = {name: rank for name in free if (rank := _rank(first, name, found)) is not None}
    is_session = bool(name_words(found.get("user", "")) & SESSIONS)
    offsets = {name for name in ranks if is_session and name_words(name) & OFFSETS}
    if any(rank in MOMENTS for rank in ranks.values()):
        ranks = {name: rank for name, rank in ranks.items() if rank in MOMENTS or name in offsets}
    user = [found["user"]] if found.get("user") in first.columns else []
    n_values = {name: first.select(*user, name).n_unique() for name in ranks}
    most = max((n for name, n in n_values.items() if name not in offsets), default=0)

    def order(name: str) -> tuple[object, ...]:
        is_finer_offset = name in offsets and n_values[name] > most
        return (not is_finer_offset, ranks[name], -n_values[name], _is_text(first[name]))

    return sorted(ranks, key=order)


def _rank(first: pl.DataFrame, name: str, found: Mapping[str, str]) -> int | None:
    """Return how likely a column has the times: 0 a start, 1 another moment, 2 a number named so; None: never."""
    column, words = first[name], name_words(name)
    if len(without_missing(column)) < (1 - MOST_MISSING) * len(column) or words & NEVER:
        return None
    if is_moment(column):
        if words & IDENTIFIERS and not words & TIMES:
            return None
        if _is_of_item(first, name, found.get("item", "")):
            return None
        is_constant = column.n_unique() == 1  # also in the first rows of a log that is sorted by days
        return 1 if words & (ENDS | SESSIONS) or is_constant or not words & (TIMES | STARTS) else 0
    return _rank_of_numbers(column, words)


def _rank_of_numbers(column: pl.Series, words: set[str]) -> int | None:
    """Return 2 for numbers or text that the name alone calls times; None for counts, durations and times of day."""
    known = without_missing(column)
    if not words & TIMES or words & (DURATIONS | IDENTIFIERS | HOURS) or not len(known):
        return None
    if not (known.dtype.is_numeric() or known.dtype == pl.String):
        return None
    text = stripped(known.cast(pl.String))
    if _is_text(known):
        has_digits = fits(int(text.str.contains(r"\d").sum()), len(known))
        return 2 if has_digits and not text.str.contains(CLOCK).all() else None
    numbers = text.cast(pl.Float64, strict=False).drop_nulls()
    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    return (
        None
        if not fits(len(numbers.filter(numbers >= 0)), len(known))
        or (len(known) > 1 and low == high)
        or _is_clock(numbers)
        else 2
    )


def _is_text(column: pl.Series) -> bool:
    """Return whether a column has text most of which is not numbers."""
    known = without_missing(column)
    return known.dtype == pl.String and not fits(known.cast(pl.Float64, strict=False).count(), len(known))


def _is_clock(numbers: pl.Series) -> bool:
    """Return whether all numbers are times of a day, such as 1730, and not days of a year, such as 1231."""
    high, minutes, hours = float(numbers.max()), numbers % 100, numbers // 100  # type: ignore[arg-type]
    is_clock = FIRST_CLOCK <= high <= LAST_CLOCK and bool((minutes < 60).all())
    is_day = bool((minutes.is_between(1, 31) & hours.is_between(1, 12)).all())
    return is_clock and not is_day


def _is_of_item(first: pl.DataFrame, name: str, item: str) -> bool:
    """Return whether every item has one time only, as that of its release."""
    if item not in first.columns or first[name].n_unique() < FEW_DAYS:
        return False
    times = (
        first.drop_nulls([item, name]).group_by(item).agg(pl.len().alias("rows"), pl.col(name).n_unique().alias("n"))
    )
    several = times.filter(pl.col("rows") >= FEW_ROWS)
    return len(several) >= FEW_ITEMS and int((several["n"] > 1).sum()) == 0
