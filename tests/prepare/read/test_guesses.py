"""What a column may hold, by its name and its first values."""

from datetime import UTC, date, datetime
from typing import Any

import polars as pl
import pytest

from bert4rec.prepare.read.guesses import look_swapped, looks_like_time, needs_format

NOW = 1_700_000_000
PARSED = [datetime(2024, 3, 19, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *[(name, [3, 5, 4]) for name in ("time", "timestamp", "date", "datetime", "ts", "at", "created_at", "madeAt")],
        *[(name, ["3", "5"]) for name in ("event_time", "TIMESTAMP", "reviewTime", "unix time", "Order Date", "day")],
        ("when", ["31. Dec 2020", None]),
        ("x", PARSED), ("x", [date(2024, 3, 19)]), ("x", [None, "2024-03-19"]), ("x", ["2024-03-19 10:27:00.5+02:00"]),
        ("x", ["2024-03-19T10:27"]), ("x", ["31/12/2020", "1/2/2021 10:00"]), ("x", ["31.12.20"]), ("x", ["2020/1/31"]),
        *[("x", [NOW * ticks, (NOW + 9) * ticks]) for ticks in (1, 10**3, 10**6, 10**9)],
        *[("x", [str(NOW * ticks), f" {NOW * ticks}"]) for ticks in (1, 10**3, 10**6, 10**9)],
        ("x", [788_918_400]), ("x", [2**31 - 1]), ("x", [NOW + 0.5, None]), ("x", [str(NOW + 0.5)]),
    ],
)  # fmt: skip
def test_what_looks_like_a_time(name: str, values: list[Any]) -> None:
    assert looks_like_time(pl.Series(name, values))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("stars", [1, 5, 4]), ("price", [9.99]), ("x", [NOW, 7]), ("x", [NOW, NOW * 1000]), ("x", [788_918_399]),
        ("x", [2**31]), ("name", ["Heat, The (1995)"]), ("x", ["2024-03-19", "soon"]), ("x", [True]), ("time", [True]),
        ("time", ["morning", "noon"]), ("time", [-1, 5]), ("date", []), ("date", [None, None]), ("update", [1, 2]),
        ("latest", [1, 2]), ("status", ["a1"]), ("x", ["1.2.3.4"]), ("x", ["12-34-5678-9x"]), ("x", ["", " "]),
    ],
)  # fmt: skip
def test_what_does_not(name: str, values: list[Any]) -> None:
    assert not looks_like_time(pl.Series(name, values))


@pytest.mark.parametrize(
    ("values", "needs"),
    [
        (["31/12/2020"], True), (["2020/12/31", None], True), (["2020-12-31"], False), ([str(NOW)], False),
        ([NOW], False), (PARSED, False), (["2020-12-31 10:27"], True),
    ],
)  # fmt: skip
def test_which_times_need_a_form(values: list[Any], needs: bool) -> None:
    assert needs_format(pl.Series("at", values)) == needs


@pytest.mark.parametrize(
    ("user", "item", "swapped"),
    [
        ("sku", "customer", True), ("sku", "x", True), ("x", "customer_id", True), ("movieId", "userId", True),
        ("PRODUCT_ID", "who", True), ("books", "readers", True), ("item", "session", True), ("article", "user", True),
        ("user", "item", False), ("customer", "sku", False), ("userId", "movieId", False), ("a", "b", False),
        ("user", "followed_user", False), ("product_reviewer", "product", False), ("item_a", "item_b", False),
        ("user_id", "user_item", False), ("1", "2", False), ("customer", "customer_product", False),
    ],
)  # fmt: skip
def test_names_that_look_swapped(user: str, item: str, swapped: bool) -> None:
    assert look_swapped(user, item) == swapped
