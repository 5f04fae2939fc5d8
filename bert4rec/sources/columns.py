"""Cast the columns of a log to ids, times and ratings, check every row, and guess what columns hold to give advice."""

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from bert4rec.dataset.format import NO_EVENT
from bert4rec.runtime.errors import DataError
from bert4rec.sources.column_times import WRITTEN_DATE, is_moment
from bert4rec.sources.column_words import ITEM_WORDS, SESSION_WORDS, TIME_WORDS, USER_WORDS, WORDS, name_words
from bert4rec.sources.ids import SCIENTIFIC, canonical_ids, numbers_or_text, without_rounded
from bert4rec.sources.order_values import order_values
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.times import NO_VALUE, Times, fits, numbers_or_texts, stripped, without_missing

ID_FIELDS = ("user", "item")
OPTIONAL_FIELDS = ("event", "title", "order")  # a row without it is usable
FIELDS = (*ID_FIELDS, "time", "rating", "is_read", *OPTIONAL_FIELDS)
EXPECTED = {
    "rating": "must be a number", "is_read": "must be 0 or 1", "event": "must be text or a number",
    "title": "must be text", "order": "must be numbers, times of day or text",
}  # fmt: skip
MOST_KINDS = 100  # of events; more are rather ids or texts
BAD_VALUES = {"time": "is not a time", "rating": "is not a number", "is_read": "is not 0 or 1"}
CLOSE = 0.75  # smallest similarity of two names, as difflib measures it (1 = equal)


@dataclass
class Fields:
    """Cast the fields of a source, part by part.

    `names` maps each of `FIELDS` that the source has to its column. With `whole_number_ids`, a text id makes a bad row.
    Ids become canonical (`dataset.ids`): Int64 as long as every id of the column is a whole number that fits, and
    String from the first other id on. Floating-point ids must be whole numbers. A row whose only problem is that it
    has no user is that of a guest, and counted as one. Values of the order column are compared by `order_kind`;
    `n_unordered` counts those that are missing, by column. Kinds of events become their numbers in the list `kinds`, to
    which new ones are appended; a missing one is 0.
    """

    names: Mapping[str, str]
    whole_number_ids: bool
    times: Times = field(default_factory=Times)
    order_kind: str = "number"
    n_unordered: Counter[str] = field(default_factory=Counter)
    as_text: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=lambda: [NO_EVENT])

    def cast(self, raw: pl.DataFrame, path: Path, bad: BadRows, *, unit: str = "line") -> pl.DataFrame:
        """Return the usable rows of `raw` (`LINE`, the fields and other columns, as read).

        These are ids, Int64 seconds, Float32 ratings, Int16 kinds of events, titles and values of the order column; and
        if any time has one, the `fraction` of the second in nanoseconds, Int32. Other columns stay as read.

        Rows with a field that is missing or cannot be cast go to `bad`, with their `unit` ("line" or "row") in the file
        `path`. Raises `DataError` for a column type that a field cannot have, and for more than `MOST_KINDS` kinds.
        """
        for name in self.names:
            if expected := self._expected_type(name, raw.schema[name]):
                raise DataError(f'{path}: column "{self.names[name]}" has type {raw.schema[name]}: {expected}')
        others = [name for name in raw.columns if name not in self.names and name != LINE]
        frame = raw.select(*(self._field(name, raw[name]) for name in self.names), *others)
        if "time" in self.names and (fraction := self.times.fraction(raw["time"])) is not None:
            frame = frame.with_columns(fraction)
        needed = [name for name in self.names if name not in OPTIONAL_FIELDS]
        usable = frame
        if any(frame.select(needed).null_count().row(0)):
            usable = frame.drop_nulls(needed)
            is_guest = _is_guest(raw, frame.select(needed))
            bad.guests += int(is_guest.sum())
            is_bad = frame.select(pl.any_horizontal(pl.col(needed).is_null())).to_series() & ~is_guest
            if is_bad.any():
                self._report(raw, frame.select(needed).filter(is_bad), is_bad, path, unit, bad)
        if "order" in self.names and (n_missing := usable["order"].null_count()):
            self.n_unordered[self.names["order"]] += n_missing
        return usable

    def _field(self, name: str, column: pl.Series) -> pl.Series:
        if name in ID_FIELDS:
            return self._id(name, column)
        if name == "time":
            return self.times.seconds(column)
        if name == "order":
            return order_values(column, self.order_kind)
        if name == "event":
            return self._numbers(stripped(column.cast(pl.String)).fill_null(NO_EVENT))
        if name in OPTIONAL_FIELDS:
            return stripped(column.cast(pl.String)).replace("", None)
        number = stripped(column).cast(pl.Float32, strict=False)
        if name == "is_read":
            return (number == 1).set((number != 0) & (number != 1), None).alias(name)
        return number.set(~number.is_finite(), None)

    def _numbers(self, events: pl.Series) -> pl.Series:
        """Return the numbers of the kinds of `events`; new kinds are numbered in the order of their first rows."""
        self.kinds[:] = with_kinds(self.kinds, events.unique(maintain_order=True).to_list(), self.names["event"])
        return events.replace_strict(self.kinds, range(len(self.kinds)), return_dtype=pl.Int16)

    def _id(self, name: str, column: pl.Series) -> pl.Series:
        if name in self.as_text and not column.dtype.is_numeric():
            return without_rounded(canonical_ids(column.cast(pl.String)))
        ids = without_rounded(numbers_or_text(column))
        if self.whole_number_ids:
            return ids.cast(pl.Int64, strict=False)
        if ids.dtype == pl.String:
            self.as_text.add(name)
        return ids.cast(pl.String) if name in self.as_text else ids

    def _report(
        self, raw: pl.DataFrame, frame: pl.DataFrame, is_bad: pl.Series, path: Path, unit: str, bad: BadRows
    ) -> None:
        """Count the bad rows by their first bad field, and keep the messages of the first ones.

        `frame` has the fields of the bad rows, null where they cannot be used.
        """
        first = pl.coalesce(pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in frame.columns)
        bad_rows = raw.filter(is_bad).with_columns(frame.select(first.alias("bad field")))
        for row in bad_rows.head(max(bad.room, 0)).iter_rows(named=True):
            name = row["bad field"]
            bad.show(path, unit, row[LINE], self._problem(name, row[name], raw[name]))
        missing = pl.coalesce(
            pl.when(pl.col("bad field") == name).then(self._is_missing(name, bad_rows[name])) for name in frame.columns
        )
        for name, is_missing, n in (
            bad_rows.group_by("bad field", missing.alias("missing")).len().sort(pl.all()).iter_rows()
        ):
            bad.add(f"{name} {'is missing' if is_missing else BAD_VALUES.get(name, self._kind_of_id(raw[name]))}", n)

    def _kind_of_id(self, column: pl.Series) -> str:
        is_rounded = column.dtype == pl.String and not self.whole_number_ids
        return "has lost its last digits" if is_rounded else "is not a whole number"

    def _is_missing(self, name: str, column: pl.Series) -> pl.Series:
        is_missing = _is_missing(name, column)
        return is_missing | self.times.mean_none(column) if name == "time" else is_missing

    def _problem(self, name: str, value: object, column: pl.Series) -> str:
        if value in (None, "") or (name in ID_FIELDS and value != value):
            return f"{self.names[name]} is missing"
        if self._is_missing(name, pl.Series([value], dtype=column.dtype)).item():
            expected = f"means a missing {'id' if name in ID_FIELDS else name}; write it, or drop the row"
        elif name == "time":
            expected = self.times.expected_value(value, column)
        elif name in ID_FIELDS and isinstance(value, float) and value.is_integer():
            expected = "a floating-point number of this size has lost its last digits; write the ids as whole numbers"
        elif name in ID_FIELDS and re.search(SCIENTIFIC, str(value).strip()):
            expected = "has lost its last digits in a spreadsheet; save the ids as text"
        else:
            expected = self._expected(name)
        return f'{self.names[name]} "{value}": {expected}'

    def _expected(self, name: str) -> str:
        if name in ID_FIELDS:
            return "must be a whole number" if self.whole_number_ids else "must be a whole number or text"
        return EXPECTED[name]

    def _expected_type(self, name: str, dtype: pl.DataType) -> str:
        """Return what the field must be instead of `dtype`; "" if `dtype` can be read."""
        if name == "time":
            return self.times.expected_type(dtype)
        if name in ID_FIELDS:
            is_readable = dtype.is_numeric() or dtype in (pl.String, pl.Categorical, pl.Enum)
        elif name in OPTIONAL_FIELDS:
            is_readable = not dtype.is_nested()
        else:
            is_readable = dtype.is_numeric() or dtype in (pl.String, pl.Boolean)
        return "" if is_readable else self._expected(name)


def with_kinds(kinds: Sequence[str], more: Sequence[str], column: str) -> list[str]:
    """Return the `kinds` of events of a `column` and after them those of `more` that are new.

    Raises `DataError` if they are too many.
    """
    present = [*dict.fromkeys([*kinds, *more])]
    if len(present) > MOST_KINDS + 1:
        raise DataError(
            f"data.event_column = {column}: has more than {MOST_KINDS} values, such as {', '.join(present[1:4])}; "
            "expected: a few kinds of events, such as view and purchase; name another column, or remove it"
        )
    return present


def _is_guest(raw: pl.DataFrame, fields: pl.DataFrame) -> pl.Series:
    """Return which rows lack nothing but a user; `fields` are null where they cannot be used."""
    if "user" not in fields.columns or not fields["user"].null_count():
        return pl.repeat(False, len(raw), eager=True)
    others = [pl.col(name).is_not_null() for name in fields.columns if name != "user"]
    lacks_user = fields.select(pl.all_horizontal(pl.col("user").is_null(), *others)).to_series()
    return lacks_user & _is_missing("user", raw["user"])


def _is_missing(name: str, column: pl.Series) -> pl.Series:
    """Return which values of the field `name`, as read, mean that there is none."""
    text = column.cast(pl.String).fill_null("")
    if name in ID_FIELDS:
        return canonical_ids(text).is_null()
    return text.str.strip_chars().str.to_lowercase().is_in(NO_VALUE)


def looks_like_time(values: pl.Series) -> bool:
    """Return whether a column may hold times: its first `values` are moments, or by its name, numbers from 0.

    A few values that mean a missing time, or are none, do not count against it.
    """
    numbers = numbers_or_texts(values).cast(pl.Float64, strict=False)
    return is_moment(values) or (is_named_like_time(values.name) and fits(int((numbers >= 0).sum()), len(numbers)))


def is_named_like_time(name: str) -> bool:
    """Return whether a column's name has a word for times."""
    return bool(name_words(name) & TIME_WORDS)


def why_no_time(values: pl.Series) -> str:
    """Return why a column that is named like a time cannot hold times, with a value; "" without rows."""
    known = without_missing(values)
    if not len(known):
        return "has no value in the first rows" if len(values) else ""
    readable = numbers_or_texts(known)
    if len(negative := readable.filter(readable.cast(pl.Float64, strict=False) < 0)):
        return f'the value "{negative[0]}" is a number below 0'
    return f'its first value "{known[0]}" is neither a number, a date nor ISO 8601'


def column_advice(named: Mapping[str, str], present: Sequence[str]) -> str:
    """Return the end of a message that a column is missing: the options that name the columns, ready for the shell.

    `named`: field → column, from the settings; `present`: the columns of the file, or its first row.

    >>> column_advice({"user": "user", "item": "item"}, ["customer", "product id", "at", "price"])
    "; try --user=customer '--item=product id' --time=at"
    >>> column_advice({"user": "user", "item": "what"}, ["user", "x"])
    '; name it with --item=…'
    >>> column_advice({"user": "user", "item": "item", "title": "name"}, ["user", "item", "title"])
    '; try --title=title'
    """
    if is_row(present):
        return "; if this is a row and not a header, add --data.has_header=false"
    if (event := named.get("event", "")) and event not in present:
        close = difflib.get_close_matches(event, present, n=1, cutoff=CLOSE)
        return f"; name it with {shlex.quote(f'--data.event_column={close[0]}') if close else '--data.event_column=…'}"
    left = [name for name in present if name not in named.values()]
    found: dict[str, str] = {}
    for kind in (*WORDS, *(other for other in ("order", "title") if other in named)):
        is_missing = kind in named and named[kind] not in present
        if is_missing or (kind == "time" and kind not in named):
            guess = _guess(kind, named.get(kind, ""), [name for name in left if name not in found.values()])
            if guess or is_missing:
                found[kind] = guess
    verb = "try" if any(found.values()) else "name it with"
    options = (shlex.quote(f"--{field}={name}") if name else f"--{field}=…" for field, name in found.items())
    return f"; {verb} {' '.join(options)}"


def _guess(kind: str, named: str, present: Sequence[str]) -> str:
    """Return the column that is probably meant by `named`, or that is named like `kind`; "" if none is likely."""
    if close := difflib.get_close_matches(named, present, n=1, cutoff=CLOSE):
        return close[0]
    whole = [name for name in present if not re.search(r"[;,|\t]", name)]  # else the separator is wrong
    matches = [name for name in whole if name_words(name) & WORDS.get(kind, {kind})]
    return min(matches, key=_doubt, default="") if kind in ("user", "item") else next(iter(matches), "")


def _doubt(name: str) -> int:
    """Return how unlikely the column `name` has the ids: 0 = has ids, 1 = other facts of a user or item, 2 = sessions.

    >>> _doubt("user_pseudo_id"), _doubt("customer"), _doubt("user_agent"), _doubt("session_id")
    (0, 0, 1, 2)
    """
    words = name_words(name)
    if words & SESSION_WORDS and not words & (USER_WORDS - SESSION_WORDS):
        return 2
    return 0 if "id" in words or words <= USER_WORDS | ITEM_WORDS else 1


def is_row(names: Sequence[str]) -> bool:
    """Return whether the names of columns look like the values of a row: one is a number, and they do not count up.

    So does one that is a date, if no name has a word for a field.

    >>> is_row(["7", "A", "1700000000"]), is_row(["1", "2", "3"]), is_row(["user", "item"])
    (True, False, False)
    >>> is_row(["u10", "i25", "2026-01-01T00:00:00"]), is_row(["user", "2026-01-01", "2026-01-02"])
    (True, False)
    """
    are_numbered = [*names] == [str(number) for number in range(1, len(names) + 1)]
    if any(re.search(WRITTEN_DATE, name) for name in names):
        return not any(name_words(name) & words for name in names for words in WORDS.values())
    return not are_numbered and any(re.fullmatch(r"-?\d+(\.\d*)?", name) for name in names)


def are_values(first: pl.DataFrame) -> bool:
    """Return whether the names of all columns look like the first values below them: they differ only in digits.

    >>> are_values(pl.DataFrame({"u10": ["u11", "u7"], "i25": ["i3", "i4"], "buy": ["buy", "buy"]}))
    True
    >>> are_values(pl.DataFrame({"user": ["u11", "u7"], "item": ["i3", "i4"]}))
    False
    """
    if not len(first) or any(dtype != pl.String for dtype in first.dtypes):
        return False
    forms = {name: re.sub(r"(?:\\\d|\d)+", r"\\d+", re.escape(name)) for name in first.columns}
    return any("\\d" in form for form in forms.values()) and all(
        fits(int(column.str.contains(f"^{forms[column.name]}$").sum()), len(column)) for column in first
    )
