"""Copy a Delta or Iceberg table into a Parquet file."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from bert4rec.config.addresses import ICEBERG, without_secrets
from bert4rec.runtime.errors import DataError


def fetch_lake(
    place: str, table: str, query: str, target: Path, advance: Callable[[int], None], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Copy the newest state of the table at `place` into the Parquet file `target`, and return its number.

    Raises `DataError`, and `ModuleNotFoundError` without the package for the format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Polars tells about faster packages
            rows, state = _rows(place)
            rows.sink_parquet(target)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # the packages have no class of their own for all of theirs
        if isinstance(error, OSError) and error.errno:
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
