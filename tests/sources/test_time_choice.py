"""The form of a log's times is recognized and said; where two fit, the user is asked; one bad value costs one row."""

import calendar
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.tables import Data, Preprocessing
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.errors import DataError
from bert4rec.sources.interactions import Interactions, open_histories
from bert4rec.sources.time_choice import choose_times
from bert4rec.sources.times import TIME_FORMS, Times
from tests.preparation import Prepare
from tests.sources.log import looked

PATH = Path("log.csv")
Look = Callable[..., tuple[Interactions, pl.DataFrame, list[str]]]


def log_of(times: Sequence[Any], column: str = "order_date") -> pl.DataFrame:
    log = pl.DataFrame([(f"c{k // 4}", f"sku-{k % 7}") for k in range(len(times))], ["user", "item"], orient="row")
    return log.with_columns(pl.Series(column, times, strict=False))


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """A log with these times is looked at."""
    return lambda times, column="order_date", **data: looked(log_of(times, column), tmp_path / "log.csv", **data)


def choose(values: Sequence[Any], *, name: str = "at", usual: str = "") -> tuple[str, list[int | None], str]:
    """The form that is chosen for a column, its seconds, and what is said."""
    column = pl.Series(name, values)
    times = choose_times(column, [column], path=PATH, usual=usual)
    return times.time_format, times.seconds(column).to_list(), times.note


def midnight(year: int, month: int, day: int) -> int:
    """Seconds from 1970 to the start of a day."""
    return calendar.timegm((year, month, day, 0, 0, 0))


EIGHT = calendar.timegm((2026, 1, 5, 8, 0, 0))  # 2026-01-05T08:00:00Z
DAY = EIGHT - 8 * 3600


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5.1.2026 8:00", EIGHT), ("05.01.2026 08:00:00.75", EIGHT), ("05.01.2026 09:00+01:00", EIGHT),
        ("01.13.2026", DAY + 8 * 86_400), ("13/1/2026 8:00", EIGHT + 8 * 86_400),
        ("1/13/2026, 8:00:00 PM", EIGHT + 8 * 86_400 + 43_200), ("1/13/26 8:00am", EIGHT + 8 * 86_400),
        ("01/13/2026 12:00 am", DAY + 8 * 86_400), ("5 Jan 2026", DAY), ("January 5, 2026 8:00 AM", EIGHT),
        ("Mon Jan 05 09:00:00 +0100 2026", EIGHT), ("Mon Jan  5 08:00:00 2026", EIGHT),
        ("Mon, 05 Jan 2026 08:00:00 GMT", EIGHT), ("20260105T090000+0100", EIGHT), ("2026-01-05 08:00:00,123", EIGHT),
        ("20260105.0", DAY), (20260105, DAY), (20260105080000, EIGHT), (20260105.0, DAY), ("20260105080000123", EIGHT),
        (20260105080000123, EIGHT), ("20260105080000.123", EIGHT), ("13012026", DAY + 8 * 86_400),
        (1132026, DAY + 8 * 86_400), (2026010508, EIGHT), ("05-JAN-26 08.00.00.000000 AM", EIGHT),
        ("[05/Jan/2026:08:00:00 +0000]", EIGHT),
    ],
)  # fmt: skip
def test_one_form_that_fits_is_used_and_said(text: Any, seconds: int) -> None:
    form, found, note = choose([text])
    assert (bool(form), found) == (True, [seconds])
    assert note.startswith(f"at read as {form}")


@pytest.mark.parametrize(
    ("values", "form", "seconds"),
    [
        *[([text], "", [EIGHT]) for text in (
            "2026-01-05 08:00:00", "2026-01-05T08:00:00.5Z", "2026-01-05 09:00:00 +0100", "2026-01-05 08:00:00 UTC",
            "2026-01-05T09:00:00+01:00[Europe/Berlin]", EIGHT, f"{EIGHT * 1000}", EIGHT * 10**9)],
        (["2026-01-05"], "", [DAY]), ([5.5], "", [5]), (["260105"], "", [260_105]), ([0, 100_000], "", [0, 100_000]),
        ([*[EIGHT] * 9, 0], "", [*[EIGHT] * 9, None]), ([*[EIGHT] * 9, 7], "", [*[EIGHT] * 9, 7]),
        ([*["2026-01-05 08:00:00"] * 9, "1970-01-01 01:00:00"], "", [*[EIGHT] * 9, None]),
        ([46000, 46001], "excel", [1_765_238_400, 1_765_324_800]), ([46000.3875], "excel", [1_765_271_880]),
        (["46000.39", "46000"], "excel", [1_765_272_096, 1_765_238_400]), (["46000,3875"], "excel", [1_765_271_880]),
        ([*[46000.0] * 9, 5.0], "excel", [*[1_765_238_400] * 9, None]),
    ],
)  # fmt: skip
def test_iso_8601_numbers_and_days_of_spreadsheets(values: list[Any], form: str, seconds: list[int | None]) -> None:
    assert choose(values, name="order date")[:2] == (form, seconds)


def test_what_may_be_read_in_two_ways_is_asked_about() -> None:
    for name, values in (("x", [46000, 46001]), ("at", ["01022026", "03042026"])):
        with pytest.raises(DataError, match="time_format"):
            choose(values, name=name)
    assert choose([46000.5, 46001], name="x")[0] == "excel"
    assert choose([146000, 146001], name="x")[0] == ""
    assert choose(["01.02.2026", "03.04.2026"])[0] == "%d.%m.%Y"  # with dots the day comes first
    assert Times("%d.%m.%Y %H").seconds(pl.Series(["05.01.2026 08"])).to_list() == [EIGHT]


AMBIGUOUS = [form for form in TIME_FORMS if re.match(r"%[dm](.?)%[dm]", form)]
RECENT = st.datetimes(datetime(1996, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@settings(max_examples=60, deadline=None)
@given(times=st.lists(RECENT, min_size=1, max_size=6), form=st.sampled_from(TIME_FORMS), short=st.booleans())
def test_a_column_written_in_a_form_is_read_as_the_same_times(times: list[datetime], form: str, short: bool) -> None:
    if form in AMBIGUOUS:
        times = [*times, datetime(2020, 12, 31, 10, tzinfo=UTC)]  # a day that is no month
    form = form.replace("%B", "%b").replace("%A", "%a") if short else form
    texts = [time.strftime(form) for time in times]
    assert choose(texts)[1] == [calendar.timegm(datetime.strptime(text, form).utctimetuple()) for text in texts]


BOTH = ["01/02/2026", "03/04/2026", "05/06/2026"]


def test_where_day_and_month_could_be_either_the_error_has_both_options(look: Look) -> None:
    for clock in ("", " 10:27:01", " 10:27 AM"):
        with pytest.raises(DataError) as error:
            look([day + clock for day in BOTH * 8])
        words = [word for word in shlex.split(str(error.value)) if word.startswith("--data.time_format=")]
        forms = [word.partition("=")[2] for word in words]
        assert [datetime.strptime("01/02/2026" + clock, form).day for form in forms] == [1, 2]
    assert look(BOTH, time_format="%m/%d/%Y")[1]["time"][0] == midnight(2026, 1, 2)


@pytest.mark.parametrize(
    ("late", "form", "first"),
    [
        ("02/13/2026", "%m/%d/%Y", (2026, 1, 2)), ("13/02/2026", "%d/%m/%Y", (2026, 2, 1)),
        ("02.13.2026", "%m.%d.%Y", (2026, 1, 2)), ("13.02.2026", "%d.%m.%Y", (2026, 2, 1)),
    ],
)  # fmt: skip
def test_a_later_row_tells_day_and_month(late: str, form: str, first: tuple[int, int, int], look: Look) -> None:
    found, rows, _ = look([*[f"01{late[2]}02{late[2]}2026"] * 1500, late])
    assert (found.times.time_format, found.bad.total, rows["time"][0]) == (form, 0, midnight(*first))


def test_a_day_that_reads_equally_in_both_forms_is_read() -> None:
    form, seconds, note = choose(["01/01/2026"] * 5)
    assert (form, seconds) == ("%d/%m/%Y", [midnight(2026, 1, 1)] * 5)
    assert "%m/%d/%Y" in note
    first = pl.Series("at", ["01/01/2026"] * 5)
    with pytest.raises(DataError, match="time_format"):
        choose_times(first, [first, pl.Series(["01/02/2026"])], path=PATH)


@pytest.mark.parametrize(
    ("texts", "nanoseconds"),
    [
        (["05.01.2026 08:00:00", "05.01.2026 08:00:00.25"], [0, 250_000_000]),
        (["2026-01-05 08:00:00,125", "2026-01-05 08:00:00,5"], [125_000_000, 500_000_000]),
        (["20260105T080000.5Z"], [500_000_000]), (["05.01.2026 08:00:00"], None), (["46000.3333"], None),
        (["20260105080000123"], [123_000_000]), ([20260105080000123], [123_000_000]),
    ],
)  # fmt: skip
def test_fractions_of_a_second_are_kept_for_the_order(texts: list[Any], nanoseconds: list[int] | None) -> None:
    column = pl.Series("at", texts)
    fraction = choose_times(column, [column], path=PATH).fraction(column)
    assert (None if fraction is None else fraction.to_list()) == nanoseconds


def test_rows_of_both_forms_are_refused_with_an_example_of_each() -> None:
    with pytest.raises(DataError):
        choose(["13/01/2026", "01/14/2026", *["01/02/2026"] * 20])
    assert choose([*["13/01/2026"] * 11, "01/14/2026"])[1].count(None) == 1


@pytest.mark.parametrize("place", [0, 1500])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%s"])
def test_one_bad_value_is_one_bad_row(place: int, form: str, look: Look) -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    times = [(start + timedelta(days=k % 400)).strftime(form) for k in range(1600 if place > 12 else 12)]
    for bad, kind in (("0000-00-00", "is missing"), ("yesterday", "is not a time"), ("01/14/2026", "is not a time")):
        times[place] = bad
        found, rows, _ = look(times)
        assert found.columns["time"] == "order_date"
        assert (found.bad.counts, len(rows)) == ({f"time {kind}": 1}, len(times) - 1)


def test_one_bad_rating_leaves_the_ratings(tmp_path: Path) -> None:
    log = log_of([f"2026-01-0{1 + k % 9}" for k in range(12)])
    log = log.with_columns(rating=pl.Series(["n/a" if k == 3 else f"{k % 5}" for k in range(12)]))
    found, *_ = looked(log, tmp_path / "rated.csv")
    assert (found.columns["rating"], found.bad.counts) == ("rating", {"rating is missing": 1})


@pytest.mark.parametrize(("value", "dtype"), [("yesterday", str), (-5, int), ("-5.5", str), ("08:15", str)])
def test_a_column_named_like_a_time_that_is_not_one_is_named_with_its_first_value(
    value: Any, dtype: type, look: Look
) -> None:
    found, _, (warning,) = look([dtype(value)] * 24)
    assert (found.order["by"], warning.partition(" ")[0], f'"{value}"' in warning) == ("file", "order_date", True)


def test_a_dataset_that_extends_another_reads_times_as_that_one(prepare: Prepare, tmp_path: Path) -> None:
    extends: list[str] = []
    for folder, times in (("dataset", ["13/01/2026", *BOTH * 8]), ("next", BOTH * 8), ("iso", ["2026-02-01"] * 24)):
        log_of(times).write_csv(tmp_path / f"{folder}.csv")
        options = [f"--data.path={tmp_path / f'{folder}.csv'}", "--preprocessing.n_eval_negatives=1", *extends]
        dataset = prepare("--data.source=table", *options, folder=folder)
        extends = [f"--data.extends={tmp_path / 'dataset'}"]
        first = (2026, 1, 13) if folder == "dataset" else (2026, 2, 1)
        assert read_metadata(dataset)["time_span"][0] == midnight(*first)


@pytest.mark.parametrize("text", ["01/02/2026", "2026-02-01", "1769904000", "Feb 1, 2026"])
@pytest.mark.parametrize("column", ["order_date", "time"])
def test_histories_are_read_as_the_dataset_or_in_the_one_form_that_fits(text: str, column: str, tmp_path: Path) -> None:
    pl.DataFrame({"user": ["c1"], "item": ["sku-1"], column: [text]}).write_csv(tmp_path / "histories.csv")
    data = Data(
        source="table", user_column="user", item_column="item", time_column="order_date", time_format="%d/%m/%Y"
    )
    ((rows, _),) = open_histories(f"{tmp_path / 'histories.csv'}", data, Preprocessing(), is_named=False)
    assert rows["time"].to_list() == [midnight(2026, 2, 1)]


def test_times_in_the_future_do_not_make_items_seasonal_or_gone(prepare: Prepare, tmp_path: Path) -> None:
    start = datetime(2025, 1, 5, tzinfo=UTC)
    times = [(start + timedelta(hours=k)).strftime("%Y-%m-%dT%H:%M:%S") for k in range(1500)]
    log_of([*times, *["2099-01-01T00:00:00"] * 30]).write_csv(tmp_path / "log.csv")
    options = ["--data.source=table", f"--data.path={tmp_path / 'log.csv'}", "--preprocessing.n_eval_negatives=1"]
    log = read_metadata(prepare(*options))["log"]
    assert (log["gone_items"], log["seasonal_items"]) == (0, 0)


def test_a_price_as_the_item_is_doubted(look: Look) -> None:
    for column, is_doubted in (("price", True), ("sku", False)):
        warnings = look([k % 5 for k in range(24)], column, item_column=column)[2]
        assert any(f"is {column} really the item?" in line for line in warnings) == is_doubted


@pytest.mark.parametrize("start", ["0", "1970-01-01", "1970-01-01 00:00:00"])
def test_the_begin_of_1970_among_later_times_is_a_missing_one(start: str, look: Look) -> None:
    form = "%s" if start == "0" else "%Y-%m-%d %H:%M:%S"
    times = [(datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=k)).strftime(form) for k in range(400)]
    found, rows, _ = look([*times, start])
    assert (found.bad.counts, rows["time"].min()) == ({"time is missing": 1}, DAY)


def test_six_digits_in_a_column_of_dates_are_doubted_with_the_forms_that_fit(look: Look) -> None:
    _, _, (warning,) = look([f"2601{1 + k:02}" for k in range(24)])
    assert "--data.time_format=%y%m%d" in warning
    _, rows, _ = look([10126 + 10000 * k for k in range(24)], time_format="%d%m%y")
    assert (rows["time"].min(), rows["time"].max()) == (midnight(2026, 1, 1), midnight(2026, 1, 24))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("month", ["2026-01", "2026-02"]), ("Monat", ["202601", "202602"]), ("week", ["2026-W05", "2026-W06"]),
        ("year", ["2024", "2026"]), ("month", ["3", "4"]), ("hour", ["8", "9"]),
    ],
)  # fmt: skip
def test_months_weeks_and_years_are_named_with_what_to_write(column: str, values: list[str], look: Look) -> None:
    found, _, (warning,) = look(values * 12, column)
    assert (found.order["by"], warning.partition(" ")[0]) == ("file", column)
    if "no day" in warning:
        assert f"--order={column}" in warning
        assert look(values * 12, column, order_column=column)[0].order["by"] == "column"


def test_seconds_as_float32_are_warned_of(tmp_path: Path) -> None:
    log = log_of([EIGHT + 20 * k for k in range(24)])
    for dtype, is_warned in ((pl.Float32, True), (pl.Float64, False)):
        warnings = looked(log.cast({"order_date": dtype}), tmp_path / "log.parquet")[2]
        assert any("order_date has type Float32" in line for line in warnings) == is_warned
