"""JSON lines parsed at once and line by line are the same rows and the same bad lines, whatever stands in them."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.progress import LINE, BadRows
from bert4rec.prepare.text import json_lines, text_blocks
from bert4rec.prepare.text.json_lines import json_rows
from bert4rec.prepare.text.text_blocks import Block

COLUMNS = {"user": "who", "title": "name"}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(-20, 20).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from(["[REC] (2007)", "{x}", "true", "truth", "falsely", "", " ", "7", "7.0", "é\n", "\0"]),
    st.text(max_size=3),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.text(max_size=2), SCALARS, max_size=2))
RECORDS = st.dictionaries(st.sampled_from(["who", "name", "other"]), VALUES)
LINES = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()),
    RECORDS.map(lambda record: json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.sampled_from([b"", b" \r", b"[1]", b"null", b"{}\r", b'{"who": 1', b'{"who": "\xe9"}', b'{"who": 1, "who": 2}']),
)  # fmt: skip


def rows_of(block: Block) -> tuple[list[tuple[Any, ...]], BadRows]:
    bad = BadRows()
    frames = [rows for rows, _ in json_rows(COLUMNS, bad, [block])]
    assert all(rows.schema == {LINE: pl.Int64, "user": pl.String, "title": pl.String} for rows in frames)
    return [row for rows in frames for row in rows.rows()], bad


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=12), st.integers(1, 10**9), st.booleans())
def test_at_once_and_line_by_line_are_the_same(lines: list[bytes], first: int, ends: bool) -> None:
    block = Block(Path("log.jsonl"), b"\n".join(lines) + b"\n" * ends, first, 0)
    if not block.text:
        return
    with patch.object(text_blocks, "SMALL", 1):
        found, bad = rows_of(block)
    with patch.object(json_lines, "_at_once", return_value=None):
        one_by_one, also_bad = rows_of(block)
    assert found == one_by_one
    assert bad.counts == also_bad.counts
    assert sorted(bad.shown) == sorted(also_bad.shown)
    assert len(found) + bad.total == len(block.text.removesuffix(b"\n").split(b"\n"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("7", "7"), ("7.0", "7"), ("-7.0", "-7"), ("7.5", "7.5"), ("1e3", "1000"), ("1e-7", "0.0000001"), ("-0", "0"),
        ("1600000000.25", "1600000000.25"), ("9007199254740993", "9007199254740993"), ("9" * 50, "9" * 50),
        ("1e22", "1" + 22 * "0"), ('"7.0"', "7.0"), ('"007"', "007"), ("null", None), ("NaN", None),
    ],
)  # fmt: skip
def test_a_number_is_text_as_in_a_csv_file(number: str, text: str | None) -> None:
    line = f'{{"who": {number}}}'.encode()
    for lines in ([line], [line, b"broken"]):
        assert rows_of(Block(Path("log.jsonl"), b"\n".join(lines), 1, 0))[0] == [(1, text, None)]
