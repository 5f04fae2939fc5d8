"""How the lines of a file are cut, as its first line tells it."""

from pathlib import Path

import polars as pl
import pytest

from bert4rec.prepare.files.csv_rows import Layout
from bert4rec.prepare.files.layout import read_layout
from bert4rec.runtime.errors import DataError


def layout_of(path: Path, text: str, *, separator: str = "auto", has_header: bool = True) -> Layout:
    path.write_text(text)
    return read_layout(path, separator=separator, has_header=has_header)


@pytest.mark.parametrize(
    ("text", "separator", "layout"),
    [
        ("a,b\n1,2\n", "auto", Layout(("a", "b"), b",", True, ("a", "b"))),
        ("\ufeffa;b,c;d\r\n1;2;3\n", "auto", Layout(("a", "b,c", "d"), b";", True, ("a", "b,c", "d"))),
        ("a::b\n", "auto", Layout(("a", "b"), b"::", False, ("a", "b"))),
        ("a,b\tc\n", "\\t", Layout(("a,b", "c"), b"\t", True, ("a,b", "c"))),
        ('"a,""b""",c', "auto", Layout(('a,"b"', "c"), b",", True, ('a,"b"', "c"))),
        ("a\n", "auto", Layout(("a",), b",", True, ("a",))),
    ],
)
def test_a_header_names_the_columns(tmp_path: Path, text: str, separator: str, layout: Layout) -> None:
    assert layout_of(tmp_path / "t.csv", text, separator=separator) == layout


def test_without_a_header_the_columns_are_numbered_from_1(tmp_path: Path) -> None:
    found = layout_of(tmp_path / "t.csv", "7|8|\n", separator="|", has_header=False)
    assert found == Layout(("1", "2", "3"), b"|", True, ())


def test_a_later_column_of_the_same_name_gets_one_of_its_own(tmp_path: Path) -> None:
    found = layout_of(tmp_path / "t.csv", "a,b,a,,b,\n")
    assert found.columns == ("a", "b", "a 3", "", "b 5", " 6")
    assert found.header == ("a", "b", "a", "", "b", "")


def test_types_are_those_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n")
    types = {"a": pl.Int64}
    assert read_layout(tmp_path / "t.csv", separator=",", has_header=True, types=types).types == types


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": is empty; name another file in data.path"),
        (" \n\n", ": is empty; name another file in data.path"),
        ('a,"b\n1,2\n', ', line 1: has a quote (") that is not closed on it; correct the line'),
        ('a,"b\n1",2\n', ', line 1: has a quote (") that is not closed on it; correct the line'),
    ],
)
def test_a_first_line_that_tells_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        layout_of(tmp_path / "t.csv", text)
    assert str(caught.value) == f"{tmp_path / 't.csv'}{message}"
