"""One table in every format: its columns, its rows, the first of them alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bert4rec.prepare.files import tables, text_blocks
from bert4rec.prepare.files.bad_rows import LINE, BadRows
from bert4rec.prepare.files.kinds import format_of
from bert4rec.prepare.files.tables import Table
from tests.prepare.files.log import ROWS, in_batches, stream

WRITERS: dict[str, Callable[[Path], object]] = {
    "log.csv": lambda path: ROWS.to_csv(path, index=False),
    "log.jsonl": lambda path: ROWS.to_json(path, orient="records", lines=True),
    "log.parquet": lambda path: ROWS.to_parquet(path),
    "log.arrow": in_batches,
    "log": stream,
}


@pytest.mark.parametrize("name", WRITERS)
def test_columns_and_rows_are_those_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    table, bad = Table(path, format_of(path)), BadRows()
    assert table.columns == dict.fromkeys(ROWS.columns, True)
    assert table.unit == ("line" if name in ("log.csv", "log.jsonl") else "row")
    monkeypatch.setattr(text_blocks, "FIRST_BYTES", len(path.read_bytes()) - 1)
    monkeypatch.setattr(tables, "FIRST_ROWS", 2)
    for only_first in (False, True):
        parts = [rows for rows, _ in table.rows({"item": "what"}, bad, block_bytes=1 << 20, only_first=only_first)]
        found = [item for part in parts for item in part["item"]]
        assert found == ROWS["what"].to_list()[: len(found)]
        assert parts[0].columns == [LINE, "item"]
        assert (len(found) < len(ROWS)) == only_first
    assert bad.total == 0
