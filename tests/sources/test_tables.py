"""A table in every format has the same columns and rows, sequences have pairs or users; damaged files are refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import preprocessing
from bert4rec.config.recognition import format_of
from bert4rec.runtime.errors import DataError
from bert4rec.sources import tables, text_blocks
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.tables import SequenceLines, TableFile
from bert4rec.sources.text_blocks import Block
from tests.checks import one_line
from tests.sources.log import COLUMNS, ROWS, content, in_batches, opened, stream


def test_a_user_stands_on_several_lines_of_pairs_alone() -> None:
    mixed = ([b"1 7\n2 8\n", b"2 7\n3 7 8 9\n4 7 8\n"], 4)
    for texts, n_users in (([b"1 7\n1 8\n2 7\n"], 2), ([b"1 7 8\n", b"2 7 9 9\n3 1\n"], 3), mixed):
        words = SequenceLines()
        for number, text in enumerate(texts):
            words.parse(Block(Path("a.txt"), text, 1 + 10 * number, 0), BadRows())
        with one_line("a.txt, line 12: 4 fields") if n_users == 4 else nullcontext():
            words.check(n_users=n_users)


FOUND = {
    "user": [1, 1, 2, 2], "item": ["b", "3", "é x", "b"],
    "time": [1_700_000_003, 1_700_000_001, 1_700_000_002, 1_700_000_009], "rating": [1.5, 2.0, 3.0, 0.5],
}  # fmt: skip


def by_hand(path: Path) -> None:
    """Keys in any order, blanks, values of JSON's own types."""
    rows = [row if i % 2 else dict(reversed(row.items())) for i, row in enumerate(ROWS.to_dict("records"))]
    lines = [json.dumps(row, ensure_ascii=i == 1) for i, row in enumerate(rows)]
    path.write_text(" " + "\r\n".join(lines) + "\r\n", encoding="utf-8")


WRITERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("log.csv", lambda path: ROWS.to_csv(path, index=False), "text"),
    ("log.parquet", ROWS.to_parquet, "parquet"), ("log.feather", ROWS.to_feather, "arrow file"),
    ("log.arrow", in_batches, "arrow file"), ("log.ipc", stream, "arrow stream"),
    ("log.ipc", pl.from_pandas(ROWS).write_ipc, "arrow file"),
    ("log.jsonl", lambda path: ROWS.to_json(path, orient="records", lines=True), "json lines"),
    ("log.json", by_hand, "json lines"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "kind"), WRITERS, ids=[f"{name}, {kind}" for name, _, kind in WRITERS])
def test_the_same_table_in_every_format_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path], object], kind: str
) -> None:
    write(tmp_path / name)
    monkeypatch.setattr(tables, "ROWS_PER_FRAME", 2)  # parts of two rows, of a block of two lines
    (tmp_path / "nameless").write_bytes((tmp_path / name).read_bytes())
    for path in (tmp_path / name, tmp_path / "nameless"):
        assert format_of(path) == kind
        found = opened("table", path=str(path), block_bytes=2 * len(ROWS.to_csv()) // 4, **COLUMNS)
        assert content(found) == FOUND
        assert found.bad.total == 0
        done = [read for _, read in found]
        assert done == sorted(done)
        assert done[-1] <= found.n_bytes == path.stat().st_size
        assert kind == "arrow stream" or done[-1] == found.n_bytes
    table = TableFile(path, kind)  # type: ignore[arg-type]
    assert (sorted(table.columns), {*table.columns.values()}) == (sorted(ROWS.columns), {True})
    monkeypatch.setattr(text_blocks, "FIRST_BYTES", len(ROWS.to_csv(index=False)) - 1)
    monkeypatch.setattr(tables, "FIRST_ROWS", 2)
    parts = [rows for rows, _ in table.rows({"item": "what"}, BadRows(), block_bytes=1 << 20, only_first=True)]
    first = [item for part in parts for item in part["item"]]
    assert (first, parts[0].columns) == (ROWS["what"].to_list()[: len(first)], [LINE, "item"])
    assert 0 < len(first) < len(ROWS)


def test_a_folder_is_searched_for_every_format(tmp_path: Path) -> None:
    for name, write in {name: write for name, write, _ in WRITERS if name != "log.json"}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / name)
        assert content(opened("table", path=str(tmp_path / name), **COLUMNS)) == FOUND


NEITHER = "is neither text nor number"
NO_OBJECTS = ['{"who": "a", "what": 1', '["a", 1]', "who,what", "[" * 100_000, '{"who": "\\ud800", "what": 1}',
              '{"who": ' + "9" * 5000 + ', "what": 1}']  # fmt: skip
JSON_LINES = [
    ('{"who": "a"}', "item is missing", "what"),
    *[(f'{{"who": {value}, "what": 1}}', "user is missing", "who") for value in ("null", '""', "NaN")],
    ('{"who": {"id": 7}, "what": 1}', f"user {NEITHER}", 'who is {"id": 7}'),
    ('{"who": "a", "what": [1]}', f"item {NEITHER}", "what is [1]"),
    ('{"who": true, "what": 1}', f"user {NEITHER}", "who is true"),
    ('{"who": "a", "what": 1, "stars": "x"}', "rating is not a number", 'stars "x"'),
    *[(line, "not a JSON object", "") for line in NO_OBJECTS], ("", "empty line", ""),
    (json.dumps({"who": [*range(100)], "what": 2}), f"user {NEITHER}", "10, 11, …"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "message"), JSON_LINES)
def test_a_line_of_which_no_row_can_be_made_is_counted(tmp_path: Path, line: str, kind: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    good = '{"what": 1, "who": "a", "stars": 2}'
    path.write_text("\n".join([good, good, line, good]))
    found = opened("table", path=str(path), user_column="who", item_column="what", rating_column="stars")
    assert content(found) == {"user": ["a"] * 3, "item": [1] * 3, "rating": [2.0] * 3}
    assert found.bad.counts == {kind: 1}
    (shown,) = found.bad.shown
    assert shown.startswith(f"{path}, line 3: ")
    assert message in shown


ROOT = Path(preprocessing.__file__).parent


def test_an_arrow_file_is_read_a_record_batch_at_a_time_and_only_the_columns_that_are_named(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(10)), "b": pa.array([[i] for i in range(10)]), "c": pa.array(range(10, 20))})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    found = list(tables.typed_rows(tmp_path / "t.arrow", "arrow file", {"x": "c", "y": "a"}, size=3))
    assert [(rows["x"].to_list(), rows["y"].to_list(), rows.to_series(0).to_list()) for rows, _ in found] == [
        ([10, 11, 12], [0, 1, 2], [1, 2, 3]), ([13], [3], [4]), ([14, 15, 16], [4, 5, 6], [5, 6, 7]),
        ([17], [7], [8]), ([18, 19], [8, 9], [9, 10]),
    ]  # fmt: skip
    size = (tmp_path / "t.arrow").stat().st_size
    assert [done for _, done in found] == [int(size * share) for share in (1 / 3, 1 / 3, 2 / 3, 2 / 3, 1.0)]
    assert tables.typed_columns(tmp_path / "t.arrow", "arrow file") == {"a": True, "b": False, "c": True}


def test_of_two_columns_of_one_name_the_first_counts(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([value]) for value in (1, 2, 3)], ["user", "item", "item"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("t.parquet", "t.arrow"):
        assert content(opened("table", path=str(tmp_path / name))) == {"user": [1], "item": [2]}


CHANGED = """
import sys
from pathlib import Path
from bert4rec.config.tables import Data
from bert4rec.prepare.about_items import look_at_other_columns
from bert4rec.runtime.errors import DataError
from tests.sources.log import opened

path = Path(sys.argv[1])
whole = path.read_bytes()
said = set()
changed = [whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :] for place in range(6, len(whole), 23)]
for content in [*changed, *(whole[: int(cut * len(whole))] for cut in (0.05, 0.3, 0.6, 0.95))]:
    path.write_bytes(content)
    try:
        source = opened("table", path=str(path), user_column="who", item_column="what")
        said.add(sum(len(rows) for rows, _ in source))
        look_at_other_columns(Data(), source, {})
    except DataError as error:
        assert "\\n" not in str(error)
        said.add("refused")
assert {4, "refused"} <= said, said
"""


@pytest.mark.parametrize("write", [in_batches, pytest.param(stream, marks=pytest.mark.long)])
def test_no_byte_of_an_arrow_file_ends_the_program(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """What Polars is given unchecked may kill a process."""
    write(tmp_path / "t.arrow")
    command = [sys.executable, "-c", CHANGED, str(tmp_path / "t.arrow")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_byte_of_the_footer_of_a_parquet_file_brings_a_control_character_into_the_error(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": [1], "item": [2]}).write_parquet(path)
    whole, errors = path.read_bytes(), []
    for place in range(len(whole) - 300, len(whole) - 8):
        path.write_bytes(whole[:place] + b"\x0e" + whole[place + 1 :])
        try:
            assert set(TableFile(path, "parquet").columns)
        except DataError as error:
            errors.append(str(error))
    assert errors
    assert all(error.isprintable() for error in errors)
