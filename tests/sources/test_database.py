"""Rows of a database are those of the same table in a file; it is only read, and each failure is one line."""

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from bert4rec.config.load import load_config
from bert4rec.sources.database import SQLITE_ROWS, fetch_database
from tests.checks import Capture, Patch, one_line
from tests.sources.same_rows import COLUMNS, ROWS, made

sqlite = pytest.importorskip("adbc_driver_sqlite.dbapi")


def database(path: Path, *tables: str, rows: Sequence[Sequence[Any]] = ROWS) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in tables:
            connection.execute(f'create table "{table}" (customer text, sku integer, at text, stars real)')
            connection.executemany(f'insert into "{table}" values (?, ?, ?, ?)', rows)
    return path


def fetched(place: str, folder: Path, table: str = "", query: str = "") -> tuple[pl.DataFrame, dict[str, Any]]:
    counts: list[int] = []
    version = fetch_database(place, table, query, folder / "copy.parquet", counts.append, print)
    rows = pl.read_parquet(folder / "copy.parquet", glob=False)
    assert sum(counts) == len(rows)
    return rows, version


@pytest.mark.parametrize(("table", "query"), [("", ""), ("orders", ""), ("", "SELECT * FROM orders;\n")])
def test_a_database_gives_the_dataset_of_the_same_rows_in_a_file(tmp_path: Path, table: str, query: str) -> None:
    pl.DataFrame(ROWS, COLUMNS, orient="row").write_parquet(tmp_path / "log.parquet")
    shop = database(tmp_path / "shop.db", "orders")
    expected = made(tmp_path / "a", path=str(tmp_path / "log.parquet"))
    assert made(tmp_path / "b", path=str(shop), table=table, query=query) == expected
    if table:  # the dataset of a table is not replaced by that of another
        database(shop, "carts")
        with one_line(f"{tmp_path}/b: ", "shop.db (orders)", "shop.db (carts)", "--replace"):
            made(tmp_path / "b", path=str(shop), table="carts")
        with one_line("--query", "a database"):
            made(tmp_path / "c", path=str(tmp_path / "log.parquet"), query="SELECT 1")


def test_the_address_of_a_file_is_that_file(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    database(Path("shop.db"), "orders")
    for path in ("shop.db", "sqlite:///shop.db", f"sqlite:///{tmp_path}/shop.db"):
        data = load_config(None, {"data.path": path}).data
        assert (data.source, data.folder) == ("table", Path("data/shop"))
        assert len(fetched(data.path, tmp_path)[0]) == len(ROWS)
    assert load_config(None, {"data.path": "shop.db", "data.table": "main.orders"}).data.folder == Path("data/orders")


def test_rows_are_in_their_order_over_many_batches(tmp_path: Path) -> None:
    n = 2 * SQLITE_ROWS + 5
    shop = database(tmp_path / "a b?#%.db", "my.log", rows=[("u", row, None, row / 4) for row in range(n)])
    rows, version = fetched(str(shop), tmp_path)
    assert version == {"table": "my.log"}
    assert rows["sku"].to_list() == [*range(n)]
    assert rows.schema == {"customer": pl.String, "sku": pl.Int64, "at": pl.Int64, "stars": pl.Float64}


REFUSED = [  # table, query, words of the message
    ("", "", ["which table? it has Items, orders", "--table="]), ("order", "", ['"order"', "did you mean orders?"]),
    ("zzz", "", ['"zzz"', "it has Items, orders"]), ("items", "", ["did you mean Items?"]),
    ("orders", "SELECT 1", ["--table=orders", "--query"]), ("", "DELETE FROM orders", ["no SELECT"]),
    ("", "SELECT * FROM ordrs", ["no such table: ordrs", "did you mean orders?"]),
    ("", "SELECT 1 FROM", ["incomplete"]),
    ("", "WITH x AS (SELECT 1) DELETE FROM orders", ["readonly"]),
    ("damaged", "", ["database"]),
    ("mixed", "", ["column sku", "CAST(sku AS TEXT)"]), ("", "SELECT nope FROM orders", ["no such column: nope"]),
]  # fmt: skip


@pytest.mark.parametrize(("table", "query", "words"), REFUSED)
def test_what_cannot_be_read_leaves_nothing(tmp_path: Path, table: str, query: str, words: list[str]) -> None:
    shop = database(tmp_path / "shop.db", "orders", "Items")
    if table == "mixed":
        database(shop, "mixed", rows=[("u", 1, "", 1)] * (SQLITE_ROWS + 1) + [("u", "a7", "", 1)])
    if table == "damaged":
        shop.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    before = shop.read_bytes()
    with one_line("--" if words[0].startswith("--") or "no SELECT" in words else f"{shop}: ", *words):
        made(tmp_path / "dataset", path=str(shop), table=table, query=query)
    assert [*tmp_path.iterdir()] == [shop]
    assert shop.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "wanted"), [("", '"bert4rec-torchrec[sql]"'), ("snowflake://h/d", "adbc-driver-snowflake")]
)
def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: Patch, url: str, wanted: str) -> None:
    shop = url or str(database(tmp_path / "shop.db", "orders"))
    for name in ("sqlite", "snowflake"):
        monkeypatch.setitem(sys.modules, f"adbc_driver_{name}.dbapi", None)
    with one_line(f"{shop}: ", "not installed", f"pip install {wanted}"):
        made(tmp_path / "dataset", path=shop, table="orders")


BIGQUERY = {"adbc.bigquery.sql.project_id": "project", "adbc.bigquery.sql.dataset_id": "shop"}
ADDRESSES = [  # address, driver, what it gets
    ("snowflake://ann:$SHOP_PW@account/shop?warehouse=w", "snowflake", "ann:p%40%2Fw@account/shop?warehouse=w"),
    ("bigquery://project/shop", "bigquery", BIGQUERY), ("grpc+tls://h:443", "flightsql", "grpc+tls://h:443"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "driver", "expected"), ADDRESSES)
def test_any_driver_gets_the_address_as_it_expects_it(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, url: str, driver: str, expected: Any
) -> None:
    shop, addresses = database(tmp_path / "shop.db", "orders"), list[Any]()

    def connect(address: Any, *, autocommit: bool) -> Any:
        addresses.append(address)
        return sqlite.connect(str(shop), autocommit=autocommit)

    monkeypatch.setitem(sys.modules, f"adbc_driver_{driver}", SimpleNamespace(__spec__=SimpleNamespace()))
    monkeypatch.setitem(sys.modules, f"adbc_driver_{driver}.dbapi", SimpleNamespace(connect=connect))
    monkeypatch.setenv("SHOP_PW", "p@/w")
    made(tmp_path / "dataset", path=url, table="orders")
    assert addresses == [expected]
    with one_line(url.partition(":")[0], "--table", "--query"):
        made(tmp_path / "another", path=url)
    monkeypatch.delenv("SHOP_PW")
    if "$" in url:
        with one_line("snowflake://account/shop: ", "SHOP_PW is not set"):
            made(tmp_path / "another", path=url, table="orders")
    assert "p@/w" not in str(capsys.readouterr())
