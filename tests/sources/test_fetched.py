"""Rows of a database, a lake or a workbook are those of a file; they are only read, and each failure is one line."""

import json
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from bert4rec.config.load import load_config
from bert4rec.sources.database import SQLITE_ROWS, fetch_database
from bert4rec.sources.lake import fetch_workbook
from tests.checks import Capture, Patch, one_line
from tests.sources.same_rows import COLUMNS, ROWS, made
from tests.sources.storage import Storage

TABLE = pl.DataFrame(ROWS, COLUMNS, orient="row")
HEADER = ["user", "item", "at"]
AT = datetime(2024, 1, 1, 10)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The dataset of the same rows in a file."""
    folder = tmp_path_factory.mktemp("file")
    TABLE.write_parquet(folder / "log.parquet")
    with one_line("--query", "a database"):
        made(folder / "refused", path=str(folder / "log.parquet"), query="SELECT 1")
    return made(folder / "dataset", path=str(folder / "log.parquet"))


def database(path: Path, *tables: str, rows: Sequence[Sequence[Any]] = ROWS) -> Path:
    pytest.importorskip("adbc_driver_sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in tables:
            connection.execute(f'create table "{table}" (customer text, sku integer, at text, stars real)')
            connection.executemany(f'insert into "{table}" values (?, ?, ?, ?)', rows)
    return path


def workbook(path: Path, **sheets: Sequence[Sequence[Any]]) -> str:
    pytest.importorskip("fastexcel")
    with pytest.importorskip("xlsxwriter").Workbook(path, {"default_date_format": "yyyy-mm-dd hh:mm:ss"}) as book:
        for name, rows in sheets.items():
            sheet = book.add_worksheet(name)
            for number, row in enumerate(rows):
                sheet.write_row(number, 0, row)
    return str(path)


def fetched(path: str, folder: Path, table: str = "") -> tuple[pl.DataFrame, dict[str, Any], list[str]]:
    said, counts, copy = list[str](), list[int](), folder / "copy.parquet"
    if path.endswith((".xlsx", ".ods")):
        version = fetch_workbook(path, table, copy, counts.append, said.append)
    else:
        version = fetch_database(path, table, "", copy, counts.append, said.append)
    rows = pl.read_parquet(copy, glob=False)
    assert sum(counts) == len(rows)
    return rows, version, said


@pytest.mark.parametrize(("table", "query"), [("", ""), ("orders", ""), ("", "SELECT * FROM orders;\n")])
def test_a_database_gives_the_dataset_of_a_file(tmp_path: Path, expected: Any, table: str, query: str) -> None:
    shop = database(tmp_path / "shop.db", "orders")
    assert made(tmp_path / "b", path=str(shop), table=table, query=query) == expected
    if table:  # the dataset of a table is not replaced by that of another
        database(shop, "carts")
        with one_line(f"{tmp_path}/b: ", "shop.db (orders)", "shop.db (carts)", "--replace"):
            made(tmp_path / "b", path=str(shop), table="carts")


def test_a_workbook_gives_the_dataset_of_a_file(tmp_path: Path, expected: Any) -> None:
    log = workbook(tmp_path / "shop.xlsx", one=[COLUMNS, *ROWS[:50]], two=[COLUMNS, *ROWS[50:]])
    assert load_config(None, {"data.path": log}).data.folder == Path("data/shop")
    assert made(tmp_path / "a", path=log) == expected


def origin(folder: Path) -> dict[str, Any]:
    """Return the origin of a dataset."""
    about = json.loads((folder / "metadata.json").read_text())["created_from"]
    return {name: value for name, value in about.items() if name in ("name", "version", "snapshot")}


def test_a_delta_table_has_the_rows_of_its_newest_version(storage: Storage, tmp_path: Path, expected: Any) -> None:
    deltalake = pytest.importorskip("deltalake")
    orders, url = tmp_path / "orders", "s3://lake/orders/"
    TABLE[:50].write_delta(orders)
    TABLE[:5].with_columns(customer=pl.lit("gone")).write_delta(orders, mode="append")
    deltalake.DeltaTable(orders).delete("customer = 'gone'")  # the file stays
    TABLE[50:].write_delta(orders, mode="append")
    shutil.copytree(orders, storage.folder / "lake/orders")
    for place, name in ((str(orders), "orders"), (url, url)):
        assert made(tmp_path / "x", path=place, replace=True) == expected
        assert origin(tmp_path / "x") == {"name": name, "version": 3}
        assert load_config(None, {"data.path": place}).data.folder == Path("data/orders")
    with one_line("s3://lake/carts/: ", "not a Delta"):
        made(tmp_path / "c", path="s3://lake/carts/")


def test_an_iceberg_table_has_the_rows_of_its_newest_snapshot(tmp_path: Path, expected: Any) -> None:
    memory = pytest.importorskip("pyiceberg.catalog.memory")
    catalog = memory.InMemoryCatalog("c", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", TABLE[:50].to_arrow().schema)
    for rows in (TABLE[:50], TABLE[50:]):
        table.append(rows.to_arrow())
    file, place = table.metadata_location.removeprefix("file://"), str(tmp_path / "lake/shop/orders")
    for path, name in ((file, Path(file).name), (place, "orders")):
        assert made(tmp_path / "x", path=path, replace=True) == expected
        assert origin(tmp_path / "x") == {"name": name, "snapshot": table.current_snapshot().snapshot_id}
        assert load_config(None, {"data.path": path}).data.folder == Path("data/orders")


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
    rows, version, _ = fetched(str(shop), tmp_path)
    assert version == {"table": "my.log"}
    assert rows["sku"].to_list() == [*range(n)]
    assert rows.schema == {"customer": pl.String, "sku": pl.Int64, "at": pl.Int64, "stars": pl.Float64}


def test_sheets_of_one_header_are_one_log_in_their_order(tmp_path: Path) -> None:
    log = workbook(
        tmp_path / "log.xlsx",
        empty=[], B=[HEADER, [1, 2, AT], [3, 4.0, AT]], notes=[["what"], ["x"]], A=[HEADER, ["ann", 2.5, AT]],
    )  # fmt: skip
    rows = [("1", 2.0, AT), ("3", 4.0, AT), ("ann", 2.5, AT)]
    found, version, said = fetched(log, tmp_path)
    assert (found.rows(), version) == (rows, {"sheets": ["B", "A"]})
    assert len(said) == 1
    assert "left out notes" in said[0]
    found, version, said = fetched(log, tmp_path, "A")
    assert (found.rows(), version, said) == (rows[2:], {"sheets": ["A"]}, [])


def test_an_open_document_is_a_workbook(tmp_path: Path) -> None:
    pytest.importorskip("fastexcel")
    cells = [["user", "item"], [1, "a"], [2, "b"]]
    kinds = {str: ' office:value-type="string"', int: ' office:value-type="float" office:value="{}"'}
    cell = "<table:table-cell{}><text:p>{}</text:p></table:table-cell>"
    lines = ["".join(cell.format(kinds[type(value)].format(value), value) for value in row) for row in cells]
    rows = "".join(f"<table:table-row>{line}</table:table-row>" for line in lines)
    space = "urn:oasis:names:tc:opendocument:xmlns"
    names = " ".join(f'xmlns:{name}="{space}:{name}:1.0"' for name in ("office", "table", "text"))
    sheet = f'<office:spreadsheet><table:table table:name="log">{rows}</table:table></office:spreadsheet>'
    body = f"<office:document-content {names}><office:body>{sheet}</office:body></office:document-content>"
    with zipfile.ZipFile(tmp_path / "log.ods", "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        file.writestr("content.xml", body)
        file.writestr("META-INF/manifest.xml", "<manifest/>")
    assert load_config(None, {"data.path": str(tmp_path / "log.ods")}).data.source == "table"
    rows, version, _ = fetched(str(tmp_path / "log.ods"), tmp_path)
    assert (rows.rows(), version) == ([(1, "a"), (2, "b")], {"sheets": ["log"]})


REFUSED: list[tuple[bytes | None, str, str, list[str]]] = [  # content of a workbook, table, query, words of the message
    (None, "", "", ["which table? it has Items, orders", "--table="]),
    (None, "order", "", ['"order"', "did you mean orders?"]),
    (None, "zzz", "", ['"zzz"', "it has Items, orders"]), (None, "items", "", ["did you mean Items?"]),
    (None, "orders", "SELECT 1", ["--table=orders", "--query"]), (None, "", "DELETE FROM orders", ["no SELECT"]),
    (None, "", "SELECT * FROM ordrs", ["no such table: ordrs", "did you mean orders?"]),
    (None, "", "SELECT 1 FROM", ["incomplete"]),
    (None, "", "WITH x AS (SELECT 1) DELETE FROM orders", ["readonly"]),
    (None, "damaged", "", ["database"]),
    (None, "mixed", "", ["column sku", "CAST(sku AS TEXT)"]),
    (None, "", "SELECT nope FROM orders", ["no such column: nope"]),
    (b"", "lgo", "", ['"lgo"', "did you mean log?"]), (b"", "zzz", "", ["it has log, empty"]),
    (b"", "empty", "", ["no rows"]),
    *[(content, "", "", ["damaged"]) for content in (b"PK\3\4x", b"\n", b"\xd0\xcf\x11\xe0 " + b"x" * 600)],
]  # fmt: skip


@pytest.mark.parametrize(("content", "table", "query", "words"), REFUSED)
def test_what_cannot_be_read_leaves_nothing(
    tmp_path: Path, content: bytes | None, table: str, query: str, words: list[str]
) -> None:
    if content is None:
        place = database(tmp_path / "shop.db", "orders", "Items")
        if table == "mixed":
            database(place, "mixed", rows=[("u", 1, "", 1)] * (SQLITE_ROWS + 1) + [("u", "a7", "", 1)])
    else:
        place = Path(workbook(tmp_path / "log.xlsx", log=[HEADER, [1, 2, AT]], empty=[]))
    damaged = b"SQLite format 3\0" + b"x" * 5000 if table == "damaged" else content
    place.write_bytes(before := damaged or place.read_bytes())
    with one_line("--" if words[0].startswith("--") or "no SELECT" in words else f"{place}: ", *words):
        made(tmp_path / "dataset", path=str(place), table=table, query=query)
    assert [*tmp_path.iterdir()] == [place]
    assert place.read_bytes() == before


MISSING = [  # place, a file there, its package, what to install
    ("shop.db", "", "adbc_driver_sqlite.dbapi", '"bert4rec-torchrec[sql]"'),
    ("snowflake://h/d", "", "adbc_driver_snowflake.dbapi", "adbc-driver-snowflake"),
    ("orders", "_delta_log/0.json", "deltalake", '"bert4rec-torchrec[lake]"'),
    ("orders", "metadata/v1.metadata.json", "pyiceberg.table", '"bert4rec-torchrec[lake]"'),
]


@pytest.mark.parametrize(("place", "file", "package", "wanted"), MISSING)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: Patch, place: str, file: str, package: str, wanted: str
) -> None:
    if file:
        pytest.importorskip(package)
        (tmp_path / place / file).parent.mkdir(parents=True)
        (tmp_path / place / file).write_text("{}")
        with one_line(f"{tmp_path / place}: ", "damaged"):
            made(tmp_path / "dataset", path=str(tmp_path / place))
    path = place if "://" in place else str(tmp_path / place)
    if place == "shop.db":
        database(tmp_path / place, "orders")
    monkeypatch.setitem(sys.modules, package, None)
    with one_line(f"{path}: ", "not installed", f"pip install {wanted}"):
        made(tmp_path / "dataset", path=path, table="" if file else "orders")
    assert not (tmp_path / "dataset").exists()


BIGQUERY = {"adbc.bigquery.sql.project_id": "project", "adbc.bigquery.sql.dataset_id": "shop"}
ADDRESSES = [  # address, driver, what it gets
    ("snowflake://ann:$SHOP_PW@account/shop?warehouse=w", "snowflake", "ann:p%40%2Fw@account/shop?warehouse=w"),
    ("bigquery://project/shop", "bigquery", BIGQUERY), ("grpc+tls://h:443", "flightsql", "grpc+tls://h:443"),
]  # fmt: skip  # fmt: skip


@pytest.mark.parametrize(("url", "driver", "expected"), ADDRESSES)
def test_any_driver_gets_the_address_as_it_expects_it(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, url: str, driver: str, expected: Any
) -> None:
    sqlite = pytest.importorskip("adbc_driver_sqlite.dbapi")
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
