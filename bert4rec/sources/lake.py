"""Copy a Delta or Iceberg table, or the sheets of a workbook, into a Parquet file."""

import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from bert4rec.config.addresses import ICEBERG, without_secrets
from bert4rec.config.recognition import MOST_CHOICES
from bert4rec.runtime.errors import DataError, join_names, nearest


def fetch_lake(
    place: str, target: Path, advance: Callable[[int], None], *, times: str = "", since: int | None = None
) -> dict[str, Any]:
    """Copy the newest state of the table at `place` into the Parquet file `target`, and return its number.

    Rows before `since`, in seconds, are left out, if the column `times` is a date or a timestamp. `advance` gets the
    number of rows. Raises `DataError`, and `ModuleNotFoundError` without the package for the format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Polars tells about faster packages
            rows, state = _rows(place)
            if since is not None and (dtype := rows.collect_schema().get(times)) in (pl.Date, pl.Datetime):
                # of the type of the column, so that whole files are left out by their statistics
                first = pl.Series([datetime.fromtimestamp(since, UTC)]).cast(dtype)
                rows = rows.filter(pl.col(times) >= first.item())
            rows.sink_parquet(target)
    except Exception as error:  # the packages have no class of their own for all of theirs
        if isinstance(error, ModuleNotFoundError) or (isinstance(error, OSError) and error.errno):
            raise
        reason = re.sub(r"\x1b\[\d+m|\S+://\S+", "", str(error)).strip().split("\n")[0]
        raise DataError(
            f"{without_secrets(place)}: not a Delta or Iceberg table, damaged or out of reach: {reason}; the files of "
            "a folder are named by a pattern: …/*.parquet"
        ) from None
    advance(pq.read_metadata(target).num_rows)
    return state


def _rows(place: str) -> tuple[pl.LazyFrame, dict[str, Any]]:
    """Return the rows of the table at `place`, and the version or snapshot that they are of."""
    files = [place] if place.endswith(ICEBERG) else [str(file) for file in Path(place).glob(f"metadata/*{ICEBERG}")]
    if files:
        from pyiceberg.table import StaticTable

        static = StaticTable.from_metadata(max(files, key=_number))
        snapshot = static.current_snapshot()
        return pl.scan_iceberg(static), {"snapshot": snapshot.snapshot_id if snapshot else None}
    from deltalake import DeltaTable

    delta = DeltaTable(place)
    return pl.scan_delta(delta), {"version": delta.version()}


def _number(file: str) -> int:
    """Return the number at the start of the name of an Iceberg table's file."""
    found = re.match(r"v?(\d+)", Path(file).name)
    return int(found[1]) if found else -1


def fetch_workbook(
    place: str, table: str, target: Path, advance: Callable[[int], None], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Copy the sheet `table` of the workbook at `place` into the Parquet file `target`; by default all sheets with rows
    that have the header of the first.

    `advance` gets the number of rows, `warn` the other sheets; returns the names of those that were copied. Raises
    `DataError`, and `ModuleNotFoundError` without the package.
    """
    import fastexcel

    wanted: dict[str, Any] = {"sheet_name": [table]} if table else {"sheet_id": 0}
    try:
        if table and table not in (names := fastexcel.read_excel(place).sheet_names):
            raise DataError(
                f'{place}: no sheet "{table}"{nearest(table, names) or f"; it has {join_names(names, MOST_CHOICES)}"}'
            )
        whole = pl.read_excel(place, engine="calamine", raise_if_empty=False, **wanted)
    except (fastexcel.FastExcelError, pl.exceptions.PolarsError) as error:
        reason = str(error).removeprefix("calamine error: ").split("\n")[0]
        raise DataError(f"{place}: not a workbook, or damaged: {reason}") from None
    sheets = {name: rows for name, rows in whole.items() if len(rows)}
    if not sheets:
        raise DataError(f"{place}: has no rows; name another file")
    first = next(iter(sheets.values()))
    log = {name: rows for name, rows in sheets.items() if rows.columns == first.columns}
    if others := [name for name in sheets if name not in log]:
        warn(f"{place}: left out {join_names(others, MOST_CHOICES)}: another header than {next(iter(log))}")
    texts = [name for name in first.columns if {pl.String} < {rows.schema[name] for rows in log.values()}]
    parts = [rows.with_columns(pl.col(texts).cast(pl.String)) for rows in log.values()]
    rows = pl.concat(parts, how="vertical_relaxed")
    rows.write_parquet(target)
    advance(len(rows))
    return {"sheets": [*log]}
