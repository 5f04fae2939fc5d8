"""What a real PostgreSQL says and holds: every type, logins, a connection that breaks; it runs as a user of its own."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest

from bert4rec.sources.database import fetch_database
from tests.checks import Capture, Patch, one_line
from tests.postgresql import PASSWORD, PROGRAMS, running
from tests.sources.same_rows import COLUMNS, ROWS, made

dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL here: apt-get install postgresql")
Shop = tuple[str, Callable[[str], None]]
SHOP = """
DROP SCHEMA IF EXISTS old, public CASCADE; CREATE SCHEMA public; CREATE SCHEMA old;
CREATE TABLE "Carts" (id integer);
CREATE TABLE old.orders (id integer); CREATE TABLE old.only (n integer);
CREATE TABLE typed AS SELECT '00000000-0000-0000-00aB-000000000007'::uuid AS customer, 12.50::numeric AS price,
  '2024-01-01 12:00:00.5+02'::timestamptz AS at, '2024-01-01 12:00'::timestamp AS local, '2024-01-01'::date AS day,
  7::smallint AS small, 2::bigint AS big, true AS flag, 'é'::varchar(9) AS name, '{"a": 1}'::jsonb AS extra,
  '{1,2}'::int[] AS list, 'x'::bytea AS bytes, '1.2.3.4'::inet AS address, '1 day'::interval AS age;
INSERT INTO typed (small) VALUES (8);
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address, without the password, while it runs."""
    with running() as (address, _):
        yield address


@pytest.fixture
def shop(server: str, monkeypatch: Patch) -> Iterator[Shop]:
    """Its address, and a function that executes statements; its database is new."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with dbapi.connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in SHOP.strip("; \n").split(";"):
            cursor.execute(statement)
        cursor.adbc_ingest("orders", pl.DataFrame(ROWS, COLUMNS, orient="row").to_arrow(), mode="create")
        yield server, cursor.execute


def test_a_table_and_a_query_give_the_dataset_of_a_file(shop: Shop, tmp_path: Path, capsys: Capture) -> None:
    url, _ = shop
    pl.DataFrame(ROWS, COLUMNS, orient="row").write_parquet(tmp_path / "log.parquet")
    expected = made(tmp_path / "a", path=str(tmp_path / "log.parquet"))
    assert made(tmp_path / "b", path=url, table="public.orders") == expected
    assert made(tmp_path / "c", path=f"{url}?application_name=x", query="TABLE public.orders;") == expected
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for secret in (PASSWORD, quote(PASSWORD, safe=""), "ann@", "application_name"):
        assert secret.encode() not in written
        assert secret not in str(capsys.readouterr())


def test_each_type_is_read_or_left_out(shop: Shop, tmp_path: Path) -> None:
    said: list[str] = []
    fetch_database(shop[0], "typed", "", tmp_path / "typed.parquet", lambda n: None, said.append)
    values: dict[str, Any] = {
        "customer": "00000000-0000-0000-00ab-000000000007", "price": "12.50",
        "at": datetime(2024, 1, 1, 10, 0, 0, 500_000, UTC), "local": datetime(2024, 1, 1, 12),
        "day": date(2024, 1, 1), "small": 7, "big": 2, "flag": True, "name": "é", "extra": '{"a": 1}', "list": [1, 2],
        "bytes": b"x",
    }  # fmt: skip
    missing = dict.fromkeys(values) | {"small": 8}
    assert pl.read_parquet(tmp_path / "typed.parquet").rows(named=True) == [values, missing]
    assert len(said) == 1
    assert "address (inet), age (interval)" in said[0]


LOGINS = [  # what comes before the host, environment, file of passwords, what is said ("": it is let in)
    ("ann", {}, f"*:*:*:ann:{PASSWORD}", ""), ("ann:$SHOP_PW", {"SHOP_PW": PASSWORD}, "", ""),
    ("ann", {"PGPASSWORD": "5ec"}, "", "authentication failed"), ("ann", {}, "", "no password supplied"),
    ("ann:$SHOP_PW", {"SHOP_PW": "5ec@x"}, "", "authentication failed"),
    ("bob", {"PGPASSWORD": PASSWORD}, "", "authentication failed"),
]  # fmt: skip


@pytest.mark.parametrize(("login", "environment", "passwords", "said"), LOGINS)
def test_the_password_comes_from_outside(
    shop: Shop, tmp_path: Path, monkeypatch: Patch, login: str, environment: dict[str, str], passwords: str, said: str
) -> None:
    (tmp_path / "passwords").write_text(f"{passwords}\n")
    (tmp_path / "passwords").chmod(0o600)
    monkeypatch.delenv("PGPASSWORD")
    for name, value in {**environment, "PGPASSFILE": str(tmp_path / "passwords")}.items():
        monkeypatch.setenv(name, value)
    refused = one_line("postgresql://127.0.0.1:", said, "PGPASSWORD", ".pgpass") if said else nullcontext()
    with refused as caught:
        made(tmp_path / "dataset", path=shop[0].replace("ann", login), table="public.orders")
    assert "5ec" not in str(caught and caught.value)


REFUSED = [  # table, query, words of the message
    ("", "", ["which table? it has old.only, old.orders, public.Carts"]),
    ("orders", "", ["which table?", "--table=old.orders"]), ("", "SELECT * FROM ordrs", ["did you mean orders?"]),
    ("", "SELECT 1 / (sku - 3) AS sku FROM orders", ["division by zero"]),
    ("", "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x", ["read-only"]),
    ("", "SELECT age FROM typed", ["age (interval)", "cast"]), ("", "SELECT 1; DROP TABLE orders", ["multiple"]),
]  # fmt: skip


def test_what_cannot_be_read_leaves_nothing(shop: Shop, tmp_path: Path) -> None:
    for table, query, words in REFUSED:
        with one_line("postgresql://127.0.0.1:", *words):
            made(tmp_path / "dataset", path=shop[0], table=table, query=query)
        assert [*tmp_path.iterdir()] == []
    for address, said in (
        ("postgresql://127.0.0.1:1/shop", "Connection refused"), ("postgresql://no.such.host.invalid/shop", "host"),
        (shop[0].replace("/postgres", "/nowhere"), '"nowhere" does not exist'),
    ):  # fmt: skip
        with one_line("postgresql://", said):
            made(tmp_path / "dataset", path=address, table="orders")
    fetch_database(shop[0], "public.orders", "", tmp_path / "copy.parquet", lambda n: None, print)
    assert len(pl.read_parquet(tmp_path / "copy.parquet")) == len(ROWS)


def test_a_connection_that_breaks_half_way_leaves_nothing(shop: Shop, tmp_path: Path, monkeypatch: Patch) -> None:
    url, execute = shop
    reads = "pid <> pg_backend_pid() AND query LIKE 'COPY%'"

    def advance(self: object, n_rows: int, done: int | None = None) -> None:
        with suppress(dbapi.Error):
            execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {reads}")

    monkeypatch.setattr("bert4rec.sources.progress.Stage.advance", advance)
    query = "SELECT n AS user, n % 9 AS item, repeat('x', 1000) AS note FROM generate_series(1, 100000) n"
    with one_line("postgresql://127.0.0.1:", "interrupted after ", "rows: "):
        made(tmp_path / "dataset", path=url, query=query)
    assert [*tmp_path.iterdir()] == []
