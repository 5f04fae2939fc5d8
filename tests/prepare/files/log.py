"""A small log, for tables of every format, and its content as it is read."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from bert4rec.prepare.read.sources import Interactions

ROWS = pd.DataFrame(
    {
        "junk": ["x,y", 'a"b', None, "é"], "what": ["b", "3", "é x", "b"], "who": [1, 1, 2, 2],
        "when": [1_700_000_003, 1_700_000_001, 1_700_000_002, 1_700_000_009], "stars": [1.5, 2.0, 3.0, 0.5],
    }
)  # fmt: skip
COLUMNS = {"user_column": "who", "item_column": "what", "time_column": "when", "rating_column": "stars"}


def content(found: Interactions) -> dict[str, list[Any]]:
    return pl.concat([rows for rows, _ in found], how="vertical_relaxed").to_dict(as_series=False)


def stream(path: Path) -> None:
    table = pa.Table.from_pandas(ROWS)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def in_batches(path: Path) -> None:
    table = pa.Table.from_pandas(ROWS)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
