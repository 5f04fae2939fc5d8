"""What the script says before and after all rows are read: the order, doubts, and the first rows as understood."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import preprocessing

NOW = 1_600_000_000
LOG = [
    (f"c{u}", f"sku-{(u + k) % 9}", NOW + 60 * k + u, 1 + k % 5, f"Thing {(u + k) % 9}")
    for u in range(6)
    for k in range(5)
]
NAMES = ["customer", "sku", "created_at", "stars", "name"]
COLUMNS = ["--data.user_column=customer", "--data.item_column=sku"]
Run = Callable[..., tuple[list[str], Path]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The lines that the script prints, and its dataset folder."""

    def inner(*arguments: str, folder: str = "dataset", source: str = "table") -> tuple[list[str], Path]:
        place = ["--config=/dev/null", f"--data.dataset_dir={tmp_path / folder}", f"--data.source={source}"]
        assert preprocessing.main([*place, "--preprocessing.n_eval_negatives=1", *arguments]) == 0
        return capsys.readouterr().out.splitlines(), tmp_path / folder

    return inner


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A shuffled log: its order says nothing."""
    rows = [LOG[i] for i in np.random.default_rng(1).permutation(len(LOG))]
    pd.DataFrame(rows, columns=NAMES).to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def before(lines: list[str]) -> list[str]:
    """What is said before the rows are read."""
    return lines[: next(i for i, line in enumerate(lines) if "] read " in line)]


def after(lines: list[str]) -> list[str]:
    """What is said behind the report."""
    return lines[len(lines) - lines[::-1].index("") :]


def test_a_log_without_a_named_time_is_warned_of_early_and_at_the_end(run: Run, log: Path) -> None:
    lines, folder = run(f"--data.path={log}", *COLUMNS)
    first = [line.split(",")[:2] for line in log.read_text().splitlines()[1:4]]
    unnamed = "order: as the file's rows stand (no time column is named)"
    warning = (
        "warning: no time column is named: the order of the file's rows is taken for the order of time; created_at "
        "looks like a time: --data.time_column=created_at"
    )
    assert before(lines) == [
        unnamed,
        "the first rows, as they are understood:",
        "  user (customer)  item (sku)",
        *(f"  {user}               {item}" for user, item in first),
        warning,
    ]
    assert unnamed in lines[len(before(lines)) :]
    assert after(lines)[0] == warning
    assert after(lines)[1].startswith(f"dataset folder: {folder}")
    assert json.loads((folder / "metadata.json").read_text())["order"] == {
        "by": "file", "column": None, "newest_first": False,
    }  # fmt: skip
    assert unnamed in (folder / "README.md").read_text().splitlines()


def test_a_named_time_gives_the_order_and_is_shown_beside_ratings_and_titles(run: Run, tmp_path: Path) -> None:
    pd.DataFrame(LOG, columns=NAMES).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    lines, folder = run(
        f"--data.path={tmp_path}", *COLUMNS, "--data.time_column=created_at", "--data.rating_column=stars",
        "--data.title_column=name",
    )  # fmt: skip
    assert before(lines) == [
        "order: by time (column created_at)",
        "the first rows, as they are understood:",
        "  user (customer)  item (sku)  time (created_at)     rating (stars)  title (name)",
        "  c0               sku-0       2020-09-13T12:26:40Z  1               Thing 0",
        "  c0               sku-1       2020-09-13T12:27:40Z  2               Thing 1",
        "  c0               sku-2       2020-09-13T12:28:40Z  3               Thing 2",
    ]
    assert not [line for line in lines if line.startswith("warning:")]
    order = {"by": "time", "column": "created_at", "newest_first": False}
    assert json.loads((folder / "metadata.json").read_text())["order"] == order
    assert "order: by time (column created_at)" in (folder / "README.md").read_text().splitlines()
    items = pl.read_parquet(folder / "items.parquet")
    assert items["title"].to_list() == [f"Thing {name.removeprefix('sku-')}" for name in items["original"]]


def test_a_time_column_that_must_be_quoted_or_needs_a_form(run: Run, tmp_path: Path) -> None:
    table = pd.DataFrame(LOG, columns=NAMES)
    table["event time"] = pd.to_datetime(table.pop("created_at"), unit="s").dt.strftime("%d/%m/%Y %H:%M:%S")
    table["day"] = "2020-09-13"
    table.to_parquet(tmp_path / "log.parquet")
    lines, _ = run(f"--data.path={tmp_path}", *COLUMNS)
    assert before(lines)[-1] == (
        "warning: no time column is named: the order of the file's rows is taken for the order of time; event time, "
        "day look like times: '--data.time_column=event time' '--data.time_format=%d/%m/%Y %H:%M:%S'"
    )
    lines, folder = run(
        f"--data.path={tmp_path}", *COLUMNS, "--data.time_column=event time", "--data.time_format=%d/%m/%Y %H:%M:%S"
    )
    assert "  c0               sku-1       2020-09-13T12:27:40Z" in before(lines)
    assert json.loads((folder / "metadata.json").read_text())["time_span"] == [NOW, NOW + 60 * 4 + 5]


def test_a_log_without_any_time_is_warned_of_and_nothing_is_advised(run: Run, tmp_path: Path) -> None:
    pl.DataFrame([row[:2] for row in LOG], schema=NAMES[:2], orient="row").write_csv(tmp_path / "log.csv")
    lines, _ = run(f"--data.path={tmp_path}", *COLUMNS)
    assert after(lines)[0] == (
        "warning: no time column is named: the order of the file's rows is taken for the order of time"
    )


def test_times_of_1970_are_warned_of(run: Run, log: Path) -> None:
    lines, _ = run(f"--data.path={log}", *COLUMNS, "--data.time_column=stars")
    first = ", ".join(f"1970-01-01T00:00:0{line.split(',')[3]}Z" for line in log.read_text().splitlines()[1:4])
    warning = (
        f"warning: 30 of the first 30 times lie in 1970 ({first}): is stars really a time? (a number that only counts "
        "up gives the order as well)"
    )
    assert before(lines)[-1] == after(lines)[0] == warning
    lines, _ = run(f"--data.path={log}", *COLUMNS, "--data.time_column=created_at", "--data.time_unit=us")
    assert 'is created_at really a time, or data.time_unit = "us" wrong? (' in after(lines)[0]


@pytest.mark.parametrize(("n_early", "warned"), [(26, False), (27, True)])
def test_nearly_all_times_must_lie_in_1970(run: Run, tmp_path: Path, n_early: int, warned: bool) -> None:
    rows = [(row[0], row[1], i if i < n_early else NOW) for i, row in enumerate(LOG)]
    pl.DataFrame(rows, schema=NAMES[:3], orient="row").write_csv(tmp_path / "log.csv")
    lines, _ = run(f"--data.path={tmp_path}", *COLUMNS, "--data.time_column=created_at")
    assert any(line.startswith("warning: 27 of the first 30 times") for line in lines) == warned
    assert any(line.startswith("warning:") for line in lines) == warned


DAYS = [45231 + i / 8 for i in range(len(LOG))]  # from 2023-11-01 on


@pytest.mark.parametrize("as_type", [float, str])
def test_days_as_excel_counts_them_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_type: type
) -> None:
    table = pl.DataFrame(LOG, schema=NAMES, orient="row").with_columns(
        pl.Series("created_at", [None, *map(as_type, DAYS[1:])])
    )
    table.write_parquet(tmp_path / "log.parquet")
    place = ["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}", f"--data.path={tmp_path}"]
    arguments = [*place, "--data.source=table", *COLUMNS, "--data.time_column=created_at"]
    assert preprocessing.main(arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert (
        f'{tmp_path / "log.parquet"}: created_at "45231.125" looks like a day as Excel counts them (2023-11-01' in error
    )
    assert preprocessing.main([*arguments, "--data.time_unit=s", "--preprocessing.n_eval_negatives=1"]) == 0


@pytest.mark.parametrize("days", [[int(day) for day in DAYS], [day - 20_000 for day in DAYS]])
def test_whole_or_small_numbers_are_no_days_of_excel(run: Run, tmp_path: Path, days: list[float]) -> None:
    table = pl.DataFrame(LOG, schema=NAMES, orient="row").with_columns(pl.Series("created_at", days))
    table.write_csv(tmp_path / "log.csv")
    lines, _ = run(f"--data.path={tmp_path}", *COLUMNS, "--data.time_column=created_at")
    assert after(lines)[0].startswith("warning: 30 of the first 30 times lie in 1970")


def test_users_and_items_that_look_swapped_are_warned_of(run: Run, log: Path) -> None:
    lines, _ = run(
        f"--data.path={log}", "--data.user_column=sku", "--data.item_column=customer", "--data.time_column=created_at"
    )
    assert after(lines)[0] == (
        "warning: sku as the column of the users and customer as that of the items look swapped; if they are: "
        "--data.user_column=customer --data.item_column=sku"
    )


def test_known_data_show_their_order_and_first_rows_without_a_warning(run: Run, tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("".join(f"{1 + k // 5}\t{k}\t{k % 5}.5\t{NOW - k}\n" for k in range(1, 9)))
    lines, _ = run(f"--data.path={tmp_path}", source="ml-100k")
    assert before(lines) == [
        "order: by time",
        "the first rows, as they are understood:",
        "  user  item  time                  rating",
        "  1     1     2020-09-13T12:26:39Z  1.5",
        "  1     2     2020-09-13T12:26:38Z  2.5",
        "  1     3     2020-09-13T12:26:37Z  3.5",
    ]
    (tmp_path / "goodreads_interactions.csv").write_text(
        "user_id,book_id,is_read,rating\n" + "".join(f"{k // 5},{k},1,0\n" for k in range(9))
    )
    lines, folder = run(f"--data.path={tmp_path}", source="goodreads", folder="goodreads")
    assert before(lines)[:3] == [
        "order: as the file's rows stand, the last one first",
        "the first rows, as they are understood:",
        "  user (user_id)  item (book_id)  rating",
    ]
    order = {"by": "file", "column": None, "newest_first": True}
    assert json.loads((folder / "metadata.json").read_text())["order"] == order
    (tmp_path / "a.txt").write_text("7 1 2 3\n8 5 4 9\n9 " + "1234567 " * 150_000 + "\n")
    lines, _ = run(f"--data.path={tmp_path}", source="sequences", folder="sequences")
    assert before(lines) == [
        "order: as the file's rows stand",
        "the first rows, as they are understood:",
        "  user  item",
        "  7     1",
        "  7     2",
        "  7     3",
    ]


def test_generated_data_say_their_order_in_one_line(run: Run) -> None:
    lines, _ = run("--data.n_users=60", "--data.n_items=100", "--data.n_rows=600", source="synthetic")
    assert before(lines) == ["order: by time"]


def test_a_long_value_is_cut_and_a_line_end_in_a_title_is_a_blank(run: Run, tmp_path: Path) -> None:
    rows = [(row[0] + "x" * 50, row[1], row[2], row[3], "a\nb") for row in LOG]
    pd.DataFrame(rows, columns=NAMES).to_csv(tmp_path / "log.csv", index=False)
    lines, _ = run(f"--data.path={tmp_path}", *COLUMNS, "--data.time_column=created_at", "--data.title_column=name")
    assert lines[3] == f"  c0{'x' * 37}…  sku-0       2020-09-13T12:26:40Z  a b"
