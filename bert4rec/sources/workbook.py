"""Copy the sheets of a workbook into a Parquet file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.config.recognition import MOST_CHOICES
from bert4rec.runtime.errors import DataError, join_names, nearest


def fetch_workbook(
    place: str, table: str, query: str, target: Path, advance: Callable[[int], None], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Copy the sheet `table` of the workbook at `place` into the Parquet file `target`; by default all sheets with rows
    that have the header of the first.

    `warn` gets the other sheets; returns the names of those that were copied. Raises `DataError`, and
    `ModuleNotFoundError` without the package.
    """
    import fastexcel

    try:
        names = fastexcel.read_excel(place).sheet_names
        if table and table not in names:
            raise DataError(
                f'{place}: no sheet "{table}"{nearest(table, names) or f"; it has {join_names(names, MOST_CHOICES)}"}'
            )
        wanted = [table] if table else names
        read = pl.read_excel(place, engine="calamine", sheet_name=wanted, raise_if_empty=False)
    except (fastexcel.FastExcelError, pl.exceptions.PolarsError) as error:
        reason = str(error).removeprefix("calamine error: ").split("\n")[0]
        raise DataError(f"{place}: not a workbook, or damaged: {reason}") from None
    sheets = {name: rows for name, rows in read.items() if len(rows)}
    if not sheets:
        raise DataError(f"{place}: has no rows; name another file")
    first = next(iter(sheets.values()))
    log = {name: rows for name, rows in sheets.items() if rows.columns == first.columns}
    if others := [name for name in sheets if name not in log]:
        warn(f"{place}: left out {join_names(others, MOST_CHOICES)}: another header than {next(iter(log))}")
    texts = [name for name in first.columns if {pl.String} < {rows.schema[name] for rows in log.values()}]
    whole = pl.concat(
        [rows.with_columns(pl.col(texts).cast(pl.String)) for rows in log.values()], how="vertical_relaxed"
    )
    whole.write_parquet(target)
    advance(len(whole))
    return {"sheets": [*log]}
