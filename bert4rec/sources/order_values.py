"""Read a second column, which orders rows with equal times."""

from collections.abc import Iterator

import polars as pl

from bert4rec.sources.column_times import CLOCK_TIME, is_time_of_day
from bert4rec.sources.column_words import TIME_WORDS, name_words
from bert4rec.sources.times import READ_SHARE, stripped

ORDER_TYPE = pl.Decimal(38, 9)  # orders whole numbers of 64 bits, and fractions, exactly
LARGEST_ORDER = 1e19
ORDERED_SHARE = 0.9
MOST_ASCENDING = 0.02  # share of the steps in time, in a file that is sorted newest first
MANY_TIES = 0.05  # share of the first rows that are tied, from which a column that orders them is offered
SOME = 0.5  # share of the tied groups in which times of day differ, from which on these are offered
SEQUENCES = {
    "sequence", "seq", "position", "pos", "order", "line", "step", "nr", "no", "num", "number", "rank", "index", "idx",
    "timeframe", "row", "clock", *TIME_WORDS,
}  # fmt: skip


def order_kind(first: pl.Series) -> str:
    """Return how the `first` values of a column of order are compared: as "number", time of day ("clock") or "text".

    >>> [order_kind(pl.Series(values)) for values in (["2", "10", ""], ["9:05", "12:30:00"], ["b", "a"])]
    ['number', 'clock', 'text']
    """
    if first.dtype != pl.String:
        return "number"
    known = stripped(first).replace("", None).drop_nulls()
    for kind in ("number", "clock"):
        if len(known) and order_values(known, kind).count() >= ORDERED_SHARE * len(known):
            return kind
    return "text"


def order_values(column: pl.Series, kind: str) -> pl.Series:
    """Return values that sort as the `column` of order does; null for a value that is missing or not of the `kind`.

    >>> order_values(pl.Series(["9:05 PM", "12:30:00"]), "clock").to_list()
    [Decimal('75900.000000000'), Decimal('45000.000000000')]
    """
    if kind == "text":
        return stripped(column.cast(pl.String)).replace("", None).alias("order")
    if column.dtype.is_temporal():
        column = column.to_physical()
    if kind == "clock":
        column = _seconds_of_day(stripped(column.cast(pl.String)))
    column = stripped(column)
    if column.dtype.is_integer():
        return column.cast(ORDER_TYPE).alias("order")
    decimal = column.cast(pl.Float64, strict=False)
    decimal = decimal.set(~(decimal.abs() < LARGEST_ORDER), None).cast(ORDER_TYPE)
    if column.dtype == pl.String:  # exact beyond 2^53
        decimal = column.cast(pl.Int64, strict=False).cast(ORDER_TYPE).fill_null(decimal)
    return decimal.alias("order")


def _seconds_of_day(text: pl.Series) -> pl.Series:
    hour, minute, second, half = (text.str.extract(CLOCK_TIME, group) for group in (1, 2, 3, 4))
    hours = hour.cast(pl.Float64)
    half = half.str.to_lowercase()
    hours = hours.set(half.is_not_null() & (hours == 12), 0.0)  # 12:30 AM comes first
    hours += (half == "p").fill_null(value=False).cast(pl.Float64) * 12
    return hours * 3600 + minute.cast(pl.Float64) * 60 + second.cast(pl.Float64).fill_null(0)


def descends(rows: pl.DataFrame) -> bool:
    """Return whether nearly all times descend from row to row, or within each user's rows; at least two of them do.

    >>> descends(pl.DataFrame({"user": [7, 8, 7, 8], "time": [9, 9, 8, 7]}))
    True
    >>> descends(pl.DataFrame({"user": [7, 8, 7, 8], "time": [7, 9, 9, 7]}))
    False
    """
    for steps in (rows["time"].diff(), rows.select(pl.col("time").diff().over("user")).to_series()):
        n_down, n_up = int((steps < 0).sum()), int((steps > 0).sum())
        if n_down > 1 and n_up <= MOST_ASCENDING * (n_up + n_down):
            return True
    return False


def columns_that_order(rows: pl.DataFrame, others: pl.DataFrame) -> list[str]:
    """Return the columns of `others` that put the tied rows of a log in an order, the likeliest first.

    `rows`: `user`, `item` and, if known, `time` of the first rows; `others`: their other columns. Rows of one user and
    time are tied. A column puts them in an order if it has numbers, not those of the items, that differ between all
    tied rows, and it is named like a sequence or its numbers ascend in the file. A column of times of day does so, too,
    if it differs between some of the tied rows of half of the users and times. Returns [] if few rows are tied.
    """
    keys = [name for name in ("user", "time") if name in rows.columns]
    groups = rows.select(group=pl.struct(keys).rank("dense"), item="item")
    tied = groups["group"].is_duplicated()
    if len(rows) != len(others) or tied.sum() - groups["group"].filter(tied).n_unique() < MANY_TIES * len(rows):
        return []
    found = [*_candidates(groups, others, tied)]
    return sorted(found, key=lambda name: not name_words(name) & SEQUENCES)


def _candidates(groups: pl.DataFrame, others: pl.DataFrame, tied: pl.Series) -> Iterator[str]:
    for column in others:
        if column.dtype.is_nested() or column.dtype == pl.Boolean or (kind := order_kind(column)) == "text":
            continue
        values = order_values(column, kind).cast(pl.Float64)
        table = groups.with_columns(values.alias("value")).filter(tied)
        if not len(table) or table["value"].count() < READ_SHARE * len(table):
            continue
        value = pl.col("value")
        is_clock = is_time_of_day(column)
        least = SOME if is_clock else READ_SHARE  # the rows of a basket have one time of day
        by_group = table.group_by("group").agg(
            differ=(value.n_unique() > 1) if is_clock else (value.n_unique() == pl.len()),
            ascend=(value.diff().drop_nulls() > 0).all(),
        )
        item_groups = table.group_by("item").agg(same=value.n_unique() == 1, n=pl.len()).filter(pl.col("n") > 1)
        is_of_item = len(item_groups) and item_groups["same"].mean() >= READ_SHARE  # type: ignore[operator]
        is_likely = is_clock or name_words(column.name) & SEQUENCES or by_group["ascend"].mean() >= READ_SHARE  # type: ignore[operator]
        if is_likely and not is_of_item and by_group["differ"].mean() >= least:  # type: ignore[operator]
            yield column.name
