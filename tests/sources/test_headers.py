"""Several files of one table whose headers differ."""

from pathlib import Path

import pytest

from bert4rec.sources.first_look import first_look
from tests.checks import one_line
from tests.sources.log import opened
from tests.sources.test_sources import frame

HEADER = "user,item,at\n"
ROWS = [f"u{k % 5},i{k % 7},{1_700_000_000 + 60 * k}\n" for k in range(40)]


def write(folder: Path, first: str, second: str) -> str:
    (folder / "log_1.csv").write_text(first)
    (folder / "log_2.csv").write_text(second)
    return str(folder / "log_*.csv")


def with_title(rows: list[str]) -> str:
    return "".join(f"{row.strip()},Title of {row.split(',')[1]}\n" for row in rows)


@pytest.mark.parametrize("header", ["USER,Item,AT", "User , item,At"])
def test_names_that_differ_in_case_or_blanks_match(tmp_path: Path, header: str) -> None:
    both = write(tmp_path, HEADER + "".join(ROWS[:20]), f"{header}\n" + "".join(ROWS[20:]))
    (tmp_path / "whole.csv").write_text(HEADER + "".join(ROWS))
    assert frame(opened("table", path=both)).equals(frame(opened("table", path=str(tmp_path / "whole.csv"))))


@pytest.mark.parametrize("options", [{"user_column": "kunde"}, {"time_column": "zeit"}, {"title_column": "name"}])
def test_a_named_column_that_the_first_file_lacks_is_one_line(tmp_path: Path, options: dict[str, str]) -> None:
    both = write(tmp_path, HEADER + "".join(ROWS[:20]), "kunde,item,zeit\n" + "".join(ROWS[20:]))
    with one_line(str(tmp_path / "log_1.csv"), *options.values()):
        opened("table", path=both, **options)


def test_columns_with_other_names_are_refused_with_advice_that_works(tmp_path: Path) -> None:
    both = write(tmp_path, HEADER + "".join(ROWS[:20]), "kunde,artikel,zeit\n" + "".join(ROWS[20:]))
    with one_line(str(tmp_path / "log_2.csv"), "log_1.csv"):
        first_look(opened("table", path=both))


def test_a_later_file_may_lack_the_titles(tmp_path: Path) -> None:
    both = write(tmp_path, "user,item,at,title\n" + with_title(ROWS[:20]), HEADER + "".join(ROWS[20:]))
    found = opened("table", path=both)
    assert found.columns["title"] == "title"
    assert len(frame(found)) == len(ROWS)
    assert len(found.titles.rows()) == 7


@pytest.mark.parametrize(("field", "name"), [("rating", "rating"), ("time", "at")])
def test_a_rating_or_time_that_a_later_file_lacks_can_be_left_out(tmp_path: Path, field: str, name: str) -> None:
    values = {"rating": [f"{1 + k % 5}" for k in range(20)], "at": [f"{1_700_000_000 + k}" for k in range(20)]}[name]
    first = f"user,item,{name}\n" + "".join(f"u{k % 5},i{k % 7},{value}\n" for k, value in enumerate(values))
    both = write(tmp_path, first, "user,item\n" + "".join(f"u{k},i{k}\n" for k in range(3)))
    with one_line(str(tmp_path / "log_2.csv"), f"--{field}="):
        first_look(opened("table", path=both))
    assert len(frame(opened("table", path=both, **{f"{field}_column": ""}))) == 23


def test_columns_that_only_later_files_have_are_named(tmp_path: Path) -> None:
    both = write(tmp_path, "user,item\n" + "".join(f"u{k % 5},i{k % 7}\n" for k in range(20)), HEADER + "".join(ROWS))
    _, warnings = first_look(opened("table", path=both))
    assert [line for line in warnings if "log_2.csv" in line and "at" in line]
    assert len(frame(opened("table", path=both))) == 60
