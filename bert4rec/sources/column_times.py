"""Tell which columns of a table have the times of its events: moments before numbers that only a name calls times."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import polars as pl

from bert4rec.sources.column_words import (
    CHANGE_WORDS,
    DURATION_WORDS,
    END_WORDS,
    IDENTIFIER_WORDS,
    SESSION_WORDS,
    START_WORDS,
    TIME_WORDS,
    name_words,
)
from bert4rec.sources.times import (
    DAY,
    PER_SECOND,
    SINCE,
    UNTIL,
    Times,
    fits,
    form_of,
    numbers_or_texts,
    without_missing,
)

WRITTEN_DATE = (
    r"^\s*(?:\d{4}[-/.年]\s?\d{1,2}[-/.月]\s?\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:$|[일日]|[T ,])"
    r"|^\s*(?:[A-Za-z]{3,9},? )?(?:[A-Za-z]{3,9}\.? \d{1,2},?|\d{1,2}[. /-]{1,2}[A-Za-z]{3,9}\.?)[ :/-].*\d{4}"
    r"|^\s*\d{4}\. ?\d{1,2}\. ?\d{1,2}"
)  # of text: with a year, month and day
FULL_DAY = (  # 20260131, 202601311530, 20260131153059, also with a fraction
    r"^(?:199[5-9]|20[0-3]\d)(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6}(?:\d{3}|\.\d+)?)?$"
)
DAY_FIRST = r"^\d{7,8}$"  # 31012026, 1012026
CLOCK_TIME = r"^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?(?:\s*([AaPp])\.?[Mm]\.?)?$"  # 9:05, 12:30:00.5, 9:05 PM
MOST_MISSING = 0.5  # largest share of missing values in a column of ids, times or ratings
FEW_ITEMS, FEW_ROWS = 20, 2  # items with several rows, from which on values tell that a time is the item's
FEW_DAYS = 5  # a log that is sorted by time may begin with fewer
MOMENTS = (0, 1)  # ranks of columns whose values are moments
SESSION_TIMES = {"timeframe"}  # time since the begin of a session
HOURS = {"hour", "heure", "hora", "ora", "saat", "stunde"}
COARSE_DATE = r"^(?:19|20)\d\d(?:[-/.]?(?:0[1-9]|1[0-2])|-?W\d\d)?$"  # 2026, 2026-01, 202601, 2026-W05
NEARLY_NEVER, EARLIER_SHARE = 0.02, 0.1  # shares of rows in which one time is later, and in which it is earlier
LARGEST_ZONE, ZONE_STEP = 14 * 3600, 900  # seconds between the clocks of two places
AS_FINE = 0.9  # share of the values of the later of two times that the earlier one must have
FIRST_CLOCK, LAST_CLOCK = 1000, 2359  # the largest number of a column of times of day, such as 1730


def _spelled(names: str) -> set[str]:
    return {word for name in names.split() for word in name_words(name)}


YEARS = _spelled("year yyyy jahr annee ano anno jaar rok yil год 年 년")
MONTH_WORDS = _spelled("month monat mois mes mese maand miesiac ay месяц 月 월")
DAY_WORDS = _spelled("day dd tag jour dia giorno dag dzien gun день 日 일")
WEEKS = _spelled("week woche semaine semana settimana tydzien hafta неделя 周 週 주")


def is_moment(column: pl.Series) -> bool:
    """Return whether nearly all values are moments by themselves: dates, or numbers of seconds from 1995 to 2038.

    >>> is_moment(pl.Series(["2026-01-05 08:00:00"])), is_moment(pl.Series([1_767_600_000])), is_moment(pl.Series([31]))
    (True, True, False)
    """
    if column.dtype in (pl.Datetime, pl.Date):
        return column.count() > 0
    known = numbers_or_texts(column)
    text = known.cast(pl.String)
    if fits(int((text.str.contains(WRITTEN_DATE) | text.str.contains(FULL_DAY)).sum()), len(known)):
        return True
    numbers = known.cast(pl.Float64, strict=False)
    if not fits(numbers.count(), len(known)) or fits(int(text.str.contains(DAY_FIRST).sum()), len(known)):
        return bool(form_of(known))
    likely = (numbers.is_between(SINCE * ticks, UNTIL * ticks, closed="left") for ticks in PER_SECOND.values())
    return any(fits(int(is_likely.sum()), len(known)) for is_likely in likely)


def is_duration(words: set[str]) -> bool:
    """Return whether the words of a name say how long something took, as in `play_time`."""
    return bool(words & TIME_WORDS and words & DURATION_WORDS)


def date_parts(first: pl.DataFrame) -> list[str]:
    """Return the columns of a date's year (if there is one), month and day; [] without months and days.

    >>> date_parts(pl.DataFrame({"Tag": [30, 3], "Monat": [1, 2], "Jahr": [2026, 2026], "Preis": [7, 8]}))
    ['Jahr', 'Monat', 'Tag']
    """
    found = {}
    for words, low, high in ((YEARS, 1900, 2100), (MONTH_WORDS, 1, 12), (DAY_WORDS, 1, 31)):
        named = [name for name in first.columns if name_words(name) & words]
        if name := next((name for name in named if _are_whole(first[name], low, high)), ""):
            found[high] = name
    return [*found.values()] if 12 in found and 31 in found else []


def _are_whole(column: pl.Series, low: int, high: int) -> bool:
    numbers = numbers_or_texts(column).cast(pl.Float64, strict=False)
    return len(numbers) > 0 and bool((numbers.is_between(low, high) & (numbers % 1 == 0)).fill_null(False).all())


def why_coarse(column: pl.Series) -> str:
    """Return why a column of months, weeks, years or hours is no time, and how to write it; "" for another column.

    >>> why_coarse(pl.Series("month", ["2026-02"]))
    'its first value "2026-02" has no day: write it as 2026-02-01'
    """
    words, known = name_words(column.name), numbers_or_texts(column)
    if not words & (YEARS | MONTH_WORDS | WEEKS | HOURS) or words & CHANGE_WORDS or not len(known) or is_moment(column):
        return ""
    text = known.cast(pl.String).str.replace(r"\.0$", "")
    if words & HOURS and is_time_of_day(column):
        return f'its first value "{known[0]}" is a time of a day without its date'
    if not fits(int(text.str.contains(COARSE_DATE).sum()), len(text)):
        lacking = "year" if words & MONTH_WORDS else "date"
        return "" if is_duration(words) else f'its first value "{known[0]}" has no {lacking}'
    digits = re.sub(r"[^\dW]", "", text.filter(text.str.contains(COARSE_DATE))[0])
    try:
        week = datetime.strptime(f"{digits}-1", "%GW%V-%u") if "W" in digits else None
    except ValueError:
        return f'its first value "{known[0]}" has no day'
    day = f"{week:%Y-%m-%d}" if week else f"{digits[:4]}-{digits[4:] or '01'}-01"
    return f'its first value "{known[0]}" has no day: write it as {day}'


def is_time_of_day(column: pl.Series) -> bool:
    """Return whether a column has times of a day, without the day.

    >>> [is_time_of_day(pl.Series("hour", values)) for values in (["08:15"], [8, 23], [8, 24_000])]
    [True, True, False]
    """
    if column.dtype == pl.Time:
        return column.count() > 0
    known = numbers_or_texts(column)
    if known.dtype == pl.String and fits(int(known.str.contains(CLOCK_TIME).sum()), len(known)):
        return True
    words, numbers = name_words(column.name), known.cast(pl.Float64, strict=False).drop_nulls()
    if not words & (TIME_WORDS | HOURS) or not fits(len(numbers), len(known)):
        return False
    return bool(words & HOURS and numbers.is_between(0, 24).all()) or _is_clock(numbers)


def is_of_item(first: pl.DataFrame, name: str, item: str) -> bool:
    """Return whether every item has one value only, as the time of its release."""
    if item not in first.columns or first[name].n_unique() < FEW_DAYS:
        return False
    times = (
        first.drop_nulls([item, name]).group_by(item).agg(pl.len().alias("rows"), pl.col(name).n_unique().alias("n"))
    )
    several = times.filter(pl.col("rows") >= FEW_ROWS)
    return len(several) >= FEW_ITEMS and int((several["n"] > 1).sum()) == 0


def likely_times(first: pl.DataFrame, free: Sequence[str], found: Mapping[str, str]) -> list[str]:
    """Return the columns of `free` with times of events, the likeliest first; `found`: field → other columns.

    Moments come before numbers that are named like times, those of an event's start before its end, and of equal ones
    that with the most values within the users, or one that is as fine and nearly never later. Half empty columns, times
    of a load, an edit, a birth or a release, parts of a date and durations are never among them.
    """
    parts = date_parts(first)
    ranks = {name: rank for name in free if name not in parts and (rank := _rank(first, name, found)) is not None}
    is_session = bool(name_words(found.get("user", "")) & SESSION_WORDS)
    offsets = {name for name in ranks if is_session and name_words(name) & SESSION_TIMES}
    if any(rank in MOMENTS for rank in ranks.values()):
        ranks = {name: rank for name, rank in ranks.items() if rank in MOMENTS or name in offsets}
    user = [found["user"]] if found.get("user") in first.columns else []
    n_values = {name: first.select(*user, name).n_unique() for name in ranks}
    most = max((n for name, n in n_values.items() if name not in offsets), default=0)

    def order(name: str) -> tuple[object, ...]:
        is_finer_offset = name in offsets and n_values[name] > most
        return (not is_finer_offset, ranks[name], -n_values[name], _is_text(first[name]))

    times = sorted(ranks, key=order)
    for name in times[1:]:
        best = times[0]
        is_as_fine = ranks[name] == ranks[best] in MOMENTS and n_values[name] >= AS_FINE * n_values[best]
        is_longer = name_words(best) < name_words(name)  # as client_event_time beside event_time
        if is_as_fine and not is_longer and best not in offsets and _is_before(first[name], first[best]):
            times.remove(name)
            times.insert(0, name)
    return times


def _is_before(column: pl.Series, other: pl.Series) -> bool:
    """Return whether one column of moments is nearly never later than an `other`, and not by a difference of zones."""
    one, two = _seconds(column), _seconds(other)
    if one is None or two is None or (one % DAY == 0).all() != (two % DAY == 0).all():
        return False
    gaps = (two - one).drop_nulls()
    if not len(gaps) or (gaps < 0).mean() > NEARLY_NEVER or (gaps > 0).mean() < EARLIER_SHARE:  # type: ignore[operator]
        return False
    return not bool((gaps.is_between(0, LARGEST_ZONE) & (gaps % ZONE_STEP == 0)).all())


def _seconds(column: pl.Series) -> pl.Series | None:
    """Return the seconds of a column of moments; None if they are in no known form."""
    seconds = Times().seconds(column)
    if fits(int(seconds.is_between(SINCE, UNTIL).sum()), len(without_missing(column))):
        return seconds
    form = form_of(numbers_or_texts(column))
    return Times(form).seconds(column) if form else None


def _rank(first: pl.DataFrame, name: str, found: Mapping[str, str]) -> int | None:
    """Return how likely a column has the times: 0 a start, 1 another moment, 2 a number named so; None: never."""
    column, words = first[name], name_words(name)
    if len(without_missing(column)) < (1 - MOST_MISSING) * len(column) or words & CHANGE_WORDS:
        return None
    if is_moment(column):
        if words & IDENTIFIER_WORDS and not words & TIME_WORDS:
            return None
        if is_of_item(first, name, found.get("item", "")):
            return None
        is_constant = column.n_unique() == 1  # also in the first rows of a log that is sorted by days
        return 1 if words & (END_WORDS | SESSION_WORDS) or is_constant or not words & (TIME_WORDS | START_WORDS) else 0
    return _rank_of_numbers(column, words)


def _rank_of_numbers(column: pl.Series, words: set[str]) -> int | None:
    """Return 2 for numbers or text that the name alone calls times; None for counts, durations and times of day."""
    known = numbers_or_texts(column)
    if not words & TIME_WORDS or words & (DURATION_WORDS | IDENTIFIER_WORDS | HOURS):
        return None
    if _is_text(known):
        has_digits = fits(int(known.str.contains(r"\d").sum()), len(known))
        return 2 if has_digits and not known.str.contains(CLOCK_TIME).all() else None
    numbers = known.cast(pl.Float64, strict=False).drop_nulls()
    is_constant = len(known) > 1 and numbers.n_unique() == 1
    return 2 if fits(int((numbers >= 0).sum()), len(known)) and not is_constant and not _is_clock(numbers) else None


def _is_text(column: pl.Series) -> bool:
    """Return whether a column has text, and few of its values are numbers."""
    known = without_missing(column)
    return known.dtype == pl.String and not fits(known.cast(pl.Float64, strict=False).count(), len(known))


def _is_clock(numbers: pl.Series) -> bool:
    """Return whether all numbers are times of a day, such as 1730, and not days of a year, such as 1231."""
    high, minutes, hours = float(numbers.max()), numbers % 100, numbers // 100  # type: ignore[arg-type]
    is_clock = FIRST_CLOCK <= high <= LAST_CLOCK and bool((minutes < 60).all())
    is_day = bool((minutes.is_between(1, 31) & hours.is_between(1, 12)).all())
    return is_clock and not is_day
