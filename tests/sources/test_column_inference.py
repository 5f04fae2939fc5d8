"""A column's content is inferred from its name and first values, to advise and to warn before all rows are read."""

import shlex
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import preprocessing
from bert4rec.config.help import PREPARE_OPTIONS
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.sources.column_words import are_columns_swapped
from bert4rec.sources.columns import column_advice, looks_like_time
from bert4rec.sources.first_look import first_look
from tests.fixture_types import Capture
from tests.sources.log import looked, opened

NOW = 1_700_000_000
PARSED = [datetime(2024, 3, 19, tzinfo=UTC)]


TIMES: list[tuple[str, list[Any]]] = [
        *[(name, [3, 5, 4]) for name in ("time", "timestamp", "date", "datetime", "ts", "at", "created_at", "madeAt")],
        *[(name, ["3", "5"]) for name in ("event_time", "TIMESTAMP", "reviewTime", "unix time", "Order Date", "day")],
        ("when", ["31. Dec 2020", None]), ("x", ["Mon Jan 05 08:00:00 +0000 2026"]), ("x", ["20260105T080000Z"]),
        *[(name, [*["2024-03-19"] * 9, bad]) for name in ("x", "at") for bad in ("n/a", "", "yesterday", "7")],
        ("x", [*["NULL"] * 9, "2024-03-19"]), ("time", [*range(1000), -1]), ("x", [20260101091800]),
        ("x", [20260101, 20260102]),
        ("x", [*[NOW] * 1000, 0]),
        ("x", PARSED), ("x", [date(2024, 3, 19)]), ("x", [None, "2024-03-19"]), ("x", ["2024-03-19 10:27:00.5+02:00"]),
        ("x", ["2024-03-19T10:27"]), ("x", ["31/12/2020", "1/2/2021 10:00"]), ("x", ["31.12.20"]), ("x", ["2020/1/31"]),
        *[("x", [NOW * ticks, (NOW + 9) * ticks]) for ticks in (1, 10**3, 10**6, 10**9)],
        *[("x", [str(NOW * ticks), f" {NOW * ticks}"]) for ticks in (1, 10**3, 10**6, 10**9)],
        ("x", [788_918_400]), ("x", [2**31 - 1]), ("x", [NOW + 0.5, None]), ("x", [str(NOW + 0.5)]),
]  # fmt: skip
OTHERS: list[tuple[str, list[Any]]] = [
    ("stars", [1, 5, 4]), ("price", [9.99]), ("x", [NOW, 7]), ("x", [NOW, NOW * 1000]), ("x", [788_918_399]),
    ("x", [2**31]), ("name", ["Heat, The (1995)"]), ("x", ["2024-03-19", "soon"]), ("x", [True]), ("time", [True]),
    ("time", ["morning", "noon"]), ("time", [-1, 5]), ("date", []), ("date", [None, None]), ("update", [1, 2]),
    ("latest", [1, 2]), ("status", ["a1"]), ("x", ["1.2.3.4"]), ("x", ["12-34-5678-9x"]), ("x", ["", " "]),
    ("at", ["yesterday"] * 9), ("x", [46000.5, 46001.5]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "is_time"), [(*case, case in TIMES) for case in (*TIMES, *OTHERS)])
def test_what_looks_like_a_time(name: str, values: list[Any], is_time: bool) -> None:
    assert looks_like_time(pl.Series(name, values)) == is_time


def test_names_that_look_swapped() -> None:
    swapped = ["sku customer", "sku x", "x customer_id", "PRODUCT_ID who", "books readers", "item session"]
    others = ["userId movieId", "user followed_user", "product_reviewer product", "item_a item_b", "user_id user_item"]
    for names in (*swapped, *others):
        assert are_columns_swapped(*names.split()) == (names in swapped)


USUAL = {"user": "user", "item": "item"}
NO_HEADER = "--data.has_header=false"


@pytest.mark.parametrize(
    ("named", "present", "advice"),
    [
        (USUAL, ["customer", "sku", "at"], "--user=customer --item=sku --time=at"),
        (USUAL, ["userId", "movieId", "rating", "timestamp"], "--user=userId --item=movieId --time=timestamp"),
        (USUAL, ["Visitor-ID", "event", "itemid", "event_time"], "--user=Visitor-ID --item=itemid --time=event_time"),
        (USUAL, ["user", "product", "price"], "--item=product"), (USUAL, ["user", "x"], "--item=…"),
        (USUAL, ["client", "x"], "--user=client --item=…"), (USUAL | {"time": "t"}, ["user", "item", "r"], "--time=…"),
        (USUAL | {"time": "at"}, ["user", "product", "at", "date"], "--item=product"),
        (USUAL | {"user": "custmer"}, ["user", "customer", "item"], "--user=customer"),
        (USUAL | {"rating": "r"}, ["user", "item", "stars"], "--rating=stars"),
        (USUAL, ["user;item"], "--user=… --item=…"), (USUAL, ["196", "242", "881250949"], NO_HEADER),
        (USUAL | {"time": "at", "rating": "r"}, ["2024-03-01", "7", "x"], NO_HEADER),
        (USUAL, ["7", "8"], NO_HEADER), (USUAL, ["session_id", "customer", "sku"], "--user=customer --item=sku"),
        (USUAL, ["session_id", "user_agent", "user_pseudo_id", "item_name", "item_id"],
         "--user=user_pseudo_id --item=item_id"),
        (USUAL, ["session_id", "item"], "--user=session_id"), (USUAL, ["1", "2", "3"], "--user=… --item=…"),
        (USUAL | {"title": "name"}, ["user", "item", "title"], "--title=title"),
        (USUAL | {"title": "bezeichnung"}, ["user", "item", "text"], "--title=…"),
        (USUAL | {"order": "linie", "title": "name"}, ["user", "item", "line"], "--order=line --title=…"),
    ],
)  # fmt: skip
def test_the_columns_that_are_likely(named: dict[str, str], present: list[str], advice: str) -> None:
    found = column_advice(named, present)
    assert found[found.index("--") :] == advice


@pytest.mark.parametrize("name", ["user id", "$user", "user's", "user\tid", "User (id)"])
def test_the_options_are_ready_for_the_shell(name: str) -> None:
    advice = column_advice({"user": "user id's", "item": "item"}, [name, "item"])
    options = shlex.split(advice[advice.index("'--") :])
    assert load_config(None, parse_command_line(options, PREPARE_OPTIONS)[1]).data.user_column == name


START = 1_600_000_000
LOG = [
    (f"c{u}", f"sku-{(u + k) % 9}", START + 60 * k + u, 1 + k % 5, f"Thing {(u + k) % 9}")
    for u in range(6)
    for k in range(5)
]
TABLE = pl.DataFrame(LOG, schema=["customer", "sku", "created_at", "stars", "name"], orient="row")
COLUMNS = {"user_column": "customer", "item_column": "sku"}


def test_a_log_without_times_is_warned_of_early_and_at_the_end(tmp_path: Path, capsys: Capture) -> None:
    log, folder = tmp_path / "log.csv", tmp_path / "dataset"
    TABLE[np.random.default_rng(1).permutation(len(LOG))].write_csv(log)
    options = [
        "--user=customer",
        "--item=sku",
        "--time=",
        "--rating=",
        "--title=",
        "--preprocessing.n_eval_negatives=1",
    ]
    assert preprocessing.main([str(log), f"--out={folder}", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = [line.split(",")[:2] for line in log.read_text().splitlines()[1:4]]
    _, *rows, warning = lines[: next(i for i, line in enumerate(lines) if "] read " in line)][-5:]
    assert rows[-3:] == [f"  {user}               {item}" for user, item in first]
    assert warning.startswith("warning: ")
    after = lines[len(lines) - lines[::-1].index("") :]
    assert (after[0], str(folder) in after[1]) == (warning, True)
    (order,) = (line for line in lines if line.startswith("order: "))
    assert order in (folder / "README.md").read_text().splitlines()


def test_a_named_time_gives_the_order_and_is_shown_beside_ratings_and_titles(tmp_path: Path) -> None:
    found, _, warnings = looked(TABLE, tmp_path / "log.jsonl", **COLUMNS)
    assert first_look(found)[0][1:] == [
        "  user (customer)  item (sku)  time (created_at)     rating (stars)  title (name)",
        "  c0               sku-0       2020-09-13T12:26:40Z  1               Thing 0",
        "  c0               sku-1       2020-09-13T12:27:40Z  2               Thing 1",
        "  c0               sku-2       2020-09-13T12:28:40Z  3               Thing 2",
    ]
    assert (warnings, found.order) == ([], {"by": "time", "column": "created_at", "newest_first": False})


DAYS = [45231 + i / 8 for i in range(len(LOG))]  # from 2023-11-01 on, as Excel counts them


@pytest.mark.parametrize(
    ("times", "form", "is_warned"),
    [
        ([*range(26), *[START] * 4], "", False), ([*range(27), *[START] * 3], "", True),
        (TABLE["stars"], "", True), (TABLE["created_at"], "us", True),
        ([int(day) for day in DAYS], "", False), ([day - 20_000 for day in DAYS], "", True),  # no days of Excel
    ],
)  # fmt: skip
def test_nearly_all_times_must_lie_in_1970(tmp_path: Path, times: list[float], form: str, is_warned: bool) -> None:
    table = TABLE.with_columns(pl.Series("created_at", times))
    _, rows, warnings = looked(table, tmp_path / "a.csv", **COLUMNS, time_column="created_at", time_format=form)
    n_early = (rows["time"] < 365 * 86_400).sum()
    assert [line.startswith(f"{n_early} of the first 30 times") for line in warnings] == [True] * is_warned
    assert ("data.time_format" in "".join(warnings)) == (form == "us")


def test_users_and_items_that_look_swapped_are_warned_of(tmp_path: Path) -> None:
    *_, warnings = looked(TABLE, tmp_path / "log.csv", user_column="sku", item_column="customer")
    assert warnings[0].endswith("--user=customer --item=sku")


def test_known_data_show_their_order_and_first_rows_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("".join(f"{1 + k // 5}\t{k}\t{k % 5}.5\t{START - k}\n" for k in range(1, 9)))
    rows = ["user_id,book_id,is_read,rating\n", *(f"{k // 5},{k},1,0\n" for k in range(9))]
    (tmp_path / "goodreads_interactions.csv").write_text("".join(rows))
    (tmp_path / "a.txt").write_text("7 1 2 3\n8 5 4 9\n9 " + "1234567 " * 150_000 + "\n")
    found = {source: first_look(opened(source, path=str(tmp_path))) for source in ("ml-100k", "goodreads", "sequences")}
    assert [warnings for _, warnings in found.values()] == [[], [], []]
    header, first, *_ = found["ml-100k"][0][1:]
    assert (header.split(), first.split()[2]) == (["user", "item", "time", "rating"], "2020-09-13T12:26:39Z")
    assert found["goodreads"][0][1] == "  user (user_id)  item (book_id)  rating"
    assert found["sequences"][0][1:] == ["  user  item", "  7     1", "  7     2", "  7     3"]


def test_a_long_value_is_cut_and_a_line_end_in_a_title_is_a_blank(tmp_path: Path) -> None:
    long = TABLE.with_columns(pl.col("customer") + "x" * 50, name=pl.lit("a\nb"))
    found, *_ = looked(long, tmp_path / "log.csv", **COLUMNS, title_column="name", rating_column="")
    assert first_look(found)[0][2] == f"  c0{'x' * 37}…  sku-0       2020-09-13T12:26:40Z  a b"
