"""Times as they are written → whole seconds; those that are none, with what they must be instead."""

import calendar
import shlex
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.files.bad_rows import LINE, BadRows
from bert4rec.prepare.read.fields import Fields
from bert4rec.prepare.read.times import FORMS, LARGEST_SECONDS, Times, fitting_forms
from bert4rec.runtime.errors import DataError

FILE = Path("t.csv")
NOW = 1_700_000_000
NO_TIME = "must be a time: a number from 0, or text like 2024-03-19T10:27:00"


def cast(column: Sequence[Any], *, unit: Any = "auto", form: str = "") -> tuple[list[Any], BadRows]:
    """The usable times of a column that the source calls `time` too, and the bad rows."""
    bad = BadRows()
    fields = Fields({"time": "time"}, whole_number_ids=False, times=Times(unit, form))
    raw = pl.DataFrame([pl.Series(LINE, range(2, 2 + len(column))), pl.Series("time", column)])
    return fields.cast(raw, FILE, bad)["time"].to_list(), bad


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([1.9, 0.5], [1, 0]),
        ([0, LARGEST_SECONDS], [0, LARGEST_SECONDS]),
        ([date(1970, 1, 2), date(2001, 9, 9)], [86400, 999_993_600]),
        ([datetime(1970, 1, 1, 0, 0, 7, 999_999), datetime(2001, 9, 9, 1, 46, 40)], [7, 1_000_000_000]),
        ([datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)], [7, 1_000_000_000]),
        (["12", "13.5"], [12, 13]),
        (["2001-09-09T01:46:40Z", "2001-09-09 01:46:40.9"], [1_000_000_000, 1_000_000_000]),
        (["2001-09-09T03:46:40+02:00", "2001-09-09"], [1_000_000_000, 999_993_600]),
        (["2001-09-09 03:46:40.123456+0200", "2001-09-08T23:46:40-02:00"], [1_000_000_000, 1_000_000_000]),
        (["2001-09-09 01:46:40.144284 UTC", "2001-09-09 01:46:41 UTC"], [1_000_000_000, 1_000_000_001]),  # BigQuery's
        (["7", "1970-01-02", "8.5", "1970-01-01T00:00:09"], [7, 86400, 8, 9]),
    ],
)
def test_times_become_whole_seconds(times: list[object], seconds: list[int]) -> None:
    found, bad = cast(times)
    assert (found, bad.total) == (seconds, 0)


@pytest.mark.parametrize("as_type", [int, float, str])
@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_the_unit_of_times_is_told_by_their_size_or_by_the_setting(unit: str, ticks: int, as_type: type) -> None:
    young = [as_type(second * ticks) for second in (1_000_000_000, 1_700_000_000)]
    assert cast(young)[0] == cast(young, unit=unit)[0] == [1_000_000_000, 1_700_000_000]
    old = [as_type(second * ticks) for second in (5, 70)]
    assert cast(old, unit=unit)[0] == [5, 70]
    assert cast(old)[0] == [5 * ticks, 70 * ticks]  # taken for seconds


def test_the_first_part_with_numbers_tells_the_unit_of_all_times() -> None:
    fields = Fields({"time": "time"}, whole_number_ids=False)
    parts = [["2001-09-09"], ["x", "", "1500000000000"], ["7000"]]
    frames = [pl.DataFrame({LINE: range(len(part)), "time": part}) for part in parts]
    assert [fields.cast(frame, FILE, BadRows())["time"].to_list() for frame in frames] == [
        [999_993_600], [1_500_000_000], [7],
    ]  # fmt: skip


MODERN = st.integers(10**9, 2 * 10**9)  # seconds


@given(
    unit=st.sampled_from(["ms", "us", "ns"]), seconds=st.lists(MODERN, min_size=3, max_size=20),
    others=st.lists(MODERN, max_size=2), as_type=st.sampled_from([int, str]), named=st.booleans(),
)  # fmt: skip
def test_times_in_a_larger_unit_than_most_are_bad_rows(
    unit: str, seconds: list[int], others: list[int], as_type: type, named: bool
) -> None:
    ticks = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    column = [as_type(second * ticks) for second in seconds] + [as_type(second) for second in others]
    found, bad = cast(column, unit=unit if named else "auto")
    assert (found, bad.total) == (seconds, len(others))


@given(st.lists(MODERN, min_size=3, max_size=20), st.lists(MODERN, max_size=2), st.sampled_from([10**3, 10**6, 10**9]))
def test_times_in_a_smaller_unit_than_most_are_bad_rows(seconds: list[int], others: list[int], ticks: int) -> None:
    found, bad = cast(seconds + [other * ticks for other in others])
    assert (found, bad.total) == (seconds, len(others))


@pytest.mark.parametrize(
    ("times", "unit", "wish"),
    [
        ([NOW * 1000, NOW * 1000, NOW], "auto", "looks like seconds, most times like milliseconds; write all in one"),
        ([str(NOW), str(NOW), str(NOW * 1000)], "auto", "looks like milliseconds, most times like seconds; write all"),
        ([NOW * 1000], "s", "looks like milliseconds, most times too; name the unit: --data.time_unit=ms"),
    ],
)
def test_a_time_in_another_unit_is_told_which(times: list[Any], unit: str, wish: str) -> None:
    _, bad = cast(times, unit=unit)
    (line,) = bad.shown
    assert f'time "{times[-1]}": {wish}' in line


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_short_times_in_a_named_unit_stay_what_they_are(unit: str) -> None:
    ticks = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds = [2, 1500, 1_700_000]  # such as positions in a video
    assert cast([second * ticks for second in seconds], unit=unit)[0] == seconds


@pytest.mark.parametrize(
    "text",
    ["-1", "-0.5", "soon", "nan", "inf", "100000000001", "1e30", "9" * 30, "5 past", "-2.5e-3"],
)
def test_a_time_that_is_none(text: str) -> None:
    found, bad = cast(["1", "2", "3", text])
    assert (found, bad.counts) == ([1, 2, 3], {"time is not a time": 1})
    assert bad.shown == [f't.csv, line 5: time "{text}": {NO_TIME}']


@pytest.mark.parametrize(
    ("times", "form"),
    [
        (["19.3.2024", "1.4.2024"], "%d.%m.%Y"),
        (["31/12/2020"], "%d/%m/%Y"),
        (["01/02/2020", "12/31/2020"], "%m/%d/%Y"),
        (["12/31/2020 10:27 PM"], "%m/%d/%Y %I:%M %p"),
        (["31/12/20 9:05"], "%d/%m/%y %H:%M"),
        (["31 Dec 2020"], "%d %b %Y"),
        (["Dec 31, 2020"], "%b %d, %Y"),
        (["2020/12/31", "soon", *["2020/12/30"] * 9], "%Y/%m/%d"),
        (["2020-12-31 10:27"], "%Y-%m-%d %H:%M"),
        (["31.12.2020 10:27:01", "31.12.2020 10:27:01.5"], "%d.%m.%Y %H:%M:%S.%f"),
        (["19/Mar/2024:10:27:00 +0000"], "%d/%b/%Y:%H:%M:%S %z"),
        (["Tue Mar 19 10:27:00 +0000 2024"], "%a %b %d %H:%M:%S %z %Y"),
    ],
)
def test_dates_in_another_form_are_told_how_to_name_it(times: list[str], form: str) -> None:
    found, bad = cast(times)
    assert (found, bad.counts) == ([], {"time is not a time": len(times)})
    option = shlex.quote(f"--data.time_format={form}")
    assert bad.shown[0] == f't.csv, line 2: time "{times[0]}": {NO_TIME}; these rows fit {option}'
    assert cast(times, form=form)[1].total == times.count("soon")


def test_where_day_and_month_cannot_be_told_apart_both_forms_are_offered() -> None:
    _, bad = cast(["01/02/2020", "03/04/2020"])
    both = "; these rows fit --data.time_format=%d/%m/%Y or --data.time_format=%m/%d/%Y: only you know which"
    assert bad.shown[0].endswith(both)


@pytest.mark.parametrize(
    "times", [["1969-12-31"], ["2024-13-01", "2024-12-01"], ["31/12/2020", "7"], ["31/12/2020", "2020.12.31"], ["5 p."]]
)
def test_no_form_is_offered_that_does_not_fit(times: list[str]) -> None:
    _, bad = cast(times)
    assert bad.shown[0] == f't.csv, line 2: time "{times[0]}": {NO_TIME}'


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.datetimes(datetime(1995, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)), min_size=1, max_size=5),
    st.sampled_from([*FORMS, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f UTC", "%Y-%m-%d"]),
)
def test_times_in_a_usual_form_are_read_or_told_a_form_that_reads_them(times: list[datetime], form: str) -> None:
    texts = [time.strftime(form) for time in times]
    seconds = [calendar.timegm(datetime.strptime(text, form).utctimetuple()) for text in texts]
    found, bad = cast(texts)
    if bad.total == 0:
        assert found == seconds
    else:
        assert "; these rows fit " in bad.shown[0]
        assert (seconds, bad.total) in [
            (cast(texts, form=fit)[0], len(texts)) for fit in fitting_forms(pl.Series(texts))
        ]


@pytest.mark.parametrize(
    ("form", "times", "seconds"),
    [
        ("%d/%m/%Y", ["02/01/1970", " 3/1/1970 "], [86_400, 172_800]),
        ("%m/%d/%Y %I:%M:%S %p", ["01/02/1970 12:00:01 AM", "01/02/1970 12:00:01 PM"], [86_401, 129_601]),
        ("%d.%m.%y %H:%M", ["09.09.01 01:46"], [999_999_960]),
        ("%Y-%m-%d %H:%M:%S.%f", ["2001-09-09 01:46:40.5", "2001-09-09 01:46:40.123456"], [10**9, 10**9]),
        ("%Y-%m-%dT%H:%M%z", ["2001-09-09T01:46+0000", "2001-09-09T03:46+02:00"], [999_999_960, 999_999_960]),
        ("%a %b %d %H:%M:%S UTC %Y", ["Sun Sep 09 01:46:40 UTC 2001"], [10**9]),
        ("%Y%m%d", ["19700102", "20010909"], [86_400, 999_993_600]),
        ("%Y%m%d", [19700102, 20010909], [86_400, 999_993_600]),
        ("%s", ["1000000000"], [10**9]),
    ],
)
def test_times_of_text_are_read_by_the_form_that_is_named(form: str, times: list[Any], seconds: list[int]) -> None:
    found, bad = cast(times, form=form)
    assert (found, bad.total) == (seconds, 0)


@pytest.mark.parametrize("text", ["2020-12-31", "1000000000", "31/12/20200", "31/13/2020", "31/12/2020 10:00", "x"])
def test_a_time_that_does_not_fit_the_form_is_none(text: str) -> None:
    found, bad = cast(["31/12/2020", text], form="%d/%m/%Y")
    assert (found, bad.counts) == ([1_609_372_800], {"time is not a time": 1})
    wish = 'must be a time in the form data.time_format = "%d/%m/%Y"'
    assert bad.shown == [f't.csv, line 3: time "{text}": {wish}']


@pytest.mark.parametrize(
    ("times", "hint"),
    [
        (["12/31/2020", "12/30/2020"], "; these rows fit --data.time_format=%m/%d/%Y"),
        (["2020-12-31", "1000000000"], "; these rows are read without it: leave it empty"),
        (["soon"], ""),
    ],
)
def test_a_form_that_does_not_fit_is_told_what_does(times: list[str], hint: str) -> None:
    _, bad = cast(times, form="%d/%m/%Y")
    wish = 'must be a time in the form data.time_format = "%d/%m/%Y"'
    assert bad.shown[0] == f't.csv, line 2: time "{times[0]}": {wish}{hint}'


WRITE = "write it like %d/%m/%Y %H:%M"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("%Q", f"no such form of times (cannot format timezone-aware Datetime with format '%Q'); {WRITE}"),
        ("%d/%m/%Y %H", f"no such form of times (Please either specify both hour and minute, or neither.); {WRITE}"),
        ("dd/mm/yyyy", f"must name day, month and year; {WRITE}"),
        ("%H:%M", f"must name day, month and year; {WRITE}"),
        ("%m/%Y", f"must name day, month and year; {WRITE}"),
        ("%F %T %Z", "names of time zones are not read; use %z for offsets, or write UTC in place of %Z"),
    ],
)
def test_a_form_that_cannot_be_read_is_refused_at_once(form: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        Times(form=form)
    assert str(caught.value) == f'data.time_format = "{form}": {message}'


def test_a_column_of_times_needs_no_form() -> None:
    with pytest.raises(DataError) as caught:
        cast([date(2001, 9, 9)], form="%d/%m/%Y")
    assert str(caught.value) == (
        't.csv: column "time" has type Date: data.time_format = "%d/%m/%Y" is for text; leave it empty'
    )
