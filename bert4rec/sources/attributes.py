"""Find the columns of a log that depend on the item alone, and say why other columns are not used.

The first rows tell which columns may depend on the item. Their values are collected while all rows are read; a column
in which every item has one value becomes an attribute of the items.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import polars as pl

from bert4rec.runtime.errors import join_names, pluralize
from bert4rec.sources.column_words import CHANGE_WORDS, TIME_WORDS, name_words
from bert4rec.sources.columns import looks_like_time
from bert4rec.sources.text_rows import OTHER
from bert4rec.sources.text_values import MISSING_TEXTS, shown

LEAST_JUDGED = 3  # items with several rows, from which a column is known to depend on the item
BY_CHANCE = 0.05  # largest probability that a column that does not depend on the item looks so
SEVERAL_SHARE, SEVERAL_FROM = 0.2, 10  # share of the items with several values, and the number of items that shows it
NEARLY_NONE = 0.05  # share of baskets with several values in a column of their numbers
ROW_ID_SHARE = 0.9  # share of different values in a column of ids of rows
EXACT_INTEGERS = 2**53  # whole numbers below it are exact as Float64
MOST_LINES = 12  # of columns; the rest is named in one line
MOST_NAMES = 40  # in that line
DIFFERS = "differs"  # begins the reason that a column is not used because some items have several values
TITLE_COLUMNS = {"title", "name", "description"}
RANGE_SUFFIXES, COUNT_SUFFIX = ("\nlow", "\nhigh"), "\ncount"


class Evidence(NamedTuple):
    """The statistics of a column in groups of rows (of one item, or of one user).

    `n_values`: 0, 1, or 2 for several values in the whole column. Of `n_groups` groups with two rows or more,
    `n_varied` have several values. `chance`: probability that all of them agree by chance.
    """

    n_values: int
    n_groups: int
    n_varied: int
    chance: float

    @property
    def depends(self) -> bool:
        """Return whether the column depends on the group alone."""
        return not self.n_varied and self.nearly_depends

    @property
    def nearly_depends(self) -> bool:
        """Return whether the column depends on the group alone, but for a few groups."""
        few = NEARLY_NONE * self.n_groups
        return self.n_varied <= few and self.n_groups >= LEAST_JUDGED and self.chance <= BY_CHANCE

    @property
    def varies(self) -> bool:
        """Return whether the column clearly does not depend on the group."""
        return self.n_groups >= SEVERAL_FROM and self.n_varied > SEVERAL_SHARE * self.n_groups

    def differences(self) -> str:
        """Return in which share of the groups, or in how many if they are few, the column has several values."""
        if 100 * self.n_varied < self.n_groups:
            return f"{DIFFERS} in {self.n_varied:,} of {self.n_groups:,} items with several rows"
        return f"{DIFFERS} in {100 * self.n_varied / self.n_groups:.0f} % of the items with several rows"


class _Parts:
    """Rows of items that come in parts, which `join` merges: at most about twice the merged rows are kept in memory."""

    def __init__(self, empty: pl.DataFrame) -> None:
        self._parts = [empty]
        self._n_merged = self._n_pending = 0

    def append(self, part: pl.DataFrame) -> None:
        self._parts.append(part)
        self._n_pending += len(part)
        if self._n_pending > max(self._n_merged, 1 << 20):
            self.rows()

    def rows(self) -> pl.DataFrame:
        """Return the merged rows."""
        if len(self._parts) > 1:
            self._parts = [self.join()]
            self._n_merged, self._n_pending = len(self._parts[0]), 0
        return self._parts[0]

    def join(self) -> pl.DataFrame:
        raise NotImplementedError


class ItemValues(_Parts):
    """The first value of each item in the `columns` (key → column) of a log, from rows that come in parts.

    Missing values are ignored. Numbers are equal however they are written: 1.5, 1.50.
    """

    def __init__(self, columns: Mapping[str, str] = MappingProxyType({}), by: Sequence[str] = ("item",)) -> None:
        super().__init__(pl.DataFrame(schema=[*by]))
        self.columns, self._by = dict(columns), [*by]  # can be pickled

    def add(self, rows: pl.DataFrame) -> None:
        """Add the rows of a part (`item` and the keys of its columns)."""
        keys = [key for key in self.columns if key in rows.columns]
        if not keys:
            return
        values = rows.select(*self._by, *(_plain(rows[key]) for key in keys))
        codes = [_code(values[key]) for key in keys]
        lows, highs = ([code.alias(f"{code.name}{end}") for code in codes] for end in RANGE_SUFFIXES)
        counts = [values[key].is_not_null().cast(pl.UInt32).alias(f"{key}{COUNT_SUFFIX}") for key in keys]
        self.append(self._grouped(values.with_columns(*lows, *highs, *counts), keys))

    def first(self, keys: Sequence[str]) -> pl.DataFrame:
        """Return each item, in ascending order, with its first values in the columns `keys`, by column."""
        merged = self.rows()
        present = {key: merged[key] if key in merged.columns else pl.lit(None, pl.String) for key in keys}
        return merged.select(*self._by, **{self.columns[key]: values for key, values in present.items()}).sort(self._by)

    def evidence(self, key: str) -> Evidence:
        """Return what the rows that were added say of a column."""
        merged = self.rows()
        if key not in merged.columns:
            return Evidence(0, 0, 0, 1.0)
        low, high, count = (merged[f"{key}{end}"] for end in (*RANGE_SUFFIXES, COUNT_SUFFIX))
        present = low.drop_nulls()
        n_values = min(2, pl.concat([present, high.drop_nulls()]).n_unique())
        shares = present.value_counts(normalize=True)["proportion"] if len(present) else pl.Series([1.0])
        n_tests = int((count - count.clip(upper_bound=1)).sum())
        return Evidence(n_values, int((count > 1).sum()), int((low != high).sum()), float((shares**2).sum()) ** n_tests)

    def join(self) -> pl.DataFrame:
        """Return the values of the items in all parts."""
        names = dict.fromkeys(name for part in self._parts for name in part.columns)
        types = {name: {part.schema[name] for part in self._parts if name in part.columns} for name in names}
        as_text = [name for name in names if _mixes(types[name])]
        parts = [part.cast({name: pl.String for name in as_text if name in part.columns}) for part in self._parts]
        keys = [key for key in self.columns if key in names]
        return self._grouped(pl.concat(parts, how="diagonal_relaxed"), keys)

    def _grouped(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        low, high = RANGE_SUFFIXES
        return rows.group_by(self._by).agg(
            *(pl.col(key).first(ignore_nulls=True) for key in keys),
            *(pl.col(f"{key}{low}").min() for key in keys),
            *(pl.col(f"{key}{high}").max() for key in keys),
            *(pl.col(f"{key}{COUNT_SUFFIX}").sum() for key in keys),
        )


def _plain(column: pl.Series) -> pl.Series:
    """Return the values with null for missing ones, text without blanks around it, durations in seconds."""
    if column.dtype == pl.Duration:
        return column.dt.total_microseconds() / 1e6
    if column.dtype == pl.String:
        return column.str.strip_chars().replace(dict.fromkeys(MISSING_TEXTS))
    return column.fill_nan(None) if column.dtype.is_float() else column


def _code(column: pl.Series) -> pl.Series:
    """Return a number for each value, the same for equal ones; null for a missing one."""
    name = column.name
    text = pl.col(name).cast(pl.String)
    number = text.cast(pl.Float64, strict=False)
    is_number = (number.abs() < EXACT_INTEGERS).fill_null(value=False)
    code = pl.when(is_number).then((number + 0.0).hash()).when(text.is_not_null()).then(text.hash())
    return column.to_frame().select(code.alias(name)).to_series()


def _mixes(dtypes: set[pl.DataType]) -> bool:
    """Return whether values of different types have no common type but text."""
    return len(dtypes) > 1 and not all(dtype.is_numeric() or dtype == pl.Null for dtype in dtypes)


class FirstRows(NamedTuple):
    """The first usable `rows`, and what they say of the other `columns` (key → column) by item, user and visit."""

    rows: pl.DataFrame
    columns: Mapping[str, str]
    items: ItemValues
    users: ItemValues
    visits: ItemValues | None  # of a user and time


def judge(rows: pl.DataFrame, columns: Mapping[str, str]) -> FirstRows:
    """Return what the first `rows` (`user`, `item`, `time` if known, and the keys of `columns`) say of the columns."""
    items, users = ItemValues(columns), ItemValues(columns, by=["user"])
    visits = ItemValues(columns, by=["user", "time"]) if "time" in rows.columns else None
    for values in filter(None, (items, users, visits)):
        values.add(rows)
    return FirstRows(rows, columns, items, users, visits)


def may_depend_on_item(first: FirstRows, key: str) -> bool:
    """Return whether the first rows leave it open that a column depends on the item alone."""
    item_evidence = first.items.evidence(key)
    return not item_evidence.varies and not (item_evidence.n_varied and first.users.evidence(key).depends)


def why_unused(first: FirstRows, key: str, item_evidence: Evidence, times: str) -> str:
    """Return why a column that does not depend on the item is not used.

    `item_evidence`: of the first rows or of all. `times`: the column that orders the rows; "" if the file does.
    """
    name = first.columns[key]
    values = first.rows[key].drop_nulls() if key in first.rows.columns else pl.Series([], dtype=pl.String)
    reason = _reason(first, key, values, item_evidence, times)
    if name_words(name) & TIME_WORDS and len(values) and not looks_like_time(values.rename(name)):
        return f"{reason} (named like a time, but no time: {shown(values[0])})"
    return reason


def _reason(first: FirstRows, key: str, values: pl.Series, item_evidence: Evidence, times: str) -> str:
    name, n_rows = first.columns[key], len(first.rows)
    if not item_evidence.n_values:
        return "empty"
    if item_evidence.n_values == 1:
        return f"the same in all rows{f': {shown(values[0])}' if len(values) else ''}"
    if len(values) and looks_like_time(values.rename("")):
        if name_words(name) & CHANGE_WORDS:
            return "looks like a time, but by its name not that of an event"
        return f"looks like a time; the rows are in the order of {times or 'the file'}; --time={name} takes it"
    is_new_for_items = item_evidence.varies or not item_evidence.n_groups
    if is_new_for_items and n_rows >= SEVERAL_FROM and values.n_unique() >= ROW_ID_SHARE * n_rows:
        return "a different value in nearly every row"
    if first.users.evidence(key).depends:
        return "depends on the user"
    if first.visits and first.visits.evidence(key).nearly_depends:
        return "one value for each user and time, as the number of a basket"
    if not item_evidence.n_varied:
        return "too few items have several rows to tell whether it depends on the item"
    is_title = values.dtype == pl.String and name_words(name) & TITLE_COLUMNS
    return item_evidence.differences() + (f"; --title={name} takes the first of each item" if is_title else "")


def reason_lines(lines: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each column and its reason; columns with the same reason share a line.

    >>> [*reason_lines({"a": "empty", "b": "depends on the user", "c": "empty"})]
    ['  a, c: empty', '  b: depends on the user']
    """
    names: dict[str, list[str]] = {}
    for name, text in lines.items():
        names.setdefault(text, []).append(name or '""')
    groups = [*names.items()]
    n_lines = MOST_LINES if len(groups) > MOST_LINES + 1 else len(groups)
    for text, group in groups[:n_lines]:
        yield f"  {join_names(group, MOST_NAMES)}: {text}"
    if rest := [name for _, group in groups[n_lines:] for name in group]:
        yield f"  and {pluralize(len(rest), 'column')} more: {join_names(rest, MOST_NAMES)}"


def keys_of(columns: Sequence[str]) -> dict[str, str]:
    """Return key → column, with keys under which no field is read.

    >>> keys_of(["brand"])
    {'\\nbrand': 'brand'}
    """
    return {f"{OTHER}{name}": name for name in columns}


class FirstItemRows(_Parts):
    """The first row of each item, from rows (`item` and `others`) that come in parts."""

    def __init__(self, **others: type[pl.DataType]) -> None:
        super().__init__(pl.DataFrame(schema={"item": pl.Int64, **others}))

    def add(self, rows: pl.DataFrame) -> None:
        """Add a part. Numbers become text if the items of any part are text."""
        self.append(rows.unique("item", keep="first", maintain_order=True))

    def join(self) -> pl.DataFrame:
        """Return the first row of each item in all parts."""
        is_text = any(part["item"].dtype == pl.String for part in self._parts)
        parts = [part.cast({"item": pl.String}) for part in self._parts] if is_text else self._parts
        return pl.concat(parts).unique("item", keep="first", maintain_order=True)
