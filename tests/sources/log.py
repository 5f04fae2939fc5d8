"""A small log, for tables of every format, and its content as it is read."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import polars as pl
import pyarrow as pa

from bert4rec.config.tables import Data, Preprocessing
from bert4rec.sources import interactions
from bert4rec.sources.first_look import first_look
from bert4rec.sources.interactions import Interactions

ROWS = pd.DataFrame(
    {
        "junk": ["x,y", 'a"b', None, "é"], "what": ["b", "3", "é x", "b"], "who": [1, 1, 2, 2],
        "when": [1_700_000_003, 1_700_000_001, 1_700_000_002, 1_700_000_009], "stars": [1.5, 2.0, 3.0, 0.5],
    }
)  # fmt: skip
COLUMNS = {"user_column": "who", "item_column": "what", "time_column": "when", "rating_column": "stars"}


def opened(source: str, *, only_read: bool = False, block_bytes: int = 1 << 20, **data: Any) -> Interactions:
    """The interactions of `source`, with default settings but for those of `data`; text: `block_bytes` at a time."""
    settings = Preprocessing(only_read=only_read)
    with patch.object(interactions, "BLOCK_BYTES", block_bytes):
        return interactions.open_interactions(Data(source=source, **data), settings)  # type: ignore[arg-type]


def content(found: Interactions) -> dict[str, list[Any]]:
    return pl.concat([rows for rows, _ in found], how="vertical_relaxed").to_dict(as_series=False)


def looked(table: pl.DataFrame, path: Path, **data: Any) -> tuple[Interactions, pl.DataFrame, list[str]]:
    """Write `table` to `path`; return its interactions, the rows as read, and the warnings of a first look."""
    {".csv": table.write_csv, ".jsonl": table.write_ndjson, ".parquet": table.write_parquet}[path.suffix](path)
    found = opened("table", path=str(path), **data)
    return found, pl.concat([rows for rows, _ in found], how="vertical_relaxed"), first_look(found)[1]


def stream(path: Path) -> None:
    table = pa.Table.from_pandas(ROWS)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def in_batches(path: Path) -> None:
    table = pa.Table.from_pandas(ROWS)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
