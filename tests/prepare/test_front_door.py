"""What real exports hold: newest first, ids that a spreadsheet rounded, mostly guests, artists beside tracks."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.tables import Config
from bert4rec.prepare.engine import prepare
from tests.checks import one_line
from tests.prepare.order.test_ties import histories_of as histories
from tests.sources.log import opened

N = 120
BASKETS = [f"u{k % 3},i{(k * 7) % 11},2026-01-{1 + k // 12:02d}\n" for k in range(N)]  # four items a day and user


def prepared(folder: Path, rows: list[str], *, reverse: Any = "auto", header: str = "user,item,at\n") -> Path:
    file = folder / f"log{len([*folder.iterdir()])}.csv"
    file.write_text(header + "".join(rows))
    settings = {"reverse_file_order": reverse, "split": "none"}
    data = {"source": "table", "path": str(file), "dataset_dir": str(file.with_suffix(""))}
    return prepare(Config.model_validate({"data": data, "preprocessing": settings}))


def test_ties_of_a_file_that_is_sorted_newest_first_are_taken_in_reverse(tmp_path: Path) -> None:
    oldest_first, newest_first = prepared(tmp_path, BASKETS), prepared(tmp_path, BASKETS[::-1])
    assert histories(newest_first) == histories(oldest_first)
    as_in_file = prepared(tmp_path, BASKETS[::-1], reverse=False)
    assert histories(as_in_file) != histories(oldest_first)
    assert histories(prepared(tmp_path, BASKETS, reverse=True)) == histories(as_in_file)


def test_rows_of_a_user_that_stand_newest_first_are_taken_in_reverse(tmp_path: Path) -> None:
    by_user = sorted(BASKETS, key=lambda row: row.split(",")[0])
    newest_first = [row for user in range(3) for row in by_user[40 * user : 40 * user + 40][::-1]]
    assert histories(prepared(tmp_path, newest_first)) == histories(prepared(tmp_path, by_user))


@pytest.mark.parametrize("number", ["4.00638E+12", "4,00638E+12", "1.52e+18"])
@pytest.mark.parametrize("column", ["user", "item"])
def test_ids_that_have_lost_their_last_digits_are_refused(tmp_path: Path, number: str, column: str) -> None:
    rows = [f"u{k % 3};i{k % 11};{1_700_000_000 + k}\n" for k in range(N)]
    rows = [row.replace("u1;", f"{number};") if column == "user" else row.replace("i1;", f"{number};") for row in rows]
    with one_line(str(tmp_path), number):
        prepared(tmp_path, rows, header="user;item;at\n")


def test_few_ids_that_have_lost_their_last_digits_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,at\n" + "".join(BASKETS) + "u1,4.00638E+12,2026-02-01\n")
    found = opened("table", path=str(tmp_path / "log.csv"))
    assert sum(len(rows) for rows, _ in found) == N
    assert dict(found.bad.counts) == {"item has lost its last digits": 1}


def test_sessions_are_taken_where_most_users_are_missing(tmp_path: Path) -> None:
    rows = [f"s{k // 4},{'' if k % 3 else k % 7},i{k % 11},{1_700_000_000 + k}\n" for k in range(N)]
    (tmp_path / "log.csv").write_text("sessionId,userId,itemId,at\n" + "".join(rows))
    assert opened("table", path=str(tmp_path / "log.csv")).columns["user"] == "sessionId"


@pytest.mark.parametrize("coarse", ["artist", "album", "channel", "artist_name"])
def test_what_has_several_tracks_is_no_title(tmp_path: Path, coarse: str) -> None:
    rows = [f"u{k % 3},t{k % 11},Name {(k % 11) // 3},{1_700_000_000 + k}\n" for k in range(N)]
    for item in ("track", "item_id"):
        (tmp_path / "log.csv").write_text(f"user,{item},{coarse},played\n" + "".join(rows))
        assert "title" not in opened("table", path=str(tmp_path / "log.csv")).columns


@pytest.mark.parametrize("above", ["sep=;\n", "SEP=;\r\n", '"sep=;"\n', "sep=;;\n"])
@pytest.mark.parametrize("has_header", [True, False])
def test_a_line_for_excel_above_the_header_is_skipped(tmp_path: Path, above: str, has_header: bool) -> None:
    rows = "".join(f"u{k % 3};i{k % 11};{1_700_000_000 + k}\n" for k in range(N)) + "u1;\n"
    text = "user;item;at\n" * has_header + rows
    for name, start in (("with", above), ("without", "")):
        (tmp_path / f"{name}.csv").write_text(start + text)
    with_line, without = (
        opened("table", path=str(tmp_path / f"{name}.csv"), has_header=has_header) for name in ("with", "without")
    )
    assert [rows.rows() for rows, _ in with_line] == [rows.rows() for rows, _ in without]
    assert f"line {N + 2 + has_header}:" in with_line.bad.shown[0]


@pytest.mark.parametrize("above", ["# exported 2026\n", "# by Ann, in 2026\n", "Sales report 2026\n\n", "Report;;\n"])
def test_lines_above_the_header_are_refused(tmp_path: Path, above: str) -> None:
    bar = ";" if ";" in above else ","
    file = tmp_path / "log.csv"
    file.write_text(above + "user,item,at\n".replace(",", bar) + "".join(BASKETS).replace(",", bar))
    with one_line(str(file), "line 1"):
        opened("table", path=str(file))


@pytest.mark.parametrize("form", ["u{},i{},2026-01-{:02d}", "u{},i{},buy", "user{},item{},x{}", "u{}\ti{}\t{}.5\tfoo"])
def test_a_row_instead_of_a_header_is_refused_with_the_setting(tmp_path: Path, form: str) -> None:
    rows = [form.format(10 + k % 3, 20 + k % 11, 1 + k % 28) + "\n" for k in range(N)]
    (tmp_path / "log.csv").write_text("".join(rows))
    for options in ({}, {"user_column": rows[0].split("\t" if "\t" in form else ",")[0]}):
        with one_line(str(tmp_path), "--data.has_header=false"):
            opened("table", path=str(tmp_path / "log.csv"), **options)
    found = opened("table", path=str(tmp_path / "log.csv"), has_header=False)
    assert sum(len(rows) for rows, _ in found) == N


def test_words_that_only_some_rows_repeat_are_a_header(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user1,item1,at\n" + "".join(BASKETS))
    columns = {"user_column": "user1", "item_column": "item1"}
    assert opened("table", path=str(tmp_path / "log.csv"), **columns).columns["time"] == "at"


@pytest.mark.parametrize("bar", [",", ";", " ", "\t", ", ", "|"])
def test_items_of_baskets_stand_between_separators(tmp_path: Path, bar: str) -> None:
    baskets = [[f"i{k}", f"i{2 * k}", f"i{3 * k}"][: 1 + k % 3] for k in range(1, 30)]
    (tmp_path / "baskets.dat").write_text("".join(bar.join(items) + "\n" for items in baskets))
    expected = [(number, item) for number, items in enumerate(baskets, 1) for item in items]
    for separator in ("auto", bar.strip(" ") or " "):
        found = opened("baskets", path=str(tmp_path / "baskets.dat"), separator=separator)
        rows = [(int(user), item) for part, _ in found for user, item in part.select("user", "item").rows()]
        assert (rows, found.bad.total) == (expected, 0)


def test_items_between_commas_may_have_blanks(tmp_path: Path) -> None:
    (tmp_path / "baskets.txt").write_text("whole milk,rye bread\nrye bread\nwhole milk, butter\n")
    found = opened("baskets", path=str(tmp_path / "baskets.txt"))
    items = [item for part, _ in found for item in part["item"]]
    assert items == ["whole milk", "rye bread", "rye bread", "whole milk", "butter"]
