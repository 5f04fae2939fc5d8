"""Copy the rows of a database into a Parquet file, in batches of Arrow from its ADBC driver."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.config.addresses import DRIVERS, VARIABLE, is_url, with_variables, without_secrets
from bert4rec.config.recognition import MOST_CHOICES
from bert4rec.runtime.errors import DataError, join_names, nearest

SELECT = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:SELECT|WITH|VALUES|TABLE|FROM)\b", re.IGNORECASE | re.DOTALL)
SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"  # must be the first of a transaction
SQLITE_ROWS = 1 << 16  # of a batch; the types of columns are those of the first batch
LISTED_BY = ("postgresql", "sqlite")  # drivers that list the tables at once
NO_TABLES = ("index", "partitioned_index", "sequence", "toast_table", "composite_type")  # types of what is listed, too
UNKNOWN_TABLE = re.compile(r'relation "([^"]+)" does not exist|no such table: (\S+)')
OTHER_TYPE = re.compile(r"Type mismatch in column (\d+)")
PARAMETER = re.compile(r"\{since(|:s|:ms)\}")
NUMBERED = {"postgresql": "$", "sqlite": "?"}  # before the numbers of parameters, which other drivers take in order
UUID = r"(.{8})(.{4})(.{4})(.{4})(.{12})"


def fetch_database(
    place: str, table: str, query: str, target: Path, advance: Callable[[int], None], warn: Callable[[str], None],
    since: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Copy the rows of `query`, or of the `table`, of the database at `place` into the Parquet file `target`.

    `since`, in seconds, is bound to the parameters {since}, {since:s} and {since:ms} of the query.

    They are of one snapshot, in a transaction that only reads. `advance` gets numbers of rows, `warn` the columns that
    are left out. Returns the table that was chosen if none was named. Raises `DataError`, and `ModuleNotFoundError`
    without the driver.
    """
    if table and query:
        raise DataError(f"--table={table}: --query names the rows already; remove one of the two")
    if query and not SELECT.match(query):
        raise DataError(f"--query={query}: is no SELECT, and a database is only read")
    name, connect = _driver(place)
    query, parameters = _bound(query.rstrip().rstrip(";"), since, name)
    manager, tables, columns, n_rows = import_module("adbc_driver_manager"), list[tuple[str, str]](), list[str](), 0
    try:
        with connect() as connection, connection.cursor() as cursor:
            if name == "postgresql":
                cursor.execute(SNAPSHOT)
            if name == "sqlite":
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": SQLITE_ROWS})
            if name in LISTED_BY:
                tables = _tables(connection)
            source = "" if query else _source(without_secrets(place), table, tables, is_listed=name in LISTED_BY)
            cursor.execute(query or f"SELECT * FROM {source}", parameters or None)
            reader = cursor.fetch_record_batch()
            columns += reader.schema.names
            for n in _copy(reader, target, without_secrets(place), warn):
                n_rows += n
                advance(n)
    except (manager.Error, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the file that is written
            raise
        problem = _problem(str(error), VARIABLE.findall(place), tables, columns)
        broken = f"interrupted after {n_rows:,} rows: " if n_rows else ""
        raise DataError(f"{without_secrets(place)}: {broken}{problem}") from None
    return {} if query or table else {"table": source.replace('"', "")}


def _bound(query: str, since: int | None, driver: str) -> tuple[str, list[Any]]:
    """Return the query with marks of the driver for its parameters, and their values."""
    if (found := PARAMETER.search(query)) and since is None:
        raise DataError(f"--query={query}: only `bert4rec update` knows {found[0]}, what the last update has seen")
    moment, values, marks = datetime.fromtimestamp(since or 0, UTC).replace(tzinfo=None), list[Any](), dict[str, str]()
    usual = moment.isoformat(" ") if driver == "sqlite" else moment  # which has no type for times

    def mark(found: re.Match[str]) -> str:
        if driver not in NUMBERED or found[0] not in marks:
            values.append({"": usual, ":s": since, ":ms": 1000 * (since or 0)}[found[1]])
            marks[found[0]] = f"{NUMBERED[driver]}{len(values)}" if driver in NUMBERED else "?"
        return marks[found[0]]

    return PARAMETER.sub(mark, query), values


def _driver(place: str) -> tuple[str, Callable[[], Any]]:
    """Return the name of the ADBC driver for the database at `place`, and the function that connects."""
    scheme, _, rest = place.partition("://") if is_url(place) else ("sqlite", "", "")
    name = DRIVERS.get(scheme, scheme)
    driver = import_module(f"adbc_driver_{name}.dbapi")
    if name == "sqlite":
        return name, lambda: driver.connect(f"file:{quote(os.path.abspath(place))}?mode=ro", autocommit=True)
    address = with_variables(rest if name == "snowflake" else place, place)
    if name == "bigquery":
        names = zip(("project", "dataset"), rest.split("/"), strict=False)
        options = {f"adbc.bigquery.sql.{key}_id": value for key, value in names if value}
        return name, lambda: driver.connect(options, autocommit=True)
    return name, lambda: driver.connect(address, autocommit=name != "postgresql")


def _tables(connection: Any) -> list[tuple[str, str]]:
    """Return schema and name of each table and view, in their order."""
    return sorted(
        (schema["db_schema_name"], table["table_name"])
        for catalog in connection.adbc_get_objects(depth="tables").read_all().to_pylist()
        for schema in catalog["catalog_db_schemas"] or ()
        for table in schema["db_schema_tables"] or ()
        if table["table_type"] not in NO_TABLES
    )


def _source(place: str, table: str, tables: Sequence[tuple[str, str]], *, is_listed: bool) -> str:
    """Return the `table`, or the only one of the database, as SQL names it."""
    if not is_listed:
        if not table:
            raise DataError(f"{place}: name the table with --table=…, or the rows with --query='SELECT …'")
        return table
    names = {".".join(filter(None, found)): found for found in tables}
    fitting = [name for name, found in names.items() if not table or table in (name, found[1])]
    if len(fitting) == 1:
        return ".".join(f'"{part}"' for part in names[fitting[0]] if part)
    has = f"it has {join_names([*names], MOST_CHOICES)}" if names else "it has no tables"
    if table and not fitting:
        raise DataError(f'{place}: no table "{table}"{nearest(table, [name for _, name in tables]) or f"; {has}"}')
    raise DataError(f"{place}: which table? {has}; name it: --table={next(iter(fitting), '…')}")


def _copy(reader: Any, target: Path, place: str, warn: Callable[[str], None]) -> Iterator[int]:
    """Write the batches of `reader` into the Parquet file `target`, and yield the numbers of rows."""
    kept = [number for number, field in enumerate(reader.schema) if not _unread_type(field.type)]
    fields = [reader.schema[number] for number in kept]
    schema = pa.schema([(field.name, _plain(pa.nulls(0, field.type)).type) for field in fields])
    if lost := [f"{field.name} ({kind})" for field in reader.schema if (kind := _unread_type(field.type))]:
        warn(f"{place}: left out {join_names(lost, MOST_CHOICES)}: not read; to read a column, cast it in --query")
    if not kept:
        raise DataError(f"{place}: has only {join_names(lost, MOST_CHOICES)}; cast them to text in --query")
    with pq.ParquetWriter(target, schema) as writer:
        for batch in reader:
            writer.write_batch(pa.record_batch([_plain(batch.column(number)) for number in kept], schema=schema))
            yield batch.num_rows


def _unread_type(dtype: pa.DataType) -> str:
    """Return the name of a type that a file cannot hold, or that only its database can decode; "" for others."""
    is_opaque = isinstance(dtype, pa.OpaqueType) and not pa.types.is_string(dtype.storage_type)
    return dtype.type_name if is_opaque else "interval" if pa.types.is_interval(dtype) else ""


def _plain(column: pa.Array) -> pa.Array:
    """Return the values in a type that a file can hold: a UUID as its usual text."""
    if isinstance(column.type, pa.UuidType):
        digits = pl.Series(column.storage.cast(pa.binary())).bin.encode("hex")
        return digits.str.replace(UUID, "$1-$2-$3-$4-$5").to_arrow().cast(pa.string())
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _problem(text: str, variables: Sequence[str], tables: Sequence[tuple[str, str]], columns: Sequence[str]) -> str:
    """Return the reason in a driver's message, without values of `variables`, and the advice."""
    for variable in variables:
        text = text.replace(os.environ[variable], "…").replace(quote(os.environ[variable], safe=""), "…")
    if mixed := OTHER_TYPE.search(text):
        column = columns[int(mixed[1])]
        cast = f"--query='SELECT CAST({column} AS TEXT) AS {column}, … FROM …'"
        return f"column {column} has values of several types; read it as one: {cast}"
    found = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.+)", text)
    reason = found[1] if found else re.sub(r"^(?:[A-Z_]+: )?(?:\[\w+\] )?", "", text.strip()).split("\n")[0]
    if "password" in reason:
        reason += "; set PGPASSWORD, or write it into ~/.pgpass"
    if unknown := UNKNOWN_TABLE.search(text):
        reason += nearest(unknown[1] or unknown[2], [name for _, name in tables])
    return re.sub(r"\S+://\S+", "…", reason)
