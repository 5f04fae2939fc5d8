"""Fields as they stand in a file → numbers and text; rows where that fails, by kind and with their place."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.prepare.files.bad_rows import LINE, SHOWN, BadRows
from bert4rec.prepare.read.fields import Fields, all_decimal
from bert4rec.runtime.errors import DataError

FILE = Path("t.csv")
BIG = 2**63  # the first whole number that is no Int64


def cast(
    column: Sequence[Any] | pl.Series, name: str = "item", *, whole: bool = False, decimal: Sequence[str] = ()
) -> tuple[list[Any], BadRows]:
    """The usable values of one column, of which the source calls `name` by the same name, and the bad rows."""
    series = pl.Series(name, column)
    bad = BadRows()
    fields = Fields({name: name}, whole_number_ids=whole, decimal_ids=decimal)
    frame = fields.cast(pl.DataFrame([pl.Series(LINE, range(2, 2 + len(series))), series]), FILE, bad)
    return frame[name].to_list(), bad


@pytest.mark.parametrize(
    "ids",
    [["b", "3", "é x"], ["007", "7", "70"], ["+7"], [" 7"], ["1.0", "1"], ["1e3"], [str(BIG), "1"], ["-0"], ["٣"]],
)
def test_ids_are_text_where_one_of_the_column_is_not_a_canonical_number(ids: list[str]) -> None:
    found, bad = cast(ids)
    assert (found, bad.total) == (ids, 0)


@pytest.mark.parametrize(
    "ids", [["9", "3", "-4"], [9, 3, -4], [str(BIG - 1), str(-BIG)], pl.Series([1, 255], dtype=pl.UInt8)]
)
def test_ids_are_numbers_where_all_are_canonical_ones(ids: Any) -> None:
    found, bad = cast(ids)
    assert (found, bad.total) == ([int(number) for number in ids], 0)


def test_unsigned_numbers_that_are_too_large_make_a_column_of_text() -> None:
    assert cast(pl.Series([1, BIG], dtype=pl.UInt64))[0] == ["1", str(BIG)]


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_are_text_whatever_their_codes(dtype: Any) -> None:
    assert cast(pl.Series(["b", "a", "b"], dtype=dtype))[0] == ["b", "a", "b"]
    assert cast(pl.Series(["5", "4"], dtype=pl.Categorical))[0] == [5, 4]


@pytest.mark.parametrize("late", ["x", "07", str(BIG)])
def test_from_the_first_text_on_every_later_part_is_text(late: str) -> None:
    fields = Fields({"item": "item"}, whole_number_ids=False)
    parts = [["1", "2"], [late], ["3"], []]
    frames = [
        pl.DataFrame({LINE: range(len(part)), "item": part}, {LINE: pl.Int64, "item": pl.String}) for part in parts
    ]
    found = [fields.cast(frame, FILE, BadRows())["item"] for frame in frames]
    assert [series.to_list() for series in found] == [[1, 2], [late], ["3"], []]
    assert [series.dtype for series in found] == [pl.Int64, pl.String, pl.String, pl.String]


def test_a_missing_id_makes_no_column_of_text() -> None:
    found, bad = cast(["1", "", None, "2"])
    assert (found, bad.counts) == ([1, 2], {"item is missing": 2})
    found, bad = cast(["a", "", None, "2"])
    assert (found, bad.counts) == (["a", "2"], {"item is missing": 2})


@pytest.mark.parametrize("text", ["nan", "NaN", "NULL", "null", "Null", "None", "<NA>", "\\N"])
@pytest.mark.parametrize("name", ["user", "item"])
@pytest.mark.parametrize(
    ("others", "decimal"), [(["1", "22"], False), (["a", "long name"], False), (["1.0", "22.0"], True)]
)
def test_an_id_that_is_a_word_for_nothing_is_missing(text: str, name: str, others: list[str], decimal: bool) -> None:
    assert all_decimal(pl.Series([*others, text])) == decimal
    found, bad = cast([*others, text], name, decimal=[name] if decimal else [])
    assert (found, bad.counts) == (others if others[0] == "a" else [1, 22], {f"{name} is missing": 1})
    assert bad.shown == [f't.csv, line 4: {name} "{text}": stands for a missing id; write the id, or drop the row']
    found, bad = cast(pl.Series([*others, text], dtype=pl.Categorical), name, decimal=[name] if decimal else [])
    assert bad.counts == {f"{name} is missing": 1}


def test_longer_words_and_other_fields_are_what_they_are() -> None:
    assert cast(["nano", "none", "NULLs", "Nan "])[0] == ["nano", "none", "NULLs", "Nan "]
    assert cast(["NULL", "x"], "title")[0] == ["NULL", "x"]


@pytest.mark.parametrize("text", ["x", "2.5", str(BIG), "1e3", "1 2", "٣"])
def test_an_id_of_a_set_that_has_numbers_must_be_one(text: str) -> None:
    found, bad = cast(["1", text], whole=True)
    assert (found, bad.counts) == ([1], {"item is not a whole number": 1})
    assert bad.shown == [f't.csv, line 3: item "{text}": must be a whole number']


NO_TIME = "must be a time: a number from 0, or text like 2024-03-19T10:27:00"


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_floating_point_ids_are_whole_numbers_and_a_missing_one_is_a_bad_row(dtype: Any) -> None:
    found, bad = cast(pl.Series([7.0, None, -12.0, float("nan"), 0.0], dtype=dtype))
    assert (found, bad.counts) == ([7, -12, 0], {"item is missing": 2})
    assert bad.shown == ["t.csv, line 3: item is missing", "t.csv, line 5: item is missing"]


@pytest.mark.parametrize("number", [7.5, float("inf"), -0.25])
def test_a_floating_point_id_that_is_no_whole_number_is_a_bad_row(number: float) -> None:
    found, bad = cast([1.0, number])
    assert (found, bad.counts) == ([1], {"item is not a whole number": 1})
    assert bad.shown == [f't.csv, line 3: item "{number}": must be a whole number or text']


def test_a_floating_point_id_that_may_stand_for_several_is_a_bad_row() -> None:
    largest = 2**53 - 1
    found, bad = cast([float(largest), float(2**53)])
    assert (found, bad.counts) == ([largest], {"item is not a whole number": 1})
    lost = "a floating-point number of this size has lost its last digits; write the ids as whole numbers"
    assert bad.shown == [f't.csv, line 3: item "{float(2**53)}": {lost}']
    found, _ = cast(pl.Series([2**24 - 1, 2**24], dtype=pl.Float32))
    assert found == [2**24 - 1]


def test_floating_point_ids_among_text_are_written_as_whole_numbers() -> None:
    fields = Fields({"item": "item"}, whole_number_ids=False)
    parts = [pl.Series(["x"]), pl.Series([7.0, None])]
    frames = [pl.DataFrame({LINE: range(len(part)), "item": part}) for part in parts]
    assert [fields.cast(frame, FILE, BadRows())["item"].to_list() for frame in frames] == [["x"], ["7"]]


def test_ids_written_as_pandas_writes_a_column_with_missing_ones() -> None:
    found, bad = cast(["7.0", "", None, "-12.0"], decimal=["item"])
    assert (found, bad.counts) == ([7, -12], {"item is missing": 2})


def test_a_title_may_be_missing() -> None:
    raw = pl.DataFrame({LINE: [2, 3, 4], "item": ["1", "2", ""], "title": [" One ", " ", "x"]})
    bad = BadRows()
    found = Fields({"item": "item", "title": "name"}, whole_number_ids=False).cast(raw, FILE, bad)
    assert (found.rows(), bad.counts) == ([(1, "One"), (2, None)], {"item is missing": 1})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "good", "4,5", "4 5", "0x10"])
def test_a_rating_that_is_none(text: str) -> None:
    found, bad = cast(["1", "-2.5", "1e1", text], "rating")
    assert (found, bad.counts) == ([1.0, -2.5, 10.0], {"rating is not a number": 1})
    assert bad.shown == [f't.csv, line 5: rating "{text}": must be a number']


@pytest.mark.parametrize("text", ["2", "-1", "nan", "yes"])
def test_whether_a_book_was_read_is_0_or_1(text: str) -> None:
    found, bad = cast(["1", "0", text, "1.0"], "is_read")
    assert (found, bad.counts) == ([True, False, True], {"is_read is not 0 or 1": 1})
    assert bad.shown == [f't.csv, line 4: is_read "{text}": must be 0 or 1']


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("item", [True], "Boolean: must be a whole number or text"),
        ("item", [[1]], "List(Int64): must be a whole number or text"),
        ("time", [True], f"Boolean: {NO_TIME}"),
        ("rating", [date(2001, 9, 9)], "Date: must be a number"),
    ],
)
def test_a_type_that_is_no_such_field_stops_the_run(name: str, column: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        cast(column, name)
    assert str(caught.value) == f't.csv: column "{name}" has type {message}'


def test_a_bad_row_counts_once_by_its_first_bad_field_and_the_first_ones_are_shown() -> None:
    names = {"user": "who", "item": "what", "time": "when", "rating": "stars"}
    good = {"user": "1", "item": "2", "time": "3", "rating": "4"}
    wrong = [{}, {"user": "", "rating": "x"}, {"time": "x", "rating": "x"}, {"rating": ""}, {"item": None, "time": ""}]
    raw = pl.DataFrame([{LINE: 10 + i, **good, **changes} for i, changes in enumerate(wrong)])
    bad = BadRows()
    found = Fields(names, whole_number_ids=False).cast(raw, FILE, bad, unit="row")
    assert found.rows() == [(1, 2, 3, 4.0)]
    assert bad.counts == {"user is missing": 1, "item is missing": 1, "time is not a time": 1, "rating is missing": 1}
    assert bad.shown == [
        "t.csv, row 11: who is missing",
        f't.csv, row 12: when "x": {NO_TIME}',
        "t.csv, row 13: stars is missing",
        "t.csv, row 14: what is missing",
    ]
    assert found.schema == {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32}


def test_only_the_first_bad_rows_are_kept_to_be_shown() -> None:
    _, bad = cast(["x"] * 25, "rating")
    assert bad.counts == {"rating is not a number": 25}
    assert bad.shown == [f't.csv, line {line}: rating "x": must be a number' for line in range(2, 2 + SHOWN)]
