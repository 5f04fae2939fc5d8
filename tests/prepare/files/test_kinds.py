"""Every format of a table gives the same rows; what is not read is one line that says what to convert it to."""

import gzip
import io
import json
import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from bert4rec.prepare.files import tables
from bert4rec.prepare.files.kinds import format_of
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import COLUMNS, ROWS, content, in_batches, opened, stream

FOUND = {
    "user": [1, 1, 2, 2], "item": ["b", "3", "é x", "b"],
    "time": [1_700_000_003, 1_700_000_001, 1_700_000_002, 1_700_000_009], "rating": [1.5, 2.0, 3.0, 0.5],
}  # fmt: skip


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress(ROWS.to_json(orient="records", lines=True).encode()))


def by_hand(path: Path) -> None:
    """Keys in any order, blanks, values of JSON's own types."""
    lines = [
        json.dumps(row if i % 2 else dict(reversed(row.items())), ensure_ascii=i == 1)
        for i, row in enumerate(ROWS.to_dict("records"))
    ]
    path.write_text(" " + "\r\n".join(lines) + "\r\n", encoding="utf-8")


WRITERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("log.csv", lambda path: ROWS.to_csv(path, index=False), "text"),
    ("log.parquet", ROWS.to_parquet, "parquet"),
    ("log.feather", ROWS.to_feather, "arrow file"),
    ("log.arrow", in_batches, "arrow file"),
    ("log.ipc", stream, "arrow stream"),
    ("log.ipc", pl.from_pandas(ROWS).write_ipc, "arrow file"),
    ("log.jsonl", lambda path: ROWS.to_json(path, orient="records", lines=True), "json lines"),
    ("log.json", by_hand, "json lines"),
    ("log.ndjson.gz", packed, "json lines"),
]


@pytest.mark.parametrize(("name", "write", "kind"), WRITERS, ids=[f"{name}, {kind}" for name, _, kind in WRITERS])
@pytest.mark.parametrize("suffix", [True, False])
def test_the_same_table_in_every_format_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path], object], kind: str, suffix: bool
) -> None:
    path = tmp_path / name
    write(path)
    path = path if suffix else path.rename(tmp_path / "log")
    assert format_of(path) == kind
    monkeypatch.setattr(tables, "ROWS_PER_FRAME", 2)  # parts of two rows, of a block of two lines
    found = opened("table", path=str(path), block_bytes=2 * len(ROWS.to_csv()) // 4, **COLUMNS)
    assert content(found) == FOUND
    assert found.bad.total == 0
    done = [read for _, read in found]
    assert done == sorted(done)
    assert done[-1] <= found.n_bytes == path.stat().st_size
    if kind != "arrow stream":
        assert done[-1] == found.n_bytes


def test_a_folder_is_searched_for_every_format(tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.ndjson.gz", "log.feather", "log.arrow", "log.ipc"):
        write = next(write for known, write, _ in WRITERS if known == name)
        (tmp_path / name).mkdir()
        write(tmp_path / name / name)
        assert content(opened("table", path=str(tmp_path / name), **COLUMNS)) == FOUND


JSON_LINES = [
    ('{"who": "a"}', "item is missing", "what is missing"),
    ('{"who": null, "what": 1}', "user is missing", "who is missing"),
    ('{"who": "", "what": 1}', "user is missing", "who is missing"),
    ('{"who": NaN, "what": 1}', "user is missing", "who is missing"),
    ('{"who": {"id": 7}, "what": 1}', "user is neither text nor number", 'who is {"id": 7}: must be text or a number'),
    ('{"who": "a", "what": [1]}', "item is neither text nor number", "what is [1]: must be text or a number"),
    ('{"who": true, "what": 1}', "user is neither text nor number", "who is true: must be text or a number"),
    ('{"who": "a", "what": 1, "stars": "x"}', "rating is not a number", 'stars "x": must be a number'),
    ('{"who": "a", "what": 1', "not a JSON object", "is not a JSON object"),
    ('["a", 1]', "not a JSON object", "is not a JSON object"),
    ("who,what", "not a JSON object", "is not a JSON object"),
    ("[" * 100_000, "not a JSON object", "is not a JSON object"),
    ('{"who": "\\ud800", "what": 1}', "not a JSON object", "is not a JSON object"),
    ('{"who": ' + "9" * 5000 + ', "what": 1}', "not a JSON object", "is not a JSON object"),
    ("", "empty line", "is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "message"), JSON_LINES)
def test_a_line_of_which_no_row_can_be_made_is_counted(tmp_path: Path, line: str, kind: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    good = '{"what": 1, "who": "a", "stars": 2}'
    path.write_text("\n".join([good, good, line, good]))
    found = opened("table", path=str(path), user_column="who", item_column="what", rating_column="stars")
    assert content(found) == {"user": ["a"] * 3, "item": [1] * 3, "rating": [2.0] * 3}
    assert (found.bad.counts, found.bad.shown) == ({kind: 1}, [f"{path}, line 3: {message}"])


def test_json_lines_that_are_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"user": 1, "item": "x"}\n{"user": 1, "item": "\xe9"}\n')
    found = opened("table", path=str(path))
    assert content(found) == {"user": [1], "item": ["x"]}
    assert found.bad.counts == {"not UTF-8": 1}


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"user": 1, "item": 2}) + "\n" + json.dumps({"user": list(range(100)), "item": 2}))
    found = opened("table", path=str(path))
    list(found)
    assert found.bad.shown == [
        f"{path}, line 2: user is [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …: must be text or a number"
    ]


def database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table log (user, item)")


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log.csv", "user,item\n1,2\n")


def workbook() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("xl/workbook.xml", "")
    return file.getvalue()


def array(path: Path) -> None:
    ROWS.to_json(path, orient="records")


ONE_PIECE = "JSON in one piece, which is not read: write one object a line (JSON lines), with pandas: frame.to_"
UNREAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("log.zip", archive, "a ZIP archive, which is not read: unpack it"),
    ("log", archive, "a ZIP archive, which is not read: unpack it"),
    ("log.xlsx", archive, "an Excel workbook, which is not read: save the sheet as CSV"),
    ("log.csv", lambda path: path.write_bytes(workbook()), "an Excel workbook, which is not read: save"),
    ("log.csv", lambda path: path.write_text("<!DOCTYPE html><html>"), "a web page (HTML), which is not read: "),
    ("log.csv", array, ONE_PIECE),
    ("log.xls", lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0 "), "an Excel workbook, which is not read: save"),
    ("log.db", database, "a SQLite database, which is not read: export the table as CSV"),
    ("log.bin", database, "a SQLite database, which is not read: export the table as CSV"),
    ("log.pickle", lambda path: path.write_bytes(pickle.dumps(ROWS)), "a pickle, which is not read: write the table"),
    ("log.dat", lambda path: path.write_bytes(pickle.dumps(ROWS)), "a pickle, which is not read: write the table"),
    ("log.h5", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, which is not read: write the table"),
    ("log.feather", lambda path: path.write_bytes(b"FEA1 "), "a Feather file of version 1, which is not read: write"),
    ("log.csv.bz2", lambda path: path.write_bytes(b"BZh9"), "packed with bzip2, which is not read: unpack it, or pack"),
    ("log.csv.xz", lambda path: path.write_bytes(b"x"), "packed with xz, which is not read: unpack it, or pack it"),
    ("log.json", array, ONE_PIECE),
    ("log.jsonl", array, ONE_PIECE),
    ("log.txt", array, ONE_PIECE),
    ("log.json", lambda path: path.write_text('{\n"user": [1],\n"item": [2]\n}\n'), ONE_PIECE),
    ("log.json.gz", lambda path: path.write_bytes(gzip.compress(b'[\n {"user": 1}\n]')), ONE_PIECE),
    ("log.parquet.gz", lambda path: path.write_bytes(gzip.compress(b"PAR1 ")), "packed twice: this format packs"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "message"), UNREAD)
def test_a_format_that_is_not_read_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(DataError) as caught:
        list(opened("table", path=str(tmp_path / name), **COLUMNS))
    assert str(caught.value).startswith(f"{tmp_path / name}: is {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content_of_file", "message"),
    [
        ("t.feather", b"user,item\n1,2\n", "not an Arrow IPC (Feather) file, or damaged; bring the whole file"),
        ("t.arrow", b"", "not an Arrow IPC (Feather) file, or damaged; bring the whole file"),
        ("t.arrow", b"ARROW1\0\0" + b"x" * 99, "not an Arrow IPC (Feather) file, or damaged: "),
        ("t.arrow", b"\xff\xff\xff\xff" + b"x" * 99, "not an Arrow IPC stream, or damaged: "),
        ("t.jsonl", b"", "is empty; name another file in data.path"),
        ("t.json", b"\n", "is empty; name another file in data.path"),
        (
            "t.jsonl",
            b'{"user": 1, "itm": 2}\n{"x": {}}',
            'no column "item" (item); it has: user, itm, x; try --data.item_column=itm',
        ),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, content_of_file: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content_of_file)
    with pytest.raises(DataError) as caught:
        list(opened("table", path=str(tmp_path / name)))
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")
