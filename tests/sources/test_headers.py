"""Several files of one table whose headers differ."""

from pathlib import Path

import pytest

from bert4rec.sources.first_look import first_look
from tests.checks import one_line
from tests.sources.log import content, opened

HEADER = "user,item,at\n"
ROWS = [f"u{k % 5},i{k % 7},{1_700_000_000 + 60 * k}\n" for k in range(40)]
LATER = "".join(ROWS[20:])


def write(folder: Path, first: str, second: str) -> str:
    (folder / "log_1.csv").write_text(first)
    (folder / "log_2.csv").write_text(second)
    return str(folder / "log_*.csv")


@pytest.mark.parametrize("header", ["USER,Item,AT", "User , item,At"])
def test_names_that_differ_in_case_or_blanks_match(tmp_path: Path, header: str) -> None:
    both = write(tmp_path, HEADER + "".join(ROWS[:20]), f"{header}\n" + LATER)
    (tmp_path / "whole.csv").write_text(HEADER + "".join(ROWS))
    assert content(opened("table", path=both)) == content(opened("table", path=str(tmp_path / "whole.csv")))


def test_columns_that_a_file_lacks_are_one_line(tmp_path: Path) -> None:
    both = write(tmp_path, HEADER + "".join(ROWS[:20]), "kunde,artikel,zeit\n" + LATER)
    for options in ({"user_column": "kunde"}, {"time_column": "zeit"}, {"title_column": "name"}):
        with one_line(str(tmp_path / "log_1.csv"), *options.values()):
            opened("table", path=both, **options)
    with one_line(str(tmp_path / "log_2.csv"), "log_1.csv"):
        first_look(opened("table", path=both))


def test_a_later_file_may_lack_the_titles(tmp_path: Path) -> None:
    titled = "".join(f"{row.strip()},Title of {row.split(',')[1]}\n" for row in ROWS[:20])
    found = opened("table", path=write(tmp_path, "user,item,at,title\n" + titled, HEADER + LATER))
    assert (found.columns["title"], len(content(found)["user"]), len(found.titles.rows())) == ("title", len(ROWS), 7)


@pytest.mark.parametrize(("field", "name"), [("rating", "rating"), ("time", "at")])
def test_a_rating_or_time_that_a_later_file_lacks_can_be_left_out(tmp_path: Path, field: str, name: str) -> None:
    values = [f"{1 + k % 5}" if field == "rating" else f"{1_700_000_000 + k}" for k in range(20)]
    first = f"user,item,{name}\n" + "".join(f"u{k % 5},i{k % 7},{value}\n" for k, value in enumerate(values))
    both = write(tmp_path, first, "user,item\n" + "".join(f"u{k},i{k}\n" for k in range(3)))
    with one_line(str(tmp_path / "log_2.csv"), f"--{field}="):
        first_look(opened("table", path=both))
    assert len(content(opened("table", path=both, **{f"{field}_column": ""}))["user"]) == 23


def test_columns_that_only_later_files_have_are_named(tmp_path: Path) -> None:
    both = write(tmp_path, "user,item\n" + "".join(f"u{k % 5},i{k % 7}\n" for k in range(20)), HEADER + "".join(ROWS))
    _, warnings = first_look(opened("table", path=both))
    assert [line for line in warnings if "log_2.csv" in line and "at" in line]
    assert len(content(opened("table", path=both))["user"]) == 60
