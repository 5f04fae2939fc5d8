"""What real exports hold: newest first, ids that a spreadsheet rounded, mostly guests, artists beside tracks."""

from pathlib import Path

import polars as pl
import pytest

from tests.checks import Capture, one_line
from tests.preparation import prepared
from tests.prepare.order.test_ties import histories_of
from tests.prepare.test_bad_input import assert_refused
from tests.sources.log import opened

N = 120
BASKETS = [f"u{k % 3},i{(k * 7) % 11},2026-01-{1 + k // 12:02d}\n" for k in range(N)]  # four items a day and user


def test_ties_of_a_file_that_is_sorted_newest_first_are_taken_in_reverse(tmp_path: Path) -> None:
    by_user = sorted(BASKETS, key=lambda row: row.split(",")[0])
    newest_first_by_user = [row for user in range(3) for row in by_user[40 * user : 40 * user + 40][::-1]]
    logs = {"oldest": (BASKETS, "auto"), "newest": (BASKETS[::-1], "auto"), "by_user": (newest_first_by_user, "auto"),
            "as_in_file": (BASKETS[::-1], "false"), "reversed": (BASKETS, "true")}  # fmt: skip
    found = {}
    for name, (rows, reverse) in logs.items():
        table = pl.read_csv("".join(["user,item,at\n", *rows]).encode())
        options = ["--split=none", f"--preprocessing.reverse_file_order={reverse}"]
        found[name] = histories_of(prepared(tmp_path, *options, table=table, name=name))
    assert found["newest"] == found["by_user"] == found["oldest"] != found["as_in_file"]
    assert found["reversed"] == found["as_in_file"]


ROWS = [f"u{k % 3};i{k % 11};{1_700_000_000 + k}\n" for k in range(N)]
LOG = "".join(["user;item;at\n", *ROWS])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *[(LOG.replace(f"{column}1;", f"{number};"), number)  # ids that have lost their last digits
          for number in ("4.00638E+12", "4,00638E+12", "1.52e+18") for column in "ui"],
        *[(above + LOG.replace(";", ","), "line 1")
          for above in ("# exported 2026\n", "# by Ann, in 2026\n", "Sales report 2026\n\n")],
        ("Report;;\n" + LOG, "line 1"),
    ],
)  # fmt: skip
def test_what_a_spreadsheet_has_changed_is_refused(tmp_path: Path, capsys: Capture, text: str, named: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    assert_refused(tmp_path, capsys, ["--data.source=table", f"--data.path={tmp_path / 'log.csv'}"], named)


def test_few_ids_that_have_lost_their_last_digits_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("".join(["user,item,at\n", *BASKETS, "u1,4.00638E+12,2026-02-01\n"]))
    found = opened("table", path=str(tmp_path / "log.csv"))
    assert sum(len(rows) for rows, _ in found) == N
    assert dict(found.bad.counts) == {"item has lost its last digits": 1}


@pytest.mark.parametrize("above", ["sep=;\n", "SEP=;\r\n", '"sep=;"\n', "sep=;;\n"])
@pytest.mark.parametrize("has_header", [True, False])
def test_a_line_for_excel_above_the_header_is_skipped(tmp_path: Path, above: str, has_header: bool) -> None:
    (tmp_path / "log.csv").write_text("".join([above, "user;item;at\n" * has_header, *ROWS, "u1;\n"]))
    found = opened("table", path=str(tmp_path / "log.csv"), has_header=has_header)
    ids = [row for part, _ in found for row in part.select("user", "item").rows()]
    assert ids == [(f"u{k % 3}", f"i{k % 11}") for k in range(N)]
    assert f"line {N + 2 + has_header}:" in found.bad.shown[0]


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
    baskets += [["whole milk", "rye bread"], ["butter"]] if "," in bar else []
    (tmp_path / "baskets.dat").write_text("".join(bar.join(items) + "\n" for items in baskets))
    expected = [(number, item) for number, items in enumerate(baskets, 1) for item in items]
    for separator in ("auto", bar.strip(" ") or " "):
        found = opened("baskets", path=str(tmp_path / "baskets.dat"), separator=separator)
        rows = [(int(user), item) for part, _ in found for user, item in part.select("user", "item").rows()]
        assert (rows, found.bad.total) == (expected, 0)
