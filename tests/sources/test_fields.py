"""Fields as they stand in a file become numbers, text and seconds; other rows are counted by kind, with their place."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.runtime.errors import DataError
from bert4rec.sources.columns import Fields
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.times import LARGEST_SECONDS, Times
from tests.checks import one_line

FILE = Path("t.csv")
BIG = 2**63  # the first whole number that is no Int64


def cast(
    column: Sequence[Any] | pl.Series, name: str = "item", *, whole: bool = False, times: Times | None = None
) -> tuple[list[Any], BadRows]:
    """The usable values of one column, of which the source calls `name` by the same name, and the bad rows."""
    series = pl.Series(name, column)
    bad = BadRows()
    fields = Fields({name: name}, whole_number_ids=whole, times=times or Times())
    frame = fields.cast(pl.DataFrame([pl.Series(LINE, range(2, 2 + len(series))), series]), FILE, bad)
    return frame[name].to_list(), bad


def cast_times(column: Sequence[Any], *, form: str = "") -> tuple[list[Any], BadRows]:
    return cast(column, "time", times=Times(form))


def cast_parts(name: str, *parts: Sequence[Any] | pl.Series) -> list[pl.Series]:
    """The usable values of parts of one column that come one after another."""
    fields = Fields({name: name}, whole_number_ids=False)
    columns = [pl.Series(name, part, None if len(part) else pl.String) for part in parts]
    frames = [pl.DataFrame([pl.Series(LINE, range(len(column)), pl.Int64), column]) for column in columns]
    return [fields.cast(frame, FILE, BadRows())[name] for frame in frames]


@pytest.mark.parametrize(
    ("column", "ids"),  # a missing one is a bad row; without `ids`, they are the text of the column
    [
        *[(ids, None) for ids in (
            ["b", "3", "é x"], ["007", "7", "70"], ["+7"], ["1.5", "1"], ["1e3"], [str(BIG), "1"], ["-0"], ["٣"],
            ["1,234"], ["nano", "nones", "NULLs", "7."], pl.Series([1, BIG], dtype=pl.UInt64))],
        (["9", "3", "-4"], [9, 3, -4]), ([9, 3, -4], [9, 3, -4]), ([str(BIG - 1), str(-BIG)], [BIG - 1, -BIG]),
        (pl.Series([1, 255], dtype=pl.UInt8), [1, 255]), ([7.0, -12.0, float(2**53 - 1)], [7, -12, 2**53 - 1]),
        (pl.Series([2**24 - 1], dtype=pl.Float32), [2**24 - 1]), (["1", "", None, "2"], [1, 2]),
        (["1.0", "22.0", "nan"], [1, 22]),
        (["a", "", None, "2"], ["a", "2"]), (pl.Series(["b", "a", "b"], dtype=pl.Categorical), ["b", "a", "b"]),
        (pl.Series(["b", "a"], dtype=pl.Enum(["a", "b"])), ["b", "a"]),
        (pl.Series(["5", "4", "nil"], dtype=pl.Categorical), [5, 4]),
        *[([*others, text], [1, 22] if others[0] == "1" else others)
          for text in ("nan", "NA", "(null)", "<NA>", "\\N", "undefined", "-", " ")
          for others in (["1", "22"], ["a", "long name"])],
        *[(pl.Series([7.0, None, -12.0, float("nan"), 0.0], dtype=dtype), [7, -12, 0])
          for dtype in (pl.Float64, pl.Float32)],
    ],
)  # fmt: skip
def test_ids_are_numbers_where_all_of_the_column_are_canonical_ones(column: Any, ids: list[Any] | None) -> None:
    found, bad = cast(column)
    assert found == (ids or [str(value) for value in column])
    assert bad.counts == ({"item is missing": n_missing} if (n_missing := len(column) - len(found)) else {})
    assert len(bad.shown) == n_missing


@pytest.mark.parametrize("late", ["x", "07", str(BIG)])
def test_from_the_first_text_on_every_later_part_is_text(late: str) -> None:
    found = cast_parts("item", ["1", "2"], [late], ["3"], [7.0, None], [])
    assert [part.to_list() for part in found] == [[1, 2], [late], ["3"], ["7"], []]
    assert [part.dtype for part in found] == [pl.Int64, *[pl.String] * 4]


def test_the_first_part_with_numbers_tells_the_unit_of_all_times() -> None:
    found = cast_parts("time", ["2001-09-09"], ["x", "", "1500000000000"], ["7000"])
    assert [part.to_list() for part in found] == [[999_993_600], [1_500_000_000], [7]]


WORDS = {
    "item": "item is not a whole number", "rating": "rating is not a number", "is_read": "is_read is not 0 or 1",
    "time": "time is not a time",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "good", "values", "others"),
    [
        ("item", ["1"], [1], ["x", "2.5", str(BIG), "1e3", "1 2", "٣"]),  # of a set that has numbers
        ("item", [1.0], [1], [7.5, float("inf"), -0.25]),
        ("item", [1.0], [1], [float(2**53)]),  # may stand for several
        ("rating", ["1", "-2.5", "1e1"], [1.0, -2.5, 10.0],
         ["inf", "-inf", "1e400", "good", "4,5", "4 5", "0x10"]),
        ("is_read", ["1", "0", "1.0"], [True, False, True], ["2", "-1", "yes"]),
        ("time", ["1", "2", "3"], [1, 2, 3],
         ["-1", "-0.5", "soon", "inf", "100000000001", "1e30", "9" * 30, "5 past", "-2.5e-3"]),
        ("time", ["31/12/2020"], [1_609_372_800],  # in a form that is named
         ["2020-12-31", "1000000000", "31/12/20200", "31/13/2020", "31/12/2020 10:00", "x"]),
    ],
)  # fmt: skip
def test_a_value_that_is_none_is_a_bad_row(name: str, good: list[Any], values: list[Any], others: list[Any]) -> None:
    times = Times("%d/%m/%Y" if good == ["31/12/2020"] else "")
    for value in others:
        found, bad = cast([*good, value], name, whole=isinstance(value, str), times=times)
        assert (found, bad.counts) == (values, {WORDS[name]: 1})
        assert bad.shown[0].startswith(f't.csv, line {2 + len(good)}: {name} "{value}": ')


def test_a_row_whose_only_problem_is_a_missing_user_is_that_of_a_guest() -> None:
    raw = pl.DataFrame({LINE: [2, 3, 4, 5], "user": ["1", "NA", None, "7.5"], "item": ["2", "2", "", "2"]})
    bad = BadRows()
    assert Fields({"user": "user", "item": "item"}, whole_number_ids=True).cast(raw, FILE, bad).rows() == [(1, 2)]
    assert (bad.guests, bad.counts) == (1, {"user is missing": 1, "user is not a whole number": 1})
    assert [line.partition(": ")[0] for line in bad.shown] == ["t.csv, line 4", "t.csv, line 5"]


def test_a_title_may_be_missing() -> None:
    assert cast(["NULL", "x"], "title")[0] == ["NULL", "x"]
    raw = pl.DataFrame({LINE: [2, 3, 4], "item": ["1", "2", ""], "title": [" One ", " ", "x"]})
    bad = BadRows()
    found = Fields({"item": "item", "title": "name"}, whole_number_ids=False).cast(raw, FILE, bad)
    assert (found.rows(), bad.counts) == ([(1, "One"), (2, None)], {"item is missing": 1})


@pytest.mark.parametrize(
    ("name", "column"), [("item", [True]), ("item", [[1]]), ("time", [True]), ("rating", [date(2001, 9, 9)])]
)
def test_a_type_that_is_no_such_field_stops_the_run(name: str, column: list[Any]) -> None:
    with pytest.raises(DataError, match=f'^t.csv: .*"{name}"'):
        cast(column, name)


def test_a_bad_row_counts_once_by_its_first_bad_field_and_the_first_ones_are_shown() -> None:
    names = {"user": "who", "item": "what", "time": "when", "rating": "stars"}
    good = {"user": "1", "item": "2", "time": "3", "rating": "4"}
    wrong = [{}, {"user": "", "rating": "x"}, {"time": "x", "rating": "x"}, {"rating": ""}, {"item": None, "time": ""}]
    raw = pl.DataFrame([{LINE: 10 + i, **good, **changes} for i, changes in enumerate(wrong)])
    bad = BadRows()
    found = Fields(names, whole_number_ids=False).cast(raw, FILE, bad, unit="row")
    assert found.rows() == [(1, 2, 3, 4.0)]
    assert bad.counts == {"user is missing": 1, "item is missing": 1, "time is not a time": 1, "rating is missing": 1}
    shown = ["row 11: who", 'row 12: when "x"', "row 13: stars", "row 14: what"]
    assert all(line.startswith(f"t.csv, {start}") for line, start in zip(bad.shown, shown, strict=True))
    assert found.schema == {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32}


NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("form", "times", "seconds"),
    [
        ("", [1.9, 0.5], [1, 0]), ("", [0, LARGEST_SECONDS], [0, LARGEST_SECONDS]), ("", ["12", "13.5"], [12, 13]),
        ("", [date(1970, 1, 2), date(2001, 9, 9)], [86400, 999_993_600]),
        ("", [datetime(1970, 1, 1, 0, 0, 7, 999_999), datetime(2001, 9, 9, 1, 46, 40)], [7, 10**9]),
        ("", [datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)], [7, 10**9]),
        ("", ["2001-09-09T01:46:40Z", "2001-09-09 01:46:40.9"], [10**9, 10**9]),
        ("", ["2001-09-09T03:46:40+02:00", "2001-09-09"], [10**9, 999_993_600]),
        ("", ["2001-09-09 03:46:40.123456+0200", "2001-09-08T23:46:40-02:00"], [10**9, 10**9]),
        ("", ["2001-09-09 01:46:40.144284 UTC", "2001-09-09 01:46:41 UTC"], [10**9, 10**9 + 1]),  # BigQuery's
        ("", ["7", "1970-01-02", "8.5", "1970-01-01T00:00:09"], [7, 86400, 8, 9]),
        ("%d/%m/%Y", ["02/01/1970", " 3/1/1970 "], [86_400, 172_800]),
        ("%m/%d/%Y %I:%M:%S %p", ["01/02/1970 12:00:01 AM", "01/02/1970 12:00:01 PM"], [86_401, 129_601]),
        ("%d.%m.%y %H:%M", ["09.09.01 01:46"], [999_999_960]),
        ("%Y-%m-%d %H:%M:%S.%f", ["2001-09-09 01:46:40.5", "2001-09-09 01:46:40.123456"], [10**9, 10**9]),
        ("%Y-%m-%dT%H:%M%z", ["2001-09-09T01:46+0000", "2001-09-09T03:46+02:00"], [999_999_960, 999_999_960]),
        ("%a %b %d %H:%M:%S UTC %Y", ["Sun Sep 09 01:46:40 UTC 2001"], [10**9]), ("%s", ["1000000000"], [10**9]),
        ("%Y%m%d", ["19700102", "20010909"], [86_400, 999_993_600]),
        ("%Y%m%d", [19700102, 20010909], [86_400, 999_993_600]),
    ],
)  # fmt: skip
def test_times_become_whole_seconds(form: str, times: list[Any], seconds: list[int]) -> None:
    found, bad = cast_times(times, form=form)
    assert (found, bad.total) == (seconds, 0)


@pytest.mark.parametrize("as_type", [int, float, str])
@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_the_unit_of_times_is_told_by_their_size_or_by_the_setting(unit: str, ticks: int, as_type: type) -> None:
    young = [as_type(second * ticks) for second in (1_000_000_000, 1_700_000_000)]
    assert cast_times(young)[0] == cast_times(young, form=unit)[0] == [1_000_000_000, 1_700_000_000]
    old = [as_type(second * ticks) for second in (5, 70)]
    assert cast_times(old, form=unit)[0] == [5, 70]
    assert cast_times(old)[0] == [5 * ticks, 70 * ticks]  # taken for seconds
    positions = [2, 1500, 1_700_000]  # in a video, say
    assert unit == "s" or cast_times([second * ticks for second in positions], form=unit)[0] == positions


MODERN = st.integers(10**9, 2 * 10**9)  # seconds


TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}


@settings(max_examples=40, deadline=None)
@given(
    unit=st.sampled_from(sorted(TICKS)), seconds=st.lists(MODERN, min_size=3, max_size=20),
    others=st.lists(MODERN, max_size=2), as_type=st.sampled_from([int, str]), named=st.booleans(), larger=st.booleans(),
)  # fmt: skip
def test_times_in_another_unit_than_most_are_bad_rows(
    unit: str, seconds: list[int], others: list[int], as_type: type, named: bool, larger: bool
) -> None:
    most, few = (TICKS[unit], 1) if larger else (1, TICKS[unit])
    column = [as_type(second * most) for second in seconds] + [as_type(second * few) for second in others]
    found, bad = cast_times(column, form=unit if named and larger else "")
    assert (found, bad.total) == (seconds, len(others))


MISSING = ["", " ", "n/a", "N/A", "NULL", "None", "nan", "NaT", "\\N", "-", "0000-00-00", "0000-00-00 00:00:00"]


@pytest.mark.parametrize(("name", "good"), [("time", "2024-03-19"), ("rating", "4")])
def test_a_word_for_nothing_is_a_missing_time_or_rating(name: str, good: str) -> None:
    found, bad = cast([good, *MISSING], name)
    assert (len(found), bad.counts) == (1, {f"{name} is missing": len(MISSING)})


@pytest.mark.parametrize(
    ("times", "form", "option"),  # the option that the line names
    [
        (["01/02/2020", "03/04/2020"], "%Y/%m/%d", "--data.time_format=%d/%m/%Y or --data.time_format=%m/%d/%Y"),
        (["12/31/2020", "12/30/2020"], "%d/%m/%Y", "--data.time_format=%m/%d/%Y"),
        ([NOW * 1000], "s", "--data.time_format=ms"), (["soon"], "%d/%m/%Y", "data.time_format"),
        *[(times, "", "") for times in (["1969-12-31"], ["2024-13-01", "2024-12-01"], ["31/12/2020", "7"], ["5 p."])],
    ],
)  # fmt: skip
def test_times_that_do_not_fit_are_told_the_form_that_fits(times: list[Any], form: str, option: str) -> None:
    _, bad = cast_times(times, form=form)
    assert bad.shown[0].startswith(f't.csv, line 2: time "{times[0]}": ')
    assert (option in bad.shown[0], "time_format=%" in bad.shown[0]) == (True, "=%" in option)


def test_a_form_that_cannot_be_read_is_refused_at_once() -> None:
    for form in ("%Q", "%d/%m/%Y %I", "dd/mm/yyyy", "%H:%M", "%m/%Y", "%F %T %Z"):
        with one_line(f'data.time_format = "{form}": '):
            Times(form)


def test_a_column_of_times_needs_no_form() -> None:
    with pytest.raises(DataError, match=r"data\.time_format"):
        cast_times([date(2001, 9, 9)], form="%d/%m/%Y")
