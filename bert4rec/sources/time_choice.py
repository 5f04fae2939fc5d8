"""Choose how the times of a table are read, by its values; all rows are read only if day and month could be either."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from bert4rec.runtime.errors import DataError
from bert4rec.sources.columns import is_named_like_time
from bert4rec.sources.times import (
    DECIDING_ROWS,
    DIGIT_FORMS,
    EXCEL,
    EXCEL_SINCE,
    EXCEL_UNTIL,
    ONE_FORM,
    Times,
    excel_days,
    fits,
    form_of,
    numbers_or_texts,
    option_of,
    twin_of,
)

DECISIVE = 10  # times as many values that only one form reads as values that only the other one reads
EXCEL_START = datetime(1899, 12, 30, tzinfo=UTC)


def choose_times(first: pl.Series, values: Iterable[pl.Series], *, path: Path, usual: str = "") -> Times:
    """Return how a column of times is read, given its `first` values; a `note` says what was recognized.

    All `values` are read only if day and month could be either. `usual`: a format that is used if it fits, such as that
    of the dataset to extend. Raises `DataError`, which names the file at `path`, if two formats fit and give different
    times.
    """
    column, rows = first.name, first.head(DECIDING_ROWS)
    known = numbers_or_texts(rows)
    if not len(known):
        return Times()
    if usual and fits(Times(usual).seconds(known).count(), len(known)):
        return Times(usual, note=f"{column} read as {usual}, as before")
    place = f'{path}: {column} "{known[0]}"'
    if fits(excel_days(known).count(), len(known)):
        form, detail = _form_of_numbers(known, values, place)
    elif fits(Times().seconds(known).count(), len(known)):
        return Times()
    elif not (form := form_of(known)):
        return Times(usual)  # whose name the message of the first unusable row has
    else:
        form, detail = _form_of_text(known, values, form, place)
    if not form:
        return Times()
    n_read = Times(form).seconds(known).count()
    share = f"all of the first {len(rows):,}" if n_read == len(rows) else f"{n_read:,} of the first {len(rows):,}"
    return Times(form, note=f"{column} read as {form}{detail}, which {share} rows fit")


def _form_of_numbers(first: pl.Series, values: Iterable[pl.Series], place: str) -> tuple[str, str]:
    """Return the format of numbers that are dates, and words about it; "" for numbers in seconds or parts of them."""
    form = form_of(first)
    if form == "%Y%m%d%H":
        return form, f", dates with an hour (if these are seconds: {option_of('s')})"
    if form in DIGIT_FORMS:
        return _form_of_text(first.cast(pl.String), values, form, place)
    days = excel_days(first).drop_nulls()
    likely = days.filter((days >= EXCEL_SINCE) & (days < EXCEL_UNTIL))
    if not fits(len(likely), len(first)):
        return "", ""
    day = EXCEL_START + timedelta(days=likely[0])
    shown = f"{likely[0]:.10g} is {day.strftime('%Y-%m-%d')}"
    if (likely == likely.floor()).all() and not is_named_like_time(first.name):
        raise DataError(
            f"{place}: may be a day as Excel counts them ({shown}), or a running number: only you know whether "
            f"{option_of(EXCEL)} or {option_of('s')}"
        )
    return EXCEL, f", days as spreadsheets count them ({shown}; if these are seconds: {option_of('s')})"


def _form_of_text(first: pl.Series, values: Iterable[pl.Series], form: str, place: str) -> tuple[str, str]:
    """Return `form`, or the one with day and month exchanged if the values tell so, and words about it."""
    twin = twin_of(form)
    if not twin:
        return form, ""
    evidence = _Evidence(form, twin)
    evidence.add(first)
    if chosen := evidence.decided():
        return chosen, ""
    evidence = _Evidence(form, twin)
    for part in values:
        evidence.add(part.cast(pl.String))
        if chosen := evidence.decided():
            return chosen, f' ("{evidence.examples[chosen]}" is read in no other way)'
    if all(evidence.only.values()):
        examples = " and ".join(f'"{evidence.examples[one]}" fits only {one}' for one in (form, twin))
        raise DataError(f"{place}: the column has two forms of times: {examples}; {ONE_FORM}")
    if evidence.is_same:
        return form, f" ({twin} gives the same times)"
    if form.startswith("%d."):
        return form, ""  # with dots, the day comes first wherever nothing tells otherwise
    raise DataError(
        f"{place}: day and month could be either in all rows: only you know whether {option_of(form)} or "
        f"{option_of(twin)}"
    )


class _Evidence:
    """Count the values that only one of two forms reads."""

    def __init__(self, form: str, twin: str) -> None:
        self.only = {form: 0, twin: 0}
        self.is_same = True
        self.examples: dict[str, str] = {}

    def add(self, values: pl.Series) -> None:
        """Count the `values`, which are text."""
        one, other = (Times(form).seconds(values) for form in self.only)
        self.is_same = self.is_same and one.eq_missing(other).all()
        for form, seconds, others in zip(self.only, (one, other), (other, one), strict=True):
            if len(only := values.filter(seconds.is_not_null() & others.is_null())):
                self.only[form] += len(only)
                self.examples.setdefault(form, str(only.min()))

    def decided(self) -> str:
        """Return the form that reads far more values than the other one; "" if there is none."""
        few, most = sorted(self.only, key=self.only.__getitem__)
        return most if self.only[most] > DECISIVE * self.only[few] else ""
